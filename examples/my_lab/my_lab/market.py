"""Market: what does an order cost? The agent searches the price list and calculates."""

import ast
import operator
import random
from typing import Any, ClassVar

from pydantic import Field

from mage.environments.base import SingleAgentEnvironment, State

GOODS = ("lamp", "rope", "cup", "bell", "coin", "map", "fan", "key")
SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def calculate(expression: str) -> int:
    """Compute with whole numbers.

    Args:
        expression: Numbers with +, - and *, such as 3 + 4 * 2.
    """

    def value(node: Any) -> int:
        if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
            sign = SIGNS[type(node.op)]
            return sign(value(node.left), value(node.right))
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        raise ValueError("only whole numbers with +, - and * are allowed")

    return value(ast.parse(expression, mode="eval").body)


class MarketState(State):
    def __init__(self, prices: dict[str, int], order: list[str], highest: int) -> None:
        self.prices, self.order, self.highest = prices, order, highest
        self.answer = ""

    def search(self, word: str) -> str:
        """Search the price list.

        Args:
            word: The word to look for.
        """
        found = [f"{good}: {price}" for good, price in self.prices.items() if word in good]
        return "\n".join(found) or "Nothing found."

    def calls(self) -> list[tuple[str, dict[str, str]]]:
        """Calls that make sense: the warm-up teaches them, `mage check` makes them."""
        searches = [("search", {"word": good}) for good in self.order]
        numbers = " + ".join(str(self.prices[good]) for good in self.order)
        return searches + [("calculate", {"expression": numbers})] * (len(self.order) > 1)

    def turn(self) -> int | None:
        return None if self.answer else 0

    def legal(self) -> tuple[str, ...]:
        return tuple(str(number) for number in range(1, self.highest * len(self.order) + 1))

    def apply(self, action: str) -> None:
        self.answer = action

    def expert(self) -> str:
        return str(sum(self.prices[good] for good in self.order))

    def observe(self, seat: int) -> str:
        return f"What does this order cost? {', '.join(self.order)}"

    def anchor(self, seat: int) -> str:
        return self.observe(seat)

    def scores(self) -> tuple[float, ...]:
        return (1.0 if self.answer == self.expert() else 0.0,)

    def recap(self, seat: int) -> str:
        return f"Order: {', '.join(self.order)}. You said {self.answer or 'nothing'}."


class Market(SingleAgentEnvironment):
    """Find out what an order costs."""

    name: ClassVar[str] = "market"

    size: int = Field(2, ge=1, le=4, description="goods in an order")
    goods: int = Field(8, ge=4, le=8, description="goods in the price list")
    highest: int = Field(9, ge=2, le=99, description="highest price")
    max_turns: int = Field(1, ge=1, description="replies in one episode, illegal ones included")

    @property
    def forfeit_score(self) -> float:
        return 0.0

    def tools(self) -> tuple[Any, ...]:
        search = MarketState.search  # a method of the state: it gets the running one
        return (search, calculate) if self.size > 1 else (search,)

    def start(self, seed: int) -> MarketState:
        rng = random.Random(seed)
        prices = {good: rng.randint(1, self.highest) for good in GOODS[: self.goods]}
        return MarketState(prices, rng.sample(list(prices), self.size), self.highest)

    def rules(self) -> str:
        return "Say what an order costs. Every day has other prices."

    def instance(self, seat: int) -> str:
        return "You are at the market."

    def example_action(self) -> str:
        return "5"
