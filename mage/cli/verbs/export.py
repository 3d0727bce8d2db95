"""`mage export`: the transcripts of a run with their credit as a dataset."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mage.cli.terminal import console, say
from mage.config.menus import without_foreign_code
from mage.run_folder import RunFolder

verbs = typer.Typer()


@verbs.command(epilog="Example: mage export runs/demo-1 --format parquet --out turns.parquet")
@without_foreign_code()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    form: Annotated[
        Literal["jsonl", "parquet", "hf"],
        typer.Option("--format", help="hf = a folder for datasets.load_dataset."),
    ] = "jsonl",
    out: Annotated[
        Path | None,
        typer.Option(metavar="PLACE", help="File or folder; by default RUN-turns here."),
    ] = None,
) -> None:
    """Write the stored turns of a run, with returns and advantages, as a dataset."""
    from mage.api.dataset import SUFFIXES, sets_without_credit, sets_without_moves, write_dataset

    folder = RunFolder.open(run)
    target = out or Path(f"{folder.path.resolve().name}-turns{SUFFIXES[form]}")
    count = write_dataset(folder, target, form)
    if names := sets_without_credit(folder):
        say(f"the credit of {', '.join(names)} is missing: their returns and advantages are null")
    if names := sets_without_moves(folder):
        say(f"the probabilities of moves of {', '.join(names)} are missing: they are null")
    console().print(f"{count:,} turns in {target}", markup=False, soft_wrap=True)
