"""Drafts: a decode step that checks guessed tokens and so samples several (`engines.drafts`).

The guess comes from text that is known already. One step of a sequence with three drafted tokens:

    text     .. take mug 2 from desk 1 .. <action> take mug      its newest token is "mug"
    match    the longest end of the text (at most 4 tokens) that has occurred before: "take mug"
    draft    what followed the newest occurrence:    2   from  desk
    computed four rows of one batch:           mug   2   from  desk     keys are read once for all
    sampled  the token after every row:         2   from   the     ?
    kept     up to the first that was not guessed:  2  from  the        "desk" was wrong

The random number of a token is a hash of (seed, place in the reply), so a row whose input is right
samples the token that a step without drafts would have sampled, with the same probability. Rows
after a wrong guess are dropped, and the next step overwrites their keys. So replies are those
without drafts, up to the rounding of another batch shape.

Guesses come from the sequence itself and from the newest replies to other requests. A step with
drafts takes longer, so `Drafts.width` gives plain steps to large batches and while few guesses are
right, and the loop of a GPU to sequences with top-k or top-p.
"""

from typing import Any

import numpy as np
import torch

from mage.engines.gpu.prefill import to_device

LONGEST = 4  # tokens of a match
RECENT = 8192  # tokens of replies to other requests
PLACES = 2**24  # more than the tokens of any text
# Most rows of a step with drafts: a larger batch is limited by arithmetic, which drafts multiply.
ROWS = {"cuda": 320, "cpu": 32}
PAYS = 1.3  # tokens per sequence and step from which drafts are faster
PROBE = 16  # of so many steps one has drafts although they do not pay, to notice a change
USUAL = 4  # tokens to draft where drafts were measured to be faster (docs/performance.md)
SMALL = 2 * 10**9  # parameters; of larger models only the cost of such a step is known

Array = np.ndarray[Any, Any]


def usual_number(parameters: int, device: torch.device) -> int:
    """Tokens to draft in the loop of a GPU where the recipe does not say: only for a small model.

    On a CPU another batch shape would change the last bits of a result.
    """
    return USUAL if device.type == "cuda" and parameters < SMALL else 0


class Drafts:
    """When to draft `number` tokens, and the newest replies as one text.

    `tokens` has each reply after the last tokens of its prompt. `gain` is a running mean of the
    tokens per sequence and step.
    """

    def __init__(self, number: int, device: torch.device) -> None:
        self.number, self.rows = number, ROWS.get(device.type, ROWS["cpu"])
        self.tokens = torch.full((RECENT,), -1, dtype=torch.int64, device=device)
        self.clear()

    def clear(self) -> None:
        """Forget everything, so that a resumed run has the batches of an uninterrupted one."""
        self.tokens.fill_(-1)
        self.end, self.used, self.steps, self.gain = 0, 1, 0, 2 * PAYS

    def width(self, sequences: int) -> int:
        """Rows per sequence of the next step: 1 without drafts."""
        if not self.number or sequences * (1 + self.number) > self.rows:
            return 1
        self.steps += 1
        return 1 + self.number * (self.gain >= PAYS or self.steps % PROBE == 0)

    def count(self, drafted: int, accepted: int) -> None:
        """Note how many tokens of a step were drafted and how many of them were right."""
        if drafted:
            self.gain += (1 + self.number * accepted / drafted - self.gain) / PROBE

    def add(self, ids: Array) -> None:
        """Append a reply; where it does not fit, the text starts again at its beginning."""
        ids = ids[-RECENT:]
        if self.end + len(ids) > RECENT:
            self.end = 0
        to_device(self.tokens[self.end : self.end + len(ids)], ids)
        self.end += len(ids)
        self.used = max(self.used, self.end)


def propose(
    texts: torch.Tensor, newest: torch.Tensor, recent: torch.Tensor, most: int
) -> torch.Tensor:
    """Guesses [rows, most] of the tokens after texts[r, : newest[r] + 1]; 0 without a match.

    The longest match counts, in the text itself before `recent`, then the newest. A text that
    repeats itself is continued with its period.
    """
    back = newest[:, None] - torch.arange(LONGEST, device=texts.device)
    ending = texts.gather(1, back.clamp(min=0)).masked_fill(back < 0, -1)
    unknown = torch.arange(texts.shape[1], device=texts.device) >= newest[:, None]
    own = _best(_match(texts, ending).masked_fill(unknown, 0))
    other = _best(_match(recent[None], ending))
    ahead = torch.arange(most, device=texts.device)
    at = (own % PLACES)[:, None]
    place = at + 1 + ahead % (newest[:, None] - at).clamp(min=1)
    guess = texts.gather(1, torch.minimum(place, newest[:, None]))
    place = (other % PLACES)[:, None] + 1 + ahead
    guess = torch.where(
        (own // PLACES >= other // PLACES)[:, None],
        guess,
        recent[place.clamp(max=len(recent) - 1)],
    )
    found = torch.maximum(own, other) > 0
    return torch.where(found[:, None], guess.clamp(min=0), 0)


def _best(length: torch.Tensor) -> torch.Tensor:
    """The longest match of each row and its newest place, as one number; 0 without a match."""
    place = torch.arange(length.shape[1], device=length.device)
    return torch.where(length > 0, length * PLACES + place, 0).amax(1)


def _match(texts: torch.Tensor, ending: torch.Tensor) -> torch.Tensor:
    """How many tokens before every place, its own included, are the last ones of `ending`."""
    same = torch.ones(len(ending), texts.shape[1], dtype=torch.bool, device=texts.device)
    length = torch.zeros(same.shape, dtype=torch.int64, device=texts.device)
    for back in range(min(LONGEST, texts.shape[1])):
        same[:, back:] &= texts[:, : texts.shape[1] - back] == ending[:, back, None]
        same[:, :back] = False
        length += same
    return length
