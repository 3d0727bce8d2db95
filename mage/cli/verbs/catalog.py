"""`mage list` and `mage check`: the items of the menus, and tests of their contracts."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from mage.api.menus import OPTIONS, names, read_menu
from mage.cli.arguments import (
    OVERRIDES,
    AsJson,
    check_opponent_of,
    make_environment,
    print_json,
    read_world,
)
from mage.cli.terminal import UsageError, console
from mage.cli.terminal.tables import plain_table
from mage.config.errors import ConfigError, did_you_mean
from mage.config.menus import FILES, MENUS, find_item, menu, without_foreign_code
from mage.config.returned import IncompleteClass
from mage.environments.base import Environment, check
from mage.opponents.base import Opponent, find, known

verbs = typer.Typer()
KINDS = (*MENUS, *FILES, OPTIONS)
Verdict = tuple[list[str], list[str]]  # faults and remarks


@verbs.command(name="list", epilog="Example: mage list opponents")
def list_menus(
    kind: Annotated[
        str | None, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}. Default: all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List everything that a recipe can name, the recipes, their parts and all options."""
    kinds = [kind] if kind else KINDS
    found = {one: read_menu(one, with_options=as_json or kind is not None) for one in kinds}
    if as_json:
        print_json({one: [asdict(item) for item in items] for one, items in found.items()})
        return
    out = console()
    if kind == OPTIONS:
        for section in found[kind]:
            table = [(one.name, str(one.default), one.description) for one in section.options]
            title = f"[{section.name}] {section.description}"
            out.print(plain_table(("option", "default", "meaning"), table, title))
        return
    for one, items in found.items():
        header = (
            ("name", "description", "options")
            if any(item.details() for item in items)
            else ("name", "description")
        )
        rows = [(item.name, item.description, item.details())[: len(header)] for item in items]
        out.print(plain_table(header, rows, one) if rows else f"{one}: none")
    if kind == "opponents":
        out.print(
            "Options follow the name after dashes, in this order: mcts-100, biased-corner-2.",
            style="dim",
        )
    elif kind is None:
        out.print("`mage list KIND` also shows the options.", style="dim")


# --- Contracts ------------------------------------------------------------------------------


@verbs.command(name="check", context_settings=OVERRIDES, epilog="Example: mage check kuhn_poker")
def check_item(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="ENVIRONMENT|OPPONENT|RUN", help="An environment, an opponent or a run folder."
        ),
    ],
    environment: Annotated[
        str | None,
        typer.Option(
            metavar="ENVIRONMENT",
            help="Environment to check an opponent in. Default: all that it plays.",
        ),
    ] = None,
    games: Annotated[int, typer.Option(min=1, help="Number of random games.")] = 50,
    folder: Annotated[
        Path,
        typer.Option("--golden", metavar="FOLDER", help="Folder of stored games to compare with."),
    ] = Path("tests/golden"),
    write: Annotated[
        bool,
        typer.Option(
            "--write",
            help="Store three games of the environment. Later checks report every change in them.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Test the contract of an environment or an opponent, or verify the files of a run.

    The exit code is 1 if there is a fault. Options of the environment are
    --environments.key=value.
    """
    name, options = read_world(name, ctx.args, ctx.command)
    if (Path(name) / "recipe.toml").is_file() or ("/" in name and Path(name).is_dir()):
        from mage.api.check_run import check_path

        with without_foreign_code():
            run = check_path(Path(name))
        _show_verdict(name, "run", run.faults, run.notes, as_json)
    opponent = _known_opponent(name)
    if opponent is None:
        if environment is not None:
            raise UsageError(f"--environment has no effect: {name} is an environment itself")
        path = folder / f"{'-'.join([name, *options.values()])}.txt"
        found = _check_environment(make_environment(name, options), path, games, write)
        _show_verdict(name, "environment", *found, as_json)
    if write:
        raise UsageError(
            f"--write has no effect: {name} is an opponent. Only games of environments are stored."
        )
    assert opponent is not None, "an environment has ended the command"
    worlds = [environment] if environment else _plays(opponent)
    found = _check_opponent(name, opponent, worlds, options, games)
    _show_verdict(name, "opponent", *found, as_json)


def _show_verdict(
    name: str, kind: str, faults: Sequence[str], notes: Sequence[str], as_json: bool
) -> NoReturn:
    """Show what is wrong and end the command; exit code 1 if something is."""
    if as_json:
        print_json({"name": name, "kind": kind, "faults": list(faults), "notes": list(notes)})
    else:
        count = f"{len(faults)} fault{'s' if len(faults) > 1 else ''}" if faults else "no faults"
        for line in (*(f"fault: {fault}" for fault in faults), *notes, f"{name}: {count}"):
            console().print(line, markup=False, soft_wrap=True)
    raise typer.Exit(1 if faults else 0)


def _known_opponent(name: str) -> Opponent | None:
    """The opponent with this name; None if the name belongs to an environment."""
    if name in dict(menu("environments")):
        return None
    if "." in name.split("-")[0]:
        return _find_outside(name)
    if name.split("-")[0] not in known():
        all_names = [*dict(menu("environments")), *known()]
        raise UsageError(
            f"there is no environment and no opponent {name!r}{did_you_mean(name, all_names)}. "
            "Environments: "
            f"{names('environments')}. Opponents: {names('opponents')}."
        )
    return find(name)


def _find_outside(name: str) -> Opponent | None:
    """An item of another package: None for an environment, else the opponent."""
    try:
        find_item("environments", name)
    except IncompleteClass:
        raise
    except ConfigError:
        return find(name)
    return None


def _check_environment(world: Environment, path: Path, games: int, write: bool) -> Verdict:
    from mage.api.contracts import compare_golden, write_golden
    from mage.api.tool_check import check_tools

    remarks: list[str] = []
    faults = check(world, games, remarks=remarks) + check_tools(world)
    if write:
        write_golden(world, path)
        return faults, [*remarks, f"stored three games in {path}; later checks compare with them"]
    if not path.is_file():
        return faults, [
            *remarks,
            "optional: --write stores three random games as text; later checks then report every "
            f"change in what a player sees and scores (there is no {path} yet)",
        ]
    changed = compare_golden(world, path)
    return faults + changed, [
        *remarks,
        "if the change is intended, run again with --write"
        if changed
        else f"three games are equal to those in {path}",
    ]


def _check_opponent(
    name: str, opponent: Opponent, worlds: Sequence[str], options: dict[str, str], games: int
) -> Verdict:
    from mage.api.contracts import check_opponent

    faults: list[str] = []
    for world in worlds:
        place = make_environment(world, options)
        check_opponent_of(place, name)
        faults += [f"{world}: {fault}" for fault in check_opponent(opponent, place, games)]
    return faults, [f"played {games} games twice in {', '.join(worlds)}, in two orders"]


def _plays(opponent: Opponent) -> list[str]:
    """The environments that it plays, without those that need the name of a game."""
    worlds = [
        name
        for name, _ in menu("environments")
        if name not in ("openspiel", "textarena") and find_item("environments", name).multi_agent
    ]
    found = [name for name in worlds if opponent.plays(make_environment(name, {}))]
    if not found:
        raise UsageError(
            f"{opponent.name} plays no environment of this package. "
            "Name one with --environment, for example --environment my_lab.nim."
        )
    return found
