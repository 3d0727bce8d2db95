"""The files of a reproduction: TABLE.html (the viewer in one file), TABLE.md and TABLE.json."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mage.evaluation.rows import finite
from mage.evaluation.statistics import Estimate
from mage.reproduce.action_shares import WorldChoices, read_choices
from mage.reproduce.paper import paper_note
from mage.reproduce.plan import Plan
from mage.reproduce.results import ArmResult, Pair, WorldResult, read_results
from mage.reproduce.tables import MeasureName
from mage.run_folder import versions, write_atomic, write_json
from mage.viewer.export import write_file

Rows = Iterable[Sequence[str]]


def write_page(plan: Plan, out: Path) -> list[Path]:
    """Write the three files from all finished runs; returns them, the page first."""
    results = read_results(plan, out / "runs")
    choices = [read_choices(plan, one.world, one.split, out / "runs") for one in results]
    found = _json(plan, results, choices)
    data = [("runs", {"runs": [], "tables": []}), (f"table/{plan.name}", found)]
    return [
        write_file(out / f"{plan.name}.html", data, start=f"table/{plan.name}"),
        write_atomic(out / f"{plan.name}.md", _markdown(plan, results).encode()),
        write_json(out / f"{plan.name}.json", found),
    ]


def _model(plan: Plan) -> str:
    return plan.jobs[0].recipe.model.path if plan.jobs else "-"


# --- Conclusions, limited by the intervals


def conclude(result: WorldResult) -> Iterator[str]:
    """Significant differences, arms against the exact lines, budgets, and missing runs."""
    if not result.arms:
        yield "No run is finished yet."
        return
    real = [pair for pair in result.pairs if pair.is_real]
    if result.pairs:
        yield (
            f"{len(real)} of {len(result.pairs)} pairs of arms differ significantly in the last "
            "episode (paired interval excludes zero, Holm-corrected p below .05)."
        )
    returns = [
        pair
        for pair in result.pairs
        if {pair.first, pair.second}
        in ({"lamer", "mage"}, {"mage", "final"}, {"cumulative", "differential"})
    ]
    yield from (
        f"{pair.second} minus {pair.first}: {_difference(pair, result.measure)}."
        for pair in returns
    )
    if result.bounds is not None:
        yield from (_against_bounds(arm, result) for arm in result.arms if arm.trains)
    yield from (f"Budgets are not equal: {fault}." for fault in result.budget_faults)
    if not result.budget_faults and sum(arm.trains for arm in result.arms) > 1:
        yield (
            "Budgets are equal: all trained arms have the same number of training episodes, "
            "and generated tokens within 10 %."
        )
    if result.missing:
        more = " ..." if len(result.missing) > 6 else ""
        yield f"{len(result.missing)} runs are missing: {', '.join(result.missing[:6])}{more}."


def _difference(pair: Pair, measure: MeasureName) -> str:
    verdict = "significant" if pair.is_real else "not significant"
    shown = show(pair.difference.difference, measure, signed=True)
    return f"{shown}, Holm p {pair.adjusted:.3f}, {pair.seeds} seeds: {verdict}"


def _against_bounds(arm: ArmResult, result: WorldResult) -> str:
    assert result.bounds is not None, "the caller checks for bounds"
    last, line, best = arm.episodes[-1].score, result.bounds.non_adapting, result.bounds.learner[-1]
    place = "above" if last.low > line else "below" if last.high < line else "not different from"
    gap = "" if best is None else f"; the best learner has {best:.3f}, {best - last.value:.3f} more"
    return (
        f"{arm.label} scores {show(last, 'score')} in the last episode, "
        f"{place} the best without adapting ({line:.3f}){gap}."
    )


def show(found: Estimate, measure: MeasureName, signed: bool = False) -> str:
    """`+0.213 [+0.190, +0.236]`, or `41.2 % [37.0, 45.6]`; differences of rates are in points."""
    if measure == "score":
        return f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    sign = "+" if signed else ""
    unit = "points" if signed else "%"
    low, high = 100 * found.low, 100 * found.high
    return f"{100 * found.value:{sign}.1f} {unit} [{low:{sign}.1f}, {high:{sign}.1f}]"


# --- Markdown


def _markdown(plan: Plan, results: Sequence[WorldResult]) -> str:
    seeds = ", ".join(map(str, plan.seeds))
    about = f"{plan.table.title}. Model {_model(plan)}, scale {plan.scale}, seeds {seeds}."
    lines = [f"# {plan.name}", "", about]
    for result in results:
        lines += ["", f"## {result.title}, {result.split} panel", ""]
        lines += [f"- {sentence}" for sentence in conclude(result)]
        if result.arms:
            lines += [*_result_table(result), *_episode_table(result)]
            lines += [*_pair_table(result), *_budget_table(result)]
    return "\n".join([*lines, "", paper_note(plan), ""])


def _table(title: str, note: str, header: Sequence[str], rows: Rows) -> Iterator[str]:
    yield from ("", f"### {title}", "", note, "")
    for cells in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(cells)} |"


def _result_table(result: WorldResult) -> Iterator[str]:
    last, has_paper = (
        len(result.arms[0].episodes),
        any(arm.paper is not None for arm in result.arms),
    )
    figures = (f"{name}, episode {last}" for name in ("score", "success", "draws"))
    gain = f"gain in {result.measure}, 1 to {last}"
    header = ["arm", "seeds", "tasks", *figures, f"Pass@{last}", gain, "seeds, lowest to highest"]
    rows = [
        [*_result_row(arm, result), *([_paper_rate(arm)] if has_paper else [])]
        for arm in result.arms
    ]
    compared = f"The table compares the {result.measure} in the last episode."
    if result.bounds is not None:
        best = result.bounds.learner[-1]
        learner = "not known" if best is None else f"{best:.3f}"
        line = f"Best without adapting {result.bounds.non_adapting:.3f}, best learner {learner}."
        compared = f"{line} {compared}"
    return _table("Result", compared, [*header, *(["the paper"] if has_paper else [])], rows)


def _result_row(arm: ArmResult, result: WorldResult) -> list[str]:
    one = arm.episodes[-1]
    scale, digits, unit = (1, 3, "") if result.measure == "score" else (100, 1, " %")
    low, high = scale * min(arm.by_seed), scale * max(arm.by_seed)
    several = len(arm.by_seed) > 1
    return [
        arm.label,
        str(len(arm.seeds)),
        f"{arm.tasks:,}",
        show(one.score, "score"),
        *(show(rate, "success") for rate in (one.success, one.draws, one.pass_at)),
        show(arm.gain, result.measure, signed=True),
        f"{low:.{digits}f} to {high:.{digits}f}{unit}" if several else "-",
    ]


def _paper_rate(arm: ArmResult) -> str:
    return "-" if arm.paper is None else f"{100 * arm.paper:.1f} %"


def _episode_table(result: WorldResult) -> Iterator[str]:
    header = ["arm", *(f"{one.episode}" for one in result.arms[0].episodes)]
    rows = [
        [arm.label, *(show(one.success, "success") for one in arm.episodes)] for arm in result.arms
    ]
    note = "Share of tasks that were won in this episode."
    return _table("Success in episode k", note, header, rows)


def _pair_table(result: WorldResult) -> Iterator[str]:
    rows = [
        [
            f"{pair.second} minus {pair.first}",
            str(pair.seeds),
            show(pair.difference.difference, result.measure, signed=True),
            f"{pair.difference.p_value:.4f}",
            f"{pair.adjusted:.4f}",
            "yes" if pair.is_real else "no",
        ]
        for pair in sorted(result.pairs, key=lambda pair: pair.adjusted)
    ]
    note = (
        "In the last episode, paired by task and seed. "
        "Holm's correction covers all pairs of this environment."
    )
    named = f"difference in {result.measure}"
    header = ["pair", "seeds", named, "p", "p, Holm", "significant"]
    return _table("Differences", note, header, rows)


def _budget_table(result: WorldResult) -> Iterator[str]:
    parts = [
        f"{part} {unit}" for part in ("training", "evaluation") for unit in ("episodes", "tokens")
    ]
    rows = [
        [arm.label, *(f"{value:,.0f}" for value in asdict(arm.budget).values())]
        for arm in result.arms
    ]
    note = "Means over runs. Tokens count moves, reflections and queries of the memory."
    return _table("Budget", note, ["arm", *parts], rows)


# --- JSON


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
