"""Static copies of the viewer: a folder that opens from disk, or one file that holds everything.

A page opened from disk may not fetch files, so data is stored as scripts: `data/PATH.js` calls
`mageData("PATH", value)`. A single file holds the same scripts inline.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mage.run_folder import RunError, write_atomic
from mage.run_folder.files import finite
from mage.viewer.library import Library
from mage.viewer.runs import has_text, panel_names, stored_names

FOLDER = Path(__file__).parent / "static"
_SCRIPTS = (
    "vendor/htm-preact.js vendor/uplot.js data.js format.js plots.js boards.js table.js runs.js "
    "panels.js run.js episodes.js meta.js strip.js compare.js tables.js app.js"
)
SCRIPTS = tuple(_SCRIPTS.split())
STYLES = ("vendor/uplot.css", "base.css", "views.css", "meta.css", "boards.css", "narrow.css")
STATIC = {name: FOLDER / name for name in (*SCRIPTS, *STYLES)}
TYPES = {".js": "text/javascript", ".css": "text/css"}
EPISODES = 60  # meta-episodes of one stored set in an export, unless the user asks for more
_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' file:; style-src 'self' "
    "'unsafe-inline' file:; img-src 'self' data:; base-uri 'none'; form-action 'none'"
)
_HUGE = re.compile(r"[0-9]{300}")
Data = Iterable[tuple[str, Any]]


def to_json(value: Any) -> str:
    """A value as JSON that a browser reads: not a number, infinity and huge numbers become null."""
    dump = partial(json.dumps, separators=(",", ":"), default=str, allow_nan=False)
    try:
        text: str = dump(value)
    except ValueError:
        return str(dump(finite(value)))
    return str(dump(finite(value))) if _HUGE.search(text) else text


def page_html(head: str = "", body: str = "", *, linked: bool = True) -> str:
    """The page. `linked` pages load their scripts and styles from `static/`."""
    styles = "".join(f'<link rel="stylesheet" href="static/{name}">\n' for name in STYLES)
    scripts = "".join(f'<script src="static/{name}" defer></script>\n' for name in SCRIPTS)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>MAGE</title>\n{head}{styles if linked else ''}</head>\n"
        '<body>\n<div id="app"><noscript>This page needs JavaScript.</noscript></div>\n'
        f"{body}{scripts if linked else ''}</body>\n</html>\n"
    )


def write_folder(target: Path, data: Data) -> Path:
    """Write a static copy into a folder; returns its page.

    The folder is new or empty, or it holds an earlier copy, which is replaced.
    """
    _check_target(target)
    for name, source in STATIC.items():
        _write(target / "static" / name, source.read_bytes())
    for path, value in data:
        _write(target / "data" / f"{path}.js", _call(path, value).encode())
    body = '<script>window.mageStatic = {start: ""};</script>\n'
    _write(target / "index.html", page_html(_policy(), body).encode())
    return target / "index.html"


def _check_target(target: Path) -> None:
    """Refuse a folder with the files of somebody else: the copy would overwrite some of them."""
    page = target / "index.html"
    try:
        is_ours = page.is_file() and "window.mageStatic" in page.read_text("utf-8", "replace")
        if not is_ours and target.exists() and any(target.iterdir()):
            raise RunError(
                f"{target} holds files that are not a copy of this page. Name a new folder, or "
                "delete these files first"
            )
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror or error}") from None


def write_file(target: Path, data: Data, *, start: str = "") -> Path:
    """Write a static copy as one file that holds scripts, styles and data."""
    styles = "".join(f"<style>{STATIC[name].read_text('utf-8')}</style>\n" for name in STYLES)
    values = [f"<script>{_call(path, value)}</script>\n" for path, value in data]
    scripts = [f"<script>{STATIC[name].read_text('utf-8')}</script>\n" for name in SCRIPTS]
    begin = f"<script>window.mageStatic = {{start: {json.dumps(start)}, inline: true}};</script>\n"
    page = page_html(
        _policy() + styles,
        "".join([begin, scripts[0], scripts[1], scripts[2], *values, *scripts[3:]]),
        linked=False,
    )
    return write_atomic(target, page.encode())


def _policy() -> str:
    return f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'


def _call(path: str, value: Any) -> str:
    """A script that hands a value to the page; no text in it can end the script element."""
    text = to_json(value)
    for sign, code in (("<", "\\u003c"), (">", "\\u003e"), ("\u2028", "\\u2028")):
        text = text.replace(sign, code)
    return f"mageData({json.dumps(path)},{text});"


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from None


def collect(
    library: Library,
    *,
    episodes: int = EPISODES,
    prompts: bool = True,
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[str, Any]]:
    """All data paths of an export with their values; the first `episodes` of every stored set."""
    parts = ("meta", "prompts") if prompts else ("meta",)
    listed = library.get("runs")
    yield "runs", listed
    for id in library.tables:
        yield f"table/{id}", library.get(f"table/{id}")
    for row in listed["runs"]:
        if row["state"] == "damaged":
            report(f"{row['id']} is left out: {row['error']}")
    readable = [row["id"] for row in listed["runs"] if row["state"] != "damaged"]
    for id in readable:
        report(id)
        yield from _collect_run(library, id, episodes, parts)
    for first in readable:
        for second in readable:
            yield f"compare/{first}/{second}", library.get(f"compare/{first}/{second}")


def _collect_run(
    library: Library, id: str, episodes: int, parts: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    folder = library.open(id)
    yield f"run/{id}", library.get(f"run/{id}") | {"path": folder.path.name}
    if has_text(folder):
        yield f"run/{id}/text", library.get(f"run/{id}/text")
    for name in panel_names(folder):
        for part in ("tasks", "kinds"):
            yield f"run/{id}/{part}/{name}", library.get(f"run/{id}/{part}/{name}")
    for name in stored_names(folder):
        yield from _collect_set(library, id, name, episodes, parts)


def _collect_set(
    library: Library, id: str, name: str, episodes: int, parts: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    index = library.get(f"run/{id}/index/{name}")
    rows = index["rows"][:episodes]
    yield f"run/{id}/index/{name}", index | {"rows": rows, "stored": len(index["rows"])}
    for row in rows:
        for part in parts:
            path = f"run/{id}/{part}/{name}/{row[0]}"
            try:
                yield path, library.get(path)
            except LookupError:  # no tokenizer on this machine: the export has no prompts
                continue
    for group in dict.fromkeys(row[1] for row in rows):
        value = library.get(f"run/{id}/credit/{name}/{group}")
        if value["available"]:
            yield f"run/{id}/credit/{name}/{group}", value
