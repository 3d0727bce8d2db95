"""Play: episodes, reflections and meta-episodes as coroutines without a barrier between turns.

Each meta-episode awaits the engine for every reply. The engine batches all waiting requests, and a
finished episode costs nothing. Errors of a model are data: illegal and unreadable replies are
recorded and penalised, never raised.
"""

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain, pairwise
from types import ModuleType
from typing import Any, TypeVar

from mage.agent.agent import (
    Agent,
    episode_text,
    illegal_text,
    reflect_text,
    system_text,
)
from mage.agent.chat import Ids
from mage.agent.history import History, PastTurn, Prompt
from mage.engines.base import run
from mage.environments.base import Environment, State
from mage.memory.base import Ask, Entry, Memory
from mage.opponents.base import meet, move_rng
from mage.seeds import derive
from mage.types import Completion, Ending, Episode, MetaEpisode, Move, Task, Turn

Gather = Callable[[Any], list[Any]]  # collects one item from every worker
Mine = Callable[[int, int], bool]  # whether this rank plays a member of a group
Kept = TypeVar("Kept")
Entries = tuple[int, int, list[Entry]]  # group, member, and the episodes of the member
Recall = Callable[[str], Awaitable[str]]  # opening of an episode -> memory shown in the episode
# Recaps of episodes that did not finish.
FORFEITED, RAN_OUT = "You gave no legal move and forfeited.", "The turns ran out."


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that a meta-episode needs besides its task."""

    environment: Environment
    agent: Agent
    memory: Memory
    episodes: int = 3
    numbered: bool = True
    stop_on_success: bool = False
    illegal_penalty: float = 0.5
    length_penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class Place:
    """One episode of one member. All seeds of the episode are derived from it."""

    task: Task
    number: int
    seed: int


async def play_episode(
    setting: Setting, place: Place, recall: Recall, reflection: Turn | None
) -> tuple[Episode, str]:
    """Play one episode against the task's opponent; returns it and the memory that was shown."""
    environment, seat = setting.environment, place.task.seat
    state = environment.start(environment.episode_seed(place.task.seed, place.number))
    turns: list[Turn] = []
    moves: list[Move] = []
    scores: list[float] = []  # before every turn, if the environment scores every turn
    history = setting.agent.history()
    memory = ""
    ending: Ending = "finished"
    while True:
        await _let_opponent_move(environment, place, state, moves)
        if state.turn() is None:
            break
        if len(turns) == environment.max_turns:
            ending = "turn_limit" if all(turn.legal for turn in turns) else "illegal"
            break
        if not turns:
            memory = await recall(_opening(environment, seat, state.observe(seat)))
        turn = await _take_turn(setting, place, memory, state, turns, history)
        turns.append(turn)
        if environment.scores_every_turn:
            scores.append(state.scores()[seat])
        if turn.legal:
            assert turn.action is not None, "a legal turn has an action"
            moves.append(Move(seat, turn.action))
            state.apply(turn.action)
        else:
            state.refuse(turn.action)
    episode = _finish(environment, seat, state, turns, moves, ending, reflection)
    return replace(episode, gains=_gains(environment, scores, episode.reward)), memory


def _gains(environment: Environment, scores: list[float], reward: float) -> tuple[float, ...]:
    """The reward that was scored after each turn; the gains sum to the reward of the episode."""
    rewards = [*(environment.reward(score) for score in scores), reward]
    return tuple(after - before for before, after in pairwise(rewards))


def _opening(environment: Environment, seat: int, observation: str) -> str:
    """The opening of an episode. Memories compare openings."""
    return f"{environment.instance(seat)} {observation}"


async def _let_opponent_move(
    environment: Environment, place: Place, state: State, moves: list[Move]
) -> None:
    while (mover := state.turn()) is not None and mover != place.task.seat:
        action = await meet(place.task).think(
            state, mover, move_rng(place.task, environment, place.number, len(moves))
        )
        moves.append(Move(mover, action))
        state.apply(action)


def opening_prompt(setting: Setting, seat: int, number: int, memory: str, observation: str) -> Ids:
    """The prompt of the first move of episode `number` (from 0)."""
    shown, count = (number + 1, setting.episodes) if setting.numbered else (1, 1)
    return setting.agent.begin(
        setting.environment,
        episode_text(setting.environment, seat, memory, shown, count, observation),
    )


