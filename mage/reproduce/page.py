"""The pages of a reproduction: TABLE.html (one file, no network, no script), .md and .json."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from mage.report.layout import STYLE
from mage.reproduce.action_shares import WorldChoices, read_choices
from mage.reproduce.plan import Plan
from mage.reproduce.plots import draw_choices, draw_results
from mage.reproduce.results import ArmResult, WorldResult, read_results
from mage.reproduce.text import conclude, show
from mage.run_folder import versions, write_atomic, write_json

_PAGE = (
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{ name }} · MAGE</title>
<style>"""
    + STYLE
    + """td.real { font-weight: 650; }</style>
</head>
<body>
<main>
<header>
<h1>{{ name }}</h1>
<p class="quiet">{{ title }} · model {{ model }}, scale {{ scale }}, seeds {{ seeds }}</p>
</header>
{% for section in sections %}
<h2>{{ section.world }}, {{ section.split }} panel</h2>
<ul class="verdict">
{% for sentence in section.sentences %}
<li>{{ sentence }}</li>
{% endfor %}
</ul>
{% for table in section.tables %}
<h3>{{ table.title }}</h3>
<p class="quiet">{{ table.note }}</p>
<div class="scroll"><table class="wide">
<thead><tr>{% for name in table.header %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}
<tr class="first">{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
</table></div>
{% endfor %}
{% for picture in section.pictures %}
<h3>{{ picture.title }}</h3>
<p class="quiet">{{ picture.note }}</p>
<img alt="{{ picture.title }}" src="data:image/png;base64,{{ picture.data }}">
{% endfor %}
{% endfor %}
<h2>How to read this</h2>
<p>All arms of an environment play the same panel of tasks with the same random numbers. Seeds are
seeds of training; an arm without training is played once. All intervals are 95 % intervals: Wilson
intervals over tasks for rates, a bootstrap over tasks and seeds for scores and differences.
Differences are paired by task and seed. The checkpoint of a run is chosen on another panel.
{{ paper }}</p>
<h2>Versions</h2>
<pre class="block">{{ versions }}</pre>
</main>
</body>
</html>
"""
)


@dataclass(frozen=True, slots=True)
class TextTable:
    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Picture:
    title: str
    note: str
    data: str


@dataclass(frozen=True, slots=True)
class PageSection:
    world: str
    split: str
    sentences: tuple[str, ...]
    tables: tuple[TextTable, ...]
    pictures: tuple[Picture, ...]


def write_page(plan: Plan, out: Path) -> list[Path]:
    """Write the three files from all finished runs; returns them, the page first."""
    results = read_results(plan, out / "runs")
    sections = [
        _section(result, read_choices(plan, result.world, result.split, out / "runs"))
        for result in results
    ]
    return [
        write_atomic(out / f"{plan.name}.html", _render(plan, sections).encode()),
        write_atomic(out / f"{plan.name}.md", _markdown(plan, sections).encode()),
        write_json(out / f"{plan.name}.json", _json(plan, results)),
    ]


def _section(result: WorldResult, choices: WorldChoices | None) -> PageSection:
    tables = (
        (_main_table(result), _episode_table(result), _pair_table(result), _budget_table(result))
        if result.arms
        else ()
    )
    return PageSection(
        result.world,
        result.split,
        tuple(conclude(result)),
        tables,
        tuple(_pictures(result, choices)),
    )


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
        (100 if result.measure == "success" else 1),
        (" %" if result.measure == "success" else ""),
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


def _pictures(result: WorldResult, choices: WorldChoices | None) -> list[Picture]:
    if not result.arms:
        return []
    made = [
        Picture(
            "Learning, and episode by episode",
            "Left: mean and range of the seeds. Right: means with 95 % intervals.",
            _encode(draw_results(result)),
        )
    ]
    if choices is not None:
        tasks = ", ".join(f"{arm.label} {arm.meta_episodes}" for arm in choices.arms)
        note = (
            "Share of each move in a state, in per cent, by episode. "
            f"Stored meta-episodes: {tasks}."
        )
        made.append(Picture("Moves by state and episode", note, _encode(draw_choices(choices))))
    return made


def _encode(picture: bytes) -> str:
    return base64.b64encode(picture).decode()


def _model(plan: Plan) -> str:
    return plan.jobs[0].recipe.model.path if plan.jobs else "-"


def _paper_note(plan: Plan) -> str:
    if plan.scale == "paper":
        return (
            "The paper's figures are for Qwen3-4B, 128 tasks, one run: "
            "a standard error of about four points."
        )
    return "The paper's figures are for Qwen3-4B at another scale, so this page does not show them."


def _render(plan: Plan, sections: Sequence[PageSection]) -> str:
    layout = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(_PAGE)
    made = versions()
    packages = "\n".join(
        f"{name} {value}"
        for name, value in (
            {"mage": made["mage"], "python": made["python"]} | made["packages"]
        ).items()
    )
    seeds = ", ".join(map(str, plan.seeds))
    facts: Mapping[str, Any] = {
        "name": plan.name,
        "title": plan.table.title,
        "model": _model(plan),
        "scale": plan.scale,
        "seeds": seeds,
    }
    return layout.render(**facts, sections=sections, paper=_paper_note(plan), versions=packages)


def _markdown(plan: Plan, sections: Sequence[PageSection]) -> str:
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
    return "\n".join([*lines, "", _paper_note(plan), ""])


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _json(plan: Plan, results: Sequence[WorldResult]) -> dict[str, Any]:
    about = {
        "table": plan.name,
        "scale": plan.scale,
        "model": _model(plan),
        "seeds": list(plan.seeds),
        "worlds": list(plan.worlds),
    }
    real = {
        result.world: [[pair.first, pair.second] for pair in result.pairs if pair.is_real]
        for result in results
    }
    return about | {
        "results": [asdict(result) for result in results],
        "differences": real,
        "versions": versions(),
    }
