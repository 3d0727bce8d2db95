"""Updates of the paper's recipes with a model of Qwen3-4B's shape and random weights, on one GPU.

    python -m benchmarks.paper_scale --out paper_scale.json          # all cases
    python -m benchmarks.paper_scale --cases alfworld-all            # one case
    python -m benchmarks.paper_scale --shape tiny --reply-tokens 16  # a test on a CPU
    python -m benchmarks.paper_scale --tokenizer qwen2.5-1.5b        # prompts in Qwen's tokens
    python -m benchmarks.paper_scale --warm                          # a short update first

Random weights never end a reply, so every reply has `--reply-tokens` tokens. The tokenizer of the
embedded models needs 1.2 to 2.1 times as many tokens for a prompt as Qwen's. ALFWorld's games come
from the generator. WebShop uses the real catalogue where WEBSHOP_DATA names its folder, and the
generated one otherwise; `data` of the record says which. The trainer itself plays and learns; its
evaluations are left out. With `--warm` every case begins with an update of one episode, which is
not counted: it compiles what later updates find. The card has the memory of the case (78 GB, so
that a card of 80 GB is enough) or `--memory`. Printed for every update: seconds of play, credit,
learning and compilation, tokens per second, and the peak memory beside the memory plan's estimate.
"""

import argparse
import gc
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from mage.config.loading import load_recipe
from mage.config.recipe import Recipe
from mage.engines.local import LocalEngine
from mage.models.base import find_model
from mage.models.shapes import PRESETS, ModelShape
from mage.ranks.ranks import Ranks
from mage.ranks.stop import StopRequest
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.fit import fit_to_gpu
from mage.training.memory_bytes import GB
from mage.training.memory_plan import MemoryPlan, plan_memory
from mage.training.metrics import Timer
from mage.training.trainer import Trainer
from mage.types import MetaEpisode, Sample

