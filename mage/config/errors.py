"""Messages about a user's mistake in a recipe: what was given, what is allowed, where to change it."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from mage.config.toml import show_key, show_value

EXIT_USAGE, EXIT_STOPPED = 2, 130  # exit codes of the command line


class DeviceError(RuntimeError):
    """A GPU is out of memory, has reported an error or is gone: what happened, what is safe, what to do."""


class ConfigError(ValueError):
    """A user's mistake in a recipe: what was given, what is allowed, where to change it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the options came from, so that a message can say where to change one."""

    file: str | None
    overrides: tuple[str, ...] = ()
    resolved: bool = False  # the file names every option, given or not

    def overrides_name(self, key: str) -> bool:
        return any(
            f"{key}.".startswith(f"{given}.") or f"{given}.".startswith(f"{key}.")
            for given in self.overrides
        )

    def where(
        self, key: str, verb: str = "change it in", command: str | None = "or use --{}=..."
    ) -> str:
        section, _, option = key.partition(".")
        if self.overrides_name(key):
            return f"{verb} the command line (--{key})"
        place = f"[{section}]" if option else "the top level"
        return f"{verb} {place} of {self.file or 'the recipe'}" + (
            f", {command.format(key)}" if option and command else ""
        )

    def mistake(self, key: str, value: Any, fault: str) -> str:
        return f"{key} = {show_value(value)}: {fault}; {self.where(key)}"

    def without_effect(self, key: str, value: Any, needs: str) -> str:
        where = self.where(key, "take it out of", "or say --{}= with nothing behind it")
        return f"{key} = {show_value(value)}: has no effect {needs}; {where}"


NOWHERE = Origin(None)


def explain(
    error: ValidationError, model: type[BaseModel], prefix: tuple[str, ...], origin: Origin
) -> list[str]:
    """One line for every mistake pydantic found."""
    faults = error.errors(include_url=False)
    inner = {fault["loc"][:depth] for fault in faults for depth in range(len(fault["loc"]))}
    # An element that is wrong may make its list wrong too (too short without it); the element says it better.
    return [
        _explain_one(fault, model, prefix, origin) for fault in faults if fault["loc"] not in inner
    ]


def _explain_one(
    fault: Any, model: type[BaseModel], prefix: tuple[str, ...], origin: Origin
) -> str:
    path = tuple(part for part in fault["loc"] if isinstance(part, str))
    key = ".".join(map(show_key, prefix + path))
    if fault["type"] == "extra_forbidden":
        return _explain_unknown(path, _model_at(model, path[:-1]), prefix, origin)
    if fault["type"] == "missing":
        return f"{key} is missing; {origin.where(key, 'add it to')}"
    text = (
        fault["msg"]
        .removeprefix("Value error, ")
        .replace("Input should be", "must be")
        .replace("Input should have", "must have")
    )
    if fault["type"] in ("model_type", "dict_type"):
        text = f"must be a table ([{key}] and its options below)"
    if fault["type"] == "string_pattern_mismatch":
        text = "is not allowed here"
    field = _model_at(model, path[:-1]).model_fields.get(path[-1]) if path else None
    told = f" ({field.description})" if field and field.description else ""
    meant = (
        did_you_mean(str(fault["input"]), re.findall(r"'([^']*)'", text))
        if fault["type"] == "literal_error"
        else ""
    )
    return origin.mistake(key, fault["input"], f"{text}{meant}{told}")


def _explain_unknown(
    path: tuple[str, ...], model: type[BaseModel], prefix: tuple[str, ...], origin: Origin
) -> str:
    section, key = ".".join(prefix + path[:-1]), ".".join(map(show_key, prefix + path))
    known = [field.alias or name for name, field in model.model_fields.items()]
    if not section:
        return f"[{key}] is unknown{did_you_mean(key, known)}: sections are {', '.join(known)}; {origin.where(key, 'correct it in', None)}"
    return f"{key} is unknown{did_you_mean(path[-1], known)}: [{section}] takes {', '.join(known) or 'no options'}; {origin.where(key, 'correct it in', None)}"


def _model_at(model: type[BaseModel], path: tuple[str, ...]) -> type[BaseModel]:
    for part in path:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return model


def did_you_mean(given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close and given not in close else ""
