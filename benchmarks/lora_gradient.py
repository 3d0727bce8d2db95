"""LoRA's gradient computed directly or projected, with micro-batches of three sizes, in one run.

    python -m benchmarks.lora_gradient --out lora.json        # all shapes, on a GPU
    python -m benchmarks.lora_gradient --shape 135m,4b        # some shapes
    python -m benchmarks.lora_gradient --shape tiny           # a test on a CPU

Direct: the compiled layers compute the gradients of A and B (`mage/learn/low_rank.py`). Projected:
they compute that of W, which is then projected onto A and B. Random weights, rank 16, whole
`Learner.update` calls. The rows are like those of ALFWorld: a meta-episode has 36 rows whose
prompts grow from 600 to 1,600 tokens, and 40 meta-episodes (1,440 rows) form about 63,500
tokens in tries. At 4 B there are 20 meta-episodes, and activations are recomputed.

All ways take turns in every round. The first round compiles and is not counted; then at least one
round is measured, and more (up to `--rounds`) while the share of `--seconds` of the shape lasts.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, PreTrainedConfig, Qwen3Config

from benchmarks.cuda_engine import random_model, walled
from benchmarks.cuda_learner import forget
from benchmarks.paper_scale import sizes_of
from mage.config.sections import LearnOptions
from mage.learn.learner import Learner
from mage.learn.trainable import Adapters
from mage.models.shapes import PRESETS, ModelShape
from mage.types import Sample, Where

RANK = 16
START, OBSERVATION, REPLY = 600, 20, 8  # tokens
COLUMNS = ("shape", "micro_tokens", "way", "tokens/s", "seconds", "peak GB", "compile s")


@dataclass(frozen=True, slots=True)
class Case:
    """A model and the rows of its update."""

    shape: ModelShape
    kind: type[PreTrainedConfig]
    recompute: bool = False
    metas: int = 40
    turns: int = 36
    micro: tuple[int, ...] = (8192, 16_384, 32_768)


CASES = {
    "135m": Case(PRESETS["smollm2-135m"], LlamaConfig),
    "4b": Case(PRESETS["qwen3-4b"], Qwen3Config, recompute=True, metas=20),
    "0.6b": Case(PRESETS["qwen3-0.6b"], Qwen3Config),
}
TINY = Case(ModelShape(2, 64, 4, 2, 16, 128, 1024, True), LlamaConfig, False, 4, 6, (1024, 2048))


def make_rows(case: Case) -> list[Sample]:
    """Meta-episodes whose prompts grow by a reply and an observation.

    Each is a group of its own with about 1,600 tokens, so 5, 10 or 20 fill a micro-batch: every
    micro-batch has the full length, and each size is compiled once.
    """
    rng = random.Random(0)

    def text(length: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(3, 1000), k=length))

    found = list[Sample]()
    for meta in range(case.metas):
        prompt = text(START)
        for turn in range(case.turns):
            reply, where = text(REPLY), Where(meta, 0, 0, turn, "")
            old = (-10.8,) * REPLY  # about the logprob of a token under random weights
            sign = rng.choice((-1.0, 1.0))
            found.append(Sample(prompt, reply, old, sign, (), "play", where))
            prompt += reply + text(OBSERVATION)
    return found


def run_case(name: str, case: Case, rounds: int, end: float) -> Iterator[dict[str, Any]]:
    """One record for every update; `end`: no further round starts after this time."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = random_model(sizes_of(case.shape), device, case.kind)
    options = LearnOptions(lr=1e-6, lora_rank=RANK, recompute=case.recompute)
    learner, samples, failed = Learner(model, options, layout="trie"), make_rows(case), set[Any]()
    for number in range(rounds + 1):
        if number > 1 and time.perf_counter() > end:
            return
        for micro in case.micro:
            for way in ("direct", "projected"):
                if (micro, way) in failed:
                    continue
                about = {"shape": name, "micro_tokens": micro, "way": way, "round": number}
                try:
                    yield about | _update(learner, samples, micro, way)
                except torch.cuda.OutOfMemoryError as error:  # the others are still measured
                    failed.add((micro, way))
                    _drop_gradients(learner)
                    yield about | {"failed": str(error).partition("\n")[0]}


