"""The files of a reproduction: TABLE.html (the viewer in one file), TABLE.md and TABLE.json.

The pictures are in the page, and once more as files under pictures/.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mage.evaluation.statistics import Estimate
from mage.report.values import pipe_table
from mage.reproduce.action_shares import Habit, WorldChoices, read_choices, stored_metas
from mage.reproduce.paper import paper_note
from mage.reproduce.pictures import colours_of, draw_choices, draw_curves, draw_habits
from mage.reproduce.plan import Plan
from mage.reproduce.reflections import RULE, Quote, quote_reflections
from mage.reproduce.results import (
    ArmResult,
    CurvePanel,
    Pair,
    WorldResult,
    read_curves,
    read_results,
)
from mage.reproduce.tables import TITLES, MeasureName
from mage.run_folder import versions, write_atomic, write_json
from mage.run_folder.files import finite
from mage.viewer.export import write_file

Rows = Iterable[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Section:
    """All of one environment (or variant) and panel. `curves` stand in its first section only."""

    result: WorldResult
    curves: tuple[CurvePanel, ...]
    choices: WorldChoices | None
    quotes: tuple[Quote, ...]

    @property
    def name(self) -> str:
        words = f"{self.result.title} {self.result.split}"
        return re.sub(r"[^a-z0-9]+", "_", words.lower())


@dataclass(frozen=True, slots=True)
class Pictures:
    """SVG texts; those of `choices` are in the order of the arms."""

    curves: tuple[str, ...]
    choices: tuple[str, ...]
    habits: tuple[str, ...]


def write_page(plan: Plan, out: Path) -> list[Path]:
    """Write all files from the finished runs; returns page, table and figures."""
    sections = _read_sections(plan, out / "runs")
    pictures = [_draw(section) for section in sections]
    found = _json(plan, sections, pictures)
    data = [("runs", {"runs": [], "tables": []}), (f"table/{plan.name}", found)]
    (out / "pictures").mkdir(exist_ok=True)
    for section, drawn in zip(sections, pictures, strict=True):
        for path, text in _picture_files(plan, section, drawn):
            write_atomic(out / path, text.encode())
    return [
        write_file(out / f"{plan.name}.html", data, start=f"table/{plan.name}"),
        write_atomic(out / f"{plan.name}.md", _markdown(plan, sections, pictures).encode()),
        write_json(out / f"{plan.name}.json", found),
    ]


def _read_sections(plan: Plan, runs: Path) -> list[Section]:
    sections: list[Section] = []
    for result in read_results(plan, runs):
        is_first = all(result.world != one.result.world for one in sections)
        curves = read_curves(plan, result.world, runs) if is_first else []
        metas = stored_metas(plan, result.world, result.split, runs)
        sections.append(
            Section(result, tuple(curves), read_choices(metas), quote_reflections(metas))
        )
    return sections


def _draw(section: Section) -> Pictures:
    choices = section.choices
    return Pictures(
        tuple(draw_curves(panel) for panel in section.curves),
        tuple(draw_choices(choices)) if choices else (),
        tuple(draw_habits(choices)) if choices else (),
    )


def _picture_files(plan: Plan, section: Section, drawn: Pictures) -> Iterator[tuple[str, str]]:
    """The name of each file below the folder of the page, with its SVG text."""
    for kind, texts in asdict(drawn).items():
        for number, text in enumerate(texts, start=1):
            yield f"pictures/{plan.name}_{section.name}_{kind}_{number}.svg", text


def _model(plan: Plan) -> str:
    return plan.jobs[0].recipe.model.path if plan.jobs else "-"


# --- Conclusions, limited by the intervals


def conclude(result: WorldResult) -> Iterator[str]:
    """Significant differences, arms against the exact lines, budgets, and missing runs."""
    if not result.arms:
        yield "No run is finished yet."
        return
    yield from _compare(result, result.measure, result.pairs)
    if result.second is not None:
        yield from _compare(result, result.second.measure, result.second.pairs)
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


def _compare(result: WorldResult, measure: MeasureName, pairs: Sequence[Pair]) -> Iterator[str]:
    name = name_measure(measure, _last(result))
    if pairs:
        yield (
            f"{sum(pair.is_real for pair in pairs)} of {len(pairs)} pairs of arms differ "
            f"significantly in {name} (paired interval excludes zero, Holm-corrected p below .05)."
        )
    returns = ({"lamer", "mage"}, {"mage", "final"}, {"cumulative", "differential"})
    yield from (
        f"{name}, {pair.second} minus {pair.first}: {_difference(pair, measure)}."
        for pair in pairs
        if {pair.first, pair.second} in returns
    )


def _last(result: WorldResult) -> int:
    return len(result.arms[0].episodes)


def name_measure(measure: MeasureName, episode: int) -> str:
    """`Pass@10`, `Draw@10`, or `score in episode 10`."""
    cumulative = {"pass_at": "Pass", "draw_at": "Draw"}.get(measure)
    return f"{cumulative}@{episode}" if cumulative else f"{measure} in episode {episode}"


def _difference(pair: Pair, measure: MeasureName) -> str:
    verdict = "significant" if pair.is_real else "not significant"
    shown = show(pair.difference.difference, measure, signed=True)
    seeds = f"{pair.seeds} seed{'s' if pair.seeds != 1 else ''}"
    return f"{shown}, Holm p {pair.adjusted:.3f}, {seeds}: {verdict}"


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
    """`+0.213 [+0.190, +0.236]`, or `41.2 % [37.0, 45.6]`.

    Differences of rates are in percentage points.
    """
    if measure == "score":
        return f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    sign = "+" if signed else ""
    unit = "percentage points" if signed else "%"
    low, high = 100 * found.low, 100 * found.high
    return f"{100 * found.value:{sign}.1f} {unit} [{low:{sign}.1f}, {high:{sign}.1f}]"


# --- Markdown


def _markdown(plan: Plan, sections: Sequence[Section], pictures: Sequence[Pictures]) -> str:
    seeds = ", ".join(map(str, plan.seeds))
    about = f"{plan.table.title}. Model {_model(plan)}, scale {plan.scale}, seeds {seeds}."
    lines = [f"# {plan.name}", "", about]
    for section, drawn in zip(sections, pictures, strict=True):
        result = section.result
        lines += ["", f"## {result.title}, {result.split} panel", ""]
        lines += [f"- {sentence}" for sentence in conclude(result)]
        if result.arms:
            lines += [*_result_table(result), *_curve_tables(section), *_draw_table(result)]
            lines += [*_episode_table(result), *_all_pairs(result), *_budget_table(result)]
            lines += [*_habit_table(section.choices), *_quotes(section.quotes)]
            files = [path for path, _ in _picture_files(plan, section, drawn)]
            lines += ["", *(f"![{Path(path).stem}]({path})" for path in files)]
    return "\n".join([*lines, "", paper_note(plan), ""])


def _table(title: str, note: str, header: Sequence[str], rows: Rows) -> Iterator[str]:
    yield from ("", f"### {title}", "", note, "", *pipe_table(header, rows))


def _result_table(result: WorldResult) -> Iterator[str]:
    last, has_paper = _last(result), any(arm.paper for arm in result.arms)
    main, gain = name_measure(result.measure, last), f"gain, 1 to {last}"
    figures = (f"{name}, episode {last}" for name in ("score", "success", "draws"))
    paper = [f"the paper, {main}"] if has_paper else []
    header = ["arm", "seeds", "tasks", main, *paper, gain, "seeds, lowest to highest", *figures]
    rows = [_result_row(arm, result, has_paper) for arm in result.arms]
    compared = f"The table compares {main}; gain and seeds are in the same measure."
    if result.bounds is not None:
        best = result.bounds.learner[-1]
        learner = "not known" if best is None else f"{best:.3f}"
        line = f"Score without adapting at most {result.bounds.non_adapting:.3f}, best learner"
        compared = f"{compared} {line} {learner}."
    return _table("Result", compared, header, rows)


def _result_row(arm: ArmResult, result: WorldResult, has_paper: bool) -> list[str]:
    one = arm.episodes[-1]
    scale, digits, unit = (1, 3, "") if result.measure == "score" else (100, 1, " %")
    low, high = scale * min(arm.by_seed), scale * max(arm.by_seed)
    several = len(arm.by_seed) > 1
    return [
        arm.label,
        str(len(arm.seeds)),
        f"{arm.tasks:,}",
        show(getattr(one, result.measure), result.measure),
        *([_paper_rate(arm)] if has_paper else []),
        show(arm.gain, result.measure, signed=True),
        f"{low:.{digits}f} to {high:.{digits}f}{unit}" if several else "-",
        show(one.score, "score"),
        *(show(rate, "success") for rate in (one.success, one.draws)),
    ]


def _paper_rate(arm: ArmResult) -> str:
    rate = dict(arm.paper).get(len(arm.episodes))
    return "-" if rate is None else f"{100 * rate:.1f} %"


def _curve_tables(section: Section) -> Iterator[str]:
    """Pass@k or Draw@k by episode, in and out of domain, with the paper's values where known."""
    for panel in section.curves:
        name = "Draw@k" if panel.measure == "draw_at" else "Pass@k"
        place = f"{panel.split} panel" + (f", {panel.variant}" if panel.variant else "")
        header = ["arm", *map(str, range(1, 1 + max(len(arm.values) for arm in panel.arms)))]
        rows = []
        for arm in panel.arms:
            rows.append([arm.label, *(show(one, "success") for one in arm.values)])
            if arm.paper:
                known = {str(k): f"{100 * rate:.1f} %" for k, rate in arm.paper}
                rows.append([f"{arm.label}, the paper", *(known.get(k, "") for k in header[1:])])
        word = "drawn" if panel.measure == "draw_at" else "won"
        note = f"Share of tasks that were {word} at least once in the first k episodes."
        yield from _table(f"{name}, {place}", note, header, rows)


