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
from mage.training.memory_bytes import GB
from mage.training.memory_plan import MemoryPlan, plan_memory
from mage.training.plan_advice import advice
from mage.training.speed_estimates import learned_tokens, played_tokens

verbs = typer.Typer()
_LEAST_ESTIMATED = 100e6  # parameters; the speed of smaller models was not measured
# The parts that only one phase needs.
_ONE_PHASE = {
    **{"gradients": "learn", "activations": "learn"},
    **{"engine": "play", "key/value pool": "play"},
}


@verbs.command(
    context_settings=OVERRIDES,
    epilog="Example: mage plan paper_alfworld --gpus 8 --learn.shard=optimizer",
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
            help="A folder, a name of `mage model list`, ORG/NAME of the model hub, or a shape: "
            + ", ".join(PRESETS)
            + ". Default: the model of the recipe.",
        ),
    ] = None,
    gpu_memory: Annotated[
        float, typer.Option(metavar="GB", min=1.0, help="Memory of each GPU in GB.")
    ] = 80.0,
    gpus: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="GPUs, one rank each; learn.shard divides memory among them."
        ),
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Show how much GPU memory a training run needs, and what would make it fit.

    Play and learning take turns: the key/value pool is freed while the model learns. Options of
    the recipe can be changed with --section.option=value.
    """
    _, overrides = split_words(None, ctx.args, ctx.command)
    chosen = load_recipe(recipe, overrides)
    stages = chosen.in_stages() or {"": chosen}
    named = {name: model or stage.model.path for name, stage in stages.items()}
    found = {}
    for name, stage in stages.items():
        shape, half = find_shape(named[name]), stage.model.dtype != "float32"
        found[name] = plan_memory(stage, shape, gpu_memory * GB, half_precision=half, ranks=gpus)
    fits = all(one.fits for one in found.values())
    if as_json:
        figures = {name: _figures(one, gpu_memory) for name, one in found.items()}
        typer.echo(json.dumps({"fits": fits, "stages": figures} if chosen.stages else figures[""]))
    else:
        for name, one in found.items():
            _print(one, gpu_memory, named[name], name)
    if not fits:
        raise typer.Exit(EXIT_USAGE)


def _figures(plan: MemoryPlan, memory: float) -> dict[str, Any]:
    return {
        "fits": plan.fits,
        "gpu_memory": memory,
        "gpus": plan.request.ranks,
        "usable": plan.usable / GB,
        "parameters": plan.shape.parameters,
        "parts": plan.parts(),
        "play": plan.playing_bytes / GB,
        "learn": plan.learning_bytes / GB,
        "peak": plan.peak / GB,
        "slots": plan.slots,
        "micro_tokens": plan.micro_tokens,
        "recompute": plan.recompute,
        "play_tokens_per_second": played_tokens(plan) if _has_estimate(plan) else None,
        "learn_tokens_per_second": learned_tokens(plan) if _has_estimate(plan) else None,
        "reasons": list(plan.reasons),
        "advice": [str(one) for one in advice(plan)],
    }


def _print(plan: MemoryPlan, memory: float, model: str, stage: str) -> None:
    parts = plan.parts().items()
    rows = [[name, f"{size:.1f}", _ONE_PHASE.get(name, "play, learn")] for name, size in parts]
    phases = {"play": plan.playing_bytes, "learn": plan.learning_bytes}
    rows += [[phase, f"{size / GB:.1f}", ""] for phase, size in phases.items()]
    ranks, ways = plan.request.ranks, advice(plan)
    cards = f"{ranks} GPUs of {memory:g} GB" if ranks > 1 else f"a GPU of {memory:g} GB"
    title = (
        f"model {model}, {count_parameters(plan.shape.parameters)}, on {cards}, of which "
        f"{plan.usable / GB:.1f} GB{' each' if ranks > 1 else ''} can be used"
    )
    out = console()
    if stage:
        title = f"{title}; stage {stage}"
    out.print(plain_table(("part", "GB", "needed in"), rows, title=title))
    choices = [
        f"recompute {'on' if plan.recompute else 'off'}",
        f"{plan.micro_tokens:,} tokens per micro-batch",
        f"{plan.slots} slots",
    ]
    for line in (
        f"chosen: {', '.join(choices)}",
        *(f"  {reason}" for reason in plan.reasons),
        _speed(plan),
        _verdict(plan.fits, bool(ways)),
        *(f"  {one}" for one in ways),
    ):
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def _has_estimate(plan: MemoryPlan) -> bool:
    return plan.shape.parameters >= _LEAST_ESTIMATED


def _speed(plan: MemoryPlan) -> str:
    if not _has_estimate(plan):
        return "expected speed: not estimated (only for models of at least 100 M parameters)"
    return (
        f"expected on an H200: {played_tokens(plan):,.0f} generated tokens/s in play, "
        f"{learned_tokens(plan):,.0f} computed tokens/s in learning"
    )


def _verdict(fits: bool, has_advice: bool) -> str:
    if fits:
        return "fits"
    return (
        f"does not fit; {'what would make it fit:' if has_advice else 'nothing tried makes it fit'}"
    )
