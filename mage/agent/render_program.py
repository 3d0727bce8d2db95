"""Render a jinja template in the sandbox. As a program: in a child process with limits.

`chat_template.py` starts the program. It reads one JSON object from the standard input and writes
one to the standard output. It imports jinja alone, so that it starts fast.
"""

import json
import resource
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the program imports jinja when the import path is known
    from jinja2.sandbox import ImmutableSandboxedEnvironment

# Python's errors in templates. Jinja's own errors are RuntimeErrors or derive from these.
PYTHON_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


def environment() -> "ImmutableSandboxedEnvironment":
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )


def render(template: str, values: dict[str, Any], longest: int) -> str:
    """The rendered template; ValueError if it has more characters than allowed."""
    pieces, length = [], 0
    for piece in environment().from_string(template).generate(**values):
        length += len(piece)
        if length > longest:
            raise ValueError(f"the rendered text has more than {longest:,} characters")
        pieces.append(piece)
    return "".join(pieces)


def _limit(kind: int, value: int) -> None:
    try:
        resource.setrlimit(kind, (value, value))
    except (ValueError, OSError):  # macOS refuses limits on memory; the time limit remains
        return


def main() -> None:
    given = json.loads(sys.stdin.buffer.read())
    sys.path[:] = given["path"]
    from jinja2.exceptions import TemplateError

    _limit(resource.RLIMIT_CPU, given["seconds"])
    _limit(resource.RLIMIT_AS, given["memory"])
    try:
        found = {"text": render(given["template"], given["values"], given["longest"])}
    except (TemplateError, *PYTHON_ERRORS) as error:
        found = {"error": str(error)[:500] or type(error).__name__}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