def _draw_table(result: WorldResult) -> Iterator[str]:
    """Cumulative draws beside draws by episode, and what counting alone gives."""
    if result.measure != "draw_at":
        return
    header = ["arm", *(f"{one.episode}" for one in result.arms[0].episodes)]
    rows = []
    for arm in result.arms:
        first = arm.episodes[0].draws.value
        counted = [1 - (1 - first) ** one.episode for one in arm.episodes]
        rows.append([f"{arm.label}, Draw@k", *(_percent(o.draw_at.value) for o in arm.episodes)])
        rows.append([f"{arm.label}, episode k", *(_percent(o.draws.value) for o in arm.episodes)])
        rows.append([f"{arm.label}, by counting", *map(_percent, counted)])
    note = (
        "Draw@k: drawn at least once in the first k episodes, as the paper counts. By counting: "
        "Draw@k of an agent whose every game is drawn as often as the first, without learning."
    )
    yield from _table("Draws", note, header, rows)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _episode_table(result: WorldResult) -> Iterator[str]:
    header = ["arm", *(f"{one.episode}" for one in result.arms[0].episodes)]
    rows = [
        [arm.label, *(show(one.success, "success") for one in arm.episodes)] for arm in result.arms
    ]
    note = "Share of tasks that were won in this episode."
    return _table("Success in episode k", note, header, rows)


