"""Render the chat template of a model: a program of a stranger, with limits on time and output.

The template runs in jinja's sandbox. A template that only loops once over the messages costs no
more than its length and is rendered in this process. Any other template could loop for hours or
build a text of gigabytes, also inside of one filter, so it runs in a child process
(`render_program.py`) with limits of the operating system on processor time and memory.
"""

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError

from mage.agent.render_program import PYTHON_ERRORS, environment, render
from mage.config.errors import UserError

LONGEST = 1 << 20  # characters of a template and of a rendered chat; public templates have 20,000
SECONDS = 10  # processor time of a template; public ones need a few milliseconds
MEMORY = 1 << 30  # bytes of address space of the child process
_WAIT = 600  # seconds, only to end a child that is never scheduled
_PROGRAM = Path(__file__).with_name("render_program.py")

# Nodes whose cost is bounded by the length of the template, if loops are not nested.
_CHEAP = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.If,
    nodes.CondExpr,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Name,
    nodes.Const,
    nodes.Getattr,
    nodes.Getitem,
)


def render_template(template: str, values: dict[str, Any]) -> str:
    """The rendered template; ValueError if it fails or exceeds a limit."""
    if len(template) > LONGEST:
        raise UserError(f"the chat template has {len(template):,} characters, {LONGEST:,} at most")
    return _render_once(template, json.dumps(values, sort_keys=True))


@lru_cache(maxsize=64)
def _render_once(template: str, values: str) -> str:
    try:
        is_cheap = _is_cheap(environment().parse(template))
        text = render(template, json.loads(values), LONGEST) if is_cheap else None
    except (TemplateError, *PYTHON_ERRORS) as error:
        raise UserError(_failed(str(error) or type(error).__name__)) from None
    return _render_in_child(template, values) if text is None else text


def _is_cheap(node: nodes.Node, in_loop: bool = False) -> bool:
    if isinstance(node, nodes.For):
        simple = isinstance(node.iter, nodes.Name) and not (in_loop or node.recursive)
        return simple and all(_is_cheap(child, True) for child in node.iter_child_nodes())
    return isinstance(node, _CHEAP) and all(
        _is_cheap(child, in_loop) for child in node.iter_child_nodes()
    )


def _render_in_child(template: str, values: str) -> str:
    given = {
        "path": sys.path,
        "template": template,
        "values": json.loads(values),
        "longest": LONGEST,
        "seconds": SECONDS,
        "memory": MEMORY,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(_PROGRAM)],
            input=json.dumps(given).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_WAIT,
            check=False,
        )
        found = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):  # the operating system ended the child
        raise UserError(
            f"the chat template was stopped: it needs more than {SECONDS} s of processor time or "
            f"{MEMORY >> 30} GiB of memory. Use another template (chat_template.jinja)"
        ) from None
    if "error" in found:
        raise UserError(_failed(str(found["error"])))
    return str(found["text"])


def _failed(reason: str) -> str:
    return f"the chat template cannot render system, user and assistant messages: {reason[:500]}"
