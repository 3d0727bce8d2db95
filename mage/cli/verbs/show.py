"""`mage show`: a recipe with every option, or the prompts that its model gets."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from mage.cli.arguments import OVERRIDES, AsJson, RecipeName, need_recipe, print_json, split_words
from mage.cli.terminal import UsageError, console
from mage.cli.terminal.tables import plain_table
from mage.config.describe import Option, describe_recipe
from mage.config.loading import load_recipe
from mage.config.toml import show_value

verbs = typer.Typer()


@verbs.command(
    context_settings=OVERRIDES,
    epilog="Example: mage show paper_sokoban+mage+anchor_local --play.groups=4",
)
def show(
    ctx: typer.Context,
    recipe: RecipeName = None,
    as_json: AsJson = False,
    prompts: Annotated[
        bool, typer.Option("--prompts", help="Show the prompts that the model gets instead.")
    ] = False,
    template: Annotated[
        bool, typer.Option("--template", help="Prompts with the chat template of the model.")
    ] = False,
) -> None:
    """Show every option of a recipe: value, default, source and meaning.

    The source is default, base NAME, recipe, part NAME or command line. Any option can be changed
    with --section.option=value. Stages are listed with the options that they change.

    --prompts plays a short scripted game and prints its prompts: the first turn, the request for a
    reflection, and a later turn with memory. Messages that were printed before are not repeated.
    """
    given, overrides = split_words(recipe, ctx.args, ctx.command)
    name = need_recipe(given)
    if template and not prompts:
        raise UsageError("--template belongs to --prompts. Add --prompts, or leave it out.")
    if prompts:
        _show_prompts(name, overrides, template, as_json)
        return
    found = describe_recipe(name, overrides)
    if as_json:
        print_json(
            {
                section: {option: asdict(one) for option, one in options.items()}
                for section, options in found.items()
            }
        )
        return
    out = console()
    for section, options in found.items():
        rows = [_row(option, one) for option, one in options.items()]
        header = ("option", "value", "default", "source", "meaning")
        out.print(plain_table(header, rows, f"[{section}]"))
    for stage in load_recipe(name, overrides).stages:
        rows = [
            (f"{section}.{option}", _text(options[option]))
            for section, options in stage.changes.items()
            for option in options
        ]
        out.print(plain_table(("option", "value"), rows, f"stage {stage.name}"))


def _show_prompts(name: str, overrides: Sequence[str], template: bool, as_json: bool) -> None:
    from mage.api.prompts import show_prompts  # it loads numpy

    found = show_prompts(load_recipe(name, overrides), template)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    out, printed = console(), dict[tuple[str, str], str]()  # messages, and where they were printed
    for one in found:
        out.rule(one.title, align="left")
        if one.text is not None:
            out.print(Text(one.text), soft_wrap=True)
            continue
        for role, text in one.messages:
            out.print(Text(f"[{role}]", style="bold"))
            there = printed.get((role, text))
            again = Text(f"(as in {there})", style="dim")
            out.print(Text(text) if there is None else again, soft_wrap=True)
        printed = dict.fromkeys(one.messages, one.title) | printed


def _row(option: str, one: Option) -> tuple[str, ...]:
    default = "" if one.value == one.default else _text(one.default)
    return option, _text(one.value), default, one.source, one.help


def _text(value: object) -> str:
    return "-" if value is None else show_value(value)
