"""The local engine against vLLM: the same requests in one run.

    python -m benchmarks.vllm --out vllm.json                     # on a GPU with vLLM
    python -m benchmarks.vllm --models 4b --formats model,int8    # 8-bit keys as well
    python -m benchmarks.vllm --models qwen2.5-1.5b --sides ours,vllm   # real weights
    python -m benchmarks.vllm --models tiny                       # a test on a CPU

Models have random weights in the shapes of SmolLM2-135M, Qwen3-0.6B and Qwen3-4B (bfloat16), or are
named. No token ends a reply, so both sides write the same number of tokens. Prompts are random and
have no common prefix; prefill is part of the time; both sides return the logprob of every
sampled token. vLLM runs with the defaults of `vllm.LLM`, which include its prefix cache,
compilation and CUDA graphs, and without detokenisation. Keys and values in 8 bits (`int8`) are
`kv_cache_dtype="fp8"` there. Each side runs in its own process, so both have the whole GPU. An
eighth of a round warms up; best and median of the rounds are printed. Play of meta-episodes has no
warm-up, so its first round is the slowest.

Meta-episodes: ALFWorld (generated games) and Kuhn poker in the shape of the paper's recipes through
`play_groups`, with the local engine and with `engines.name = "vllm"`, which runs vLLM in process
without seeds.
Every result is written at once; a side that fails or takes too long leaves the other results.
"""

import argparse
import functools
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch

from benchmarks.paper_scale import fast_folder, write_model
from mage.agent.chat import Chat
from mage.config.loading import load_recipe
from mage.config.recipe import Recipe
from mage.engines.local import LocalEngine
from mage.engines.vllm import VllmEngine
from mage.models.base import find_model
from mage.models.loading import load_model
from mage.models.shapes import PRESETS, ModelShape
from mage.play import play_groups
from mage.seeds import derive
from mage.training.build import Components, build_components
from mage.training.fit import fit_to_gpu
from mage.training.tasks import draw_tasks
from mage.types import Request

