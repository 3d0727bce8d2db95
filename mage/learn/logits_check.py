"""A check that the learner computes the model's own probabilities, before anything is trained."""

from collections.abc import Callable, Sequence

import torch

from mage.config.errors import UserError
from mage.learn.pack.tries import Row, prepare
from mage.models.architecture import PreTrainedModel
from mage.types import Sample

_SHARED, _MORE, _REPLY = 12, 5, 4  # tokens: of both prompts, more of the second, of each reply
_GAP, _HALF_GAP = 0.01, 0.25  # of log-probabilities, in float32 and in half precision


@torch.no_grad()
def check_logits(
    model: PreTrainedModel, logprobs: Callable[[Sequence[Row]], torch.Tensor], temperature: float
) -> None:
    """Refuse a model whose own log-probabilities differ from those that the learner computes.

    The learner packs rows with a common prefix or pads them, and it multiplies the last hidden
    state by the head. Some models scale their logits, and some do not take another attention.
    """
    vocabulary = model.get_output_embeddings().weight.shape[0]
    rows = prepare(_sample(number, vocabulary) for number in (1, 2))
    own = torch.cat([_own(model, row, temperature) for row in rows])
    gap = float((own - logprobs(rows).to(own.dtype)).abs().max())
    if not gap < (_GAP if model.dtype.itemsize >= 4 else _HALF_GAP):
        raise UserError(
            f"the learner computes other probabilities than {type(model).__name__} itself "
            f"(log-probabilities differ by {gap:.3g}): use another model"
        )


def _sample(number: int, vocabulary: int) -> Sample:
    prompt = range(_SHARED + _MORE * (number - 1))
    ids = [token % vocabulary for token in (*prompt, *range(number, number + _REPLY))]
    return Sample.to_score(tuple(ids[:-_REPLY]), tuple(ids[-_REPLY:]))


def _own(model: PreTrainedModel, row: Row, temperature: float) -> torch.Tensor:
    """Log-probabilities of the reply, from the model's own logits."""
    ids = torch.tensor(row.ids, device=model.device)
    logits = model(input_ids=ids[None], use_cache=False).logits[0, -_REPLY - 1 : -1]
    scaled = (logits.float() / temperature).log_softmax(-1)
    return scaled.gather(-1, ids[-_REPLY:, None])[:, 0]
