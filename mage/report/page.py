"""The page: everything about a run in one HTML file that needs no network and runs no script.

Jinja escapes whatever is put into the layout, so nothing that a model wrote can become a tag; a content policy in the page
itself forbids scripts and requests besides.
"""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jinja2 import Environment, StrictUndefined

from mage.config.loading import recipe_toml
from mage.environments.base import SEATS
from mage.evaluation.compare import EpisodeComparison, compare
from mage.evaluation.figures import Cell, EpisodeFigures, Evaluation
from mage.evaluation.statistics import Difference
from mage.report.layout import PAGE
from mage.report.run_results import (
    DRAWS,
    PASS,
    REGRET,
    SCORE,
    STAGES,
    SUCCESS,
    TITLES,
    Measure,
    RunResults,
    Stage,
    title_of,
)
from mage.report.transcripts import LABELS, Section
from mage.report.values import NOTHING, Value, show, show_bound, show_estimate
from mage.report.verdict import tell_verdict
from mage.run_folder import Json
from mage.types import Split


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """All that is said about one split's final panel."""

    split: str
    tiles: tuple[tuple[str, Value], ...]
    verdict: tuple[str, ...]
    tables: tuple[Table, ...]


def make_page(results: RunResults, sections: Sequence[Section], light: bytes, dark: bytes) -> str:
    """The page as text; `light` and `dark` are the curves as PNG."""
    layout = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(PAGE)
    return layout.render(
        title=results.title,
        environment=results.environment,
        facts=_facts(results),
        panels=[_panel(results, split) for split in results.splits],
        light=base64.b64encode(light).decode(),
        dark=base64.b64encode(dark).decode(),
        sections=sections,
        labels=LABELS,
        recipe=recipe_toml(results.folder.recipe),
        versions=list(_flat(results.versions)),
    )


def _facts(results: RunResults) -> list[tuple[str, str]]:
    """The run in a few words."""
    run, total = results.folder.recipe.run, results.folder.recipe.run.updates
    done = (
        f"{results.updates:,}" if results.updates == total else f"{results.updates:,} of {total:,}"
    )
    return [
        ("updates", done),
        ("episodes in training", f"{results.played:,}"),
        ("time in updates", _duration(results.seconds)),
        ("seed", str(run.seed)),
        (
            "chosen update",
            NOTHING if results.chosen_update is None else f"{results.chosen_update:,}",
        ),
        ("state", "finished" if results.finished else "not finished"),
    ]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def _flat(table: Json) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(dict(value))
        else:
            yield name, NOTHING if value is None else str(value)


# --- One final panel


def _panel(results: RunResults, split: Split) -> Panel:
    stages: dict[Stage, Evaluation] = {
        stage: results.finals[stage, split] for stage in STAGES if (stage, split) in results.finals
    }
    overall, measure = results.overall(split), results.measure_of(split)
    tables = [
        _overall_table(overall),
        *_pair_tables(results, split, measure),
        *_cell_tables(stages, measure),
    ]
    return Panel(
        split, tuple(_tiles(overall, measure)), tuple(tell_verdict(overall, measure)), tuple(tables)
    )


def _tiles(overall: Mapping[Stage, Cell], measure: Measure) -> Iterator[tuple[str, Value]]:
    """The few figures that tell the result."""
    for stage, cell in overall.items():
        last = cell.episodes[-1]
        yield (
            f"episode {last.episode}, {title_of(stage, overall)}",
            show_estimate(measure.of(last), measure),
        )
    cell = next(iter(overall.values()))
    if cell.non_adapting is not None:
        yield "best policy that does not adapt", Value(show(cell.non_adapting, SCORE), "exact")
    if cell.episodes[-1].ceiling is not None:
        yield (
            f"Bayes-optimal learner, episode {cell.episodes[-1].episode}",
            Value(show(cell.episodes[-1].ceiling, SCORE), "exact"),
        )


# --- Tables


def _overall_table(overall: Mapping[Stage, Cell]) -> Table:
    """Every measure by episode, before and after and without memory, beside what is possible."""
    first = next(iter(overall.values()))
    bounded = first.non_adapting is not None
    rows: list[tuple[Value, ...]] = []
    for measure in (SCORE, SUCCESS, PASS, DRAWS, REGRET):
        rows += [
            _measure_row(overall, measure, k, bounded)
            for k in range(len(first.episodes))
            if _is_worth(overall, measure)
        ]
    for title, of in _REPLIES.items():
        rows += [_reply_row(overall, title, of, k, bounded) for k in range(len(first.episodes))]
    bounds = ("does not adapt", "Bayes-optimal") if bounded else ()
    header = ("", "episode", *(title_of(stage, overall) for stage in overall), *bounds, "tasks")
    return Table(
        "Figures",
        "Means over tasks with 95 % intervals. Pass@k: won at least once in the first k episodes.",
        header,
        tuple(rows),
    )


def _is_worth(overall: Mapping[Stage, Cell], measure: Measure) -> bool:
    """A game without draws needs no rows of noughts, and one that knows no regret none of dashes."""
    found = [
        one
        for cell in overall.values()
        for figures in cell.episodes
        if (one := measure.of(figures)) is not None
    ]
    return any(one.value > 0 for one in found) if measure is DRAWS else bool(found)


def _measure_row(
    overall: Mapping[Stage, Cell], measure: Measure, k: int, bounded: bool
) -> tuple[Value, ...]:
    first = next(iter(overall.values()))
    values = [show_estimate(measure.of(cell.episodes[k]), measure) for cell in overall.values()]
    of_score = measure is SCORE
    bounds = (
        [
            show_bound(first.non_adapting if of_score else None),
            show_bound(first.episodes[k].ceiling if of_score else None),
        ]
        if bounded
        else []
    )
    return Value(measure.title), Value(str(k + 1)), *values, *bounds, Value(f"{first.tasks:,}")


