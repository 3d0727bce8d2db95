"""Plain values as TOML text; the standard library only reads it."""

import json
import re
from collections.abc import Mapping
from typing import Any

Tables = dict[str, Any]


def dump_toml(tables: Mapping[str, Any]) -> str:
    """Tables of plain values as TOML text; `tomllib` reads the same values back."""
    return "\n".join(_table_lines(tables, ())).strip() + "\n"


def _table_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = _value_lines(table)
    if path and (lines or not table):
        lines = ["", f"[{'.'.join(map(show_key, path))}]", *lines]
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += _table_lines(value, (*path, name))
        elif _is_array(value):
            for item in value:
                inner = {key: one for key, one in item.items() if isinstance(one, Mapping)}
                lines += ["", f"[[{'.'.join(map(show_key, (*path, name)))}]]", *_value_lines(item)]
                lines += [line for key in inner for line in _table_lines(inner[key], (name, key))]
    return lines


def _value_lines(table: Mapping[str, Any]) -> list[str]:
    return [
        f"{show_key(name)} = {show_value(value)}"
        for name, value in table.items()
        if not isinstance(value, Mapping) and not _is_array(value)
    ]


def _is_array(value: Any) -> bool:
    """Whether it is an array of tables, such as the stages of a recipe."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def show_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(
                f"{show_key(str(name))} = {show_value(item)}" for name, item in value.items()
            )
            + "}"
        )
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(show_value, value))}]"
    return str(value)


def show_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else show_value(name)


def without_none(table: Mapping[str, Any]) -> Tables:
    return {name: value for name, value in table.items() if value is not None}
