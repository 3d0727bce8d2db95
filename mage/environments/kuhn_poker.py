"""Kuhn poker as text: three cards, bets of one chip.

The six deals are the strata of a panel, so an evaluation plays all of them equally often. The
opponent's card is shown at a showdown only.
"""

import random
from itertools import permutations
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from mage.environments.base import State, Wording, turn_limit
from mage.environments.openspiel import OpenSpiel, OpenSpielState

CARDS = ("J", "Q", "K")
DEALS = tuple(permutations(range(3), 2))
_WORDS = ("pass", "bet")
_RULES = (
    "You play Kuhn poker against one opponent. There are three cards: J is low, Q is middle, "
    "K is high. Each player puts in 1 chip and gets one card. "
    "You take turns to pass or to bet 1 more chip. A pass after a bet gives up the pot; "
    "a bet after a bet calls it. "
    "If nobody gives up, the cards are shown and the higher card wins the pot."
)

_NAMES = ("Jack", "Queen", "King")
_TASK = """You are an expert at Kuhn poker.

Rules:
- Two players, player 0 and player 1, use three cards: King (K) beats Queen (Q), and Queen beats \
Jack (J).
- Before the cards are dealt, each player puts 1 chip into the pot. Each gets one card that only \
this player sees; nobody sees the third card.
- The players act in turn, player 0 first. PASS adds nothing to the pot, BET adds 1 chip.
- A PASS after a BET of the other player gives the pot to the player who bet. After PASS and PASS, \
or BET and BET, the higher card takes the pot.

On each of your turns you see your card and the actions so far, and choose your action from them.
You are player {seat}, the opponent is player {other}.

Goal: win as many chips as you can in the long run. Your card and the actions so far decide what \
is best."""
_ANSWER = (
    "It is your turn. First think step by step about the situation. Then choose one action, PASS "
    "or BET, and write it as <action>PASS</action> or <action>BET</action>."
)


class KuhnPokerState(OpenSpielState):
    """Both cards are dealt at once: the seed names one of the six deals."""

    def __init__(self, environment: "KuhnPoker", seed: int) -> None:
        self.deal = DEALS[environment.stratum(seed)]
        super().__init__(environment, seed)

    def _let_chance_act(self) -> None:
        while self.spiel.is_chance_node():
            self.spiel.apply_action(self.deal[len(self.spiel.history())])

    def word(self, action: int) -> str:
        return _WORDS[action]

    def number(self, word: str) -> int:
        return _WORDS.index(word)

    def observe(self, seat: int) -> str:
        return f"Your card: {CARDS[self.deal[seat]]}. Moves: {self.past_moves(seat) or 'none'}."

    def anchor(self, seat: int) -> str:
        return f"{CARDS[self.deal[seat]]} {' '.join(action for _, action in self.moves)}".strip()

    def recap(self, seat: int) -> str:
        chips = self.scores()[seat]
        shown = CARDS[self.deal[1 - seat]] if self._showdown() else "hidden"
        amount = f"{abs(chips):g} chip{'s' if abs(chips) != 1 else ''}"
        return (
            f"Your card: {CARDS[self.deal[seat]]}. Moves: {self.past_moves(seat)}. "
            f"Opponent's card: {shown}. You {'won' if chips > 0 else 'lost'} {amount}."
        )

    def _showdown(self) -> bool:
        return [action for _, action in self.moves][-2:] in (["pass", "pass"], ["bet", "bet"])


class KuhnPokerWording(Wording):
    """PASS and BET; players are numbered 0 and 1."""

    boards: ClassVar[int | None] = 2
    reviewed: ClassVar[int | None] = 7

    def task(self, seat: int) -> str:
        return _TASK.format(seat=seat, other=1 - seat)

    def view(self, state: State, seat: int) -> str:
        assert isinstance(state, KuhnPokerState)
        made = [f"player {mover} {self.word(action)}" for mover, action in state.moves]
        return f"Your card: {_NAMES[state.deal[seat]]}. Actions: {', '.join(made) or 'none yet'}."

    def review(self, state: State, seat: int, training: bool) -> str:
        """In training the published request for a reflection shows both cards."""
        assert isinstance(state, KuhnPokerState)
        cards = ", ".join(f"player {one} has {_NAMES[card]}" for one, card in enumerate(state.deal))
        view = self.view(state, seat)
        return f"{view} Cards: {cards}." if training else view

    def answer(self) -> str:
        return _ANSWER

    def word(self, action: str) -> str:
        return action.upper()

    def read(self, state: State, written: str) -> str | None:
        return next((one for one in state.legal() if self.word(one) == written), None)


class KuhnPoker(OpenSpiel):
    name: ClassVar[str] = "kuhn_poker"
    presentation: ClassVar[tuple[str, ...]] = ("pay",)
    game: Literal["kuhn_poker"] = Field("kuhn_poker", description="OpenSpiel's name of the game")
    max_turns: int = turn_limit(6)
    reward_scale: float = Field(5.0, gt=0, description="task reward of an episode = scale x chips")
    pay: Literal["chips", "result"] = Field(
        "chips", description="task reward = scale x chips, or scale x (1 for a win, -1 for a loss)"
    )

    panel: Literal["balanced", "published"] = Field(
        "balanced",
        description="deals of the final panel: all six equally often, or the draw of the "
        "published code, with which the paper's figures can be reached",
    )

    def start(self, seed: int) -> KuhnPokerState:
        return KuhnPokerState(self, seed)

    def reward(self, score: float) -> float:
        paid = score if self.pay == "chips" else float((score > 0) - (score < 0))
        return super().reward(paid)

    def fixed_deals(self, tasks: int) -> list[int] | None:
        return published_deals(tasks) if self.panel == "published" else None

    def rules(self) -> str:
        return _RULES

    def wording(self) -> KuhnPokerWording:
        return KuhnPokerWording(self)

    def instance(self, seat: int) -> str:
        return "You act first." if seat == 0 else "You act second."

    def example_action(self) -> str:
        return "pass"

    def strata(self) -> int:
        return len(DEALS)


_PUBLISHED_SEED = 1000  # of the published evaluation: environment seed 0, plus 1,000


def published_deals(tasks: int) -> list[int]:
    """The deals of the published evaluation, as places in `DEALS`.

    NumPy draws one seed for each task; Python's random numbers with that seed draw the cards.
    """
    seeds = np.random.RandomState(_PUBLISHED_SEED).randint(2**16, 2**32 - 1, size=tasks)
    return [DEALS.index(_draw_cards(random.Random(int(seed)))) for seed in seeds]


def _draw_cards(rng: random.Random) -> tuple[int, int]:
    first = rng.choices(range(3), (1 / 3,) * 3)[0]
    left = [card for card in range(3) if card != first]
    return first, rng.choices(left, (0.5, 0.5))[0]
