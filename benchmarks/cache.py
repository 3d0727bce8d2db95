"""Keys and values in 8 bits against the model's format: speed, memory, and the learner's logprobs.

    python -m benchmarks.cache --out cache.json                # on a GPU
    python -m benchmarks.cache --model FOLDER --parts mismatch # a real model on texts of docs/
    python -m benchmarks.cache --size tiny                     # a test on a CPU

Speed: a model of Qwen3-4B's shape with random weights; both formats answer the same requests in
turn, prefill included; the first round warms up and is not counted. Mismatch: the mean difference
of a reply token's logprob in the engine and in the learner, by length of prompt and reply, with
1.5 B parameters. Random weights attend to all keys almost equally, so only a real model shows
the size of the mismatch. Attention: one decode kernel alone, against the bytes that it reads.
Play: the meta-episodes of one update of `paper_alfworld+ours` (LoRA, 78 GB), with all slots that
fit; benchmarks.paper_scale measures whole updates.
"""

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import (
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from benchmarks.paper_scale import fast_folder, sizes_of, write_model
from benchmarks.vllm import FORMATS, Case, play, requests
from mage.agent.chat import Chat
from mage.config.loading import load_recipe
from mage.config.sections import LearnOptions
from mage.engines.gpu.loop import operations
from mage.engines.local import LocalEngine
from mage.engines.pool import KeyValuePool
from mage.learn.learner import Learner
from mage.learn.pack.tries import prepare
from mage.models.base import find_model
from mage.models.loading import load_model
from mage.models.shapes import PRESETS, ModelShape
from mage.training.build import build_components
from mage.training.fit import fit_to_gpu
from mage.types import Completion, Request, Sample, TurnRef

PARTS = ("attention", "speed", "mismatch", "play")
MIDDLE = ModelShape(28, 1536, 12, 2, 128, 8960, 151_936, True)
TINY = ModelShape(2, 64, 4, 2, 64, 128, 1024, True)
REPLY = 64  # tokens of a reply whose logprobs are compared
DOCS = Path(__file__).resolve().parent.parent / "docs"
_WHERE = TurnRef(0, 0, 0, 0, "")


class Size:
    """The amount of work; `tiny` is for a test on a CPU."""

    def __init__(self, tiny: bool) -> None:
        self.speed_shape = TINY if tiny else PRESETS["qwen3-4b"]
        self.mismatch_shape = TINY if tiny else MIDDLE
        self.cases = (Case(4, 16, 8),) if tiny else (Case(512, 512, 128), Case(64, 1024, 1024))
        self.lengths = (80,) if tiny else (256, 1024, 4096, 8192)
        self.count = 2 if tiny else 8  # requests of each length
        self.reply = 4 if tiny else 256  # tokens of a reply in play
        self.play = (
            ()
            if not tiny
            else (
                *("--play.groups=1", "--play.members=2", "--play.episodes=1"),
                *("--engines.slots=2", "--engines.context=1024", "--environments.max_turns=12"),
                *("--environments.receptacles=4", "--environments.objects=4"),
            )
        )
        self.attention = ((4, 100),) if tiny else ((512, 576), (64, 1536), (64, 6144))


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def random_model(shape: ModelShape, kind: Any, config: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    with torch.device(device()):
        torch.set_default_dtype(torch.bfloat16 if device() == "cuda" else torch.float32)
        model: PreTrainedModel = kind(config(**sizes_of(shape)))
        torch.set_default_dtype(before)
    return model.eval()


def make_engine(model: PreTrainedModel, chat: Chat, name: str, **sizes: int) -> LocalEngine:
    """An engine with a format of FORMATS."""
    options: dict[str, Any] = {
        "run_ahead": True,
        "cache": FORMATS[name][0],
        "drafts": 0,
        **sizes,
    }
    return LocalEngine(model, chat, **options)


def endless(chat: Chat) -> Chat:
    """No token ends a reply, so all replies have the same length."""
    chat.end_ids = ()
    return chat


def answer(engine: LocalEngine, asked: Sequence[Request]) -> dict[Request, Completion]:
    for request in asked:
        engine.submit(request)
    found: dict[Request, Completion] = {}
    while len(found) < len(asked):
        found |= dict(engine.step())
    return found


def measure_speed(size: Size, rounds: int, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Tokens per second of the formats, in turn, and the bytes of their pools."""
    model = random_model(size.speed_shape, Qwen3ForCausalLM, Qwen3Config)
    chat = endless(Chat.load(find_model("embedded")))
    for case in size.cases:
        engines = {
            cache: make_engine(
                model, chat, cache, slots=case.count, context=case.prompt + case.reply + 1
            )
            for cache in names
        }
        rates: dict[str, list[float]] = {cache: [] for cache in names}
        for number in range(rounds + 1):
            # Warming up needs all prefills, but only a few decode steps.
            reply = case.reply if number else min(case.reply, 8)
            asked = requests(Case(case.count, case.prompt, reply), number)
            for cache, engine in engines.items():
                engine.refresh(number)
                began = time.perf_counter()
                answer(engine, asked)
                rates[cache].append(case.count * reply / (time.perf_counter() - began))
        for cache, engine in engines.items():
            counted, pool = rates[cache][1:], engine.pool
            yield {
                "part": "speed",
                "case": case.name,
                "cache": cache,
                "best": max(counted),
                "median": median(counted),
                "rates": counted,
                "pool_gb": case.count * pool.length * pool.token_bytes / 1e9,
            }
        del engines, engine, pool
        free()


def measure_mismatch(
    size: Size, folder: Path | None, names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """The metric `mismatch` of the formats, by length of prompt and reply."""
    if folder is None:
        model = random_model(size.mismatch_shape, Qwen3ForCausalLM, Qwen3Config)
        chat, text = endless(Chat.load(find_model("embedded"))), None
    else:
        model, chat = load_model(folder, "auto", device()), endless(Chat.load(folder))
        text = chat.encode("\n".join(page.read_text() for page in sorted(DOCS.glob("*.md"))))
    learner = Learner(model, LearnOptions(lora_rank=8, micro_tokens=16_384), layout="rows")
    for cache in names:
        engine = make_engine(model, chat, cache, slots=size.count, context=max(size.lengths) + 1)
        for length in size.lengths:
            asked = requests(Case(size.count, length - REPLY, REPLY), length)
            if text is not None:
                asked = [cut(text, number, length, size.count) for number in range(size.count)]
            engine.refresh(length)
            found = answer(engine, asked)
            samples = [
                Sample(one.prompt_ids, reply.token_ids, reply.logprobs, 0.0, (), "play", _WHERE)
                for one, reply in found.items()
            ]
            ours = torch.tensor([one for reply in found.values() for one in reply.logprobs])
            gaps = (learner.logprobs(prepare(samples)).cpu() - ours).float()
            yield {
                "part": "mismatch",
                "model": "random weights" if folder is None else folder.name,
                "cache": cache,
                "length": length,
                "tokens": len(gaps),
                "mismatch": float(gaps.abs().mean()),
                "largest": float(gaps.abs().max()),
                "ratio": float(gaps.exp().mean()),
                "approx_kl": float((gaps.exp() - 1 - gaps).mean()),
            }
        del engine
        free()


def cut(text: Sequence[int], number: int, length: int, count: int) -> Request:
    """A request with a piece of the text; pieces begin at different places."""
    start = number * max(1, (len(text) - length) // count)
    return Request(tuple(text[start : start + length - REPLY]), REPLY, number)


def measure_attention(size: Size) -> Iterator[dict[str, Any]]:
    """Microseconds of a decode attention of one layer, and the bytes per second that it reads."""
    shape, place = size.speed_shape, torch.device(device())
    ops, dtype = operations(place), torch.bfloat16 if device() == "cuda" else torch.float32
    for rows, length in size.attention:
        for cache in FORMATS:
            pool = KeyValuePool(
                1, shape.kv_heads, shape.head_size, (rows, length), dtype, place, cache == "int8"
            )
            pool.reserve(rows, length)
            query = torch.randn(rows, shape.heads, shape.head_size, device=place).to(dtype)
            slots = torch.arange(rows, device=place)
            filled = torch.full_like(slots, length - 1)
            shared = torch.zeros(2, dtype=torch.int64, device=place)
            given = (query, *pool.layer(0), slots, filled, shared, 0.1, pool.layer_scales(0))
            seconds = seconds_of(partial(ops.attend_decode, *given))
            yield {
                "part": "attention",
                "case": f"{rows} x {length} keys",
                "cache": cache,
                "microseconds": 1e6 * seconds,
                "tb_per_s": rows * length * pool.token_bytes / seconds / 1e12,
            }
            del pool, given
            free()


def measure_play(size: Size, changes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Seconds and tokens per second of the play of one update."""
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        write_model(size.speed_shape, Path(folder))
        for cache in FORMATS:
            free()
            recipe = load_recipe(
                "paper_alfworld+ours",
                [
                    f"--model.path={folder}",
                    f"--engines.cache={cache}",
                    "--engines.run_ahead=true",
                    "--environments.data=generated",
                    f"--agent.max_tokens={size.reply}",
                    f"--agent.reflection_tokens={size.reply}",
                    "--learn.lora_rank=16",
                    "--run.gpu_memory=78",
                    *size.play,
                    *changes,
                ],
            )
            parts = build_components(fit_to_gpu(recipe))
            began = time.perf_counter()
            tokens = play(parts, 0)
            seconds = time.perf_counter() - began
            yield {
                "part": "play",
                "cache": cache,
                "slots": parts.engine.capacity,
                "seconds": seconds,
                "tokens_per_s": tokens / seconds,
                "held_gb": torch.cuda.max_memory_allocated() / 1e9 if device() == "cuda" else 0.0,
            }
            del parts


def seconds_of(work: Any, rounds: int = 5, repeats: int = 20) -> float:
    """Seconds of a call: the best of several rounds, after one that warms up.

    The host does not wait between the calls of a round, so its launches take no time.
    """
    taken = []
    for _ in range(rounds + 1):
        synchronize()
        began = time.perf_counter()
        for _ in range(repeats):
            work()
        synchronize()
        taken.append((time.perf_counter() - began) / repeats)
    return min(taken[1:])


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.set_per_process_memory_fraction(1.0)


def show(record: dict[str, Any]) -> str:
    figures = (
        f"{name} {value:,.0f}" if isinstance(value, float) and value > 100
        else f"{name} {value:.4g}" if isinstance(value, float)
        else f"{value}"
        for name, value in record.items()
        if name != "rates"
    )  # fmt: skip
    return "  ".join(figures)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--formats", default=",".join(FORMATS), help=", ".join(FORMATS))
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds of the speed part")
    parser.add_argument("--model", type=Path, help="model folder for the mismatch part")
    parser.add_argument("--change", action="append", default=[], help="a recipe option, for play")
    parser.add_argument("--out", type=Path, help="JSON file, written after every result")
    return parser.parse_args(words)


def measure(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    size, parts = Size(given.size == "tiny"), given.parts.split(",")
    if "attention" in parts:
        yield from measure_attention(size)
    if "speed" in parts:
        yield from measure_speed(size, given.rounds, given.formats.split(","))
        free()
    if "mismatch" in parts:
        yield from measure_mismatch(size, given.model, given.formats.split(","))
        free()
    if "play" in parts:
        yield from measure_play(size, given.change)


def print_and_write(found: Iterator[dict[str, Any]], out: Path | None) -> None:
    """Print every record when it is found, and write all so far to a JSON file."""
    records = list[dict[str, Any]]()
    place = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    for record in found:
        records.append(record)
        print(show(record), flush=True)
        if out is not None:
            about = {"device": place, "torch": torch.__version__, "records": records}
            out.write_text(json.dumps(about, indent=1) + "\n")


def main(words: Sequence[str] | None = None) -> None:
    given = parse(words)
    print_and_write(measure(given), given.out)


if __name__ == "__main__":
    main()
