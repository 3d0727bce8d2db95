"""`mage model`: add a model, list the models on this machine, export a model from a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mage.cli.arguments import AsJson, print_json
from mage.cli.terminal import UsageError, console, say
from mage.cli.terminal.tables import plain_table
from mage.config.menus import without_foreign_code
from mage.models.base import (
    EMBEDDED,
    SHIPPED,
    Model,
    count_parameters,
    list_models,
    models_folder,
    named_sources,
    read_model,
)
from mage.models.sources.base import Dtype
from mage.run_folder import RunFolder

if TYPE_CHECKING:
    from mage.api.adding import Added

verbs = typer.Typer()
model = typer.Typer(no_args_is_help=True)
verbs.add_typer(model, name="model", help="Add, list and export models.")


@model.command(epilog="Example: mage model add smollm2")
def add(
    what: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="smollm2, qwen2.5-1.5b, a .gguf file, a transformers folder, or ORG/NAME of the "
            "model hub.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Its name in recipes. Default: the name of the source."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Target folder. Default: in $MAGE_MODELS or ~/.cache/mage/models.",
        ),
    ] = None,
    dtype: Annotated[
        Dtype | None,
        typer.Option(
            help="Number type on disk. Default: as in the source; GGUF: float32, bfloat16 from 1 B "
            "parameters on."
        ),
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A chat template (jinja) that replaces the model's own one."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing model.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a transformers folder (safetensors, tokenizer, chat template) and test the model."""
    if name and out:
        raise UsageError(
            "--name has no effect with --out: a model outside the models folder is named by its "
            "path. Leave out one of them."
        )
    err = console(stderr=True)
    from mage.api.adding import add_model  # loads torch

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
    else:
        _show_added(done, done.model.name if out is None else str(done.model.folder))


def _show_added(done: "Added", path: str) -> None:
    """What was added, and the value of model.path that names it."""
    if done.line is None:
        first = f"{done.model.name} exists already and was not changed; --force replaces it"
    else:
        first = f'test prompt "What is the capital of France?", reply: "{done.line}"'
    second = f"{_figures(done.model)} in {done.model.folder}; use it with --model.path={path}"
    for line in (first, second):
        console().print(line, markup=False, soft_wrap=True)


@model.command(epilog="Example: mage model export runs/smollm2_kuhn_poker-1 --out kuhn")
@without_foreign_code()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Target folder.")],
    checkpoint: Annotated[
        str, typer.Option(metavar="best|latest|N", help="Which checkpoint.")
    ] = "best",
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint of a run as a folder for model.path and other tools.

    The result is a transformers model, or LoRA adapters in the format of PEFT. The run's recipe is
    copied too, so that `mage play` uses the agent as it was trained.
    """
    if out.exists():
        raise UsageError(f"{out} exists already. Choose another folder, or remove it.")
    from mage.api.agents import export_run

    update = export_run(RunFolder.open(run), checkpoint, out, say)
    size = sum(path.stat().st_size for path in out.iterdir())
    if as_json:
        print_json({"model": str(out), "update": update, "bytes": size})
        return
    console().print(
        f"update {update} of {run}: {size / 1e6:,.1f} MB in {out}; use it with --model.path={out}",
        markup=False,
        soft_wrap=True,
    )


@model.command(epilog="Example: mage model push runs/demo-1 my-name/kuhn-agent --private")
@without_foreign_code()
def push(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository of the hub.")],
    checkpoint: Annotated[
        str, typer.Option(metavar="best|latest|N", help="Which checkpoint.")
    ] = "best",
    private: Annotated[bool, typer.Option("--private", help="A private repository.")] = False,
) -> None:
    """Upload a checkpoint to the model hub, with a model card made from the run."""
    from mage.api.push import push_run

    address = push_run(RunFolder.open(run), repo, checkpoint, private=private, say=say)
    console().print(address, markup=False, soft_wrap=True)


@model.command(name="list", epilog="Example: mage model list --json")
def list_all(as_json: AsJson = False) -> None:
    """List the models that a recipe can name in model.path, and the models that can be added."""
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
        plain_table(("name", "parameters", "size", "dtype", "source", "folder"), rows, "models")
    )
    missing = [
        (name, title)
        for name, title in named_sources().items()
        if name not in {one.name for one in there}
    ]
    if missing:
        out.print(plain_table(("mage model add ...", "description"), missing))


def _row(one: Model) -> tuple[str, ...]:
    return (
        one.name,
        f"{one.parameters / 1e6:,.1f} M",
        f"{one.bytes / 1e6:,.{0 if one.bytes >= 1e7 else 1}f} MB",
        one.dtype,
        one.origin or "ships with MAGE",
        str(one.folder),
    )


def _figures(one: Model) -> str:
    return f"{count_parameters(one.parameters)}, {one.bytes / 1e6:,.0f} MB ({one.dtype})"
