"""A check that an engine computes the model's own probabilities, before anything is played."""

from typing import Any

import torch

from mage.config.errors import UserError
from mage.engines.base import Engine
from mage.types import Request

_PROMPT, _REPLY = 12, 4  # tokens
NEEDED = _PROMPT + _REPLY  # the shortest context in which a model can be tried
GAP, HALF_GAP = 0.01, 0.25  # of log-probabilities, in float32 and in half precision
FP8_GAP = 1.0  # with keys and values as 8-bit floats: .26 seen in bfloat16 with random weights


@torch.no_grad()
def check_own_logits(engine: Engine, model: Any, name: str, fp8: bool = False) -> None:
    """Refuse a model whose own log-probabilities of a short reply differ from the engine's.

    `fp8`: the engine keeps keys and values as 8-bit floats.
    """
    vocabulary = model.get_output_embeddings().weight.shape[0]
    prompt = tuple(number % vocabulary for number in range(_PROMPT))
    engine.submit(Request(prompt, _REPLY, seed=0))
    while not (answered := engine.step()):
        continue
    ((_, reply),) = answered
    engine.empty_cache()
    ids = torch.tensor([[*prompt, *reply.token_ids]], device=model.device)
    own = model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
    told = [float(own[_PROMPT - 1 + k, token]) for k, token in enumerate(reply.token_ids)]
    gap = max(abs(a - b) for a, b in zip(told, reply.logprobs, strict=True))
    most = FP8_GAP if fp8 else GAP if model.dtype.itemsize >= 4 else HALF_GAP
    if not gap < most:
        advice = 'engines.cache = "model"' if fp8 else "another model"
        raise UserError(
            f"{name} computes other probabilities than {type(model).__name__} itself "
            f"(log-probabilities differ by {gap:.3g}): use {advice}"
        )
