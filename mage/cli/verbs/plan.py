"""`mage plan`: the GPU memory of a training run, part by part. Needs no GPU and no weights."""

import json
from typing import Annotated, Any

import typer

from mage.cli.arguments import OVERRIDES, AsJson, split_words
from mage.cli.terminal import console
from mage.cli.terminal.tables import plain_table
from mage.config.errors import EXIT_USAGE
from mage.config.loading import load_recipe
from mage.models.base import count_parameters
from mage.models.shapes import PRESETS, find_shape
from mage.training.memory_plan import GB, MemoryPlan, advice, plan_memory
from mage.training.speed_estimates import learned_tokens, played_tokens

verbs = typer.Typer()
PHASES = {
    "weights": "play, learn",
    "masters": "play, learn",
    "optimizer": "play, learn",
    "KL reference": "play, learn",
    "gradients": "learn",
    "activations": "learn",
    "engine": "play",
    "key/value pool": "play",
    "sampler": "play, learn",
    "league copies": "play, learn",
}


@verbs.command(
    context_settings=OVERRIDES,
    epilog="Example: mage plan paper_alfworld --model qwen3-4b --learn.lora_rank=16",
)
def plan(
    ctx: typer.Context,
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe, with parts: paper_alfworld+mage.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A folder, a name of `mage model list`, or a shape: " + ", ".join(PRESETS) + ".",
        ),
    ] = None,
    gpu_memory: Annotated[
        float, typer.Option(metavar="GB", min=1.0, help="Memory of the GPU in GB.")
    ] = 80.0,
    as_json: AsJson = False,
) -> None:
    """Show how much GPU memory a training run needs, and what would make it fit.

    Play and learning take turns: the key/value pool is freed while the model learns. Options of
    the recipe can be changed with --section.option=value.
    """
    _, overrides = split_words(None, ctx.args)
    chosen = load_recipe(recipe, overrides)
    named = model or chosen.model.path
    shape = find_shape(named)
    found = plan_memory(
        chosen, shape, gpu_memory * GB, half_precision=chosen.model.dtype != "float32"
    )
    if as_json:
        typer.echo(json.dumps(_figures(found, gpu_memory)))
    else:
        _print(found, gpu_memory, named)
    if not found.fits:
        raise typer.Exit(EXIT_USAGE)


def _figures(plan: MemoryPlan, memory: float) -> dict[str, Any]:
    return {
        "fits": plan.fits,
        "gpu_memory": memory,
        "usable": plan.usable / GB,
        "parameters": plan.shape.parameters,
        "parts": plan.parts(),
        "play": plan.play / GB,
        "learn": plan.learn / GB,
        "peak": plan.peak / GB,
        "slots": plan.slots,
        "micro_tokens": plan.micro_tokens,
        "recompute": plan.recompute,
        "play_tokens_per_second": played_tokens(plan),
        "learn_tokens_per_second": learned_tokens(plan),
        "reasons": list(plan.reasons),
        "advice": advice(plan),
    }


def _print(plan: MemoryPlan, memory: float, model: str) -> None:
    rows = [[name, f"{size:.1f}", PHASES[name]] for name, size in plan.parts().items()]
    rows += [["play", f"{plan.play / GB:.1f}", ""], ["learn", f"{plan.learn / GB:.1f}", ""]]
    title = (
        f"model {model}, {count_parameters(plan.shape.parameters)}; "
        f"{plan.usable / GB:.1f} of {memory:g} GB can be used"
    )
    out = console()
    out.print(plain_table(("part", "GB", "needed in"), rows, title=title))
    choices = [
        f"recompute {'on' if plan.recompute else 'off'}",
        f"{plan.micro_tokens:,} tokens per micro-batch",
        f"{plan.slots} slots",
    ]
    for line in (
        f"chosen: {', '.join(choices)}",
        *(f"  {reason}" for reason in plan.reasons),
        f"expected on an H200: {played_tokens(plan):,.0f} generated tokens/s in play, "
        f"{learned_tokens(plan):,.0f} computed tokens/s in learning",
        "fits" if plan.fits else "does not fit; what would make it fit:",
        *(f"  {line}" for line in advice(plan)),
    ):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