async def _take_turn(
    setting: Setting,
    place: Place,
    memory: str,
    state: State,
    turns: Sequence[Turn],
    history: History,
) -> Turn:
    """Get one reply of the agent, judge it, and add it to the history."""
    agent, seat = setting.agent, place.task.seat
    observation = state.observe(seat)
    message = observation if not turns or turns[-1].legal else illegal_text(observation)
    if turns:
        prompt = history.next(message)
    else:
        prompt = history.begin(opening_prompt(setting, seat, place.number, memory, observation))
    seed = derive(place.seed, place.number, len(turns))
    prompt, completion = await _reply(agent, history, prompt, message, seed)
    turn, written = _judge(setting, state, seat, prompt, completion)
    history.add(PastTurn(message, agent.past_reply(completion, written), written))
    return turn


async def _reply(
    agent: Agent, history: History, prompt: Prompt, message: str, seed: int
) -> tuple[Prompt, Completion]:
    """A reply. A prompt that the engine refuses as too long is folded further and sent again."""
    completion = await agent.reply(prompt.ids, seed)
    while completion.finish == "overflow":
        shorter = history.fold_more(prompt, message)
        if shorter is None:
            break
        prompt = shorter
        completion = await agent.reply(prompt.ids, seed)
    return prompt, completion


def _judge(
    setting: Setting, state: State, seat: int, prompt: Prompt, completion: Completion
) -> tuple[Turn, str | None]:
    """The record of a reply, and the action as it was written.

    A prompt that does not fit is not the model's fault: it costs nothing.
    """
    agent = setting.agent
    written, legal = agent.read(completion), state.legal()
    action = None if written is None else state.read(written)
    overflow = completion.finish == "overflow"
    penalty = 0.0 if action is not None or overflow else setting.illegal_penalty
    turn = Turn(
        kind="play",
        anchor=state.anchor(seat),
        observation=state.observe(seat),
        prompt_ids=prompt.ids,
        completion=completion,
        action=written if action is None else action,
        choices=agent.choices(completion, legal),
        legal=action is not None,
        penalty=_length_penalty(setting, completion, agent.sampling.max_tokens) - penalty,
        cut_off=action is None and agent.is_cut_off(completion),
        folded=prompt.folded,
        overflow=overflow or not prompt.fits,
    )
    return turn, written


def _length_penalty(setting: Setting, completion: Completion, limit: int) -> float:
    """Appendix A, eq. 13: 0 up to half the limit, then linear, at most the coefficient."""
    over = max(0.0, len(completion.token_ids) - limit / 2) / (limit / 2)
    return -setting.length_penalty * min(1.0, over)


def _finish(
    environment: Environment,
    seat: int,
    state: State,
    turns: list[Turn],
    moves: list[Move],
    ending: Ending,
    reflection: Turn | None,
) -> Episode:
    over = ending == "finished"
    score = (
        state.scores()[seat] if over else environment.forfeit_score if ending == "illegal" else 0.0
    )
    known = over or not environment.multi_agent
    recap = " ".join(
        ([] if over else [FORFEITED if ending == "illegal" else RAN_OUT])
        + ([state.recap(seat)] if known else [])
    )
    return Episode(
        turns=tuple(turns),
        reflection=reflection,
        moves=tuple(moves),
        score=score,
        reward=environment.reward(score),
        outcome=environment.outcome(score),
        ending=ending,
        recap=recap,
        regret=_mean_known(state.regrets),
    )


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


async def reflect(setting: Setting, place: Place, episode: Episode) -> Turn:
    """The agent's note on the finished episode: m_n ~ pi(. | x, episode n), true outcome shown."""
    environment, agent, seat = setting.environment, setting.agent, place.task.seat
    user = reflect_text(environment, seat, place.number + 1, setting.episodes, episode.recap)
    prompt = agent.chat.first(system_text(environment), user)
    completion = await agent.write(prompt, derive(place.seed, place.number, "reflect"))
    return Turn(
        kind="reflect",
        anchor="reflection",
        observation=episode.recap,
        prompt_ids=prompt,
        completion=completion,
        action=None,
        choices=(),
        legal=True,
        penalty=_length_penalty(setting, completion, agent.sampling.reflection_tokens),
        cut_off=agent.is_cut_off(completion),
        overflow=completion.finish == "overflow",
    )


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
        await notebook.add(_entry(setting, task.seat, number, episode, reflection), ask)
    return MetaEpisode(
        task,
        group,
        member,
        tuple(episodes),
        tuple(memories),
        setting.agent.engine.policy_version,
        tuple(asked),
    )


