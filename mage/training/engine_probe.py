"""After every update: does the engine play with the learner's weights?

An engine that holds its own copy of the weights (vLLM, fused kernels) can miss an update, and an
adapter can fail to arrive. Training then goes on and learns nothing. So the engine answers one
short request after each weight sync, always the same one, and the learner scores the reply:

    update          k              k + 1
    engine      -3.21   ->   -2.90      moves by +.31
    learner     -3.21   ->   -2.90      says the same, and has moved as well

Two findings end the run: both sides differ in the logprobs of the reply, or the learner has moved
and the engine repeats its old answer to the last bit. The second finds a lost update at once, where
half precision and a small learning rate hide the difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from mage.config.errors import UserError
from mage.engines.base import Engine, run
from mage.learn.imitate.supervised import reply_logprobs
from mage.models.architecture import PreTrainedModel
from mage.types import Completion, Request, Sample

Ids = tuple[int, ...]
_PROMPT = 64  # the last tokens of a prompt: enough for a reply that training moves
_REPLY = 8


class Limits(NamedTuple):
    """Differences of a token's logprob, mean over a reply.

    `gap`: more between engine and learner means other weights. `move`: the learner's own change
    from which an engine with the same weights cannot have stayed the same.
    """

    gap: float
    move: float


EXACT, HALF = Limits(gap=0.01, move=1e-4), Limits(gap=0.25, move=0.02)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A reply of the engine; `learner` is the logprob of the whole reply by the learner."""

    completion: Completion
    learner: float

    @property
    def engine(self) -> float:
        return sum(self.completion.logprobs)


class EngineProbe:
    """Asks the engine the same question after every weight sync and compares with the learner."""

    def __init__(self, engine: Engine, model: PreTrainedModel, temperature: float) -> None:
        self.engine, self.model, self.temperature = engine, model, temperature
        half = engine.rounds or model.dtype in (torch.bfloat16, torch.float16)
        self.limits = HALF if half else EXACT
        self.began = False  # a first check was made; on all ranks, also those without a prompt
        self.request: Request | None = None
        self.last: _Answer | None = None

    def check(self, prompts: Sequence[Ids], update: int) -> None:
        """Raise UserError if the engine plays with other weights than the learner's.

        The first of `prompts`, once there is one, is the question from then on.
        """
        self.began = True
        if self.request is None and prompts:
            self.request = Request(prompts[0][-_PROMPT:], _REPLY, 0, self.temperature)
        if self.request is None:
            return
        answer = self._ask(self.request)
        if answer is not None:
            self._compare(answer, update)
            self.last = answer

    def _ask(self, request: Request) -> _Answer | None:
        """The engine's reply and what the learner says about it; None without a reply."""
        (completion,) = run([_sample(self.engine, request)])
        self.engine.empty_cache()
        ids = completion.token_ids
        return _Answer(completion, self._score(request, ids)) if ids else None

    def _score(self, request: Request, ids: Ids) -> float:
        """The learner's logprob of a reply. Plain rows need no compilation."""
        sample = Sample.to_score(request.prompt_ids, ids)
        (score,) = reply_logprobs(self.model, [sample], temperature=self.temperature, layout="rows")
        return score

    def _compare(self, answer: _Answer, update: int) -> None:
        tokens = len(answer.completion.token_ids)
        if not abs(answer.engine - answer.learner) / tokens <= self.limits.gap:
            raise _differs(update, f"{answer.engine:.3f}", f"{answer.learner:.3f}")
        if self.last is None or not _is_same(answer.completion, self.last.completion):
            return
        moved = abs(answer.learner - self.last.learner) / tokens
        if moved > self.limits.move:
            before = f"{self.last.learner:.4f} before the update and {answer.learner:.4f} after it"
            raise _differs(update, f"{answer.engine:.4f}, exactly as before the update,", before)


async def _sample(engine: Engine, request: Request) -> Completion:
    return await engine.sample(request)


def _is_same(one: Completion, other: Completion) -> bool:
    return (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs)


def _differs(update: int, engine: str, learner: str) -> UserError:
    return UserError(
        f"after update {update} the engine does not play with the learner's weights: the logprob "
        f"of a probe reply is {engine} in the engine and {learner} in the learner. New weights or "
        "adapters did not reach the engine, or it computes another model. Resume with "
        'engines.name = "local"; for an own engine see that `refresh` loads the weights.'
    )
