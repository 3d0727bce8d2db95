"""Drafts (`engines.drafts`) against plain decode steps: accepted tokens, and tokens a second.

    python -m benchmarks.drafts                                  # on a GPU, shape of Qwen3-4B
    python -m benchmarks.drafts --model FOLDER --recipe kuhn_poker --recipe tic_tac_toe
    python -m benchmarks.drafts --size tiny                      # a test on a CPU

Both sides answer the same requests in turn, in one process; the first round warms up and is not
counted. Steps: `count` sequences decode at once, after prompts of random tokens (or, with --model,
pieces of docs/). "needed" is how much longer a step with drafts takes, so how many tokens a
sequence must get per step before drafts pay; "step_tokens" is how many it got, at temperature 0,
where random weights repeat themselves. Drafts are always on here. Play: the meta-episodes of one
update of a recipe, with the engine's own rule for when to draft. Replies of both sides are equal
up to rounding, which can end a reply elsewhere in bfloat16; so play is compared in tokens a second.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from benchmarks.cache import DOCS, TINY, device, endless, free, print_and_write, random_model
from benchmarks.vllm import Case, play, requests
from mage.agent.chat import Chat
from mage.config.loading import load_recipe
from mage.engines.local import LocalEngine
from mage.models.base import find_model
from mage.models.loading import load_model
from mage.models.shapes import PRESETS
from mage.training.build import build_components
from mage.training.fit import fit_to_gpu
from mage.types import Request

CASES = tuple(
    Case(count, prompt, 96)
    for count, prompt in ((64, 1024), (64, 4096), (8, 1024), (32, 1024), (1, 1024), (128, 1024))
)
SMALL = (Case(2, 24, 16), Case(4, 24, 16))
PLAY = ("--play.groups=2", "--play.members=2")


def always(engine: LocalEngine) -> LocalEngine:
    """Draft in every step, whatever the batch and the gain."""
    engine.drafts.rows, engine.drafts.count = 2**30, lambda *_: None  # type: ignore[method-assign]
    return engine


def asked_of(case: Case, seed: int, text: Sequence[int] | None) -> list[Request]:
    """Requests at temperature 0, with random prompts or with pieces of a text."""
    made = requests(case, seed)
    prompts = [one.prompt_ids for one in made]
    if text is not None:
        apart = max(1, (len(text) - case.prompt) // case.count)
        prompts = [tuple(text[n * apart :][: case.prompt]) for n in range(case.count)]
    return [Request(ids, case.reply, number, 0.0) for number, ids in enumerate(prompts)]


def decode(engine: LocalEngine, asked: Sequence[Request]) -> tuple[float, int, int]:
    """Seconds, steps and tokens of decoding, from the first step after all prompts are read."""
    for request in asked:
        engine.submit(request)
    while (
        engine.queue
        or (engine.sequences.known == engine.sequences.prompt)[engine.sequences.active].any()
    ):
        engine.step()
    stats = engine.stats
    began, steps, tokens = time.perf_counter(), stats.steps, stats.generated_tokens
    while engine.sequences.active.any():
        engine.step()
    return time.perf_counter() - began, stats.steps - steps, stats.generated_tokens - tokens


def measure_steps(
    model: PreTrainedModel, chat: Chat, text: Sequence[int] | None, given: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    for case in SMALL if given.size == "tiny" else CASES:
        engines = [
            always(
                LocalEngine(
                    model, chat, slots=case.count, context=case.prompt + case.reply + 1,
                    drafts=number, cache=given.cache,
                )
            )
            for number in (0, given.drafts)
        ]  # fmt: skip
        rounds: list[list[tuple[float, int, int]]] = []
        for number in range(given.rounds + 1):
            for engine in engines:
                engine.refresh(number)
            asked = asked_of(case, number, text)
            rounds.append([decode(engine, asked) for engine in engines])
        plain, drafted = zip(*rounds[1:], strict=True)
        times = [[seconds / steps for seconds, steps, _ in side] for side in (plain, drafted)]
        rates = [[tokens / seconds for seconds, _, tokens in side] for side in (plain, drafted)]
        stats = engines[1].stats
        yield {
            "part": "steps",
            "case": case.name,
            "drafts": given.drafts,
            "plain_ms": 1e3 * median(times[0]),
            "drafted_ms": 1e3 * median(times[1]),
            "needed": median(times[1]) / median(times[0]),
            "step_tokens": median(tokens / steps / case.count for _, steps, tokens in drafted),
            "accepted": stats.accepted_tokens / max(1, stats.drafted_tokens),
            "plain_tokens_per_s": median(rates[0]),
            "drafted_tokens_per_s": median(rates[1]),
            "gain": median(rates[1]) / median(rates[0]),
        }
        del engines, engine
        free()


def measure_play(name: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    words = [*(PLAY if given.size == "tiny" else ()), *given.change]
    words += [f"--model.path={given.model}"] if given.model else []
    sides = []
    for number in (0, given.drafts):
        recipe = load_recipe(name, [*words, f"--engines.drafts={number}"])
        sides.append(build_components(fit_to_gpu(recipe)))
    rates: list[list[float]] = [[], []]
    for seed in range(given.rounds + 1):
        for parts, rate in zip(sides, rates, strict=True):
            before, began = parts.engine.spent()["engine"], time.perf_counter()
            tokens = play(parts, seed)
            taken = time.perf_counter() - began
            rate += [tokens / taken, tokens / (parts.engine.spent()["engine"] - before)]
    stats: Any = [parts.engine.stats for parts in sides]  # type: ignore[attr-defined]
    # Entries alternate: whole play, engine alone. The first two warm up.
    whole, alone = ([median(rate[2 + which :: 2]) for rate in rates] for which in (0, 1))
    yield {
        "part": "play",
        "recipe": name,
        "model": str(given.model or sides[0].recipe.model.path),
        "drafts": given.drafts,
        "conversations": recipe.play.groups * recipe.play.members,
        "drafted_share": stats[1].drafted_tokens / given.drafts / stats[1].generated_tokens,
        "accepted": stats[1].accepted_tokens / max(1, stats[1].drafted_tokens),
        "steps_saved": 1 - stats[1].steps / stats[0].steps,
        "plain_tokens_per_s": whole[0],
        "drafted_tokens_per_s": whole[1],
        "gain": whole[1] / whole[0],
        "engine_gain": alone[1] / alone[0],
    }
    del sides, parts
    free()


def measure(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in given.recipe:
        yield from measure_play(name, given)
    if given.recipe:
        return
    text = None
    if given.model:
        model, chat = load_model(given.model, "auto", device()), endless(Chat.load(given.model))
        text = chat.encode("\n".join(page.read_text() for page in sorted(DOCS.glob("*.md"))))
    else:
        shape = TINY if given.size == "tiny" else PRESETS[given.shape]
        model = random_model(shape, Qwen3ForCausalLM, Qwen3Config)
        chat = endless(Chat.load(find_model("embedded")))
    yield from measure_steps(model, chat, text, given)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--shape", choices=tuple(PRESETS), default="qwen3-4b")
    parser.add_argument("--model", type=Path, help="model folder, instead of random weights")
    parser.add_argument("--cache", choices=("model", "int8"), default="model")
    parser.add_argument("--recipe", action="append", default=[], help="measure play instead")
    parser.add_argument("--change", action="append", default=[], help="a recipe option")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file, written after every result")
    given = parser.parse_args(words)
    print_and_write(measure(given), given.out)


if __name__ == "__main__":
    main()
