"""`mage model`: get a real model as a folder that is ready to train, see which ones are there, and take one out of a run."""

from pathlib import Path
from typing import Annotated

import typer

from mage.cli.terminal import UsageError, console
from mage.cli.terminal.tables import plain_table
from mage.cli.verbs.arguments import AsJson, print_json
from mage.models.base import (
    EMBEDDED,
    SHIPPED,
    Dtype,
    Model,
    list_models,
    models_folder,
    named_sources,
    read_model,
)
from mage.run_folder import RunFolder

verbs = typer.Typer()
model = typer.Typer(no_args_is_help=True)
verbs.add_typer(
    model, name="model", help="Get a model to start from, and see which ones are there."
)


@model.command(epilog="Example: mage model add smollm2")
def add(
    what: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="smollm2, a .gguf file, a transformers folder, or ORG/NAME of the model hub.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What recipes call it; by default as the source does."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write it there; by default into $MAGE_MODELS or ~/.cache/mage/models.",
        ),
    ] = None,
    dtype: Annotated[
        Dtype | None,
        typer.Option(
            help="Numbers on disk; by default float32, or as a folder or the hub has them."
        ),
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A chat template (jinja) instead of the model's own."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over one that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a transformers folder (safetensors, tokenizer, chat template), and let the model say a line to see that it works."""
    if name and out:
        raise UsageError(
            "--name has no effect with --out: a folder outside the models folder is named by its path"
        )
    err = console(stderr=True)
    from mage.models.adding import add_model  # loads torch

    done = add_model(
        what,
        name=name,
        out=out,
        dtype=dtype,
        template=template.read_text() if template else None,
        force=force,
        say=lambda line: err.print(line, markup=False, soft_wrap=True),
    )
    if as_json:
        print_json({"added": done.line is not None, "line": done.line, **done.model.to_json()})
        return
    show = console()
    if done.line is None:
        show.print(
            f"{done.model.name} is there already and was left as it is; --force makes it anew",
            markup=False,
            soft_wrap=True,
        )
    else:
        show.print(
            f'asked for the capital of France it says: "{done.line}"', markup=False, soft_wrap=True
        )
    path = done.model.name if out is None else str(done.model.folder)
    show.print(
        f"{_figures(done.model)} in {done.model.folder}; use it with --model.path={path}",
        markup=False,
        soft_wrap=True,
    )


@model.command(epilog="Example: mage model export runs/smollm2_kuhn_poker-1 --out kuhn")
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where it goes.")],
    checkpoint: Annotated[
        str, typer.Option(metavar="best|latest|N", help="Which checkpoint.")
    ] = "best",
    as_json: AsJson = False,
) -> None:
    """Write what a run has learnt as a folder for model.path and other tools: a transformers model, or the adapters as PEFT has them.

    The run's recipe goes with it, so that `mage play` shows the agent as it was trained.
    """
    if out.exists():
        raise UsageError(f"{out} exists already: name another folder, or remove it")
    from mage.cli.terminal.agents import export_run

    update = export_run(RunFolder.open(run), checkpoint, out)
    size = sum(path.stat().st_size for path in out.iterdir())
    if as_json:
        print_json({"model": str(out), "update": update, "bytes": size})
        return
    console().print(
        f"update {update} of {run}: {size / 1e6:,.1f} MB in {out}; use it with --model.path={out}",
        markup=False,
        soft_wrap=True,
    )


@model.command(name="list", epilog="Example: mage model list --json")
def list_all(as_json: AsJson = False) -> None:
    """The models that a recipe can name in model.path, and those that can be had by a name."""
    there = [*(read_model(SHIPPED / name) for name in EMBEDDED), *list_models()]
    if as_json:
        print_json(
            {
                "folder": models_folder(),
                "models": [one.to_json() for one in there],
                "can_be_added": named_sources(),
            }
        )
        return
    out = console()
    rows = [_row(one) for one in there]
    out.print(
        plain_table(("name", "parameters", "size", "numbers", "from", "where"), rows, "models")
    )
    missing = [
        (name, title)
        for name, title in named_sources().items()
        if name not in {one.name for one in there}
    ]
    if missing:
        out.print(plain_table(("mage model add ..", "what it is"), missing))


def _row(one: Model) -> tuple[str, ...]:
    return (
        one.name,
        f"{one.parameters / 1e6:,.1f} M",
        f"{one.bytes / 1e6:,.0f} MB",
        one.dtype,
        one.origin or "ships with MAGE",
        str(one.folder),
    )


def _figures(one: Model) -> str:
    return f"{one.parameters / 1e6:,.1f} M parameters, {one.bytes / 1e6:,.0f} MB ({one.dtype})"
