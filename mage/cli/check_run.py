"""`mage check RUN`: verify every file of a run folder."""

from pathlib import Path

import typer

from mage.cli.arguments import print_json
from mage.cli.terminal import console
from mage.run_folder import RunFolder


def is_run(name: str) -> bool:
    """Whether an argument of `mage check` names a run folder, and not an item of a menu."""
    return (Path(name) / "recipe.toml").is_file() or ("/" in name and Path(name).is_dir())


def check_run_folder(path: Path, as_json: bool) -> None:
    """Print what is wrong with a run folder; exit code 1 if something is."""
    folder = RunFolder.open_whole(path)
    from mage.api.check_run import check_run

    found = check_run(folder)
    if as_json:
        print_json(
            {
                "name": str(path),
                "kind": "run",
                "faults": list(found.faults),
                "notes": list(found.notes),
            }
        )
    else:
        count = len(found.faults)
        faults = f"{count} fault{'s' if count > 1 else ''}" if count else "no faults"
        for line in (*(f"fault: {one}" for one in found.faults), *found.notes, f"{path}: {faults}"):
            console().print(line, markup=False, soft_wrap=True)
    raise typer.Exit(1 if found.faults else 0)