def _all_pairs(result: WorldResult) -> Iterator[str]:
    yield from _pair_table(result, result.measure, result.pairs)
    if result.second is not None:
        yield from _pair_table(result, result.second.measure, result.second.pairs)


def _pair_table(result: WorldResult, measure: MeasureName, pairs: Sequence[Pair]) -> Iterator[str]:
    name = name_measure(measure, _last(result))
    rows = [
        [
            f"{pair.second} minus {pair.first}",
            str(pair.seeds),
            show(pair.difference.difference, measure, signed=True),
            f"{pair.difference.p_value:.4f}",
            f"{pair.adjusted:.4f}",
            "yes" if pair.is_real else "no",
        ]
        for pair in sorted(pairs, key=lambda pair: pair.adjusted)
    ]
    note = "Paired by task and seed. Holm's correction covers all pairs of this table."
    header = ["pair", "seeds", "difference", "p", "p, Holm", "significant"]
    return _table(f"Differences in {name}", note, header, rows)


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


def _habit_table(choices: WorldChoices | None) -> Iterator[str]:
    if choices is None:
        return
    header = ["arm", *(str(one.episode) for one in choices.arms[0].habits)]
    rows = []
    for arm in choices.arms:
        rows.append([f"{arm.label}, repeated", *map(_repeated, arm.habits)])
        rows.append([f"{arm.label}, entropy", *(f"{one.entropy:.2f}" for one in arm.habits)])
    note = (
        "Repeated: share of turns whose pair of state and move the same task had in the episode "
        "before. Entropy of all pairs of the episode in nats. From stored meta-episodes."
    )
    yield from _table("State-action pairs by episode", note, header, rows)