def _entry(
    setting: Setting, seat: int, number: int, episode: Episode, reflection: Turn | None
) -> Entry:
    first = episode.turns[0].observation if episode.turns else ""
    opening = _opening(setting.environment, seat, first)
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


def play_groups(
    setting: Setting,
    tasks_PG: Sequence[Sequence[Task]],
    seed: int,
    on_done: Callable[[MetaEpisode], None] | None = None,
    *,
    numbers: Sequence[int] | None = None,
    mine: Mine = lambda group, member: True,
    gather: Gather = lambda item: [item],
) -> list[MetaEpisode]:
    """Play all members of all groups concurrently; `tasks_PG[p][g]` is the task of member g.

    All members of a group have the same task, unless groups are mixed. A rank that plays a part of
    the groups gives their `numbers`, because seeds depend on them; `mine` selects members. With a
    memory that persists between tasks, groups 0..k-1 are played first, then k..2k-1, and so on;
    `gather` collects the episodes of the other ranks.
    """
    groups = dict(zip(numbers or range(len(tasks_PG)), tasks_PG, strict=True))
    metas: list[MetaEpisode] = []
    for wave in _waves(list(groups), setting.memory.tasks_at_once, gather):
        chosen = {group: groups[group] for group in wave}
        played = play_wave(setting, chosen, seed, lambda meta: meta, on_done, mine)
        metas += played
        if setting.memory.tasks_at_once is not None:
            entries = in_order(gather([keep_entries(setting, meta) for meta in played]))
            setting = replace(setting, memory=setting.memory.after(entries))
    return metas


def play_wave(
    setting: Setting,
    groups: Mapping[int, Sequence[Task]],
    seed: int,
    keep: Callable[[MetaEpisode], Kept],
    on_done: Callable[[Kept], None] | None = None,
    mine: Mine = lambda group, member: True,
) -> list[Kept]:
    """Play the members of some groups concurrently. `keep` reduces each finished meta-episode."""

    async def play(group: int, member: int, task: Task) -> Kept:
        return keep(
            await play_meta_episode(setting, task, group, member, derive(seed, group, member))
        )

    games = (
        play(group, member, task)
        for group, tasks in groups.items()
        for member, task in enumerate(tasks)
        if mine(group, member)
    )
    return run(games, on_done, setting.agent.engine.capacity)


def _waves(groups: list[int], size: int | None, gather: Gather) -> list[list[int]]:
    """Groups that are played concurrently: all, or 0 to size - 1, then the next `size`, and so on.

    Every worker has the same number of waves.
    """
    if size is None:
        return [groups]
    last = max(gather(max(groups, default=-1)))
    return [
        [group for group in groups if start <= group < start + size]
        for start in range(0, last + 1, size)
    ]


def keep_entries(setting: Setting, meta: MetaEpisode) -> Entries:
    """The entries of a meta-episode for a memory that persists between tasks, with their place."""
    return meta.group, meta.member, _entries(setting, meta)


def in_order(shares: Iterable[Iterable[Entries]]) -> list[Entry]:
    """The entries of all workers, ordered by group and member."""
    return [
        entry
        for _, _, entries in sorted(chain(*shares), key=lambda found: found[:2])
        for entry in entries
    ]


def _entries(setting: Setting, meta: MetaEpisode) -> list[Entry]:
    """All episodes of a meta-episode. The next episode holds the reflection on an episode."""
    setting = replace(setting, environment=setting.environment.for_split(meta.task.split))
    reflections = [*(episode.reflection for episode in meta.episodes[1:]), None]
    pairs = zip(meta.episodes, reflections, strict=True)
    return [
        _entry(setting, meta.task.seat, number, episode, reflection)
        for number, (episode, reflection) in enumerate(pairs)
    ]


class _PlayModule(ModuleType):
    """This module. Its name is also that of `mage.play(...)`, so the module can be called."""

    def __call__(self, *arguments: Any, **options: Any) -> MetaEpisode:
        played: MetaEpisode = import_module("mage.api.runs").play(*arguments, **options)
        return played


sys.modules[__name__].__class__ = _PlayModule
