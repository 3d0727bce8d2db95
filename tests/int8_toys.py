"""What the tests of 8-bit keys and values share, on a CPU and on a GPU."""

from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mage.agent.chat import Chat
from mage.engines.base import run
from mage.engines.gpu import reference_ops
from mage.engines.gpu.state import Blocks
from mage.engines.local import LocalEngine
from mage.engines.pool import ZERO, Scales
from mage.models.base import find_model
from mage.types import Completion, Request

LENGTHS = (64, 256, 1024)
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def allow_small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 bits are refused below 1 B parameters and on a CPU; tests need both."""
    monkeypatch.setattr("mage.models.shapes.LEAST_PARAMETERS", 0)
    monkeypatch.setattr("mage.engines.local.pick_cache", lambda cache, device: cache)


def make_model(kind: str, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """A small random model; keys of Qwen2 get some large biases, as the real ones have them."""
    config, build = KINDS[kind]
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": 600,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 2048,
        "initializer_range": 0.1,
    }
    model: PreTrainedModel = build(config(**shape)).eval()
    if kind == "qwen2":
        for layer in model.get_decoder().layers:
            torch.nn.init.normal_(layer.self_attn.k_proj.bias, std=0.5)
            layer.self_attn.k_proj.bias.data[::16] *= 20
    return model.to(device, dtype)


def make_engine(model: PreTrainedModel, cache: str, **options: Any) -> LocalEngine:
    chat = Chat.load(find_model("embedded"))
    chat.end_ids = ()
    options = {"slots": 16, "context": 1280, "run_ahead": True} | options
    return LocalEngine(model, chat, cache=cache, **options)  # type: ignore[arg-type]


def answer(engine: LocalEngine, requests: list[Request]) -> list[Completion]:
    async def ask(request: Request) -> Completion:
        return await engine.sample(request)

    return run([ask(request) for request in requests])


def make_requests(lengths: tuple[int, ...], count: int, reply: int) -> list[Request]:
    """`count` random prompts of each length, with a common prefix of 40 tokens."""
    generator = torch.Generator().manual_seed(1)
    rules = tuple(torch.randint(5, 500, (40,), generator=generator).tolist())
    return [
        Request(
            rules + tuple(torch.randint(5, 500, (length - 40,), generator=generator).tolist()),
            reply,
            seed=number,
        )
        for length in lengths
        for number in range(count)
    ]


def mean_gaps(one: list[Completion], other: list[Completion], count: int) -> list[float]:
    """Mean difference of logprobs of the first tokens, where both drew the same, by length."""
    gaps = []
    for start in range(0, len(one), count):
        pairs = [
            abs(left.logprobs[place] - right.logprobs[place])
            for left, right in zip(
                one[start : start + count], other[start : start + count], strict=True
            )
            for place in range(len(left.token_ids))
            if left.token_ids[: place + 1] == right.token_ids[: place + 1]
        ]
        assert len(pairs) >= count / 2, "half of the first tokens are the same"
        gaps.append(sum(pairs) / len(pairs))
    return gaps


def compare_kernels(kernels: ModuleType, device: str) -> None:
    """The kernels and the plain versions store the same keys and attend to the same values."""
    torch.manual_seed(0)
    heads, kv_heads, size, scaling, length = 8, 2, 64, 64**-0.5, 256

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device)

    def query(rows: int) -> torch.Tensor:
        """Numbers of float16, which the kernels compute with: so rounding is no difference."""
        return draw(rows, heads, size).half().float()

    def whole(*numbers: int) -> torch.Tensor:
        return torch.tensor(numbers, device=device)

    channels = torch.stack([torch.randperm(size, device=device)[:32] for _ in range(kv_heads)])
    biases = [
        (channels, (draw(length, kv_heads, 32) * 8).half()),
        (channels[:, :0], draw(length, kv_heads, 0).half()),
    ]
    together, rope = draw(4, heads + 2 * kv_heads, size), (draw(length, size), draw(length, size))
    where, norms = (whole(1, 3, 0, 6), whole(5, 100, 0, 7)), (draw(size), draw(size))
    stored = []
    for side in (kernels, reference_ops):
        cache = torch.zeros(2, 7, length, kv_heads, size, dtype=torch.uint8, device=device)
        pairs = torch.zeros(7, kv_heads, length, 2, dtype=torch.float16, device=device)
        scales = Scales(pairs, *biases[1])
        queries = side.rotate_and_store(together, heads, rope, norms, 1e-6, *where, *cache, scales)
        stored.append((cache.int(), pairs.float(), queries))
    (ours, our_pairs, our_queries), (theirs, their_pairs, their_queries) = stored
    _close(our_queries, their_queries)
    torch.testing.assert_close(our_pairs, their_pairs, atol=0.008, rtol=0)  # one step of float16
    assert their_pairs[1, :, 5].all()
    differing = ours != theirs
    assert (ours - theirs).abs().max() <= 1
    assert differing.sum() <= 0.02 * (theirs > 0).sum(), "a scale or a tie is rounded otherwise"

    keys, values = (draw(2, 7, length, kv_heads, size) * 40 + ZERO).clamp(1, 255).to(torch.uint8)
    pairs = (draw(7, kv_heads, length, 2) - 5).half()
    filled = whole(0, 5, 64, 100, 150, 199, 0)
    blocks = Blocks(
        whole(0, 16, 20, 29, 0),
        whole(16, 4, 9, -11, 0),
        whole(2, 2, 4, 0, 0),
        whole(50, 66, 0, 0, 0),
        16,
    )
    for bias in biases:
        scales = Scales(pairs, *bias)
        for count, shared in ((6, whole(0, 0)), (2, whole(4, 128))):
            whose = torch.arange(count, device=device) + 4 * (shared[1] > 0)
            given = query(count), keys, values, whose, filled, shared, scaling, scales
            _close(kernels.attend_decode(*given), reference_ops.attend_decode(*given))
            drafted = query(count * 4), *given[1:]
            _close(
                kernels.attend_decode(*drafted, width=4),
                reference_ops.attend_decode(*drafted, width=4),
            )
        given_blocks = (query(40), keys, values, blocks, scaling, scales)
        _close(kernels.attend_blocks(*given_blocks), reference_ops.attend_blocks(*given_blocks))


def _close(one: torch.Tensor, other: torch.Tensor) -> None:
    """Weights are float16 in the kernels."""
    torch.testing.assert_close(one, other, atol=3e-3, rtol=1e-3)
