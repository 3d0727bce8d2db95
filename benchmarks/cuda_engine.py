"""The built-in engine on a GPU against `transformers.generate` and against the memory limit.

A 135 M Llama (SmolLM2's shape, random weights, bfloat16), prompts of 512 random tokens without
common prefixes, 128 new tokens each. `generate` gets its prompts as a tensor beforehand and
computes neither logprobs nor stop strings. The memory limit is the time to read the weights and
the filled keys and values once, at the speed of a large copy in this run.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from benchmarks.measure import Comparison, Skipped, Way, relate, take_turns
from mage.agent.chat import Chat
from mage.engines.base import Engine
from mage.engines.local import LocalEngine
from mage.models.base import find_model
from mage.types import Request

SMOLLM2 = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "rope_theta": 100_000.0,
}  # fmt: skip
TARGETS = {"generate": 20.0, "generate, static cache, compiled": 4.0}


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of work; tests use less."""

    device: str = "cuda"
    layers: int = 30
    batch: int = 128
    prompt: int = 512
    new: int = 128
    batches: tuple[int, ...] = (256, 512, 1024)
    rounds: int = 2
    compiled: bool = True


def measure(size: Size | None = None) -> Iterator[Comparison | str]:
    """Tokens per second, and multiples of the memory limit."""
    if size is None and not torch.cuda.is_available():
        raise Skipped("needs a CUDA device")
    size = size or Size()
    model = random_model(SMOLLM2 | {"num_hidden_layers": size.layers}, size.device)
    engine = LocalEngine(
        model,
        _endless_chat(),
        slots=max(size.batch, *size.batches),
        context=size.prompt + 2 * size.new,
        run_ahead=True,
        drafts=0,  # replies of random weights repeat nothing
    )
    yield from _against_generate(model, engine, size)
    yield from _against_the_floor(engine, size)


def random_model(shape: dict[str, Any], device: str) -> PreTrainedModel:
    """A Llama of this shape on the device, bfloat16 on a GPU."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            LlamaConfig(**shape), dtype=torch.bfloat16 if device == "cuda" else torch.float32
        )
    return model.eval()  # type: ignore[no-any-return]


def _endless_chat() -> Chat:
    """No token ends a reply, so both sides write the same number of tokens."""
    chat = Chat.load(find_model("embedded"))
    chat.end_ids = ()
    return chat


def walled(work: Callable[[], object], device: str) -> Way:
    """Wall-clock seconds until the device is done."""

    def way() -> float:
        began = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    return way


def _requests(count: int, size: Size, seed: int = 0) -> list[Request]:
    rng = random.Random(seed)
    return [
        Request(tuple(rng.randrange(3, 49_000) for _ in range(size.prompt)), size.new, number)
        for number in range(count)
    ]


def _answer(engine: Engine, requests: Sequence[Request]) -> list[float]:
    """Answer all requests from an empty cache; returns the end time of each step."""
    engine.refresh(0)
    for request in requests:
        engine.submit(request)
    left, marks = len(requests), []
    while left:
        left -= len(engine.step())
        marks.append(time.perf_counter())
    return marks


def _against_generate(
    model: PreTrainedModel, engine: LocalEngine, size: Size
) -> Iterator[Comparison]:
    requests = _requests(size.batch, size)
    ids = torch.tensor([request.prompt_ids for request in requests], device=size.device)
    fixed: dict[str, Any] = {
        "attention_mask": torch.ones_like(ids), "max_new_tokens": size.new,
        "min_new_tokens": size.new, "do_sample": True, "temperature": 1.0, "top_k": 0,
        "top_p": 1.0, "eos_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    ways: dict[str, Way] = {
        "engine": walled(lambda: _answer(engine, requests), size.device),
        "generate": walled(lambda: _generate(model, ids, fixed), size.device),
    }
    if size.compiled:
        ways["generate, static cache, compiled"] = walled(
            lambda: _generate(model, ids, fixed | {"cache_implementation": "static"}), size.device
        )
    seconds = dict(zip(ways, take_turns(list(ways.values()), size.rounds), strict=True))
    for name in list(ways)[1:]:
        found = relate(
            "cuda engine",
            name,
            ("engine", "generate"),
            "tokens",
            size.batch * size.new,
            seconds["engine"],
            seconds[name],
        )
        note = f"{size.batch} requests of {size.prompt} + {size.new} tokens"
        yield replace(found, target=TARGETS[name] if size.device == "cuda" else None, note=note)


@torch.inference_mode()
def _generate(model: PreTrainedModel, ids: torch.Tensor, options: dict[str, Any]) -> None:
    model.generate(ids, **options)


def _against_the_floor(engine: LocalEngine, size: Size) -> Iterator[str]:
    bandwidth = _bandwidth(size.device)
    pool, weights = (
        engine.pool.store,
        sum(value.numel() * value.element_size() for value in engine.model.parameters()),
    )
    per_token = pool[:, :, 0, 0].numel() * pool.element_size()
    yield f"memory: {bandwidth / 1e12:.2f} TB/s by a large copy"
    for batch in size.batches:
        requests = _requests(batch, size, batch)
        for _ in range(2):  # the first round records graphs
            taken, filled = _full_steps(engine, requests)
        floor = (weights + batch * filled * per_token) / bandwidth
        verdict = (
            ""
            if size.device != "cuda"
            else " (target 4)"
            if taken <= 4 * floor
            else " MISSED: target 4"
        )
        speed = f"{taken * 1e3:6.2f} ms a step, {batch / taken:9,.0f} tokens/s"
        multiple = f"{taken / floor:4.1f} times the memory limit"
        yield f"cuda engine  batch {batch:5}: {speed}, {multiple}{verdict}"


def _full_steps(engine: LocalEngine, requests: Sequence[Request]) -> tuple[float, float]:
    """Median seconds of the steps in which all sequences decode, and their mean number of keys."""
    engine.refresh(0)
    for request in requests:
        engine.submit(request)
    left, steps, lengths = len(requests), [], []
    while left:
        began, prefilled = time.perf_counter(), engine.stats.prefilled_tokens
        done = len(engine.step())
        if (
            left == len(requests)
            and not done
            and not engine.queue
            and engine.stats.prefilled_tokens == prefilled
        ):
            steps.append(time.perf_counter() - began)
            lengths.append(float(engine.sequences.known[engine.sequences.active].mean()))
        left -= done
    return median(steps[2:]), sum(lengths) / len(lengths)


def _bandwidth(device: str) -> float:
    """Bytes per second, read and written, of the best of five copies."""
    source = torch.zeros(2**30 if device == "cuda" else 2**22, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * len(source) / min(walled(lambda: target.copy_(source), device)() for _ in range(5))
