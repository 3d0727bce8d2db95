"""A meta-episode: N episodes of one task with memory and reflections between them."""

from collections.abc import Callable
from dataclasses import replace

from mage.agent.agent import system_text
from mage.memory.base import Ask, Entry
from mage.play.episode import Place, Setting, opening_text, play_episode, reflect
from mage.seeds import derive
from mage.types import Episode, MetaEpisode, Task, Turn


async def play_meta_episode(
    setting: Setting,
    task: Task,
    group: int,
    member: int,
    seed: int,
    on_episode: Callable[[int, str, Episode], None] | None = None,
) -> MetaEpisode:
    """Play N episodes of one task, with a reflection after each episode except the last.

    `on_episode` is called after every episode: number from 0, memory shown, episode.
    """
    setting = replace(setting, environment=setting.environment.for_split(task.split))
    notebook = setting.memory.open()
    asked: list[int] = []
    ask = _asker(setting, seed, asked)
    episodes: list[Episode] = []
    memories: list[str] = []
    reflection: Turn | None = None
    for number in range(setting.episodes):
        place = Place(task, number, seed)
        asked.append(0)
        episode, memory = await play_episode(
            setting, place, lambda opening: notebook.show(opening, ask), reflection
        )
        episodes.append(episode)
        memories.append(memory)
        if on_episode is not None:
            on_episode(number, memory, episode)
        if number + 1 == setting.episodes or (setting.stop_on_success and episode.outcome == "won"):
            break
        reflection = await reflect(setting, place, episode) if setting.memory.reflects else None
        await notebook.add(make_entry(setting, task.seat, number, episode, reflection), ask)
    return MetaEpisode(
        task,
        group,
        member,
        tuple(episodes),
        tuple(memories),
        setting.agent.engine.policy_version,
        tuple(asked),
    )


def make_entry(
    setting: Setting, seat: int, number: int, episode: Episode, reflection: Turn | None
) -> Entry:
    """An episode as the memory keeps it."""
    first = episode.turns[0].observation if episode.turns else ""
    opening = opening_text(setting.environment, seat, first)
    note = "" if reflection is None else setting.agent.read_note(reflection.completion)
    return Entry(number + 1, opening, episode.recap, episode.outcome, note)


def _asker(setting: Setting, seed: int, asked: list[int]) -> Ask:
    """A function with which a memory asks the model one message. It adds the tokens to `asked`."""

    async def ask(text: str) -> str:
        prompt = setting.agent.chat.first(system_text(setting.environment), text)
        answer = await setting.agent.write(prompt, derive(seed, "ask", text))
        asked[-1] += len(answer.token_ids)
        return setting.agent.read_text(answer)

    return ask
