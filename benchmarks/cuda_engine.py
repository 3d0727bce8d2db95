"""The built-in engine on a GPU against `transformers.generate` and against the memory limit.

A 135 M Llama (SmolLM2's shape, random weights, bfloat16), prompts of 512 random tokens without
common prefixes, 128 new tokens each. `generate` gets its prompts as a tensor beforehand and
computes neither logprobs nor stop strings. The memory limit is the time to read the weights and
the filled keys and values once, at the speed of a large copy in this run.

Whole meta-episodes: 16 x 8 of Tic-Tac-Toe with SmolLM2 (`mage model add smollm2`), through
`play_groups`. The other side answers all waiting requests with one call of `generate`, moves and
notes apart; it waits for all answers.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from benchmarks.measure import Comparison, Skipped, Way, relate, take_turns
from mage.agent.agent import CLOSE
from mage.agent.chat import Chat
from mage.config.loading import load_recipe
from mage.engines.base import Engine
from mage.engines.local import LocalEngine
from mage.models.base import find_model
from mage.models.loading import load_model
from mage.play import play_groups
from mage.seeds import derive
from mage.training.build import Components, build_components
from mage.training.tasks import draw_tasks
from mage.types import Completion, Request

SMOLLM2 = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "rope_theta": 100_000.0,
}  # fmt: skip
TARGETS = {"generate": 20.0, "generate, static cache, compiled": 4.0, "meta-episodes": 15.0}


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
    """Tokens per second, multiples of the memory limit, and meta-episodes per second."""
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
    )
    yield from _against_generate(model, engine, size)
    yield from _against_the_floor(engine, size)
    del engine, model
    if size.device == "cuda":
        torch.cuda.empty_cache()
    yield from meta_episodes(size.device)


def random_model(
    shape: dict[str, Any], device: str, kind: type[PreTrainedConfig] = LlamaConfig, **changes: Any
) -> PreTrainedModel:
    """A Llama (or another `kind`) of this shape on the device, bfloat16 on a GPU."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            kind(**shape | changes), dtype=torch.bfloat16 if device == "cuda" else torch.float32
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
            lengths.append(float(engine.known[engine.active].mean()))
        left -= done
    return median(steps[2:]), sum(lengths) / len(lengths)


def _bandwidth(device: str) -> float:
    """Bytes per second, read and written, of the best of five copies."""
    source = torch.zeros(2**30 if device == "cuda" else 2**22, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * len(source) / min(walled(lambda: target.copy_(source), device)() for _ in range(5))


class GenerateEngine(Engine):
    """Batch-synchronous: one call of `generate` answers all waiting requests of a kind."""

    def __init__(self, model: PreTrainedModel, chat: Chat, folder: Path) -> None:
        self.model, self.chat, self.tokenizer = (
            model,
            chat,
            AutoTokenizer.from_pretrained(folder, padding_side="left"),
        )
        self.waiting: list[Request] = []
        self.tokens = 0

    def submit(self, request: Request) -> None:
        self.waiting.append(request)

    def step(self) -> list[tuple[Request, Completion]]:
        waiting, self.waiting = self.waiting, []
        kinds = (
            [request for request in waiting if request.stop],
            [request for request in waiting if not request.stop],
        )
        return [answer for kind in kinds if kind for answer in self._answer(kind)]

    @torch.inference_mode()
    def _answer(self, requests: list[Request]) -> list[tuple[Request, Completion]]:
        device = self.model.device
        width = max(len(request.prompt_ids) for request in requests)
        ids = torch.full((len(requests), width), self.chat.end_ids[0])
        mask = torch.zeros_like(ids)
        for row, request in enumerate(requests):
            (
                ids[row, width - len(request.prompt_ids) :],
                mask[row, width - len(request.prompt_ids) :],
            ) = torch.tensor(request.prompt_ids), 1
        extra: dict[str, Any] = (
            {"stop_strings": list(requests[0].stop), "tokenizer": self.tokenizer}
            if requests[0].stop
            else {}
        )
        found = self.model.generate(
            ids.to(device), attention_mask=mask.to(device),
            max_new_tokens=requests[0].max_tokens, do_sample=True,
            temperature=1.0, top_k=0, top_p=1.0,
            eos_token_id=list(self.chat.end_ids), pad_token_id=self.chat.end_ids[0], **extra,
        )  # fmt: skip
        return [
            (request, self._read(request, reply))
            for request, reply in zip(requests, found[:, width:].tolist(), strict=True)
        ]

    def _read(self, request: Request, ids: list[int]) -> Completion:
        end = (
            next(
                (place for place, token in enumerate(ids) if token in self.chat.end_ids),
                len(ids) - 1,
            )
            + 1
        )
        text = self.chat.decode(tuple(ids[:end]))
        self.tokens += end
        cut = text.split(CLOSE)[0] + CLOSE if request.stop and CLOSE in text else text
        return Completion(tuple(ids[:end]), (0.0,) * end, cut, "stop", 0)


def meta_episodes(
    device: str,
    groups: int = 16,
    members: int = 8,
    model: str = "smollm2",
    recipe: str = "smollm2_tic_tac_toe",
) -> Iterator[Comparison | str]:
    """Whole meta-episodes, played with both engines."""
    try:
        folder = find_model(model)
    except ValueError as missing:
        yield f"meta-episodes: not measured ({missing})"
        return
    changes = [
        f"--model.path={folder}",
        f"--play.groups={groups}",
        f"--play.members={members}",
        f"--run.device={device}",
    ]
    parts = build_components(load_recipe(recipe, changes))
    assert isinstance(parts.engine, LocalEngine), "the recipe asks for it"
    # A second copy of the model: the engine has concatenated the weights of the first.
    other = GenerateEngine(load_model(folder, parts.recipe.model.dtype, device), parts.chat, folder)
    ours, theirs = (
        walled(lambda: _play(parts), device),
        walled(lambda: _play(replace(parts, engine=other)), device),
    )
    ours()
    before = parts.engine.stats.generated_tokens
    times = [ours(), ours()]
    made = (parts.engine.stats.generated_tokens - before) / 2
    found = relate(
        "cuda engine",
        "meta-episodes of Tic-Tac-Toe",
        ("engine", "generate"),
        "meta-episodes",
        groups * members,
        times[-1:],
        [theirs()],
    )
    note = f"{groups} x {members} side by side; {made:,.0f} and {other.tokens:,} tokens written"
    yield replace(found, target=TARGETS["meta-episodes"] if device == "cuda" else None, note=note)


def _play(parts: Components) -> None:
    parts.engine.refresh(0)
    play_groups(parts.setting(), draw_tasks(parts.recipe, 1), derive("benchmark", 1))
