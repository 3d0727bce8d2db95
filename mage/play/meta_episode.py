"""A meta-episode: N episodes of one task with memory and reflections between them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from mage.agent.styles import style_of
from mage.environments.base import State
from mage.memory.base import Entry
from mage.play.episode import EpisodeRef, PlaySetup, Recall, opening_text, play_episode, reflect
from mage.seeds import derive
from mage.types import Episode, MetaEpisode, Task, Turn


async def play_meta_episode(
    setup: PlaySetup,
    task: Task,
    group: int,
    member: int,
    seed: int,
    on_episode: Callable[[int, str, Episode], None] | None = None,
    on_start: Callable[[State], None] | None = None,
) -> MetaEpisode:
    """Play N episodes of one task, with a reflection after each episode except the last.

    `on_episode` is called after every episode: number from 0, memory shown, episode. `on_start` is
    called with the first state of every episode. A group in `setup.shown` sees those texts and
    writes no reflections.
    """
    texts = setup.shown.get(group)
    world = setup.environment.world_of(task)
    setup = replace(setup, environment=world.for_split(task.split))
    notebook, questions = setup.memory.open(), _Questions(setup, task.seat, seed)
    episodes: list[Episode] = []
    memories: list[str] = []
    reflection: Turn | None = None
    for number in range(setup.episodes):
        ref = EpisodeRef(task, number, seed)
        questions.tokens.append(0)
        recall = (
            partial(notebook.show, ask=questions.ask) if texts is None else _show(texts[number])
        )
        episode, memory = await play_episode(setup, ref, recall, reflection, on_start)
        episodes.append(episode)
        memories.append(memory)
        setup.after_episode()
        if on_episode is not None:
            on_episode(number, memory, episode)
        if number + 1 == setup.episodes or (setup.stop_on_success and episode.outcome == "won"):
            break
        if texts is not None:
            continue
        reflection = await reflect(setup, ref, episode) if setup.memory.reflects else None
        entry = make_entry(setup, task.seat, number, episode, reflection)
        await notebook.add(entry, questions.ask)
    return MetaEpisode(
        task,
        group,
        member,
        tuple(episodes),
        tuple(memories),
        setup.agent.engine.policy_version,
        tuple(questions.tokens),
    )


def make_entry(
    setup: PlaySetup, seat: int, number: int, episode: Episode, reflection: Turn | None
) -> Entry:
    """An episode as the memory keeps it."""
    first = episode.turns[0].observation if episode.turns else ""
    agent, writer = setup.agent, setup.writer or setup.agent
    note = reflection and style_of(writer).read_note(writer, reflection.completion)
    opening, told = opening_text(setup, seat, first), episode.review or episode.recap
    return Entry(number + 1, opening, told, episode.outcome, note or "", agent.prompts)


def _show(text: str) -> Recall:
    """A memory that shows this text, whatever the opening is."""

    async def recall(opening: str) -> str:
        return text

    return recall


class _Questions:
    """Questions that a memory asks the model.

    `tokens` counts the tokens of the answers, with one entry per episode.
    """

    def __init__(self, setup: PlaySetup, seat: int, seed: int) -> None:
        self.setup, self.seat, self.seed = setup, seat, seed
        self.tokens: list[int] = []

    async def ask(self, text: str) -> str:
        agent = self.setup.agent
        prompt = style_of(agent).ask(agent, self.setup.environment, self.seat, text)
        answer = await agent.write(prompt, derive(self.seed, "ask", text))
        self.tokens[-1] += len(answer.token_ids)
        return agent.read_text(answer)
