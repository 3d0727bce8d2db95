"""Which rank plays which meta-episode, and the credit of meta-episodes on several ranks.

Meta-episodes, not groups, are dealt to the ranks. Each rank gets a run of consecutive members with
about the same expected number of tokens, so most groups stay whole and share their prompts. For
the credit only places, returns and anchors travel; token ids stay where they were played.

Where an engine has fewer slots than members, some members wait. A rank that has room and no member
of its own left plays a waiting member of another rank and sends the result to it before learning.
So results do not depend on which rank has played a member.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any

from mage.config.sections import ReturnOptions
from mage.credit.advantages.base import Estimator, estimate_all
from mage.credit.samples import compute_all_returns
from mage.ranks.ranks import Ranks
from mage.types import Completion, Credit, Member, MetaEpisode, Return, Task, Turn, TurnRef

Lengths = Mapping[str, float]  # expected tokens of a meta-episode, by kind of task
_NOTHING = Completion((), (), "", "stop", 0)


@dataclass(frozen=True, slots=True)
class SharedCredit:
    """The credit of an update, as one rank has it.

    `own` is the credit of the turns that this rank learns from. `everyone` is that of all turns
    that this rank knows, without texts and tokens if they come from other ranks. `counted` is what
    this rank adds to the metrics, so that every turn counts once.
    """

    own: list[Credit]
    everyone: list[Credit]
    counted: list[Credit]


def deal_members(
    tasks_PG: Sequence[Sequence[Task]], size: int, lengths: Lengths
) -> dict[Member, int]:
    """The rank of every (group, member).

    A member belongs to the rank in whose equal share of all expected tokens its middle lies.
    """
    members = [
        ((group, member), task)
        for group, tasks in enumerate(tasks_PG)
        for member, task in enumerate(tasks)
    ]
    usual = sum(lengths.values()) / len(lengths) if lengths else 1.0
    tokens = [lengths.get(task_kind(task), usual) or 1.0 for _, task in members]
    total = sum(tokens)
    middles = (end - own / 2 for end, own in zip(accumulate(tokens), tokens, strict=True))
    return {
        place: min(size - 1, int(size * middle / total))
        for (place, _), middle in zip(members, middles, strict=True)
    }


class SharedQueue:
    """The members of all ranks, in the order of their ranks; every member is played once.

    A rank takes its own members first. The number of members that were taken of each rank is
    counted in the store of the ranks.
    """

    def __init__(self, ranks: Ranks, rank_of: Mapping[Member, int], name: str) -> None:
        self.ranks, self.rank_of, self.name = ranks, rank_of, name

    def own(self, places: Sequence[Member]) -> list[Member]:
        """The members that were dealt to this rank."""
        return [place for place in places if self.rank_of[place] == self.ranks.rank]

    def is_useful(self, capacity: int | None) -> bool:
        """Whether members wait on any rank. All ranks must call this."""
        waits = capacity is not None and capacity < len(self.own(list(self.rank_of)))
        return any(self.ranks.gather(waits))

    def choose(self, places: Sequence[Member]) -> Iterator[Member]:
        """The members that this rank plays; each is taken when the engine has room for it."""
        size = self.ranks.size
        for owner in ((self.ranks.rank + shift) % size for shift in range(size)):
            own = [place for place in places if self.rank_of[place] == owner]
            key = f"{self.name}/{places[:1]}/{owner}"
            while own and (taken := self.ranks.count(key)) < len(own):
                yield own[taken]

    def give_back(self, metas: Sequence[MetaEpisode]) -> list[MetaEpisode]:
        """All members of this rank in order, also those that other ranks have played."""
        rank = self.ranks.rank

        def owner(meta: MetaEpisode) -> int:
            return self.rank_of[meta.group, meta.member]

        moved = chain(*self.ranks.gather([meta for meta in metas if owner(meta) != rank]))
        own = [meta for meta in chain(metas, moved) if owner(meta) == rank]
        return sorted(own, key=lambda meta: (meta.group, meta.member))


def task_kind(task: Task) -> str:
    """Tasks that are expected to have the same length: same opponent and seat."""
    return f"{task.opponent}/{task.seat}"


def measure_lengths(metas: Sequence[MetaEpisode], ranks: Ranks) -> dict[str, float]:
    """Mean tokens of a meta-episode by kind of task, over all ranks."""
    sums: dict[str, list[int]] = defaultdict(list)
    for own in ranks.gather([(task_kind(meta.task), meta.generated_tokens) for meta in metas]):
        for kind, tokens in own:
            sums[kind].append(tokens)
    return {kind: sum(found) / len(found) for kind, found in sorted(sums.items())}


def share_credit(
    metas: Sequence[MetaEpisode], options: ReturnOptions, estimate: Estimator, ranks: Ranks
) -> SharedCredit:
    """Credit of the members of all ranks: advantages equal those of one process."""
    returns = compute_all_returns(metas, options)
    gathered = ranks.gather([replace(one, turn=_without_tokens(one.turn)) for one in returns])
    everyone = estimate_all(estimate, sorted(chain(*gathered), key=_place))
    found = {_key(credit.source.where): credit for credit in everyone}
    own = [replace(found[_key(one.where)], source=one) for one in returns]
    return SharedCredit(own, everyone, counted=everyone if ranks.is_main else [])


def collect_metas(metas: Sequence[MetaEpisode], ranks: Ranks) -> list[MetaEpisode]:
    """The meta-episodes of all ranks in order, for the stored transcripts."""
    found: Iterable[MetaEpisode] = chain(*ranks.gather(list(metas)))
    return sorted(found, key=lambda meta: (meta.group, meta.member))


def _without_tokens(turn: Turn) -> Turn:
    empty: dict[str, Any] = dict.fromkeys(("prompt_ids", "choices", "legal_moves", "calls"), ())
    return replace(turn, observation="", completion=_NOTHING, **empty)


def _key(where: TurnRef) -> tuple[int, int, int, int]:
    return where.group, where.member, where.episode, where.index


def _place(one: Return) -> tuple[int, int, int, int]:
    return _key(one.where)
