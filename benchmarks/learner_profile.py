"""Where the time of a learner's update goes on a GPU, by class of kernel.

    python -m benchmarks.learner_profile --out profile.json             # 4 B and 135 M
    python -m benchmarks.learner_profile --shape 135m --micro-tokens 16384 --rows 152
    python -m benchmarks.learner_profile --shape tiny --reply-tokens 16 --rows 8  # a test on a CPU

The rows are those of `paper_webshop` with the generated catalogue. A tiny random model plays them
on the CPU before the measurement (2 groups of 2 members, 152 rows); every reply has
`--reply-tokens` tokens. The learner has random weights of the given shape, LoRA of rank 16 and no
recompute. It makes the same update three times: to compile, to be timed, and to be profiled.

Matrix products also show the TFLOP/s reached. Counted are the operations (a multiplication and an
addition are two) of these products:
- layers: 4 x weights of the linear layers x tokens with padding (forward and gradient of the input;
  LoRA does not need the gradient of the weights),
- head: 6 x vocabulary x width x reply tokens (forward, the logits again in the backward pass, and
  gradient of the input). On a CPU 4 x, because few logits are not computed again.
Not counted, although their seconds are: the narrow products of A and B, and W0 + B A after a step.
Attention is a class of its own. On a CPU the classes hold torch's operators instead of kernels.
"""

import argparse
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import lora_gradient, paper_scale
from benchmarks.cuda_engine import random_model, walled
from benchmarks.cuda_learner import forget
from benchmarks.workload import play_samples
from mage.config.recipe import Recipe
from mage.config.sections import LearnOptions
from mage.learn.learner import Learner
from mage.learn.packing import Packed
from mage.learn.tries import Row
from mage.learn.update_metrics import Metrics
from mage.models.shapes import ModelShape
from mage.types import Sample

CASES = lora_gradient.CASES | {"tiny": lora_gradient.TINY}
PRODUCTS = "matrix products"
# The first pattern found in a name decides. Attention is a Triton kernel too, so it comes first.
CLASSES = (
    ("attention backward", r"flex_attention_backward|_flash_attention\w*_backward"),
    ("attention forward", r"flex_attention|_flash_attention"),
    ("other Triton kernels", r"triton_"),
    (PRODUCTS, r"nvjet|gemm|cublas|cutlass|^aten::(mm|addmm|bmm|matmul|linear)$"),
    ("everything else", r""),
)
LONGEST = 20  # kernels that the JSON file names


@dataclass(frozen=True, slots=True)
class Kernel:
    """All launches of one kernel in an update."""

    name: str
    seconds: float
    launches: int


class CountingLearner(Learner):
    """Counts what the last update computed."""

    padded_tokens = 0
    scored_tokens = 0  # reply tokens, whose logits the head computes

    def update(self, samples: Sequence[Sample], *, entropy: float, update: int) -> Metrics:
        self.padded_tokens = self.scored_tokens = 0
        return super().update(samples, entropy=entropy, update=update)

    def pack(self, rows: Sequence[Row]) -> Iterable[Packed]:
        for packed in super().pack(rows):
            self.padded_tokens += packed.input_ids.numel()
            self.scored_tokens += len(packed.terms)
            yield packed


def play_rows(reply_tokens: int, changes: Sequence[str] = ()) -> tuple[Recipe, list[Sample]]:
    """The recipe and the rows of one update, played by a tiny random model on the CPU."""
    own = ("--environments.data=", "--run.device=cpu", *changes)  # no data: a generated catalogue
    words = ["--shape=tiny", f"--reply-tokens={reply_tokens}", *(f"--change={one}" for one in own)]
    case = next(case for case in paper_scale.CASES if case.name == "webshop")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        paper_scale.write_model(paper_scale.SHAPES["tiny"], Path(place))
        recipe = paper_scale.make_recipe(case, Path(place), paper_scale.parse(words))
        return recipe, play_samples(recipe)


