"""Small exact models and samples for the tests of `mage.learn`."""

from typing import Any

import torch
from hypothesis import strategies as st
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mage.types import Sample, TurnRef

VOCABULARY = 7
SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 24,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def make_model(
    kind: str = "llama", *, exact: bool = True, seed: int = 0, **changes: Any
) -> PreTrainedModel:
    """A tiny random model. `exact`: all of it in float64, also the norms (float32 by default)."""
    config, build = KINDS[kind]
    torch.manual_seed(seed)
    model: PreTrainedModel = build(config(**SMALL | changes)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):  # all zeros initially, which would hide a missing bias
                weight.normal_(0, 0.3)
    return _exact(model) if exact else model


def _exact(model: PreTrainedModel) -> PreTrainedModel:
    model.double()
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                norm = torch.nn.RMSNorm(
                    child.weight.shape, eps=child.variance_epsilon, dtype=torch.float64
                )
                setattr(parent, name, norm)
    return model


def make_sample(prompt: tuple[int, ...], reply: tuple[int, ...], **changes: Any) -> Sample:
    """A sample; the fields that are not given do not matter to the test."""
    fields: dict[str, Any] = {
        "old_logprobs": (-1.5,) * len(reply),
        "advantage": 1.0,
        "choices": (),
        "kind": "play",
        "where": TurnRef(0, 0, 0, 0, ""),
    }
    return Sample(prompt, reply, **fields | changes)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """Short texts of three letters, which share prefixes in every possible way."""
    text = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)
    tokens = st.sets(st.integers(0, VOCABULARY - 1), min_size=2, max_size=4).map(tuple)
    reply = draw(text)
    return make_sample(
        draw(text),
        reply,
        old_logprobs=tuple(draw(st.floats(-3, -0.5)) for _ in reply),
        advantage=draw(st.floats(-2, 2)),
        choices=tuple((place, draw(tokens)) for place in range(len(reply)) if draw(st.booleans())),
        kind=draw(st.sampled_from(["play", "reflect"])),
        where=TurnRef(draw(st.integers(0, 1)), draw(st.integers(0, 2)), 0, 0, ""),
    )


batches = st.lists(samples(), min_size=1, max_size=10)


def prepend(start: tuple[int, ...], given: list[Sample]) -> list[Sample]:
    """The same samples after a common prefix, as the rules precede every prompt."""
    return [make_sample(start + one.prompt_ids, one.reply_ids, **_rest(one)) for one in given]


def _rest(sample: Sample) -> dict[str, Any]:
    return {
        name: getattr(sample, name)
        for name in ("old_logprobs", "advantage", "choices", "kind", "where")
    }


starts = st.lists(st.integers(0, VOCABULARY - 1), max_size=5).map(tuple)
