"""Exact scores of an agent in a small game, computed from its move probabilities.

A panel of 4,800 tasks has an error of .04 chips a hand in Kuhn poker. If a game has few lines of
play and the memory is a plain record of them, all situations of N episodes can be listed. The
model gives the probability of each legal move in each situation, and the score of every episode
against an opponent with a known policy is a sum. Nothing is sampled. This file loads torch.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyspiel

from mage.agent.agent import episode_text
from mage.agent.chat import Ids
from mage.config.errors import UserError
from mage.config.sections import LearnOptions
from mage.engines.base import run
from mage.environments.base import Environment
from mage.environments.openspiel import OpenSpiel, OpenSpielState, load_game
from mage.evaluation.exact.game_tree import TooLarge, chanced, moved, roots
from mage.learn.imitate.supervised import reply_logprobs
from mage.memory.base import Entry
from mage.models.architecture import PreTrainedModel
from mage.opponents.base import find
from mage.play import PlaySetup
from mage.types import Sample

MAX_LINES, MAX_RECORDS = 200, 20_000
_NEGLIGIBLE = 1e-7  # records that are less likely are not followed further
Record = tuple[str, ...]  # the recaps of the episodes so far


class Decision(NamedTuple):
    """What the agent sees and what it does there."""

    observation: str
    legal: tuple[str, ...]
    word: str


Situation = tuple[Decision, ...]
Choice = tuple[OpenSpielState, str]  # a position and the move that was made in it


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One way through a game: the deal's chance, both sides' decisions, the recap and the score.

    `choices` are the agent's decisions and `answers` the opponent's, as (position, move).
    """

    chance: float
    decisions: tuple[Decision, ...]
    choices: tuple[Choice, ...]
    answers: tuple[Choice, ...]
    recap: str
    score: float


@dataclass(frozen=True, slots=True)
class ExactCell:
    """Expected score of every episode against one opponent or all, in one seat or both."""

    opponent: str | None
    seat: int | None
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Exact:
    """Scores by cell, and how complete they are.

    `unread`: mean probability, over situations, of replies that are not a legal move in its plain
    spelling; move probabilities are conditional on a legal move. `left_out`: the largest total
    probability, over opponents and seats, of the records that were not followed. `exploitability`:
    what a best response wins against the policy of the first episode, mean of both seats, minus the
    value of the game; None if OpenSpiel cannot compute it for this game.
    """

    cells: tuple[ExactCell, ...]
    situations: int
    unread: float
    left_out: float
    exploitability: float | None = None

    @property
    def overall(self) -> ExactCell:
        return self.cells[0]


def exact_scores(
    setup: PlaySetup, model: PreTrainedModel, shares: Mapping[str, float], learn: LearnOptions
) -> Exact:
    """Scores of the agent against opponents with these shares; both seats equally often."""
    _check(setup)
    tables = [
        _Table(setup, model, learn, seat, tuple(shares)) for seat in range(setup.environment.seats)
    ]
    total = sum(shares.values())
    cells = [ExactCell(name, table.seat, table.scores[name]) for table in tables for name in shares]

    def mean(opponent: str | None, seat: int | None) -> ExactCell:
        chosen = [
            (shares[str(cell.opponent)] / total, cell.scores)
            for cell in cells
            if opponent in (None, cell.opponent) and seat in (None, cell.seat)
        ]
        weight = sum(share for share, _ in chosen)
        return ExactCell(
            opponent,
            seat,
            tuple(
                sum(share * scores[k] for share, scores in chosen) / weight
                for k in range(setup.episodes)
            ),
        )

    summary = [
        mean(None, None),
        *(mean(None, table.seat) for table in tables),
        *(mean(name, None) for name in shares),
    ]
    situations = sum(table.situations for table in tables)
    unread = sum(table.unread for table in tables) / situations
    return Exact(
        cells=(*summary, *cells),
        situations=situations,
        unread=unread,
        left_out=max(table.left_out for table in tables),
        exploitability=_exploitability(setup.environment, tables),
    )