def profile_shape(name: str, options: LearnOptions, samples: Sequence[Sample]) -> dict[str, Any]:
    """The record of one shape: a timed update, and the kernels of a profiled one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    case = CASES[name]
    model = random_model(paper_scale.sizes_of(case.shape), device, case.kind)
    learner = CountingLearner(model, options, layout="trie")
    first, second = (_time_update(learner, samples) for _ in range(2))
    on_gpu = [ProfilerActivity.CUDA] if device == "cuda" else []
    with profile(activities=[ProfilerActivity.CPU, *on_gpu]) as profiler:
        profiled = _time_update(learner, samples)
    kernels = _kernels(profiler, device)
    classes = classify(kernels)
    operations = count_operations(
        case.shape, learner.padded_tokens, learner.scored_tokens, 6 if device == "cuda" else 4
    )
    return {
        "shape": name,
        "micro_tokens": options.tokens_at_once,
        "rows": len(samples),
        **second,
        "padded_tokens": learner.padded_tokens,
        "scored_tokens": learner.scored_tokens,
        "first compile s": first["compile s"],
        "peak GB": torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else 0.0,
        "profiled s": profiled["seconds"],
        "kernel s": sum(kernel.seconds for kernel in kernels),
        "product operations": operations,
        "TFLOP/s": operations / 1e12 / max(1e-9, classes[PRODUCTS].seconds),
        "classes": [asdict(kernel) for kernel in classes.values()],
        "longest": [asdict(kernel) for kernel in kernels[:LONGEST]],
    }


def _time_update(learner: Learner, samples: Sequence[Sample]) -> dict[str, Any]:
    """Seconds of an update without compilation; every call packs the rows in the same way."""
    compiled, found = learner.compilations()[1], list[Metrics]()

    def work() -> None:
        found.append(learner.update(samples, entropy=learner.options.entropy, update=0))

    whole = walled(work, learner.module.device.type)()
    compiling = learner.compilations()[1] - compiled
    return {
        "seconds": whole - compiling,
        "compile s": compiling,
        "steps": found[0].steps,
        "computed_tokens": found[0].computed_tokens,
        "tokens/s": found[0].computed_tokens / (whole - compiling),
    }


def _kernels(profiler: profile, device: str) -> list[Kernel]:
    """The kernels of the GPU or the operators of the CPU, longest first.

    Annotations are left out: on a GPU they repeat the time of the kernels inside them.
    """
    found = [
        Kernel(event.key, _microseconds(event, device) / 1e6, event.count)
        for event in profiler.key_averages()
        if not event.is_user_annotation
        and (device == "cpu" or event.device_type == torch.autograd.DeviceType.CUDA)
    ]
    return sorted(found, key=lambda kernel: -kernel.seconds)


def _microseconds(event: Any, device: str) -> float:
    return float(event.self_device_time_total if device == "cuda" else event.self_cpu_time_total)


def class_of(name: str) -> str:
    """The class of a kernel or operator.

    >>> class_of("nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_TNT")
    'matrix products'
    """
    return next(label for label, pattern in CLASSES if re.search(pattern, name, re.I))


def classify(kernels: Sequence[Kernel]) -> dict[str, Kernel]:
    """Seconds and launches of every class."""
    found = {}
    for label, _ in CLASSES:
        own = [kernel for kernel in kernels if class_of(kernel.name) == label]
        seconds = sum(kernel.seconds for kernel in own)
        found[label] = Kernel(label, seconds, sum(kernel.launches for kernel in own))
    return found


def count_operations(shape: ModelShape, padded: int, scored: int, head: int) -> int:
    """Operations of the large products; `head` is the number for a weight and a reply token."""
    layers = 4 * shape.layers * shape.linear_weights * padded
    return layers + head * shape.embedding_weights * scored


def table(record: dict[str, Any]) -> Iterator[str]:
    """The record of one shape for a reader."""
    yield (
        f"{record['shape']}: {record['rows']} rows, {record['computed_tokens']:,} tokens "
        f"({record['padded_tokens']:,} with padding), micro-batches of {record['micro_tokens']:,}"
    )
    yield (
        f"update {record['seconds']:.2f} s, {record['tokens/s']:,.0f} tokens/s; first update: "
        f"compilation {record['first compile s']:.1f} s; peak {record['peak GB']:.1f} GB"
    )
    yield (
        f"profiled update {record['profiled s']:.2f} s, of which kernels {record['kernel s']:.2f} s"
    )
    yield f"{'class':<22}{'seconds':>10}{'share':>9}{'launches':>10}{'TFLOP/s':>10}"
    for one in sorted(record["classes"], key=lambda one: -one["seconds"]):
        share = one["seconds"] / record["kernel s"]
        line = f"{one['name']:<22}{one['seconds']:>10.3f}{share:>9.1%}{one['launches']:>10,}"
        yield line + (f"{record['TFLOP/s']:>10.3g}" if one["name"] == PRODUCTS else "")


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", default="4b,135m", help=f"some of {', '.join(CASES)}")
    parser.add_argument("--micro-tokens", type=int, default=8192, help="tokens of a micro-batch")
    parser.add_argument("--rows", type=int, default=64, help="rows of the update: the first N")
    parser.add_argument("--reply-tokens", type=int, default=256)
    parser.add_argument("--out", type=Path, help="JSON file, written after every shape")
    parser.add_argument("--change", action="append", default=[], help="an override of the recipe")
    given = parser.parse_args(words)
    unknown = [name for name in given.shape.split(",") if name not in CASES]
    if unknown:
        parser.error(f"no shape {', '.join(unknown)}: shapes are {', '.join(CASES)}")
    if min(given.micro_tokens, given.rows, given.reply_tokens) < 1:
        parser.error("--micro-tokens, --rows and --reply-tokens must be at least 1")
    return given


def main(words: Sequence[str] | None = None) -> None:
    given = parse(words)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    about = {"device": device, "torch": torch.__version__, "reply_tokens": given.reply_tokens}
    recipe, samples = play_rows(given.reply_tokens, given.change)
    print(f"{device}, torch {torch.__version__}; played {len(samples)} rows", flush=True)
    changes = {"micro_tokens": given.micro_tokens, "recompute": False}
    options = recipe.learn.model_copy(update=changes)
    records: list[dict[str, Any]] = []
    for name in given.shape.split(","):
        if torch.cuda.is_available():
            forget()
        records.append(profile_shape(name, options, samples[: given.rows]))
        print("\n".join(["", *table(records[-1])]), flush=True)
        if given.out:
            given.out.write_text(json.dumps(about | {"records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
