"""The rules of Sokoban as the model reads them."""

from typing import Literal

View = Literal["map", "words", "both"]
_RULES = """You are in a room seen from above and push boxes onto targets. {legend}
A move is up, down, left or right. You push a box by walking against it, if the square behind it \
is free; you cannot pull, and never push two boxes at once. \
A move against a wall or a box that cannot move does nothing. {answer} You have {turns}. You win \
when every box is on a target. {end}"""
_LEGEND = (
    "The symbols:\n# wall, _ floor, O target, X box, * box on a target, P you, S you on a target."
)
_WORDS = (
    "You are told where things are from where you stand: 2 right 1 up is two squares to the "
    "right and one up; and on which sides a wall is next to you."
)
_ENDS = "The attempt ends when that can no longer happen, as with a box in a corner."
_GOES_ON = "Take care: a box in a corner never comes out again."


def write_rules(view: View, turn_moves: int, max_turns: int, stop_when_lost: bool) -> str:
    """The rules for one way to show the room, and for one limit of moves and turns."""
    answer = (
        f"An answer is one to {turn_moves} moves with spaces between them."
        if turn_moves > 1
        else "An answer is one move."
    )
    legend = {"map": _LEGEND, "words": _WORDS, "both": f"{_LEGEND}\n{_WORDS}"}[view]
    return _RULES.format(
        legend=legend,
        answer=answer,
        turns=f"{max_turns} turn{'s' if max_turns > 1 else ''}",
        end=_ENDS if stop_when_lost else _GOES_ON,
    )
