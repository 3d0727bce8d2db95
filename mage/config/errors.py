"""Error messages for recipes: what was given, what is allowed, where to change it."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from mage.config.toml import show_key, show_value

EXIT_USAGE, EXIT_STOPPED = 2, 130  # exit codes of the command line


class DeviceError(RuntimeError):
    """A GPU is out of memory, reported an error or disappeared."""


class UserError(ValueError):
    """A mistake that the user can correct: the command line prints its message alone.

    Any other ValueError is a bug of this package or of a library and keeps its traceback.
    """


class ConfigError(UserError):
    """A wrong recipe: what was given, what is allowed, where to change it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of the options. Messages use it to say where an option can be changed."""

    file: str | None
    overrides: tuple[str, ...] = ()
    resolved: bool = False  # there are more options than those that the user gave
    own: tuple[str, ...] = ()  # where it is resolved: the options that the file itself gives
    stored: bool = False  # of a run folder: it was checked when the run began

    def overrides_name(self, key: str) -> bool:
        return _names(self.overrides, key)

    def gives(self, key: str) -> bool:
        """Whether the user gave this option of a resolved recipe."""
        return _names((*self.overrides, *self.own), key)

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
        where = self.where(key, "remove it from", "or use --{}= with an empty value")
        return f"{key} = {show_value(value)}: has no effect {needs}; {where}"


def _names(keys: Iterable[str], key: str) -> bool:
    return any(
        f"{key}.".startswith(f"{given}.") or f"{given}.".startswith(f"{key}.") for given in keys
    )


NOWHERE = Origin(None)


def explain(
    error: ValidationError, model: type[BaseModel], prefix: tuple[str, ...], origin: Origin
) -> list[str]:
    """One line for every error that pydantic found."""
    faults = error.errors(include_url=False)
    inner = {fault["loc"][:depth] for fault in faults for depth in range(len(fault["loc"]))}
    # A wrong element can also make its list wrong (too short); the element is the better message.
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
    text = _plain_text(fault, key)
    field = _model_at(model, path[:-1]).model_fields.get(path[-1]) if path else None
    description = f" ({field.description})" if field and field.description else ""
    is_word = fault["type"] == "literal_error"
    known = re.findall(r"'([^']*)'", text) if is_word else []
    suggestion = did_you_mean(str(fault["input"]), known)
    return origin.mistake(key, fault["input"], f"{text}{suggestion}{description}")


def _plain_text(fault: Any, key: str) -> str:
    """Pydantic's message in the words of a recipe."""
    if fault["type"] in ("model_type", "dict_type"):
        return f"must be a table ([{key}] and its options below)"
    if fault["type"] == "string_pattern_mismatch":
        return "is not allowed here"
    text: str = fault["msg"].removeprefix("Value error, ")
    return text.replace("Input should be", "must be").replace("Input should have", "must have")


def _explain_unknown(
    path: tuple[str, ...], model: type[BaseModel], prefix: tuple[str, ...], origin: Origin
) -> str:
    section, key = ".".join(prefix + path[:-1]), ".".join(map(show_key, prefix + path))
    known = [field.alias or name for name, field in model.model_fields.items()]
    if not section:
        names, where = ", ".join(known), origin.where(key, "correct it in", None)
        return f"[{key}] is unknown{did_you_mean(key, known)}: sections are {names}; {where}"
    return unknown_option(section, path[-1], known, origin)


def first_fault(error: ValidationError) -> tuple[str, str, Any]:
    """The option, the fault in the words of a recipe and the value of the first error."""
    fault = error.errors(include_url=False)[0]
    key = ".".join(map(str, fault["loc"]))
    return key, _plain_text(fault, key), fault["input"]


def unknown_option(section: str, name: str, known: Iterable[str], origin: Origin) -> str:
    """The message for an option that a section does not have."""
    key, known = f"{section}.{show_key(name)}", list(known)
    names, where = ", ".join(known) or "no options", origin.where(key, "correct it in", None)
    return f"{key} is unknown{did_you_mean(name, known)}: [{section}] takes {names}; {where}"


def _model_at(model: type[BaseModel], path: tuple[str, ...]) -> type[BaseModel]:
    for part in path:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return model


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The most similar known name, if one is similar."""
    return next(iter(difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)), None)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The most similar known name as a suggestion; empty if no name is similar."""
    close = nearest(given, known)
    return f" (did you mean {close!r}?)" if close and given != close else ""