_REPLIES: dict[str, Callable[[EpisodeFigures], str]] = {
    "illegal replies": lambda figures: (
        NOTHING if figures.illegal is None else f"{100 * figures.illegal:.1f} %"
    ),
    "tokens a reply": lambda figures: (
        NOTHING if figures.tokens is None else f"{figures.tokens:.1f}"
    ),
    "unfinished": lambda figures: (
        NOTHING if figures.unfinished is None else f"{100 * figures.unfinished:.1f} %"
    ),
}


def _reply_row(
    overall: Mapping[Stage, Cell],
    title: str,
    of: Callable[[EpisodeFigures], str],
    k: int,
    bounded: bool,
) -> tuple[Value, ...]:
    first = next(iter(overall.values()))
    bounds = (Value(NOTHING), Value(NOTHING)) if bounded else ()
    return (
        Value(title),
        Value(str(k + 1)),
        *(Value(of(cell.episodes[k])) for cell in overall.values()),
        *bounds,
        Value(f"{first.tasks:,}"),
    )


def _pair_tables(results: RunResults, split: Split, measure: Measure) -> list[Table]:
    """After against before and against the emptied memory, task by task."""
    after = results.rows("after", split)
    controls: tuple[Stage, ...] = ("before", "emptied")
    rows: list[tuple[Value, ...]] = []
    for stage in controls:
        other = results.rows(stage, split)
        if after and other and {row.task for row in after} == {row.task for row in other}:
            rows += [
                _pair_row(f"after − {TITLES[stage]}", found, measure)
                for found in compare(other, after).episodes
            ]
    note = "Differences on the same tasks, with paired 95 % intervals; p: how often chance alone would give one as large."
    header = ("", "episode", f"{measure.title} difference", "p", "tasks")
    return [Table("Comparisons in pairs", note, header, tuple(rows))] if rows else []


def _pair_row(title: str, found: EpisodeComparison, measure: Measure) -> tuple[Value, ...]:
    test: Difference = found.score if measure is SCORE else found.success
    p = "< 0.001" if test.p_value < 0.001 else f"{test.p_value:.3f}"
    change = show_estimate(test.difference, measure, signed=True)
    return (
        Value(title),
        Value(str(found.episode)),
        change,
        Value(p),
        Value(f"{test.difference.count:,}"),
    )


def _cell_tables(stages: Mapping[Stage, Evaluation], measure: Measure) -> list[Table]:
    """By seat, by opponent and by both, after training if that was measured."""
    shown: Stage = "after" if "after" in stages else next(iter(stages))
    groups = {
        name: {stage: getattr(found, field) for stage, found in stages.items()}
        for name, field in _GROUPS.items()
    }
    note = f"{measure.title.capitalize()} {title_of(shown, stages)}. Exploitation: 0 = the equilibrium's score, 1 = the exact best response."
    return [
        _cell_table(name, note, cells, shown, measure)
        for name, cells in groups.items()
        if len(cells[shown]) > 1
    ]


_GROUPS = {
    "By opponent": "by_opponent",
    "By seat": "by_seat",
    "By opponent and seat": "by_opponent_seat",
}


def _cell_table(
    title: str, note: str, cells: Mapping[Stage, Sequence[Cell]], shown: Stage, measure: Measure
) -> Table:
    others = [stage for stage in cells if stage != shown]
    last = len(cells[shown][0].episodes)
    episodes = [f"episode {number}" for number in range(1, last + 1)]
    beside = [f"episode {last}, {TITLES[stage]}" for stage in others]
    header = (
        "opponent",
        "seat",
        "tasks",
        *episodes,
        "gain",
        *beside,
        "does not adapt",
        "Bayes-optimal",
        "best response",
        "exploitation",
    )
    rows = [
        _cell_row(cell, [_same(cells[stage], cell) for stage in others], measure)
        for cell in cells[shown]
    ]
    return _without_empty(Table(title, note, header, tuple(rows)))


def _same(cells: Sequence[Cell], wanted: Cell) -> Cell | None:
    return next(
        (cell for cell in cells if (cell.opponent, cell.seat) == (wanted.opponent, wanted.seat)),
        None,
    )


def _cell_row(cell: Cell, others: Sequence[Cell | None], measure: Measure) -> tuple[Value, ...]:
    last = cell.episodes[-1]
    gain = last.score_gain if measure is SCORE else last.success_gain
    exploits = (
        Value(NOTHING)
        if last.exploitation is None
        else Value(f"{last.exploitation.value:.2f}".replace("-", "−"))
    )
    return (
        Value("all" if cell.opponent is None else cell.opponent or NOTHING),
        Value("all" if cell.seat is None else SEATS[cell.seat]),
        Value(f"{cell.tasks:,}"),
        *(show_estimate(measure.of(figures), measure) for figures in cell.episodes),
        show_estimate(gain, measure, signed=True),
        *(
            Value(NOTHING)
            if other is None
            else show_estimate(measure.of(other.episodes[-1]), measure)
            for other in others
        ),
        show_bound(cell.non_adapting),
        show_bound(last.ceiling),
        show_bound(cell.best_response),
        exploits,
    )


def _without_empty(table: Table) -> Table:
    """Columns in which nothing is known, or all rows say `all`, are left out."""
    kept = [
        k
        for k in range(len(table.header))
        if any(row[k].text not in (NOTHING, "all") for row in table.rows)
    ]
    return Table(
        table.title,
        table.note,
        tuple(table.header[k] for k in kept),
        tuple(tuple(row[k] for k in kept) for row in table.rows),
    )
