"""Render the chat template of a model: a program of a stranger, in jinja's sandbox.

The sandbox keeps it from files, imports and Python's internals. Time, memory and output are
limited.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mage.config.errors import UserError

LONGEST = 1 << 20  # characters of a rendered chat
LONGEST_TEMPLATE = 1 << 17  # characters; public templates have 20,000
MEMORY = 1 << 30  # bytes that a template may use; public ones need a few kilobytes
SECONDS = 10  # processor time of a template; public ones need a few milliseconds
# Python's errors in templates. Jinja's own errors are RuntimeErrors or derive from these.
_PYTHON_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,  # too many nested blocks for Python
    TypeError,
    ValueError,
)


def render_template(template: str, values: dict[str, Any]) -> str:
    """The rendered template; UserError if it fails or exceeds a limit."""
    if len(template) > LONGEST_TEMPLATE:
        raise UserError(
            f"the chat template has {len(template):,} characters, {LONGEST_TEMPLATE:,} at most"
        )
    try:
        with _limited_time(), _limited_memory():
            return "".join(_pieces(template, values))
    except UserError:
        raise
    except (TemplateError, *_PYTHON_ERRORS) as error:
        reason = (str(error) or type(error).__name__)[:500]
        raise UserError(
            f"the chat template cannot render system, user and assistant messages: {reason}"
        ) from None


def _pieces(template: str, values: dict[str, Any]) -> Iterator[str]:
    length = 0
    for piece in _compile(template).generate(**values):
        length += len(piece)
        if length > LONGEST:
            raise UserError(f"the text of the chat template has more than {LONGEST:,} characters")
        yield piece


@lru_cache(maxsize=8)  # the reader of a chat renders its template several times
def _compile(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    return environment.from_string(template)


def _to_json(value: Any, **layout: Any) -> str:
    """JSON as templates expect it; jinja's own filter escapes signs for web pages."""
    return json.dumps(value, **{"ensure_ascii": False, **layout})


@contextmanager
def _limited_time() -> Iterator[None]:
    """Raise UserError in a Python line of the context that runs after the limit."""
    end = time.thread_time() + SECONDS

    def look(frame: FrameType, event: str, argument: Any) -> Any:
        if time.thread_time() > end:
            raise UserError(
                f"the chat template was stopped: it needs more than {SECONDS} s of processor time. "
                "Use another template (chat_template.jinja)"
            )
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def _limited_memory() -> Iterator[None]:
    """MemoryError beyond the limit, also where the system promises more memory than it has."""
    try:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")  # data and stack
    except OSError:  # not Linux
        yield
        return
    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [one for one in (used + MEMORY, before, most) if one != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, most))
