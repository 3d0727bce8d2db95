"""Mastermind: find a secret code from the number of right digits, in few guesses.

The score of an episode is 1 if the first guess is right, less by 1 / `max_turns` for every further
guess, and 0 if the code was not found. With `restart = "same"` the secret is the same in all
episodes, so that a code that was found is known. With `restart = "fresh"` every episode has a new
secret; with `family = F` all secrets of a task use the same F digits, which the agent can learn.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from itertools import combinations, permutations, product
from typing import ClassVar

from pydantic import Field, model_validator

from mage.config.errors import UserError
from mage.environments.base import Problem, Result, SingleAgentEnvironment, State
from mage.seeds import derive

_MOST_CODES = 10_000
_MOST_EXACT = 130  # codes of an exact solution; more take minutes and gigabytes
_DIGITS = 12  # of a probability that count
Feedback = tuple[int, int]  # right digits in the right place, and in a wrong place


@cache
def compare(guess: str, secret: str) -> Feedback:
    """What a guess is answered.

    >>> compare("1123", "1231")
    (1, 3)
    """
    right = sum(a == b for a, b in zip(guess, secret, strict=True))
    common = sum((Counter(guess) & Counter(secret)).values())
    return right, common - right


class MastermindState(State):
    """One episode. `guesses` are the guesses with their answers."""

    def __init__(self, environment: "Mastermind", secret: str) -> None:
        self.environment, self.secret = environment, secret
        self.guesses: list[tuple[str, Feedback]] = []

    def turn(self) -> int | None:
        over = self.solved or len(self.guesses) >= self.environment.max_turns
        return None if over else 0

    @property
    def solved(self) -> bool:
        return bool(self.guesses) and self.guesses[-1][0] == self.secret

    def legal(self) -> tuple[str, ...]:
        return self.environment.codes()

    def read(self, written: str) -> str | None:
        """A code may be written with spaces, commas or dashes between its digits."""
        code = "".join(sign for sign in written if sign not in " ,-")
        return code if code in set(self.legal()) else None

    def apply(self, action: str) -> None:
        self.guesses.append((action, compare(action, self.secret)))

    def observe(self, seat: int) -> str:
        last = f"{self._told(*self.guesses[-1])}. " if self.guesses else ""
        return f"{last}Guess {len(self.guesses) + 1} of {self.environment.max_turns}."

    def anchor(self, seat: int) -> str:
        return "; ".join(self._told(*one) for one in self.guesses) or "no guess"

    def scores(self) -> tuple[float, ...]:
        used = len(self.guesses) - 1
        return (1 - used / self.environment.max_turns if self.solved else 0.0,)

    def recap(self, seat: int) -> str:
        told = "; ".join(self._told(*one) for one in self.guesses) or "No guess"
        return f"{told}. {'Found.' if self.solved else 'Not found.'}"

    def _told(self, guess: str, answer: Feedback) -> str:
        return f"{guess}: {answer[0]} right, {answer[1]} misplaced"


class Mastermind(SingleAgentEnvironment):
    """Find a secret code from the number of right digits, in few guesses."""

    name: ClassVar[str] = "mastermind"

    length: int = Field(2, ge=1, le=6, description="digits of a code")
    colours: int = Field(4, ge=2, le=9, description="different digits, from 1 on")
    repeated: bool = Field(True, description="a digit may occur more than once in a code")
    family: int | None = Field(
        None,
        ge=1,
        le=9,
        description="with restart = fresh: number of digits that all secrets of a task use",
    )
    max_turns: int = Field(
        6, ge=1, le=100, description="guesses in one episode, illegal ones included"
    )

    @model_validator(mode="after")
    def _has_codes(self) -> "Mastermind":
        if not self.repeated and self.length > self.colours:
            raise UserError(
                f"length = {self.length} without repetition needs as many different digits, not "
                f"colours = {self.colours}. Raise colours, or set repeated = true"
            )
        if self.colours**self.length > _MOST_CODES:
            raise UserError(
                f"{self.colours} digits in {self.length} places are more than {_MOST_CODES:,} "
                "codes. Lower length or colours"
            )
        smallest = 1 if self.repeated else self.length
        if self.family is not None and not smallest <= self.family <= self.colours:
            raise UserError(
                f"family = {self.family}: the secrets of a task use {smallest} to {self.colours} "
                "different digits. Choose a number in this range"
            )
        if self.family is not None and self.restart == "same":
            raise UserError(
                'family needs a new secret in every episode. Set restart = "fresh", or leave '
                "family out"
            )
        return self

    def start(self, seed: int) -> MastermindState:
        return MastermindState(self, self.secret(seed))

    def codes(self) -> tuple[str, ...]:
        return _codes(self.length, "123456789"[: self.colours], self.repeated)

    def families(self) -> tuple[tuple[str, ...], ...]:
        """The codes of each possible family; one family of all codes without `family`."""
        if self.family is None:
            return (self.codes(),)
        sets = combinations("123456789"[: self.colours], self.family)
        return tuple(_codes(self.length, "".join(digits), self.repeated) for digits in sets)

    def secret(self, seed: int) -> str:
        """The seed of an episode has the family in its last digits."""
        families = self.families()
        return random.Random(derive(seed, "secret")).choice(families[seed % len(families)])

    def rules(self) -> str:
        digits = f"digits from 1 to {self.colours}"
        again = "may repeat" if self.repeated else "are different"
        return (
            f"Find a secret code of {self.length} {digits}; its digits {again}. After a guess you "
            "learn how many digits are right, and how many are misplaced: in the code, but in "
            "another place."
        )

    def instance(self, seat: int) -> str:
        if self.restart == "same":
            return "The code is the same in every game."
        if self.family is None:
            return "Every game has a new code."
        return f"Every game has a new code. All codes use the same {self.family} digits."

    def example_action(self) -> str:
        return self.codes()[min(1, len(self.codes()) - 1)]

    def restated(self, score: float) -> Mapping[str, float]:
        """Guesses, if the code is always found."""
        return {"guesses": 1 + self.max_turns * (1 - score)}

    def episode_seed(self, task_seed: int, episode: int) -> int:
        first = derive(task_seed, "episode", 0)
        if self.restart == "same":
            return first
        later, count = derive(task_seed, "episode", episode), len(self.families())
        return later - later % count + first % count

    def problems(self) -> Sequence[tuple[float, "MastermindProblem"]]:
        if len(self.codes()) > _MOST_EXACT:
            raise UserError(
                f"{len(self.codes()):,} codes need too much memory for an exact solution, which "
                f"takes at most {_MOST_EXACT}. Lower length or colours; play and training need no "
                "exact solution"
            )
        return [(1.0, MastermindProblem(self))]


@cache
def _codes(length: int, digits: str, repeated: bool) -> tuple[str, ...]:
    words = product(digits, repeat=length) if repeated else permutations(digits, length)
    return tuple("".join(word) for word in words)


class MastermindProblem(Problem):
    """A state: guesses made, weights of the families before the episode, and codes that fit.

    Guesses are left out if they surely are no better than another one: an only code that fits is
    guessed, and guesses that split the codes in the same way count once. If all codes are equally
    likely, a code that fits and tells all others apart is guessed at once, and digits that the
    codes treat alike are tried in their order only.
    """

    def __init__(self, environment: Mastermind) -> None:
        self.codes, self.most = environment.codes(), environment.max_turns
        self.digits = "123456789"[: environment.colours]
        self.families = [frozenset(family) for family in environment.families()]
        self.same = environment.restart == "same"
        self.uniform = len(self.families) == 1  # all codes that fit are equally likely
        self._splits: dict[frozenset[str], list[dict[Feedback, frozenset[str]]]] = {}

    def start(self) -> Hashable:
        share = 1 / len(self.families)
        return 0, (share,) * len(self.families), frozenset(self.codes)

    def moves(self, state: Hashable) -> Sequence[Sequence[Result]]:
        assert isinstance(state, tuple), "a state of this problem"
        made, weights, fitting = state
        possible = frozenset(code for code in fitting if self._weight(weights, [code]) > 0)
        return [
            self._results(made, weights, possible, split)
            for split in self._different_splits(possible, made + 1 < self.most)
        ]

    def _weight(self, weights: Sequence[float], codes: Sequence[str] | frozenset[str]) -> float:
        """The probability that the secret is one of these codes."""
        return sum(
            weight * sum(code in family for code in codes) / len(family)
            for weight, family in zip(weights, self.families, strict=True)
        )

    def _results(
        self,
        made: int,
        weights: tuple[float, ...],
        possible: frozenset[str],
        split: dict[Feedback, frozenset[str]],
    ) -> list[Result]:
        whole = self._weight(weights, possible)
        results = []
        for answer, left in split.items():
            solved = answer[0] == len(self.codes[0])
            ends = solved or made + 1 == self.most
            score = 1 - made / self.most if solved else 0.0
            chance = self._weight(weights, left) / whole
            after = self._next(weights, left) if ends else (made + 1, weights, left)
            results.append(Result(chance, score, after, ends))
        return results

    def _next(self, weights: tuple[float, ...], left: frozenset[str]) -> Hashable:
        """The first state of the next episode, if the secret of this one is one of `left`."""
        if self.same:
            return 0, weights, left
        shares = [
            weight * len(left & family) / len(family)
            for weight, family in zip(weights, self.families, strict=True)
        ]
        total = sum(shares)
        known = tuple(round(share / total, _DIGITS) for share in shares)
        return 0, known, frozenset(self.codes)

    def _different_splits(
        self, possible: frozenset[str], more: bool
    ) -> Sequence[dict[Feedback, frozenset[str]]]:
        if possible not in self._splits:
            self._splits[possible] = self._find_splits(possible)
        found = self._splits[possible]
        best = found[0]
        tells_all = len(best) == len(possible) and (len(self.codes[0]), 0) in best
        sure = len(possible) == 1 or (self.uniform and tells_all and more)
        return found[:1] if sure else found

    def _find_splits(self, possible: frozenset[str]) -> list[dict[Feedback, frozenset[str]]]:
        """How the guesses split the codes; those that fit come first, the finest ones before."""
        found: dict[frozenset[frozenset[str]], dict[Feedback, frozenset[str]]] = {}
        alike = self._alike(possible)
        guesses = sorted(self.codes, key=lambda code: code not in possible)
        for guess in guesses:
            if self._first_spelling(guess, alike):
                split = _split(guess, possible)
                if len(split) > 1 or guess in possible:
                    found.setdefault(_key(guess, possible, split), split)
        return sorted(found.values(), key=lambda split: (-_fits(split), -len(split)))

    def _alike(self, possible: frozenset[str]) -> Mapping[str, str]:
        """For each digit, the first digit that can be exchanged with it in all codes."""
        alike = {digit: digit for digit in self.digits}
        for digit in self.digits if self.uniform else "":
            alike[digit] = next(
                first
                for first in self.digits
                if alike[first] == first
                and all(_exchange(code, first, digit) in possible for code in possible)
            )
        return alike

    def _first_spelling(self, guess: str, alike: Mapping[str, str]) -> bool:
        """Whether digits that are alike occur in their order."""
        members: dict[str, list[str]] = defaultdict(list)
        for digit in self.digits:
            members[alike[digit]].append(digit)
        used = [digit for at, digit in enumerate(guess) if digit not in guess[:at]]
        return all(
            [digit for digit in used if alike[digit] == first] == same[: _count(used, alike, first)]
            for first, same in members.items()
        )


def _count(used: Sequence[str], alike: Mapping[str, str], first: str) -> int:
    return sum(alike[digit] == first for digit in used)


def _exchange(code: str, one: str, other: str) -> str:
    return code.translate(str.maketrans(one + other, other + one))


def _split(guess: str, possible: frozenset[str]) -> dict[Feedback, frozenset[str]]:
    parts: dict[Feedback, set[str]] = defaultdict(set)
    for code in sorted(possible):
        parts[compare(guess, code)].add(code)
    return {answer: frozenset(codes) for answer, codes in parts.items()}


def _key(
    guess: str, possible: frozenset[str], split: dict[Feedback, frozenset[str]]
) -> frozenset[frozenset[str]]:
    """Equal for guesses that tell the same codes apart and win with the same code."""
    own = frozenset([f"={guess}"] if guess in possible else [])
    return frozenset({*split.values(), own})


def _fits(split: dict[Feedback, frozenset[str]]) -> bool:
    """Whether the guess may be the secret: a part is then a single code with all digits right."""
    return any(answer[0] == len(next(iter(codes))) for answer, codes in split.items())