SHAPES = PRESETS | {"tiny": ModelShape(2, 64, 4, 2, 16, 128, 1024, True)}
TOKENIZER = "embedded-worlds"
RANK = 16
SECONDS = 150.0  # of an update, without compilation
COMPILE_SECONDS = 90.0
COLUMNS = (
    "case", "update", "total", "play", "credit", "learn", "compile", "steps", "play tok/s",
    "learn tok/s", "peak play", "peak learn", "plan play", "plan learn", "held", "longest",
    "overflows",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A paper recipe, how much of the model is trained, and the memory of the card (GB)."""

    name: str
    recipe: str
    rank: int
    memory: float
    updates: int
    changes: tuple[str, ...] = ()


# The context at which all conversations of an update play at once (`mage plan`); ALFWorld has the
# paper's limit of 4,096 tokens and a reply. `overflows` of a record must be 0.
SHORT, ALFWORLD = "--engines.context=2816", "--engines.context=4352"
GENERATED = "--environments.data=generated"
CASES = (
    Case("alfworld-all", "paper_alfworld", 0, 138.0, 2, (GENERATED,)),
    Case("alfworld-lora", "paper_alfworld", RANK, 78.0, 2, (GENERATED, ALFWORLD)),
    Case("tic_tac_toe", "paper_tic_tac_toe", RANK, 78.0, 1, (SHORT,)),
    Case("kuhn_poker", "paper_kuhn_poker", RANK, 78.0, 1, (SHORT,)),
    Case("sokoban", "paper_sokoban", RANK, 78.0, 1, (SHORT,)),
    Case("webshop", "paper_webshop", RANK, 78.0, 1, ("--engines.context=5632",)),
)


@dataclass(slots=True)
class Measured:
    """Peaks of the phases (bytes) and tokens generated, filled in while the trainer runs."""

    peaks: dict[str, float] = field(default_factory=dict)
    generated: int = 0
    longest: int = 0  # tokens of a prompt and its reply
    overflows: int = 0  # turns that do not fit into the context


class MeasuredTrainer(Trainer):
    """The trainer, with the peak memory of play and of learning."""

    measured = Measured()

    def warm_up(self) -> None:
        """An update whose meta-episodes have one episode; it compiles what later updates find."""
        whole = self.components
        self.components = replace(whole, recipe=whole.recipe.changed(play={"episodes": 1}))
        self._update()
        self.components = whole

    def _play(self, number: int, timer: Timer) -> list[MetaEpisode]:
        engine = self.components.engine
        assert isinstance(engine, LocalEngine), "the paper's recipes use the local engine"
        before = engine.stats.generated_tokens
        _reset_peak()
        metas = super()._play(number, timer)
        self.measured.peaks["play"] = _peak()
        turns = [
            turn
            for meta in metas
            for episode in meta.episodes
            for turn in (*episode.turns, episode.reflection)
            if turn
        ]
        self.measured.longest = max(
            len(turn.prompt_ids) + len(turn.completion.token_ids) for turn in turns
        )
        self.measured.overflows = sum(turn.overflow for turn in turns)
        self.measured.generated = engine.stats.generated_tokens - before
        return metas

    def _learn(self, number: int, samples: Sequence[Sample], timer: Timer) -> Any:
        _reset_peak()
        learned = super()._learn(number, samples, timer)
        self.measured.peaks["learn"] = _peak()
        return learned


class Recorder(Callback):
    """Keeps the figures of the last update and prints compilations."""

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}
        self.timing: dict[str, float] = {}

    def on_update(self, update: int, total: int, metrics: Any, timing: Any) -> None:
        self.metrics, self.timing = dict(metrics), dict(timing)

    def on_compile(self, line: str) -> None:
        print(f"  {line}", flush=True)


def _reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()


def _peak() -> float:
    return float(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else 0.0


def write_model(shape: ModelShape, folder: Path, tokenizer: str = TOKENIZER) -> None:
    """A model folder with random weights in bfloat16 and the tokenizer of another model."""
    source = find_model(tokenizer)
    words = len(AutoTokenizer.from_pretrained(source))
    shape = replace(shape, vocabulary=max(shape.vocabulary, words))
    config = Qwen3Config(**sizes_of(shape), dtype="bfloat16")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        model = Qwen3ForCausalLM(config)
        torch.set_default_dtype(before)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def sizes_of(shape: ModelShape) -> dict[str, Any]:
    """The sizes as options of a config of transformers."""
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": shape.tied,
    }


def has_catalogue() -> bool:
    """Whether the files of the real shop are here."""
    return bool(os.environ.get("WEBSHOP_DATA"))


def make_recipe(case: Case, model: Path, given: argparse.Namespace) -> Recipe:
    small = ("--play.groups=2", "--play.members=2", "--engines.slots=8", "--engines.context=4096")
    return load_recipe(
        case.recipe + given.plus,
        [
            f"--model.path={model}",
            f"--learn.lora_rank={case.rank}",
            f"--agent.max_tokens={given.reply_tokens}",
            f"--agent.reflection_tokens={given.reply_tokens}",
            f"--run.gpu_memory={case.memory}",
            "--run.updates=1000000",  # more than are made, so that no update is the last one
            "--run.evaluate_every=0",
            "--run.episodes_every=0",
            "--run.save_every=1000000",
            *case.changes,
            *(("--environments.data=",) if case.name == "webshop" and not has_catalogue() else ()),
            *(small if given.shape == "tiny" else ()),
            *given.change,
        ],
    )


def run_case(
    case: Case, recipe: Recipe, shape: ModelShape, updates: int, warm: bool = False
) -> Iterator[dict[str, Any]]:
    """One record for every update."""
    plan = _plan(case, recipe, shape)
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", recipe)
        recorder = Recorder()
        trainer = MeasuredTrainer(folder, Ranks(), recorder, StopRequest())
        trainer.measured = Measured()
        trainer.resume()
        if warm:
            trainer.warm_up()
            print(f"  warmed up: {recorder.timing}", flush=True)
        for number in range(1, updates + 1):
            trainer._update()
            yield _record(case, number, recorder, trainer.measured, plan) | _data(recipe)


def _data(recipe: Recipe) -> dict[str, str]:
    """Where the tasks come from, for environments that have data."""
    options = recipe.environments.options
    return {"data": str(options["data"] or "generated")} if "data" in options else {}


def _plan(case: Case, recipe: Recipe, shape: ModelShape) -> MemoryPlan:
    fitted = fit_to_gpu(recipe)  # as the trainer does
    if not torch.cuda.is_available():
        return plan_memory(fitted, shape, case.memory * GB)
    memory = min(case.memory * GB, torch.cuda.mem_get_info()[0])
    return plan_memory(recipe, shape, memory)


def _record(
    case: Case, number: int, recorder: Recorder, measured: Measured, plan: MemoryPlan
) -> dict[str, Any]:
    metrics, timing = recorder.metrics, recorder.timing
    compiling = timing.get("compile", 0.0)
    learning = max(1e-9, timing["learn"] - compiling)
    return {
        "case": case.name,
        "memory": case.memory,
        "update": number,
        **{name: timing[name] for name in ("total", "play", "credit", "learn")},
        "compile": compiling,
        "compilations": int(timing.get("compilations", 0)),
        "steps": metrics["steps"],
        "samples": metrics["samples"],
        "generated_tokens": measured.generated,
        "play tok/s": measured.generated / timing["play"],
        "play_engine": timing.get("play_engine", 0.0),
        "play_gpu_wait": timing.get("play_gpu_wait", 0.0),
        "computed_tokens": metrics["computed_tokens"],
        "row_tokens": metrics["row_tokens"],
        "reply_tokens": metrics["reply_tokens"],
        "learn tok/s": metrics["computed_tokens"] / learning,
        "peak play": measured.peaks["play"] / GB,
        "peak learn": measured.peaks["learn"] / GB,
        "plan play": plan.playing_bytes / GB,
        "plan learn": plan.learning_bytes / GB,
        "held": timing.get("memory_device_peak", 0.0),
        "mismatch": metrics["mismatch"],
        "longest": measured.longest,
        "overflows": measured.overflows,
        "slots": plan.slots,
        "micro_tokens": plan.micro_tokens,
        "recompute": plan.recompute,
        "plan": plan.parts(),
    }


def verdicts(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The targets, reached or missed. Held memory should stay 3 GB below the limit."""
    for name in dict.fromkeys(record["case"] for record in records):
        found = [record for record in records if record["case"] == name]
        held = max(record["held"] for record in found)
        yield _verdict(f"{name}: memory held", held, found[-1]["memory"] - 3, "GB")
        seconds = found[-1]["total"] - found[-1]["compile"]
        yield _verdict(f"{name}: update without compilation", seconds, SECONDS, "s")
        compiling = sum(record["compile"] for record in found)
        yield _verdict(f"{name}: compilation of the run", compiling, COMPILE_SECONDS, "s")


def _verdict(what: str, found: float, most: float, unit: str) -> str:
    word = "reached" if found <= most else "MISSED"
    return f"{what}: {found:.1f} {unit} (target {most:g}): {word}"


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    rows = [COLUMNS, *(tuple(_cell(record[name]) for name in COLUMNS) for record in records)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return str(value)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-4b")
    parser.add_argument("--cases", default=",".join(case.name for case in CASES))
    parser.add_argument("--updates", type=int, help="updates of every case; default: 1 or 2")
    parser.add_argument("--warm", action="store_true", help="a short update first, not counted")
    parser.add_argument("--plus", default="", help="parts for every recipe, such as +ours")
    parser.add_argument("--memory", type=float, help="GB of the card; default: those of the case")
    parser.add_argument("--reply-tokens", type=int, default=256)
    parser.add_argument("--tokenizer", default=TOKENIZER, help="a model that has one")
    parser.add_argument("--folder", type=Path, help="folder for the model, kept; e.g. /dev/shm/m")
    parser.add_argument("--out", type=Path, help="JSON file, written after every update")
    parser.add_argument("--change", action="append", default=[], help="an override of the recipe")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    given = parse(words)
    records: list[dict[str, Any]] = []
    failures: list[str] = []
    with tempfile.TemporaryDirectory(dir=fast_folder()) as scratch:
        model = given.folder or Path(scratch) / "model"
        if not (model / "config.json").is_file():
            began = time.perf_counter()
            write_model(SHAPES[given.shape], model, given.tokenizer)
            print(f"wrote {model} in {time.perf_counter() - began:.1f} s", flush=True)
        for case in (case for case in CASES if case.name in given.cases.split(",")):
            _free()
            try:
                _measure(case, model, given, records)
            except (RuntimeError, ValueError) as error:  # the other cases are still measured
                failures.append(f"{case.name}: {type(error).__name__}: {error}")
                print(failures[-1], flush=True)
            _write(given.out, given, records, failures)
    print("\n".join(["", *table(records), "", *verdicts(records), *failures]), flush=True)


def _measure(
    case: Case, model: Path, given: argparse.Namespace, records: list[dict[str, Any]]
) -> None:
    print(f"{case.name}: {case.recipe}, rank {case.rank}", flush=True)
    updates, memory = given.updates or case.updates, given.memory or case.memory
    case = replace(case, updates=updates, memory=memory)
    recipe = make_recipe(case, model, given)
    for record in run_case(case, recipe, SHAPES[given.shape], case.updates, given.warm):
        records.append(record)
        print("  " + json.dumps(record), flush=True)
        _write(given.out, given, records, [])


def fast_folder() -> str | None:
    """A folder in memory, if there is one: the weights of 4 B parameters are 8 GB."""
    return "/dev/shm" if Path("/dev/shm").is_dir() and torch.cuda.is_available() else None


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.set_per_process_memory_fraction(1.0)


def _write(
    out: Path | None, given: argparse.Namespace, records: list[dict[str, Any]], failed: list[str]
) -> None:
    if out is None:
        return
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    about = {"shape": given.shape, "model": asdict(SHAPES[given.shape]), "device": device}
    about |= {"torch": torch.__version__, "records": records, "failed": failed}
    out.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