def _update(learner: Learner, samples: list[Sample], micro: int, way: str) -> dict[str, Any]:
    """Seconds of an update without compilation, and the peak of allocated memory."""
    assert isinstance(learner.trainable, Adapters), "the options have a rank"
    learner.options = learner.options.model_copy(update={"micro_tokens": micro})
    learner.trainable.direct = way == "direct"
    device = learner.module.device.type
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    compiled = learner.compilations()[1]
    found: list[int] = []

    def work() -> None:
        found.append(learner.update(samples, entropy=0.1, update=0).computed_tokens)

    whole = walled(work, device)()
    compiling = learner.compilations()[1] - compiled
    return {
        "seconds": whole - compiling,
        "compile s": compiling,
        "computed_tokens": found[0],
        "tokens/s": found[0] / (whole - compiling),
        "peak GB": torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else 0.0,
    }


def _drop_gradients(learner: Learner) -> None:
    for value in (*learner.module.parameters(), *learner.trainable.masters.values()):
        value.grad = None


def best(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fastest measured round of each way, with the compilation of its first round."""

    def key(record: dict[str, Any]) -> tuple[Any, ...]:
        return record["shape"], record["micro_tokens"], record["way"]

    found = []
    for _, same in groupby(sorted(records, key=key), key):
        own = list(same)
        measured = [record for record in own if record["round"] and "failed" not in record]
        if measured:
            fastest = max(measured, key=lambda record: record["tokens/s"])
            found.append(fastest | {"compile s": own[0].get("compile s", 0.0)})
    return found


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The best rounds, then the fastest way of each shape."""
    chosen = best(records)
    yield "  ".join(f"{name:>12}" for name in COLUMNS)
    for record in chosen:
        yield "  ".join(f"{_cell(record[name]):>12}" for name in COLUMNS)
    for shape, same in groupby(chosen, lambda record: record["shape"]):
        own = sorted(same, key=lambda record: -record["tokens/s"])
        rates = (f"{one['way']} {one['micro_tokens']}: {one['tokens/s']:,.0f}" for one in own)
        yield f"{shape}, fastest first: {', '.join(rates)}"
    for record in records:
        if "failed" in record:
            yield f"{record['shape']} {record['way']} {record['micro_tokens']}: {record['failed']}"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"
    return str(value)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", default=",".join(CASES), help="shapes, or tiny")
    parser.add_argument("--rounds", type=int, default=2, help="most measured rounds")
    parser.add_argument("--seconds", type=float, default=90.0, help="time of all shapes")
    parser.add_argument("--out", type=Path, help="JSON file, written after every update")
    given = parser.parse_args(words)
    unknown = [name for name in given.shape.split(",") if name not in CASES | {"tiny": TINY}]
    if unknown:
        parser.error(f"no shape {', '.join(unknown)}: shapes are {', '.join(CASES)}, tiny")
    return given


def main(words: Sequence[str] | None = None) -> None:
    given = parse(words)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    records: list[dict[str, Any]] = []
    names, began = given.shape.split(","), time.perf_counter()
    for number, name in enumerate(names, start=1):
        if torch.cuda.is_available():
            forget()
        end = began + given.seconds * number / len(names)
        for record in run_case(name, (CASES | {"tiny": TINY})[name], given.rounds, end):
            records.append(record)
            print(json.dumps(record), flush=True)
            if given.out:
                about = {"device": device, "torch": torch.__version__, "records": records}
                given.out.write_text(json.dumps(about, indent=1) + "\n")
    print("\n".join(["", *table(records)]), flush=True)
    print(f"{time.perf_counter() - began:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
