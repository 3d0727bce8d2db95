"""Tests of the package: python -m pytest in this folder."""

import asyncio

from my_lab.lefty import Lefty
from my_lab.nim import Nim
from my_lab.ranked import estimate
from my_lab.scoreboard import Scoreboard

from mage.api.contracts import check_opponent
from mage.environments.base import check
from mage.memory.base import Entry
from mage.types import Completion, Return, Turn, TurnRef


def test_nim_keeps_the_contract() -> None:
    assert check(Nim(heaps=3), games=50) == []


def test_lefty_keeps_the_contract() -> None:
    assert check_opponent(Lefty(greed=0.3), Nim(), games=20) == []


def test_lefty_takes_from_the_first_heap() -> None:
    state = Nim().start(seed=0)
    state.heaps = [0, 3]
    assert Lefty(greed=0.25).policy(state, 0) == {"B1": 0.75, "B3": 0.25}


def test_the_scoreboard_counts_wins() -> None:
    async def shown() -> str:
        notebook = Scoreboard(last_game=False).open()
        for number, outcome in enumerate(("won", "lost", "won"), start=1):
            await notebook.add(Entry(number, "", "", outcome, ""), None)
        return await notebook.show("", None)

    assert asyncio.run(shown()) == "Games won so far: 2 of 3."


def test_ranks_run_from_minus_one_to_one() -> None:
    turn = Turn("play", "s", "s", (0,), Completion((1,), (0.0,), "", "stop", 0), "", (), True, 0.0)
    returns = [
        Return(turn, TurnRef(0, member, 0, 0, ""), value, value, value, value)
        for member, value in enumerate((5.0, -10.0, 5.0))
    ]
    assert [credit.advantage for credit in estimate(returns)] == [0.5, -1.0, 0.5]
