"""`mage evaluate`: the figures of an agent on a fixed panel."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mage.cli import evaluate_tables as more_tables
from mage.cli.arguments import (
    OVERRIDES,
    AsJson,
    Control,
    check_writable,
    make_notes,
    print_json,
    split_words,
)
from mage.cli.terminal import PIPE, UsageError, console, say
from mage.run_folder import RunFolder
from mage.types import Split, Task

if TYPE_CHECKING:  # these are slow to load
    from mage.api.agents import Candidate
    from mage.evaluation.compare import Comparison
    from mage.evaluation.figures import Evaluation
    from mage.evaluation.kinds import Kind
    from mage.evaluation.rows import TaskRow

verbs = typer.Typer()
PanelName = Literal["final", "select"]

What = Annotated[
    str,
    typer.Argument(metavar="RUN|RECIPE", help="A run folder, or a recipe (its untrained model)."),
]
Checkpoint = Annotated[
    str | None, typer.Option(metavar="best|latest|N", help="Checkpoint of the run. Default: best.")
]
Size = Annotated[
    int | None, typer.Option(min=1, help="Tasks of the panel. Default: as in the recipe.")
]
Episodes = Annotated[
    int | None, typer.Option(min=1, help="Episodes per meta-episode. Default: as in the recipe.")
]
MemoryOf = Annotated[
    Control | None,
    typer.Option(
        help="Memory instead of the recipe's. none: always empty. swapped: each task sees the "
        "memory of another opponent or instance of the panel."
    ),
]
Writer = Annotated[
    str | None,
    typer.Option(
        metavar="RUN|RECIPE",
        help="Another agent writes the reflections, the best checkpoint of a run or the untrained "
        "model of a recipe. RUN|RECIPE reads them.",
    ),
]
Panel = Annotated[
    PanelName,
    typer.Option(help="final: for final figures. select: the panel that chooses checkpoints."),
]
IsExact = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="Exact figures by summation over all courses, for small games with notes memory.",
    ),
]
Compare = Annotated[
    str | None,
    typer.Option(
        metavar="RUN|RECIPE|FILE",
        help="Evaluate this one too, or read a file of --tasks; show the paired difference.",
    ),
]
By = Annotated[
    str, typer.Option(metavar="opponent,seat,kind", help="Also show figures by these, with commas.")
]
Tasks = Annotated[
    Path | None,
    typer.Option(metavar="FILE.jsonl", help="Write all outcomes of RUN|RECIPE, a JSON line each."),
]


@verbs.command(
    context_settings=OVERRIDES, epilog="Example: mage evaluate runs/demo-1 --memory none --size 600"
)
def evaluate(
    ctx: typer.Context,
    what: What,
    checkpoint: Checkpoint = None,
    split: Annotated[Split, typer.Option(help="Pool of opponents.")] = "test",
    size: Size = None,
    episodes: Episodes = None,
    memory: MemoryOf = None,
    writer: Writer = None,
    panel: Panel = "final",
    exact: IsExact = False,
    players: more_tables.Players = 100,
    compare: Compare = None,
    tasks: Tasks = None,
    population: more_tables.Population = None,
    throws: more_tables.Throws = None,
    matches: more_tables.Matches = 2,
    references: more_tables.References = "",
    agent: more_tables.WithAgent = True,
    page: more_tables.Page = None,
    by: By = "",
    as_json: AsJson = False,
) -> None:
    """Play a fixed panel and show every figure with its 95 % interval.

    With --population, play matches against every member of a named population instead.

    Any option of the recipe can be changed with --section.option=value.
    """
    name, overrides = split_words(what, ctx.args, ctx.command)
    changes: dict[str, dict[str, int]] = {"evaluate": {"episodes": episodes}} if episodes else {}
    stored = Path(compare) if compare and compare.endswith((".jsonl", ".jsonl.gz")) else None
    chosen = [one for one in (name, compare if stored is None else None) if one is not None]
    if name is None:
        raise UsageError("nothing to evaluate is given. Name a run folder or a recipe.")
    for one in chosen:
        _check_exists(one)
    _check_files(stored, tasks)
    shown_by = _read_by(by)
    if writer is not None:
        _check_exists(writer)
    of_panel = bool(compare or size or tasks or writer or memory == "swapped")
    of_population = bool(throws or references or page)
    _check_options(population, exact, of_panel, of_population, panel, bool(agent or references))
    from mage.api.agents import find_candidate
    from mage.training.build import describe_model

    def find(one: str, at: str | None = checkpoint) -> "Candidate":
        return find_candidate(
            one,
            overrides,
            at,
            say,
            changes,
            lambda recipe: say(describe_model(recipe)),
            plays_only=not exact,
        )

    notes = _notes(memory)
    if population is not None:
        changes |= more_tables.throw_options(throws)
        candidate = find(name)
        more_tables.show_population(
            candidate, population, matches, references, notes, agent, page, as_json
        )
    elif exact:
        candidate = find(name)
        more_tables.show_exact(candidate, split, notes, players, as_json)
    else:
        candidates = [find(one) for one in chosen]
        by_whom = find(writer, None) if writer else None
        play = partial(_play, split=split, panel=panel, size=size, memory=memory, writer=by_whom)
        _evaluate_panel(
            candidates, play, split, panel, size, memory, by_whom, as_json, stored, tasks, shown_by
        )


def _notes(memory: Control | None) -> Any:
    """The memory that replaces the recipe's; None = the recipe's."""
    return None if memory in (None, "swapped") else make_notes(memory)


def _check_options(
    population: str | None,
    exact: bool,
    of_panel: bool,
    of_population: bool,
    panel: PanelName,
    somebody_plays: bool,
) -> None:
    """Refuse options without effect, before torch is loaded."""
    if population is None and of_population:
        raise UsageError("--throws, --references and --page need --population.")
    if population is not None and not somebody_plays:
        raise UsageError("--no-agent leaves nobody to play. Add --references.")
    if population is not None and (exact or of_panel):
        raise UsageError(
            "--population plays no panel. Leave out --exact, --compare, --size, --tasks, --writer "
            "and --memory swapped."
        )
    if exact and (of_panel or panel != "final"):
        raise UsageError(
            "--exact plays no panel. Leave out --compare, --size, --tasks, --panel, --writer and "
            "--memory swapped."
        )


def _evaluate_panel(
    candidates: Sequence["Candidate"],
    play: Callable[..., "Evaluation"],
    split: Split,
    panel: PanelName,
    size: int | None,
    memory: Control | None,
    writer: "Candidate | None",
    as_json: bool,
    stored: Path | None,
    tasks: Path | None,
    by: Sequence[str],
) -> None:
    """Play the panel with one or two candidates; show the figures and the paired difference.

    The difference can also be to the outcomes in the file `stored`. Outcomes are written to the
    file `tasks`.
    """
    from mage.evaluation.compare import compare
    from mage.evaluation.panels import recipe_panel
    from mage.evaluation.rows import read_tasks, write_tasks

    rows = None if stored is None else read_tasks(stored)
    if stored is not None and rows is not None:
        recipe = candidates[0].components.recipe
        _check_tasks(stored, rows, recipe_panel(recipe, split, panel, size))
    partial_file = tasks and tasks.with_name(f"{tasks.name}.partial")
    found = [play(one, kept=None if at else partial_file) for at, one in enumerate(candidates)]
    other = found[1] if len(found) == 2 else rows
    paired = None if other is None else compare(other, found[0])
    held = memory or "as in the recipe"
    if as_json:
        plays = candidates[0].components.recipe.plays_of(panel)
        about: dict[str, Any] = {"split": split, "panel": panel, "memory": held, "plays": plays}
        about |= {} if writer is None else {"writer": writer.title}
        _print_evaluations(candidates, found, paired, about | _named(stored))
    else:
        title = stored.name if stored is not None else candidates[-1].title
        what = f"{panel} {split} panel, memory {held}"
        what += "" if writer is None else f", notes by {writer.title}"
        _show_evaluations(candidates, found, paired, title, what, by)
    if tasks and partial_file:  # last: if the disk is full, the figures are shown already
        write_tasks(tasks, found[0].rows)
        partial_file.unlink(missing_ok=True)


def _named(stored: Path | None) -> dict[str, Any]:
    """The file of a comparison, for the JSON output."""
    return {} if stored is None else {"compared_with": {"file": stored.name}}


def _check_tasks(stored: Path, rows: Sequence["TaskRow"], tasks: Sequence[Task]) -> None:
    """Refuse outcomes of other tasks before anything is played."""
    there, wanted = {row.task for row in rows}, set(tasks)
    if there != wanted:
        raise UsageError(
            f"--compare {stored} holds {len(there):,} tasks, and {len(there & wanted):,} of them "
            f"are among the {len(wanted):,} of this panel. Use the same split, panel and size."
        )


def _print_evaluations(
    candidates: Sequence["Candidate"],
    found: Sequence["Evaluation"],
    paired: "Comparison | None",
    about: Mapping[str, Any],
) -> None:
    sides = [
        {"of": one.title, "update": one.update, "evaluation": result.to_json()}
        | _kinds(one, result)
        | _bill(one)
        for one, result in zip(candidates, found, strict=True)
    ]
    second = {"compared_with": sides[1]} if len(sides) == 2 else {}
    extra = {"comparison": paired.to_json()} if paired else {}
    print_json({**sides[0], **about, **second, **extra})


def _kinds(one: "Candidate", result: "Evaluation") -> dict[str, list[dict[str, Any]]]:
    """Figures by kind of task; empty if the environment has one kind only."""
    kinds = [kind.to_json() for kind in _by_kind(one, result)]
    return {"by_kind": kinds} if kinds else {}


def _by_kind(one: "Candidate", result: "Evaluation") -> "list[Kind]":
    from mage.evaluation.kinds import figures_by_kind

    return figures_by_kind(one.components.recipe.environment(), result.rows)


def _read_by(by: str) -> list[str]:
    """The words of --by."""
    words = [word.strip() for word in by.split(",") if word.strip()]
    if wrong := [word for word in words if word not in ("opponent", "seat", "kind")]:
        raise UsageError(f"--by {', '.join(wrong)}: allowed are opponent, seat and kind.")
    return words


def _check_files(stored: Path | None, tasks: Path | None) -> None:
    """A file to read must exist; a file to write must be new, and its folder writable."""
    if stored is not None and not stored.is_file():
        raise UsageError(
            f"--compare {stored}: there is no such file. `mage evaluate --tasks` writes it."
        )
    if tasks is None:
        return
    if tasks.suffix != ".jsonl" or tasks.is_dir():
        raise UsageError(f"--tasks {tasks}: give a file whose name ends with .jsonl.")
    if not tasks.parent.is_dir():
        raise UsageError(f"--tasks {tasks}: there is no folder {tasks.parent}.")
    if os.path.lexists(tasks):
        raise UsageError(f"--tasks {tasks}: the file exists already. Delete it or name a new file.")
    check_writable("--tasks", tasks)


def _check_exists(name: str) -> None:
    """A path that is neither a folder nor a recipe file: the message lists run folders."""
    path = Path(name)
    if not path.exists() and len(path.parts) > 1 and path.suffix != ".toml":
        RunFolder.open(path)


def _play(
    candidate: "Candidate",
    split: Split,
    panel: PanelName,
    size: int | None,
    memory: Control | None,
    writer: "Candidate | None",
    kept: Path | None = None,
) -> "Evaluation":
    """Play a panel and count its episodes. Finished parts are kept in the file `kept`."""
    from mage.api.agents import play_panel
    from mage.cli.terminal.counting import counted
    from mage.evaluation.shards import ShardStore

    recipe = candidate.components.recipe
    count = (size or recipe.panel_size(panel)) * recipe.plays_of(panel)
    notes, swapped, store, there = _notes(memory), memory == "swapped", None, 0
    if kept is not None and not swapped:
        panel_of: dict[str, Any] = {"split": split, "panel": panel, "tasks": count}
        by = None if writer is None else writer.identity()
        about = candidate.identity() | panel_of | {"memory": memory, "writer": by}
        store = ShardStore(kept, about, say)
        if there := sum(len(shard.rows) for shard in store.read()):
            say(f"{there:,} of {count:,} meta-episodes were played before and are in {kept}")
    plays = 2 if swapped else 1  # first with the own memories
    episodes = (count - there) * plays * recipe.evaluation_episodes()
    with counted(f"{candidate.title}: episode", episodes) as one_more:
        return play_panel(
            candidate,
            split,
            panel,
            size,
            notes,
            after_episode=one_more,
            swapped=swapped,
            writer=writer,
            store=store,
        )


def _show_evaluations(
    candidates: Sequence["Candidate"],
    found: Sequence["Evaluation"],
    paired: "Comparison | None",
    other: str,
    what: str,
    by: Sequence[str],
) -> None:
    """Show the difference of the first candidate to `other`, and the table of every candidate."""
    from mage.cli.terminal.results import comparison_table

    out, hidden = console(), list[str]()
    if paired:
        title = f"{candidates[0].title} minus {other}, paired over {paired.tasks:,} tasks"
        out.print(comparison_table(paired, title))
    for one, result in zip(candidates, found, strict=True):
        hidden = _show_evaluation(one, result, what, by)
    if hidden:
        left_out = f"left out because the window is narrow: {', '.join(hidden)}; --json shows all"
        out.print(left_out, style="dim")


def _show_evaluation(
    one: "Candidate", result: "Evaluation", what: str, by: Sequence[str]
) -> list[str]:
    """Show the table of one candidate; returns the columns that do not fit into the window."""
    from mage.cli.terminal.results import evaluation_table, kinds_table
    from mage.report.plain import evaluation_problems

    out = console()
    title = f"{one.title}, update {one.update}: {what}, {result.overall.tasks:,} tasks"
    shown, hidden = evaluation_table(result, title, out.width if out.is_terminal else PIPE, by)
    out.print(shown)
    for world in result.worlds:
        title = f"{world.environment}, {world.overall.tasks:,} tasks"
        out.print(evaluation_table(world, title, out.width if out.is_terminal else PIPE, by)[0])
    if "kind" in by and (kinds := _by_kind(one, result)):
        out.print(kinds_table(kinds))
    for line in (*one.components.warnings, *evaluation_problems(result)):
        out.print(line, markup=False, soft_wrap=True)
    if (expert := result.overall.expert) is not None:
        out.print(
            f"the environment's expert on these tasks: success {100 * expert.success:.0f} %, "
            f"score {expert.score:+.3f}",
            style="dim",
        )
    for bill in _bill(one).values():
        figures = (f"{name.replace('_', ' ')} {figure:,.6g}" for name, figure in bill.items())
        out.print(", ".join(figures), style="dim")
    return hidden


def _bill(one: "Candidate") -> dict[str, dict[str, float]]:
    """Requests, tokens and cost of an endpoint; empty for a local model."""
    bill = one.components.engine.bill()
    return {"bill": bill} if bill else {}
