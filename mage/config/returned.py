"""What the methods of a user's class return, checked: a mistake is one line that names the method.

A contract (`State`, `Opponent`, ...) lists its methods with what they must return. A class outside
of this package that overrides one gets a check around it, when the class is made. So every caller
is covered, a call costs one `isinstance` more, and classes of this package cost nothing.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from types import FunctionType, NoneType
from typing import Any, TypeVar

from mage.config.errors import ConfigError, UserError

Made = TypeVar("Made")
_LONGEST = 60  # characters of a wrong value
_CHECKED = "_mage_checked"


class IncompleteClass(ConfigError):
    """A class without a method that its contract asks for."""


@dataclass(frozen=True, slots=True)
class Returns:
    """What a method returns. `fits` is a second check of a value of the right type."""

    types: type | tuple[type, ...]
    words: str
    fits: Callable[[Any], bool] | None = None
    awaited: bool = False  # the method is `async`

    def accepts(self, value: Any) -> bool:
        return isinstance(value, self.types) and (self.fits is None or self.fits(value))


def _is_no_bool(value: Any) -> bool:
    return value is not True and value is not False


def _are_numbers(values: Any) -> bool:
    """Whether there are values, and all are numbers: a tuple, a list or an array."""
    if not isinstance(values, (tuple, list)) and not hasattr(values, "__array__"):
        return False
    for one in values:
        if not isinstance(one, (int, float, Real)):
            return False
    return len(values) > 0


TEXT = Returns(str, "text (str)")
TEXT_OR_NONE = Returns((str, NoneType), "text (str) or None")
NUMBER = Returns((int, float, Real), "a number (float)")
WHOLE = Returns((int, Integral), "a whole number (int)", _is_no_bool)
WHOLE_OR_NONE = Returns((int, NoneType, Integral), "a whole number (int) or None", _is_no_bool)
SEAT = Returns((int, NoneType, Integral), "the seat that moves (int) or None", _is_no_bool)
HASHABLE = Returns(Hashable, "a value that can be hashed, such as a number or a tuple")
MAPPING = Returns((dict, Mapping), "a mapping (dict)")
LIST = Returns((tuple, list), "a tuple or list")
LIST_OR_NONE = Returns((tuple, list, NoneType), "a tuple or list, or None")
SCORES = Returns(
    object,
    "a tuple with one number for each seat, such as (1.0,)",
    _are_numbers,
)
TOOLS = Returns(
    (tuple, list), "a tuple or list of functions", lambda found: all(map(callable, found))
)
ANYTHING = Returns(object, "a value")
AWAITED = Returns(object, "a value", awaited=True)


def instance_of(kind: type) -> Returns:
    """A method that returns an instance of a class."""
    return Returns(kind, f"an instance of {kind.__name__}")


def one_of(*words: str) -> Returns:
    """A method that returns one of these words."""
    return Returns(str, f"one of {', '.join(map(repr, words))}", lambda found: found in words)


def is_outside(kind: type) -> bool:
    """Whether a class comes from outside of this package."""
    return kind.__module__.partition(".")[0] != "mage"


def check_class(kind: type, contract: Mapping[str, Returns]) -> None:
    """Check what the methods of a class of the user return, and that none is missing."""
    if not is_outside(kind):
        return
    if _missing(kind) and getattr(kind, "__new__") is object.__new__:  # noqa: B009 (for mypy)
        kind.__new__ = _make_whole  # type: ignore[assignment]
    for name, expected in contract.items():
        own = vars(kind).get(name)
        inherited = next((vars(one)[name] for one in kind.__mro__[1:] if name in vars(one)), None)
        if isinstance(own, FunctionType) and isinstance(inherited, property):
            raise UserError(
                f"{_place(own)}: {kind.__name__}.{name} must be a property: "
                "write @property above it"
            )
        if getattr(own, "__isabstractmethod__", False):
            continue
        if isinstance(own, FunctionType) and not hasattr(own, _CHECKED):
            setattr(kind, name, _checked(kind, name, own, expected))
        elif isinstance(own, property) and isinstance(getter := own.fget, FunctionType):
            setattr(kind, name, own.getter(_checked(kind, name, getter, expected, call="")))


def _missing(kind: type) -> list[str]:
    """The abstract methods of a class. A class that is being made does not list them yet."""
    names = {name for one in kind.__mro__ for name in getattr(one, "__abstractmethods__", ())}
    names |= set(vars(kind))
    return sorted(
        name
        for name in names
        if getattr(inspect.getattr_static(kind, name, None), "__isabstractmethod__", False)
    )


def _make_whole(kind: type[Made], *args: Any, **options: Any) -> Made:
    """The `__new__` of a class with abstract methods, and of classes that add them."""
    refuse_incomplete(kind)
    makers = (one.__new__ for one in kind.__mro__ if "__new__" in vars(one))
    make: Any = next(one for one in makers if one is not _make_whole)
    if make is not object.__new__:  # of another base, such as list
        return make(kind, *args, **options)  # type: ignore[no-any-return]
    if (args or options) and kind.__init__ is object.__init__:  # type: ignore[misc]
        raise TypeError(f"{kind.__name__}() takes no arguments")
    return object.__new__(kind)


def refuse_incomplete(kind: type) -> None:
    """Raise an error if the class lacks a method that its contract asks for."""
    if missing := _missing(kind):
        *others, last = [f"{name}()" for name in missing]
        told = f"methods {', '.join(others)} and {last}: write them"
        raise IncompleteClass(
            f"{describe_class(kind)} has no {told if others else f'method {last}: write it'}"
        )


def describe_class(kind: type) -> str:
    """A class and its file."""
    try:
        return f"the class {kind.__name__} in {_short(inspect.getfile(kind))}"
    except (OSError, TypeError):  # made in a notebook or at a prompt
        return f"the class {kind.__name__}"


def _checked(
    kind: type, name: str, method: FunctionType, expected: Returns, call: str = "()"
) -> Callable[..., Any]:
    """The method with a check of what it returns."""
    title = f"{kind.__name__}.{name}{call}"

    def refuse(value: Any, words: str) -> UserError:
        kind_of_value = type(value).__name__
        shown = repr(value)
        shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
        return UserError(
            f"{_place(method)}: {title} returned {shown} ({kind_of_value}), but must return {words}"
        )

    types, fits = expected.types, expected.fits

    @functools.wraps(method)
    def plain(*args: Any, **options: Any) -> Any:
        value = method(*args, **options)
        if not isinstance(value, types) or (fits is not None and not fits(value)):
            raise refuse(value, expected.words)
        return value

    @functools.wraps(method)
    async def awaited(*args: Any, **options: Any) -> Any:
        coming = method(*args, **options)
        if not isinstance(coming, Awaitable):
            raise UserError(f"{_place(method)}: {title} must be a coroutine: write `async def`")
        value = await coming
        if not expected.accepts(value):
            raise refuse(value, expected.words)
        return value

    made: Any = awaited if expected.awaited else plain
    setattr(made, _CHECKED, True)
    return made


def _place(method: FunctionType) -> str:
    code = method.__code__
    return f"{_short(code.co_filename)}, line {code.co_firstlineno}"


def _short(file: str) -> str:
    here = Path.cwd()
    return str(Path(file).relative_to(here)) if Path(file).is_relative_to(here) else file