def _exploitability(game: Environment, tables: Sequence["_Table"]) -> float | None:
    """Exploitability of the policy of the first episode, by OpenSpiel."""
    assert isinstance(game, OpenSpiel), "checked before"
    spiel = load_game(game.spiel_game())
    kind = spiel.get_type()
    sums = (pyspiel.GameType.Utility.ZERO_SUM, pyspiel.GameType.Utility.CONSTANT_SUM)
    if kind.utility not in sums or not kind.provides_information_state_string:
        return None
    policy = {name: moves for table in tables for name, moves in table.first_policy().items()}
    return float(pyspiel.exploitability(spiel, policy))


def _check(setup: PlaySetup) -> None:
    memory, draw = setup.memory, setup.agent.sampling
    if not isinstance(setup.environment, OpenSpiel):
        raise UserError(
            f"exact scores need an OpenSpiel game; {setup.environment.name} is not one of them"
        )
    if not memory.is_plain_record:
        raise UserError(
            "exact scores need a memory that depends on the moves only: "
            "set memory.keep to history or none"
        )
    if setup.agent.prompts != "chat":
        raise UserError('exact scores need agent.prompts = "chat": set it, or add the part ours')
    if setup.environment.restart == "same":
        raise UserError(
            "exact scores need environments.restart = fresh: "
            "the deals of a replayed game are not independent"
        )
    if draw.top_p < 1 or draw.top_k:
        raise UserError(
            "exact scores need evaluate.top_p = 1 and evaluate.top_k = 0: "
            "a truncated distribution is not the model's own"
        )


class _Table:
    """One seat: the possible records of every episode, the agent's moves after each, the score."""

    def __init__(
        self,
        setup: PlaySetup,
        model: PreTrainedModel,
        learn: LearnOptions,
        seat: int,
        opponents: Sequence[str],
    ) -> None:
        self.setup, self.model, self.learn, self.seat = setup, model, learn, seat
        self.lines = list(_lines(setup.environment, seat))
        self.remembers = bool(self._shown((self.lines[0].recap,), ""))
        self.situations, self.unread, self.left_out = 0, 0.0, 0.0
        self.first: dict[Situation, dict[str, float]] = {}  # the policy of the first episode
        answers = {name: [_likely(line, name, seat) for line in self.lines] for name in opponents}
        chances: dict[str, dict[Record, float]] = {name: {(): 1.0} for name in opponents}
        self.scores: dict[str, tuple[float, ...]] = dict.fromkeys(opponents, ())
        for number in range(setup.episodes):
            likely = self._likely_lines(
                number, {record for before in chances.values() for record in before}
            )
            for name in opponents:
                score, chances[name] = self._step(chances[name], likely, answers[name])
                self.scores[name] += (score,)
                self.left_out = max(self.left_out, 1 - sum(chances[name].values()))

    def _step(
        self,
        before: Mapping[Record, float],
        likely: Mapping[Record, list[float]],
        answers: list[float],
    ) -> tuple[float, dict[Record, float]]:
        """One episode against one opponent: its score, and how likely each record is afterwards."""
        score, after = 0.0, dict[Record, float]()
        for record, chance in before.items():
            for line, ours, theirs in zip(self.lines, likely[record], answers, strict=True):
                weight = chance * ours * theirs
                score += weight * line.score
                longer = (*record, line.recap) if self.remembers else ()
                after[longer] = after.get(longer, 0.0) + weight
        return score / sum(before.values()), {
            record: weight for record, weight in after.items() if weight > _NEGLIGIBLE
        }

    def _likely_lines(self, number: int, records: set[Record]) -> dict[Record, list[float]]:
        """For every record: how likely the agent makes its moves of each line."""
        if len(records) > MAX_RECORDS:
            raise TooLarge(
                f"more than {MAX_RECORDS:,} records are possible before episode {number + 1}; "
                "no exact scores"
            )
        prompts: dict[tuple[Record, Situation], Ids] = {}
        for record in sorted(records):
            for line in self.lines:
                for made in range(len(line.decisions)):
                    key = record, _situation(line, made)
                    if key not in prompts:
                        prompts[key] = self._prompt(number, record, line, made)
        table = dict(
            zip(
                prompts,
                self._ask([(ids, situation[-1].legal) for (_, situation), ids in prompts.items()]),
                strict=True,
            )
        )

        if number == 0:
            self.first = {situation: moves for (_, situation), moves in table.items()}

        def product(record: Record, line: Line) -> float:
            return math.prod(
                table[record, _situation(line, made)][decision.word]
                for made, decision in enumerate(line.decisions)
            )

        return {record: [product(record, line) for line in self.lines] for record in records}

    def first_policy(self) -> dict[str, list[tuple[int, float]]]:
        """The policy of the first episode by OpenSpiel's information states and actions."""
        found: dict[str, list[tuple[int, float]]] = {}
        for line in self.lines:
            for made, (state, _) in enumerate(line.choices):
                moves = self.first[_situation(line, made)]
                name = state.spiel.information_state_string(self.seat)
                found[name] = [(state.number(word), chance) for word, chance in moves.items()]
        return found

    def _prompt(self, number: int, record: Record, line: Line, made: int) -> Ids:
        first, *others = (decision.observation for decision in line.decisions[: made + 1])
        agent, environment = self.setup.agent, self.setup.environment
        memory, shown = self._shown(record, first), self.setup.numbering(number)
        text = episode_text(environment, self.seat, memory, *shown, first)
        prompt = agent.begin(environment, text)
        for before, following in zip(line.decisions, others, strict=False):
            prompt += agent.action_reply(before.word) + agent.chat.next(following)
        return prompt

    def _shown(self, record: Record, opening: str) -> str:
        """The text that the memory shows after these episodes."""
        notebook = self.setup.memory.open()

        async def ask(text: str) -> str:
            raise AssertionError("a plain record asks the model nothing")

        async def fill() -> str:
            for number, recap in enumerate(record, start=1):
                # A plain record shows the recap only, so the other fields do not matter.
                await notebook.add(Entry(number, "", recap, "drawn", ""), ask)
            return str(await notebook.show(opening, ask))

        (text,) = run([fill()])
        return text

    def _ask(self, prompts: list[tuple[Ids, tuple[str, ...]]]) -> list[dict[str, float]]:
        """The probability of each legal move in each situation, given that the move is legal."""
        agent, learn = self.setup.agent, self.learn
        samples = [
            Sample.to_score(ids, agent.action_reply(word))
            for ids, legal in prompts
            for word in legal
        ]
        temperature = self.setup.agent.sampling.temperature
        spoken = iter(
            reply_logprobs(
                self.model,
                samples,
                temperature=temperature,
                micro_tokens=learn.tokens_at_once,
                layout="forest" if learn.packed else "rows",
            )
        )
        found = []
        for _, legal in prompts:
            chances = [math.exp(next(spoken)) for _ in legal]
            found.append(
                {word: chance / sum(chances) for word, chance in zip(legal, chances, strict=True)}
            )
            self.unread += 1 - sum(chances)
        self.situations += len(prompts)
        return found


