"""WebShop in the words of the published prompts (docs/prompts.md)."""

from typing import ClassVar

from mage.environments.base import State, Wording
from mage.environments.webshop.pages import Piece, render
from mage.environments.webshop.session import WebShopState

_TASK = "You are an expert agent in the online shop WebShop and act on your own."
_ANSWER = (
    "It is your turn to take one action. First think step by step about the situation, and about "
    "which of the possible actions brings you nearest to the goal. Then choose one of them and "
    "write it between <action> and </action>."
)
_SEPARATOR = " [SEP] "
_ITEMS = 15  # of an earlier page


class WebShopWording(Wording):
    """Pages are quoted items in one line, without the instruction, which the prompt begins with."""

    reviewed: ClassVar[int | None] = 20

    def task(self, seat: int) -> str:
        return _TASK

    def opening(self, state: State, seat: int) -> str:
        assert isinstance(state, WebShopState)
        return f"Your task: {state.goal.text}."

    def view(self, state: State, seat: int) -> str:
        assert isinstance(state, WebShopState)
        pieces = state.pieces()
        places = [place for place, piece in enumerate(pieces) if piece.fixed]
        after = pieces[places[-1] + 1 :] if places else pieces  # the last page has no instruction
        if places:
            after = [_quote(piece) for piece in after]
        return render(after, "text", state.view.page_limit)

    def past(self, view: str) -> str:
        """The first items of a page, and the number of the others."""
        items = view.split(_SEPARATOR)
        more = len(items) - _ITEMS
        return view if more <= 0 else f"{_SEPARATOR.join(items[:_ITEMS])} ... ({more} more)"

    def choices(self, state: State) -> str:
        """A search is offered on the search page only; it works on every page, as in WebShop."""
        assert isinstance(state, WebShopState)
        clicks = [f"click[{value}]" for value in state.clickables() if value != "search"]
        offered = clicks if state.page != "search" else ["search[<your words>]", *clicks]
        listed = "\n".join(f"'{action}'," for action in offered)
        return f"The possible actions now are:\n[\n{listed}\n]"

    def answer(self) -> str:
        return _ANSWER

    def word(self, action: str) -> str:
        return "click[< prev]" if action == "click[prev]" else action


def _quote(piece: Piece) -> Piece:
    """An item of a page. The published text does not say which options are chosen."""
    return piece._replace(text=f"'{piece.text.strip()}'", clicked=False)
