"""The files of a reproduction: TABLE.html (the viewer in one file), TABLE.md and TABLE.json."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mage.evaluation.rows import finite
from mage.reproduce.action_shares import WorldChoices, read_choices
from mage.reproduce.paper import paper_note
from mage.reproduce.plan import Plan
from mage.reproduce.results import ArmResult, WorldResult, read_results
from mage.reproduce.text import conclude, show
from mage.run_folder import versions, write_atomic, write_json
from mage.viewer.export import write_file


@dataclass(frozen=True, slots=True)
class TextTable:
    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class PageSection:
    world: str
    split: str
    sentences: tuple[str, ...]
    tables: tuple[TextTable, ...]


def write_page(plan: Plan, out: Path) -> list[Path]:
    """Write the three files from all finished runs; returns them, the page first."""
    results = read_results(plan, out / "runs")
    choices = [read_choices(plan, one.world, one.split, out / "runs") for one in results]
    found = _json(plan, results, choices)
    data = [("runs", {"runs": [], "tables": []}), (f"table/{plan.name}", found)]
    return [
        write_file(out / f"{plan.name}.html", data, start=f"table/{plan.name}"),
        write_atomic(out / f"{plan.name}.md", _markdown(plan, map(_section, results)).encode()),
        write_json(out / f"{plan.name}.json", found),
    ]


def _section(result: WorldResult) -> PageSection:
    tables = (
        (_main_table(result), _episode_table(result), _pair_table(result), _budget_table(result))
        if result.arms
        else ()
    )
    return PageSection(result.title, result.split, tuple(conclude(result)), tables)


def _main_table(result: WorldResult) -> TextTable:
    paper = any(arm.paper is not None for arm in result.arms)
    last = len(result.arms[0].episodes)
    figures = (
        f"score, episode {last}",
        f"success, episode {last}",
        f"draws, episode {last}",
        f"Pass@{last}",
        f"gain in {result.measure}, 1 to {last}",
    )
    header = ("arm", "seeds", "tasks", *figures)
    rows = tuple(
        (*_main_row(arm, result), *([_paper(arm)] if paper else [])) for arm in result.arms
    )
    return TextTable(
        "Result",
        f"{_range_note(result)}",
        (*header, "seeds, lowest to highest", *(["the paper"] if paper else [])),
        rows,
    )


def _main_row(arm: ArmResult, result: WorldResult) -> tuple[str, ...]:
    one, scale, unit = (
        arm.episodes[-1],
        (1 if result.measure == "score" else 100),
        ("" if result.measure == "score" else " %"),
    )
    digits = 1 if unit else 3
    lowest, highest = scale * min(arm.by_seed), scale * max(arm.by_seed)
    several = len(arm.by_seed) > 1
    spread = f"{lowest:.{digits}f} to {highest:.{digits}f}{unit}" if several else "-"
    rates = (show(rate, "success") for rate in (one.success, one.draws, one.pass_at))
    return (
        arm.label,
        str(len(arm.seeds)),
        f"{arm.tasks:,}",
        show(one.score, "score"),
        *rates,
        show(arm.gain, result.measure, signed=True),
        spread,
    )


def _range_note(result: WorldResult) -> str:
    compared = f"The table compares the {result.measure} in the last episode."
    if result.bounds is None:
        return compared
    best = _bound(result.bounds.learner[-1])
    line = f"{result.bounds.non_adapting:.3f}"
    return f"Best without adapting {line}, best learner {best}. {compared}"


def _bound(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3f}"


def _paper(arm: ArmResult) -> str:
    return "-" if arm.paper is None else f"{100 * arm.paper:.1f} %"


def _episode_table(result: WorldResult) -> TextTable:
    header = ("arm", *(f"{one.episode}" for one in result.arms[0].episodes))
    rows = tuple(
        (arm.label, *(show(one.success, "success") for one in arm.episodes)) for arm in result.arms
    )
    return TextTable(
        "Success in episode k", "Share of tasks that were won in this episode.", header, rows
    )


def _pair_table(result: WorldResult) -> TextTable:
    rows = tuple(
        (
            f"{pair.second} minus {pair.first}",
            str(pair.seeds),
            show(pair.difference.difference, result.measure, signed=True),
            f"{pair.difference.p_value:.4f}",
            f"{pair.adjusted:.4f}",
            "yes" if pair.is_real else "no",
        )
        for pair in sorted(result.pairs, key=lambda pair: pair.adjusted)
    )
    note = (
        "In the last episode, paired by task and seed. "
        "Holm's correction covers all pairs of this environment."
    )
    return TextTable(
        "Differences",
        note,
        ("pair", "seeds", f"difference in {result.measure}", "p", "p, Holm", "significant"),
        rows,
    )


def _budget_table(result: WorldResult) -> TextTable:
    header = (
        "arm",
        "training episodes",
        "training tokens",
        "evaluation episodes",
        "evaluation tokens",
    )
    rows = tuple(
        (arm.label, *(f"{value:,.0f}" for value in asdict(arm.budget).values()))
        for arm in result.arms
    )
    return TextTable(
        "Budget",
        "Means over runs. Tokens count moves, reflections and queries of the memory.",
        header,
        rows,
    )


def _model(plan: Plan) -> str:
    return plan.jobs[0].recipe.model.path if plan.jobs else "-"


def _markdown(plan: Plan, sections: Iterable[PageSection]) -> str:
    lines = [
        f"# {plan.name}",
        "",
        f"{plan.table.title}. Model {_model(plan)}, scale {plan.scale}, "
        f"seeds {', '.join(map(str, plan.seeds))}.",
    ]
    for section in sections:
        lines += [
            "",
            f"## {section.world}, {section.split} panel",
            "",
            *(f"- {sentence}" for sentence in section.sentences),
        ]
        for table in section.tables:
            lines += [
                "",
                f"### {table.title}",
                "",
                table.note,
                "",
                _row(table.header),
                _row("---" for _ in table.header),
                *map(_row, table.rows),
            ]
    return "\n".join([*lines, "", paper_note(plan), ""])


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _json(
    plan: Plan, results: Sequence[WorldResult], choices: Sequence[WorldChoices | None]
) -> dict[str, Any]:
    """All results as plain values; `sentences` and `choices` are in the order of `results`."""
    about = {
        "table": plan.name,
        "title": plan.table.title,
        "scale": plan.scale,
        "model": _model(plan),
        "seeds": list(plan.seeds),
        "worlds": list(plan.worlds),
        "note": paper_note(plan),
    }
    real = {
        _key(plan, result): [[pair.first, pair.second] for pair in result.pairs if pair.is_real]
        for result in results
    }
    return about | {
        "results": [finite(asdict(result)) for result in results],
        "sentences": [list(conclude(result)) for result in results],
        "choices": [None if one is None else _choices_json(one) for one in choices],
        "differences": real,
        "versions": versions(),
    }


def _key(plan: Plan, result: WorldResult) -> str:
    is_main = result.split == plan.table.split
    return result.title if is_main else f"{result.title}, {result.split}"


def _choices_json(choices: WorldChoices) -> dict[str, Any]:
    return {
        "rows": choices.rows,
        "arms": [
            {
                "label": arm.label,
                "meta_episodes": arm.meta_episodes,
                "shares": finite(arm.shares.tolist()),
            }
            for arm in choices.arms
        ],
    }
