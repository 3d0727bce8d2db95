"""`mage cluster`: train a recipe on a Ray cluster, with all output in this terminal."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from mage.cli.arguments import OVERRIDES, RecipeName, need_recipe, split_words
from mage.cli.terminal import UsageError
from mage.config.loading import load_recipe

verbs = typer.Typer()


@verbs.command(
    context_settings=OVERRIDES,
    epilog="Example: mage cluster paper_alfworld --ranks 16 --runs /shared/runs --run.name=first",
)
def cluster(
    ctx: typer.Context,
    recipe: RecipeName = None,
    ranks: Annotated[
        int, typer.Option(min=1, help="Processes that share the work of an update.")
    ] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of a rank; 0 = train on CPUs.")] = 1.0,
    cpus: Annotated[float, typer.Option(min=0.1, help="CPU cores of a rank.")] = 1.0,
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The head node; auto = this host's cluster.")
    ] = "auto",
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Continue this run folder.")
    ] = None,
    runs: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder of new run folders, on shared storage.")
    ] = Path("runs"),
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Restarts after a lost node or a killed rank.")
    ] = 3,
    spread: Annotated[
        bool, typer.Option("--spread", help="Use as many nodes as possible, not as few.")
    ] = False,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="How long to wait for free nodes.")
    ] = 600.0,
) -> None:
    """Train a recipe on a Ray cluster: the ranks are those of torchrun.

    Needs the package ray on all nodes, and run folder, models and data on storage that all nodes
    share. Any option of the recipe can be changed with --section.option=value.
    """
    if gpus % 1:
        raise UsageError(
            f"--gpus {gpus:g}: ranks of a cluster cannot share a GPU. Use a whole number, or 0 to "
            "train on CPUs. On one machine `mage train` with run.workers lets ranks share a GPU."
        )
    name, overrides = split_words(recipe, ctx.args, ctx.command)
    if resume is None:
        need_recipe(name, "To continue a run, use --resume RUN.")
    if name is not None:
        load_recipe(name, overrides)  # a mistake is reported before the cluster is used
    words = ["train", *([name] if name else []), *overrides, "--runs", str(runs.resolve())]
    words += ["--resume", str(resume.resolve())] if resume else []
    from mage.ranks.cluster import ClusterJob, run_on_cluster
    from mage.ranks.ray_nodes import connect
    from mage.ranks.stop import StopSignals  # loads torch

    job = ClusterJob(tuple(words), ranks, cpus, gpus, spread, max_restarts, wait)
    ray = connect(address)
    with StopSignals(_say) as stop:
        code = run_on_cluster(ray, job, _show, stop)
    ray.shutdown()
    raise typer.Exit(code)


def _show(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _say(line: str) -> None:
    _show(f"{line}\n")