def _repeated(habit: Habit) -> str:
    return "" if habit.repeats is None else _percent(habit.repeats.value)


def _quotes(quotes: Sequence[Quote]) -> Iterator[str]:
    """Replies are quoted as code, so nothing that a model wrote is read as Markdown."""
    if not quotes:
        return
    yield from ("", "### Reflections by trial", "", RULE)
    for quote in quotes:
        against = f" against {quote.opponent}" if quote.opponent else ""
        where = f"task {quote.task}{against}"
        none = f"no such task among the {quote.searched} stored ones"
        yield from ("", f"**{quote.label}**: {where if quote.trials else none}.")
        for trial in quote.trials:
            yield from ("", f"Episode {trial.episode}, {trial.outcome}. First reply:", "")
            yield from _code(trial.reply)
            if trial.reflection:
                yield from ("", "Reflection after it:", "")
                yield from _code(trial.reflection)


def _code(text: str) -> Iterator[str]:
    yield from (f"    {line}" for line in (text.splitlines() or ["(empty)"]))


# --- JSON


def _json(plan: Plan, sections: Sequence[Section], pictures: Sequence[Pictures]) -> dict[str, Any]:
    """All results as plain values; the lists below are in the order of `results`."""
    results = [section.result for section in sections]
    labels = list(dict.fromkeys(job.arm.label for job in plan.jobs))
    about = {
        "table": plan.name,
        "title": plan.table.title,
        "scale": plan.scale,
        "model": _model(plan),
        "seeds": list(plan.seeds),
        "worlds": list(plan.worlds),
        "note": paper_note(plan),
        "titles": TITLES,
        "colours": dict(zip(labels, colours_of(labels), strict=True)),
        "rule": RULE,
    }
    real = {
        _key(plan, result): [[pair.first, pair.second] for pair in result.pairs if pair.is_real]
        for result in results
    }
    return about | {
        "results": [finite(asdict(result)) for result in results],
        "sentences": [list(conclude(result)) for result in results],
        "curves": [[finite(asdict(one)) for one in section.curves] for section in sections],
        "choices": [choices_json(section.choices) for section in sections],
        "quotes": [[asdict(quote) for quote in section.quotes] for section in sections],
        "pictures": [asdict(drawn) for drawn in pictures],
        "differences": real,
        "versions": versions(),
    }


def _key(plan: Plan, result: WorldResult) -> str:
    is_main = result.split == plan.table.split
    return result.title if is_main else f"{result.title}, {result.split}"


def choices_json(choices: WorldChoices | None) -> dict[str, Any] | None:
    if choices is None:
        return None
    return {
        "rows": choices.rows,
        "arms": [
            {
                "label": arm.label,
                "meta_episodes": arm.meta_episodes,
                "shares": finite(arm.shares.tolist()),
                "frequencies": arm.frequencies.tolist(),
                "habits": [finite(asdict(one)) for one in arm.habits],
            }
            for arm in choices.arms
        ],
    }
