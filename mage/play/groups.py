"""Groups of meta-episodes, played concurrently on one rank. In names _P is a group, _G a member.

All members of all groups are played at once. A memory that is kept from task to task needs an
order: groups 0..k-1 are played first, then k..2k-1, and so on, each wave with the memory that the
waves before it have left.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

from mage.engines.base import run
from mage.memory.base import Entry
from mage.play.episode import PlaySetup
from mage.play.meta_episode import make_entry, play_meta_episode
from mage.seeds import derive
from mage.types import Member, MetaEpisode, Task

# The members that this rank plays, of those that all ranks play. It may be a generator: then the
# next member is chosen when the engine has room for it.
Choose = Callable[[Sequence[Member]], Iterable[Member]]
Gather = Callable[[Any], list[Any]]  # collects one item from every rank
Kept = TypeVar("Kept")


def play_groups(
    setup: PlaySetup,
    tasks_PG: Sequence[Sequence[Task]],
    seed: int,
    on_done: Callable[[MetaEpisode], None] | None = None,
    *,
    numbers: Sequence[int] | None = None,
    choose: Choose = lambda members: members,
    gather: Gather = lambda item: [item],
) -> list[MetaEpisode]:
    """Play all members of all groups; `tasks_PG[p][g]` is the task of member g of group p.

    All members of a group have the same task, unless groups are mixed. A rank that plays a part of
    the groups gives their `numbers`, because seeds depend on them. `choose` and `gather` come from
    the ranks: which members this one plays, and one item of every rank.
    """
    groups = dict(zip(numbers or range(len(tasks_PG)), tasks_PG, strict=True))
    metas: list[MetaEpisode] = []
    for wave in _waves(list(groups), setup.memory.tasks_at_once, gather):
        tasks = {group: groups[group] for group in wave}
        played = play_wave(setup, tasks, seed, lambda meta: meta, on_done, choose)
        metas += played
        if setup.memory.tasks_at_once is not None:
            entries = in_order(gather([keep_entries(setup, meta) for meta in played]))
            setup = replace(setup, memory=setup.memory.after(entries))
    return metas


def play_wave(
    setup: PlaySetup,
    groups: Mapping[int, Sequence[Task]],
    seed: int,
    keep: Callable[[MetaEpisode], Kept],
    on_done: Callable[[Kept], None] | None = None,
    choose: Choose = lambda members: members,
) -> list[Kept]:
    """Play the members of some groups concurrently. `keep` reduces each finished meta-episode."""

    async def play(group: int, member: int) -> Kept:
        task, own_seed = groups[group][member], derive(seed, group, member)
        return keep(await play_meta_episode(setup, task, group, member, own_seed))

    members = [(group, member) for group, tasks in groups.items() for member in range(len(tasks))]
    games = (play(group, member) for group, member in choose(members))
    return run(games, on_done, setup.agent.engine.capacity)


def _waves(groups: list[int], size: int | None, gather: Gather) -> list[list[int]]:
    """The groups of each wave; `size = None`: all groups are one wave.

    Every rank has the same number of waves.
    """
    if size is None:
        return [groups]
    last = max(gather(max(groups, default=-1)))
    return [
        [group for group in groups if start <= group < start + size]
        for start in range(0, last + 1, size)
    ]


# --- What a memory that is kept from task to task gets --------------------------------------------

Entries = tuple[int, int, list[Entry]]  # group, member, and the episodes of the member


def keep_entries(setup: PlaySetup, meta: MetaEpisode) -> Entries:
    """All episodes of a meta-episode. The next episode holds the reflection on an episode."""
    setup = replace(
        setup, environment=setup.environment.world_of(meta.task).for_split(meta.task.split)
    )
    reflections = [*(episode.reflection for episode in meta.episodes[1:]), None]
    pairs = zip(meta.episodes, reflections, strict=True)
    entries = [
        make_entry(setup, meta.task.seat, number, episode, reflection)
        for number, (episode, reflection) in enumerate(pairs)
    ]
    return meta.group, meta.member, entries


def in_order(shares: Iterable[Iterable[Entries]]) -> list[Entry]:
    """The entries of all ranks, ordered by group and member."""
    ordered = sorted(chain(*shares), key=lambda one: one[:2])
    return [entry for _, _, entries in ordered for entry in entries]
