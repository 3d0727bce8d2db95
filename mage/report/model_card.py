"""The model card of a trained run: what it was trained on, how it scores, and how to use it."""

from collections.abc import Iterator

from mage.evaluation.figures import Cell
from mage.report.run_results import SCORE, SUCCESS, RunResults, title_of
from mage.report.values import pipe_table, show_bound, show_estimate
from mage.report.verdict import tell_verdict
from mage.types import Split


def model_card(results: RunResults, *, name: str, update: int, base: str, adapters: bool) -> str:
    """Markdown with the header that the model hub reads; `name` is the name of the model there."""
    header = [
        "---",
        f"library_name: {'peft' if adapters else 'transformers'}",
        *([f"base_model: {base}"] if "/" in base else []),
        "tags:",
        "- reinforcement-learning",
        "- mage",
        f"- {results.environment}",
        "---",
    ]
    return "\n".join([*header, "", *_body(results, name, update, base), ""])


def _body(results: RunResults, name: str, update: int, base: str) -> Iterator[str]:
    run = results.folder.recipe.run
    yield f"# {name}"
    yield ""
    yield (
        f"An agent for `{results.environment}` that was trained with MAGE to learn during play. "
        f"It starts from `{base}`; these are the weights after update {update} of {run.updates} "
        f"(seed {run.seed}, {results.played:,} episodes of training)."
    )
    if results.splits and results.chosen_update != update:
        yield ""
        yield (
            f"No results: the final panels of this run were played with the weights of update "
            f"{results.chosen_update}, not with these."
        )
    for one in (results, *results.by_world()) if results.chosen_update == update else ():
        for split in one.splits:
            yield from _panel(one, split)
    yield from ("", "## Use", "", "```", f"mage play --model.path={name}", "```")
    yield from ("", "## Recipe", "", "```toml", results.folder.recipe.toml().strip(), "```")
    packages = results.versions.get("packages", {})
    shown = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    yield from ("", f"Made with MAGE {results.versions.get('mage', '')}; {shown}.")


def _panel(results: RunResults, split: Split) -> Iterator[str]:
    overall = results.overall(split)
    stages = list(overall)
    where = f" in {results.world}" if results.world else ""
    yield from ("", f"## Results on the {split} panel{where}", "")
    titles = [title_of(stage, overall) for stage in stages]
    header = ["figure", "episode", *titles, "best without adapting", "best learner"]
    first, rows = overall[stages[0]], []
    for measure in (SCORE, SUCCESS):
        for k in range(len(first.episodes)):
            cells = [show_estimate(measure.of(overall[one].episodes[k]), measure) for one in stages]
            bounds = _bounds(first, k, measure is SCORE)
            rows.append([measure.title, str(k + 1), *cells, *bounds])
    yield from pipe_table(header, rows)
    yield ""
    yield from (f"- {sentence}" for sentence in tell_verdict(overall, results.measure_of(split)))
    yield ""
    yield f"{first.tasks:,} tasks; intervals are 95 % intervals over tasks."


def _bounds(cell: Cell, k: int, of_score: bool) -> list[str]:
    values = (cell.non_adapting, cell.episodes[k].ceiling) if of_score else (None, None)
    return [show_bound(value) for value in values]
