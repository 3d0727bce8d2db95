"""The rules of Sokoban as the model reads them: ours, and those of the published prompts."""

from typing import Literal

View = Literal["map", "words", "both"]
_RULES = """You are in a room seen from above and push boxes onto targets. {legend}
A move is up, down, left or right. You push a box by walking against it, if the square behind it \
is free; you cannot pull, and never push two boxes at once. \
A move against a wall or a box that cannot move does nothing. {answer} You have {turns}. You win \
when every box is on a target. The attempt ends when that can no longer happen, as with a box in a \
corner."""
_LEGEND = (
    "The symbols:\n# wall, _ floor, O target, X box, * box on a target, P you, S you on a target."
)
_WORDS = (
    "You are told where things are from where you stand: 2 right 1 up is two squares to the "
    "right and one up; and on which sides a wall is next to you."
)


def write_rules(view: View, turn_moves: int, max_turns: int) -> str:
    """The rules for one way to show the room, and for one limit of moves and turns."""
    answer = "An answer is one move."
    if turn_moves > 1:
        answer = f"An answer is one to {turn_moves} moves with spaces between them."
    legend = {"map": _LEGEND, "words": _WORDS, "both": f"{_LEGEND}\n{_WORDS}"}[view]
    return _RULES.format(
        legend=legend, answer=answer, turns=f"{max_turns} turn{'s' if max_turns > 1 else ''}"
    )


# --- The words of the published prompts (docs/prompts.md) ---

TICK = "√"  # a box on a target
TASK = f"""You are an expert at Sokoban.

Symbols:
# wall: nothing can go there
_ floor: you and the boxes can go there
O target: a box has to stand here
X box: push it onto a target
P you: you walk through the room and push boxes
{TICK} box on a target
S you on a target

Goal: push all boxes (X) onto targets (O). You win when every box is on a target.

Rules:
- The actions are up, down, left and right.
- You push one box at a time and can never pull one, so plan ahead.
- Neither you nor a box can go through a wall or another box.
- Do not push a box into a corner, or along a wall from which it cannot come back: it is stuck \
there."""
_ANSWER = (
    "It is your turn: choose the next {count}. First think step by step: where are the boxes and "
    "the targets, which way brings a box to a target, and which pushes would get it stuck? Then "
    "write {count}, separated by commas, between <action> and </action>."
)


def write_answer(turn_moves: int) -> str:
    """What the answer of a turn has to be."""
    return _ANSWER.format(count=("ONE action", "TWO actions", "THREE actions")[turn_moves - 1])