def _situation(line: Line, made: int) -> Situation:
    """The agent's decisions so far and its present observation, without its next move."""
    return (*line.decisions[:made], line.decisions[made]._replace(word=""))


def _likely(line: Line, opponent: str, seat: int) -> float:
    """The chance of the deal and of the opponent's moves."""
    product = line.chance
    for state, word in line.answers:
        product *= find(opponent).policy(state, 1 - seat).get(word, 0.0)
    return product


def _lines(game: Environment, seat: int) -> Iterator[Line]:
    """All ways through a game, those of probability 0 included."""
    assert isinstance(game, OpenSpiel), "checked before"
    Way = tuple[float, OpenSpielState, tuple[Choice, ...], tuple[Choice, ...]]
    stack: list[Way] = [(chance, root, (), ()) for chance, root in roots(game)]
    count = 0
    while stack:
        chance, state, choices, answers = stack.pop()
        if state.spiel.is_terminal():
            count += 1
            if count > MAX_LINES:
                raise TooLarge(
                    f"{game.game} has more than {MAX_LINES} lines of play; no exact scores"
                )
            seen = tuple(Decision(one.observe(seat), one.legal(), word) for one, word in choices)
            yield Line(chance, seen, choices, answers, state.recap(seat), state.scores()[seat])
        elif state.spiel.is_chance_node():
            stack += [
                (chance * likely, chanced(state, action), choices, answers)
                for action, likely in state.spiel.chance_outcomes()
            ]
        else:
            own = state.spiel.current_player() == seat
            for word in state.legal():
                made = ((state, word),)
                after = (choices + made, answers) if own else (choices, answers + made)
                stack.append((chance, moved(state, word), *after))
