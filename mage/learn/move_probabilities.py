"""The probability of every legal move in played turns, computed from the weights that played them.

The legal moves of a turn are scored as replies to its prompt, and all replies share the prompt, so
a turn costs little more than one reading of it. A GPU computes the prompts of an episode once.
A reply with text before its action is kept up to `<action>`: the probabilities are those of the
move, given that text. They are at the temperature of the sampler, before top-k and top-p.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from mage.agent.agent import Agent
from mage.agent.chat import Ids
from mage.config.sections import LearnOptions
from mage.learn.imitate.supervised import reply_logprobs
from mage.learn.pack.packer import best_layout
from mage.models.architecture import PreTrainedModel
from mage.run_folder.turn_files import MOST_LISTED, TurnMoves
from mage.types import MetaEpisode, Sample, Turn, TurnRef

MOST_TOKENS = 300_000  # of an update or a shard, scored from its first meta-episode on
_CHUNK_TOKENS = 4_000_000  # tokens of prompts and moves that are held as arrays at a time
# A dense attention mask of a larger tree costs more than the prompt that the turns of an episode
# share. The moves of one turn always share theirs.
_TREE_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class _Question:
    """A turn: the ids before its move, and the ids of every legal move."""

    where: TurnRef
    prompt: Ids
    moves: tuple[str, ...]
    spelled: tuple[Ids, ...]

    @property
    def unshared_tokens(self) -> int:
        """The tokens of all moves, each with a prompt of its own."""
        return sum(len(self.prompt) + len(ids) for ids in self.spelled)

    @property
    def tree_tokens(self) -> int:
        """The tokens to compute if all moves share the prompt."""
        return len(self.prompt) + sum(map(len, self.spelled))


def move_probabilities(
    model: PreTrainedModel, agent: Agent, metas: Sequence[MetaEpisode], learn: LearnOptions
) -> list[TurnMoves]:
    """The probabilities of the legal moves of all turns, at most `MOST_TOKENS` tokens of them.

    `agent` is the one that played. Turns whose legal moves are unknown are left out.
    """
    questions = list(_first_questions(agent, metas))
    chances: dict[tuple[Ids, Ids], float] = {}
    for chunk in _chunks(questions):
        chances |= _score(model, agent.sampling.temperature or 1.0, chunk, learn)
    return [_answer(one, [chances[one.prompt, ids] for ids in one.spelled]) for one in questions]


def _first_questions(agent: Agent, metas: Iterable[MetaEpisode]) -> Iterator[_Question]:
    """The turns of the first meta-episodes.

    The prompts of an episode extend each other, so its cost is its longest prompt and its moves.
    """
    room = MOST_TOKENS
    for meta in metas:
        found = [_episode_questions(agent, meta, k) for k in range(len(meta.episodes))]
        room -= sum(map(_episode_tokens, found))
        if room < 0:
            return
        yield from chain(*found)


def _episode_tokens(questions: Sequence[_Question]) -> int:
    longest = max((len(one.prompt) for one in questions), default=0)
    return longest + sum(len(ids) for one in questions for ids in one.spelled)


def _episode_questions(agent: Agent, meta: MetaEpisode, number: int) -> list[_Question]:
    return [
        _question(agent, turn, meta.where(number, index))
        for index, turn in enumerate(meta.episodes[number].turns)
        if turn.legal_moves and not turn.overflow
    ]


def _question(agent: Agent, turn: Turn, where: TurnRef) -> _Question:
    before, spelled = agent.spell_moves(turn.completion, turn.legal_moves)
    return _Question(where, turn.prompt_ids + before, turn.legal_moves, spelled)


def _chunks(questions: Iterable[_Question]) -> Iterator[list[_Question]]:
    chunk: list[_Question] = []
    size = 0
    for one in questions:
        chunk.append(one)
        size += one.unshared_tokens
        if size > _CHUNK_TOKENS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _score(
    model: PreTrainedModel, temperature: float, questions: Sequence[_Question], learn: LearnOptions
) -> dict[tuple[Ids, Ids], float]:
    """The probability of every different pair of prompt and move."""
    pairs = {(one.prompt, ids): one.where for one in questions for ids in one.spelled}
    samples = [Sample.to_score(prompt, ids, where) for (prompt, ids), where in pairs.items()]
    logprobs = reply_logprobs(
        model,
        samples,
        temperature=temperature,
        tree_tokens=max(_TREE_TOKENS, *(one.tree_tokens for one in questions)),
        micro_tokens=learn.tokens_at_once,
        layout=best_layout(model, learn),
    )
    return {pair: math.exp(value) for pair, value in zip(pairs, logprobs, strict=True)}


def _answer(question: _Question, chances: Sequence[float]) -> TurnMoves:
    where = question.where
    listed = sorted(zip(question.moves, chances, strict=True), key=lambda one: -one[1])
    return TurnMoves(
        where.group,
        where.member,
        where.episode,
        where.index,
        len(listed),
        sum(chances),
        tuple((move, round(chance, 6)) for move, chance in listed[:MOST_LISTED]),
    )
