"""A meta-episode: N episodes of one task with memory and reflections between them."""

from collections.abc import Callable
from dataclasses import replace

from mage.agent.agent import system_text
from mage.memory.base import Ask, Entry
from mage.play.episode import EpisodeRef, PlaySetup, opening_text, play_episode, reflect
from mage.seeds import derive
from mage.types import Episode, MetaEpisode, Task, Turn


async def play_meta_episode(
    setup: PlaySetup,
    task: Task,
    group: int,
    member: int,
    seed: int,
    on_episode: Callable[[int, str, Episode], None] | None = None,
) -> MetaEpisode:
    """Play N episodes of one task, with a reflection after each episode except the last.

    `on_episode` is called after every episode: number from 0, memory shown, episode.
    """
    setup = replace(setup, environment=setup.environment.for_split(task.split))
    notebook = setup.memory.open()
    asked: list[int] = []
    ask = _asker(setup, seed, asked)
    episodes: list[Episode] = []
    memories: list[str] = []
    reflection: Turn | None = None
    for number in range(setup.episodes):
        ref = EpisodeRef(task, number, seed)
        asked.append(0)
        episode, memory = await play_episode(
            setup, ref, lambda opening: notebook.show(opening, ask), reflection
        )
        episodes.append(episode)
        memories.append(memory)
        if on_episode is not None:
            on_episode(number, memory, episode)
        if number + 1 == setup.episodes or (setup.stop_on_success and episode.outcome == "won"):
            break
        reflection = await reflect(setup, ref, episode) if setup.memory.reflects else None
        await notebook.add(make_entry(setup, task.seat, number, episode, reflection), ask)
    return MetaEpisode(
        task,
        group,
        member,
        tuple(episodes),
        tuple(memories),
        setup.agent.engine.policy_version,
        tuple(asked),
    )


def make_entry(
    setup: PlaySetup, seat: int, number: int, episode: Episode, reflection: Turn | None
) -> Entry:
    """An episode as the memory keeps it."""
    first = episode.turns[0].observation if episode.turns else ""
    opening = opening_text(setup.environment, seat, first)
    note = "" if reflection is None else setup.agent.read_note(reflection.completion)
    return Entry(number + 1, opening, episode.recap, episode.outcome, note)


def _asker(setup: PlaySetup, seed: int, asked: list[int]) -> Ask:
    """A function with which a memory asks the model one message. It adds the tokens to `asked`."""

    async def ask(text: str) -> str:
        prompt = setup.agent.chat.first(system_text(setup.environment), text)
        answer = await setup.agent.write(prompt, derive(seed, "ask", text))
        asked[-1] += len(answer.token_ids)
        return setup.agent.read_text(answer)

    return ask