SHAPES = {
    "135m": PRESETS["smollm2-135m"],
    "0.6b": PRESETS["qwen3-0.6b"],
    "4b": PRESETS["qwen3-4b"],
    "tiny": ModelShape(2, 64, 4, 2, 64, 128, 1024, True),
}
SIDES = ("ours", "vllm", "ours play", "vllm play")
# Formats of keys and values: `engines.cache` of our engine, and vLLM's `kv_cache_dtype`.
FORMATS: dict[str, tuple[Literal["model", "int8"], str]] = {
    "model": ("model", "auto"),
    "int8": ("int8", "fp8"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """`count` requests with prompts of `prompt` tokens and replies of `reply` tokens."""

    count: int
    prompt: int
    reply: int

    @property
    def name(self) -> str:
        return f"{self.count} x ({self.prompt} + {self.reply})"


CASES = (Case(128, 512, 128), Case(512, 512, 128), Case(64, 1024, 1024))
TINY = (Case(4, 16, 8), Case(2, 16, 32))
META_REPLY = 64  # tokens of a reply in meta-episodes
META = {
    "ALFWorld": ("paper_alfworld", "--environments.data=generated"),
    "Kuhn": ("paper_kuhn_poker",),
}


def requests(case: Case, seed: int) -> list[Request]:
    rng = random.Random(seed)
    return [
        Request(tuple(rng.choices(range(3, 1000), k=case.prompt)), case.reply, number)
        for number in range(case.count)
    ]


def cases_of(model: str) -> tuple[Case, ...]:
    return TINY if model == "tiny" else CASES


# -- one side, in its own process


def measure_ours(model: str, folder: Path, rounds: int, kind: str) -> Iterator[dict[str, Any]]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = load_model(folder, "auto", device)
    chat = Chat.load(folder)
    chat.end_ids = ()
    for case in cases_of(model):
        context = case.prompt + case.reply + 1
        engine = LocalEngine(
            network, chat, slots=case.count, context=context, cache=FORMATS[kind][0],
            drafts=0,  # replies of random weights repeat nothing
        )  # fmt: skip

        def work(asked: list[Request], engine: LocalEngine = engine) -> int:
            engine.refresh(0)
            for request in asked:
                engine.submit(request)
            found: list[Any] = []
            while len(found) < len(asked):
                found += engine.step()
            return sum(len(reply.token_ids) for _, reply in found)

        yield timed(case, work, rounds)
        del engine, work


def measure_vllm(model: str, folder: Path, rounds: int, kind: str) -> Iterator[dict[str, Any]]:
    import vllm

    most = max(case.prompt + case.reply for case in cases_of(model)) + 1
    options: dict[str, Any] = {"kv_cache_dtype": FORMATS[kind][1]}
    if model == "tiny":
        options |= {"enforce_eager": True, "dtype": "float32"}
    llm = vllm.LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        max_model_len=most,
        generation_config="vllm",
        **options,
    )
    for case in cases_of(model):

        def work(asked: list[Request]) -> int:
            params = vllm.SamplingParams(
                max_tokens=asked[0].max_tokens, ignore_eos=True, logprobs=0, detokenize=False
            )
            prompts = [{"prompt_token_ids": list(one.prompt_ids)} for one in asked]
            found = llm.generate(prompts, params, use_tqdm=False)
            return sum(len(one.outputs[0].token_ids) for one in found)

        yield timed(case, work, rounds)


class Unseeded(VllmEngine):
    """vLLM's default sampler: requests have no seeds of their own, which it computes one by one."""

    def _params(self, request: Request, room: int) -> Any:
        params = super()._params(request, room)
        params.seed = None
        return params


def measure_play(
    side: str, model: str, folder: Path, rounds: int, kind: str
) -> Iterator[dict[str, Any]]:
    """Meta-episodes of each world; vLLM is built once for all worlds."""
    engine: VllmEngine | None = None
    for world in META:
        recipe = meta_recipe(side, world, model, folder, kind)
        if side == "ours play":
            parts = build_components(fit_to_gpu(recipe))
        else:
            local = build_components(load_recipe_of(recipe))
            assert local.model is not None, "the model is local"
            engine = engine or Unseeded(local.model, local.chat, **recipe.engines.options)
            parts = Components(recipe, local.model, local.chat, engine)
        found = rates(f"{world} meta-episodes", functools.partial(play, parts), rounds)
        yield found | {"slots": parts.engine.capacity}
        del parts


def load_recipe_of(recipe: Recipe) -> Recipe:
    """The recipe with the smallest local engine: it only loads the model."""
    engine = type(recipe.engines)(name="local", slots=1, context=recipe.engines.options["context"])
    return recipe.model_copy(update={"engines": engine})


def meta_recipe(side: str, world: str, model: str, folder: Path, kind: str) -> Recipe:
    reply = 4 if model == "tiny" else META_REPLY
    small = ["--play.groups=2", "--play.members=2", "--run.threads=1"] if model == "tiny" else []
    memory = ["--engines.gpu_memory=0.8"] if torch.cuda.is_available() else ["--engines.eager=true"]
    engine = ["--engines.name=local", f"--engines.cache={FORMATS[kind][0]}"]
    if side == "vllm play":
        cache = "model" if kind == "model" else FORMATS[kind][1]
        engine = ["--engines.name=vllm", f"--engines.cache={cache}", *memory]
    recipe, *changes = META[world]
    return load_recipe(
        recipe,
        [
            *changes,
            f"--model.path={folder}",
            "--engines.context=4096",
            f"--agent.max_tokens={reply}",
            f"--agent.reflection_tokens={reply}",
            "--learn.lora_rank=16",
            *engine,
            *small,
        ],
    )


def play(parts: Components, seed: int) -> int:
    """Play the meta-episodes of one update; the number of generated tokens."""
    parts.engine.refresh(seed)
    metas = play_groups(parts.begin_play(), draw_tasks(parts.recipe, 1), derive("benchmark", seed))
    turns = [
        turn
        for meta in metas
        for episode in meta.episodes
        for turn in (episode.reflection, *episode.turns)
        if turn is not None
    ]
    return sum(len(turn.completion.token_ids) for turn in turns)


def timed(case: Case, work: Callable[[list[Request]], int], rounds: int) -> dict[str, Any]:
    """The rates of a case after a warm-up with an eighth of its reply."""
    work(requests(replace(case, reply=max(2, case.reply // 8)), rounds))
    asked = [requests(case, seed) for seed in range(rounds)]
    return rates(case.name, lambda seed: work(asked[seed]), rounds)


def rates(name: str, work: Callable[[int], int], rounds: int) -> dict[str, Any]:
    """Tokens per second of every round, and the memory that is in use on the card (GB)."""
    found, tokens = [], 0
    for seed in range(rounds):
        began = time.perf_counter()
        tokens = work(seed)
        found.append(tokens / (time.perf_counter() - began))
    free, total = torch.cuda.mem_get_info() if torch.cuda.is_available() else (0, 0)
    return {"case": name, "rates": found, "tokens": tokens, "memory": (total - free) / 1e9}


def measure_side(
    side: str, model: str, folder: Path, rounds: int, kind: str
) -> Iterator[dict[str, Any]]:
    if side == "ours":
        return measure_ours(model, folder, rounds, kind)
    if side == "vllm":
        return measure_vllm(model, folder, rounds, kind)
    return measure_play(side, model, folder, rounds, kind)


# -- all sides


def run_side(
    side: str, model: str, kind: str, folder: Path, given: argparse.Namespace, seconds: float
) -> str:
    """Measure a side in a process of its own; returns its error, or an empty text."""
    words = ["--side", side, "--models", model, "--formats", kind, "--folder", str(folder)]
    words += ["--rounds", str(given.rounds), "--lines", str(given.lines)]
    log = given.lines.with_suffix(f".{Path(model).name}.{side.replace(' ', '_')}.{kind}.log")
    with open(log, "wb") as out:
        command = [sys.executable, "-m", "benchmarks.vllm", *words]
        try:
            code = subprocess.run(command, stdout=out, stderr=out, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            return f"{model} {side} {kind}: stopped after {seconds:.0f} s (log: {log})"
    last = (log.read_text(errors="replace").strip().splitlines() or [""])[-1]
    return f"{model} {side} {kind}: exit code {code}: {last} (log: {log})" if code else ""


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """One row for every case that both sides have measured: tokens/s, best and median."""
    keys = ("model", "format", "case")
    found = {(*(one[key] for key in keys), one["side"].split()[0]): one for one in records}
    yield "| model | format | requests x tokens | ours, best / median | vLLM | ratio | GB |"
    yield "|---|---|---|---|---|---|---|"
    for (model, kind, case, side), ours in found.items():
        theirs = found.get((model, kind, case, "vllm"))
        if side == "ours" and theirs:
            pairs = [(max(one["rates"]), median(one["rates"])) for one in (ours, theirs)]
            cells = [f"{first:,.0f} / {second:,.0f}" for first, second in pairs]
            ratio = " / ".join(f"{one / two:.2f}" for one, two in zip(*pairs, strict=True))
            memory = f"{ours['memory']:.0f} / {theirs['memory']:.0f}"
            name = f"{Path(model).name} | {kind} | {case}"
            yield f"| {name} | {cells[0]} | {cells[1]} | {ratio} | {memory} |"


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--models", default="135m,0.6b,4b", help=f"names or folders of models, {', '.join(SHAPES)}"
    )
    parser.add_argument("--formats", default="model", help=", ".join(FORMATS))
    parser.add_argument("--rounds", type=int, default=3, help="rounds of a case")
    parser.add_argument("--seconds", type=float, default=1500.0, help="time limit of the run")
    parser.add_argument("--out", type=Path, default=Path("vllm.json"), help="JSON file")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--sides", default=",".join(SIDES), help="sides to measure")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--lines", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    given = parse(words)
    if given.side:
        about = {"model": given.models, "side": given.side, "format": given.formats}
        for record in measure_side(
            given.side, given.models, given.folder, given.rounds, given.formats
        ):
            with open(given.lines, "a") as lines:
                lines.write(json.dumps(about | record) + "\n")
        return
    given.lines = given.out.with_suffix(".jsonl")
    given.lines.unlink(missing_ok=True)
    end, failures, records = time.monotonic() + given.seconds, list[str](), list[dict[str, Any]]()
    for model in given.models.split(","):
        with tempfile.TemporaryDirectory(dir=fast_folder()) as scratch:
            folder = Path(scratch) if model in SHAPES else find_model(model)
            if model in SHAPES:
                write_model(SHAPES[model], folder)
                _free()
            for kind, side in itertools.product(given.formats.split(","), given.sides.split(",")):
                left = end - time.monotonic()
                fault = (
                    run_side(side, model, kind, folder, given, left)
                    if left > 0
                    else (f"{model} {side} {kind}: no time left")
                )
                failures += [fault] if fault else []
                records = write(given, failures)
                print(f"{model} {side} {kind}: {fault or 'measured'}", flush=True)
    print("\n".join(["", *table(records), *failures]), flush=True)


def write(given: argparse.Namespace, failures: list[str]) -> list[dict[str, Any]]:
    """Write the JSON file from all results so far, and return them."""
    text = given.lines.read_text() if given.lines.is_file() else ""
    records = [json.loads(line) for line in text.splitlines()]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    about = {"device": device, "torch": torch.__version__, "failures": failures}
    shapes = {name: asdict(SHAPES[name]) for name in given.models.split(",") if name in SHAPES}
    given.out.write_text(json.dumps(about | {"shapes": shapes, "records": records}, indent=1))
    return records


def _free() -> None:
    """The parent process leaves the memory of the GPU to the sides."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
