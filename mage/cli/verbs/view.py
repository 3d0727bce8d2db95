"""`mage view`: the local page for runs, and its static copy."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from mage.cli.terminal import UsageError, console
from mage.config.menus import without_foreign_code

verbs = typer.Typer()


@verbs.command(epilog="Example: mage view runs, or mage view runs/demo-1 --export page")
@without_foreign_code()
def view(
    places: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN|FOLDER]...", help="Run folders, or folders that hold runs."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write a static copy that opens from disk, then end."),
    ] = None,
    episodes: Annotated[
        int, typer.Option(min=1, help="Meta-episodes of each stored set in the static copy.")
    ] = 60,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 = any free port.")] = 0,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Show runs, meta-episodes and credit on a local page. The page follows active runs."""
    from mage.viewer.library import Library

    library = Library(places or [Path("runs")])
    err = console(stderr=True)
    if export is not None:
        if not library.runs and not library.tables:
            named = ", ".join(map(str, library.places))
            raise UsageError(f"there is no run in {named}: name a run folder (with recipe.toml)")
        from mage.viewer.export import collect, write_folder

        data = collect(
            library, episodes=episodes, report=lambda id: err.print(f"exporting {id}", markup=False)
        )
        page = write_folder(export, data)
        console().print(f"page {page}", markup=False, soft_wrap=True)
        return
    from mage.viewer.server import Server

    server = Server(library, port)
    console().print(server.address, markup=False, soft_wrap=True)
    err.print("This address works on this machine only. Stop with Ctrl-C.")
    if open_browser:
        webbrowser.open(server.address)
    server.run()
