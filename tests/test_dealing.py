"""Members dealt to ranks: the same credit and mini-batches for any number of ranks."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from toys import scripted_agent

from mage.config.sections import ReturnOptions
from mage.credit.advantages.gigpo import estimate
from mage.credit.samples import assign_credit, make_samples
from mage.environments.kuhn_poker import KuhnPoker
from mage.learn.minibatches import cut_by_rows, split_by_unit
from mage.learn.pack.tries import Row, prepare
from mage.memory.notes import Notes
from mage.play import PlaySetup, play_groups
from mage.ranks.dealing import SharedQueue, deal_members, share_credit
from mage.ranks.ranks import Ranks
from mage.types import MetaEpisode, Task

TASKS_PG = [[Task("kuhn_poker", group, group % 2, "random", "train")] * 4 for group in range(5)]


class ManyRanks(Ranks):
    """Rank `rank` of several; what the other ranks send is given."""

    def __init__(self, rank: int, sent: list[Any]) -> None:
        super().__init__(rank, len(sent))
        self.sent = sent

    def gather(self, item: Any) -> list[Any]:
        return [item if rank == self.rank else one for rank, one in enumerate(self.sent)]


def on_ranks(size: int, work: Callable[[Ranks], Any]) -> list[Any]:
    """Run `work` with one gather on every rank: first record what is sent, then exchange it."""
    sent: list[Any] = []

    class Recorder(Ranks):
        def gather(self, item: Any) -> list[Any]:
            sent.append(item)
            return [item]

    for rank in range(size):
        work(Recorder(rank, size))
    return [work(ManyRanks(rank, sent)) for rank in range(size)]


def play() -> list[MetaEpisode]:
    agent = scripted_agent(
        lambda prompt: f"<action>{'bet' if len(prompt) % 3 else 'pass'}</action>"
    )
    return play_groups(PlaySetup(KuhnPoker(), agent, Notes(keep="both")), TASKS_PG, 7)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_member_is_dealt_once_in_runs_of_equal_expected_length(size):
    # Seat 0 is expected to be three times as long: 12 members of 3 tokens, 8 of 1, 44 in all.
    rank_of = deal_members(TASKS_PG, size, {"random/0": 3.0, "random/1": 1.0})
    assert list(rank_of) == [(group, member) for group in range(5) for member in range(4)]
    assert list(rank_of.values()) == sorted(rank_of.values())
    loads = [
        sum(1 if group % 2 else 3 for (group, _), owner in rank_of.items() if owner == rank)
        for rank in range(size)
    ]
    assert sum(loads) == 44
    assert max(loads) - 44 / size <= 3
    assert min(loads) > 0


@pytest.mark.parametrize("order", ["01" * 20, "0" * 40, "1" * 40, "0111011" * 6])
def test_every_member_is_taken_once_whichever_rank_has_room(order):
    counts: Counter[str] = Counter()

    class CountingRanks(Ranks):
        def count(self, name: str) -> int:
            counts[name] += 1
            return counts[name] - 1

    rank_of = deal_members(TASKS_PG, 2, {})
    queues = [SharedQueue(CountingRanks(rank, 2), rank_of, "update 1") for rank in range(2)]
    waiting = [queue.choose(list(rank_of)) for queue in queues]
    taken: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    for rank in map(int, order):
        taken[rank] += [place for place in [next(waiting[rank], None)] if place is not None]
    assert sorted(taken[0] + taken[1]) == list(rank_of)
    if set(order) == {"0"}:
        assert taken[0] == list(rank_of), "its own members first, then those of rank 1"


def test_two_ranks_share_equal_members_in_halves():
    assert [*deal_members(TASKS_PG, 2, {}).values()] == [0] * 10 + [1] * 10


@pytest.mark.parametrize("size", [2, 3])
def test_advantages_are_those_of_one_process(size):
    metas, options = play(), ReturnOptions()
    rank_of = deal_members(TASKS_PG, size, {})
    whole = assign_credit(metas, options, estimate)

    def work(ranks: Ranks) -> Any:
        own = [meta for meta in metas if rank_of[meta.group, meta.member] == ranks.rank]
        return share_credit(own, options, estimate, ranks)

    found = on_ranks(size, work)
    assert [credit for shared in found for credit in shared.own] == whole
    light = [(one.source.where, one.advantage) for one in found[0].everyone]
    assert light == [(one.source.where, one.advantage) for one in whole]
    assert all(not one.source.turn.prompt_ids for one in found[0].everyone)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("parts", [1, 3, 9])
@pytest.mark.parametrize("divide", [split_by_unit, cut_by_rows])
def test_mini_batches_of_all_ranks_are_those_of_one_process(size, parts, divide):
    rows = prepare(make_samples(assign_credit(play(), ReturnOptions(), estimate)))
    rank_of = deal_members(TASKS_PG, size, {})

    def work(ranks: Ranks) -> list[list[Row]]:
        own = [
            row
            for row in rows
            if rank_of[row.sample.where.group, row.sample.where.member] == ranks.rank
        ]
        return divide(own, parts, 5, ranks)

    found = on_ranks(size, work)
    for part, batch in enumerate(divide(rows, parts, 5, Ranks())):
        own = [row.sample.where for batches in found for row in batches[part]]
        assert sorted(map(repr, own)) == sorted(repr(row.sample.where) for row in batch)
