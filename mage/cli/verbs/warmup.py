"""`mage warmup`: short supervised training for models that do not follow the answer format."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mage.cli.arguments import (
    OVERRIDES,
    AsJson,
    RecipeName,
    check_writable,
    need_recipe,
    print_json,
    split_words,
)
from mage.cli.terminal import UsageError, console
from mage.cli.terminal.tables import plain_table
from mage.config.loading import load_recipe, title_of
from mage.config.recipe import Recipe

if TYPE_CHECKING:  # slow to load
    from mage.learn.imitate.skill import Skill
    from mage.learn.imitate.warmup import Warmup

verbs = typer.Typer()


@verbs.command(
    context_settings=OVERRIDES,
    epilog="Example: mage warmup tic_tac_toe --model.path=models/smollm2 --warmup.steps=24",
)
def warmup(
    ctx: typer.Context,
    recipe: RecipeName = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the new model. Default: runs/RECIPE-warm."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Teach a recipe's model the answer format by supervised training on scripted play.

    The section [warmup] of the recipe has the options. Any option of the recipe can be changed with
    --section.option=value.
    """
    name, overrides = split_words(recipe, ctx.args, ctx.command)
    name = need_recipe(name)
    target = out or Path("runs") / f"{title_of(name)}-warm"
    if target.exists():
        raise UsageError(
            f"{target} exists already. Choose another folder with --out, or remove it."
        )
    chosen = load_recipe(name, overrides)
    check_writable("--out", target)
    found = _warm_up(chosen, target)
    kept = [word for word in overrides if not word.startswith(("--model.", "--warmup."))]
    command = " ".join(["mage train", name, *kept, f"--model.path={target}"])
    made = {"model": str(target), "train": command} if chosen.warmup.steps else {}
    if as_json:
        print_json({**made, **found.to_json()})
    else:
        _show(found, made)


def _warm_up(recipe: Recipe, target: Path) -> "Warmup":
    err = console(stderr=True)
    with err.status("loading the model") as status:
        from mage.training.warm_start import make_warm_start

        return make_warm_start(recipe, target, status.update if err.is_terminal else err.print)


def _show(found: "Warmup", made: dict[str, str]) -> None:
    rows = [
        (title, *(_figure(skill, key) for skill in (found.before, found.after)), told)
        for title, key, told in _rows(found)
    ]
    out = console()
    title = (
        f"warm-up of {len(found.losses)} steps on {found.demonstrations:,} replies of {found.play} "
        f"play, measured in {found.turns} held-out situations and {found.notes} held-out notes"
    )
    out.print(plain_table(("", "before", "after", "reference"), rows, title))
    for word, text in made.items():
        out.print(f"{word}  {text}", soft_wrap=True, markup=False)


def _rows(found: "Warmup") -> list[tuple[str, str, str]]:
    rows = [
        ("readable answers", "readable", ""),
        ("legal moves", "legal", f"{found.blind:.0%} if the situation is ignored"),
        ("entropy among legal moves", "entropy", f"{found.uniform:.2f} if all are equally likely"),
    ]
    return rows + ([("notes that state facts only", "true_notes", "")] if found.notes else [])


def _figure(skill: "Skill", key: str) -> str:
    value: Any = getattr(skill, key)
    return f"{value:.2f}" if key == "entropy" else f"{value:.0%}"
