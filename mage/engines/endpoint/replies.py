"""Answers of an endpoint: parsed, checked and cleaned before anything is stored or shown."""

import json
import re
from dataclasses import dataclass
from typing import Any

from mage.config.errors import UserError

MOST_TOKENS = 10_000_000  # in one prompt or one reply; more is not a real count
# All control characters but line break and tab, and marks that change the direction of text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class BadReply(UserError):
    """An answer that is not a valid chat completion."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The checked parts of a chat completion. `tokens` (prompt, reply) is None if not reported."""

    text: str
    cut_off: bool
    tokens: tuple[int, int] | None


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text; None if it is not valid or nested too deeply."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def read_reply(found: Any) -> Reply:
    """Check a parsed answer. Raises BadReply with the reason."""
    choices = found.get("choices") if isinstance(found, dict) else None
    if not isinstance(choices, list) or not choices:
        raise BadReply("the answer is not a chat completion")
    choice = choices[0]
    message = choice.get("message") if isinstance(choice, dict) else None
    content = message.get("content") if isinstance(message, dict) else 0
    if content is not None and not isinstance(content, str):
        raise BadReply("the answer has no text at choices[0].message.content")
    text = printable(content or "")
    return Reply(text, choice.get("finish_reason") == "length", _tokens(found.get("usage"), text))


def _tokens(usage: Any, text: str) -> tuple[int, int] | None:
    """The reported counts. Raises BadReply if they are impossible."""
    if not isinstance(usage, dict):
        return None
    if usage.get("prompt_tokens") is None or usage.get("completion_tokens") is None:
        return None
    read, written = read_count(usage["prompt_tokens"]), read_count(usage["completion_tokens"])
    if not read or written is None or (text and not written):
        shown = " and ".join(_short(usage[f"{kind}_tokens"]) for kind in ("prompt", "completion"))
        raise BadReply(f"the answer reports impossible token counts ({shown})")
    return read, written


def _short(value: Any) -> str:
    """A value for a message; lists and objects may be nested too deeply to print."""
    return str(value)[:40] if isinstance(value, str | float | int) else type(value).__name__


def read_count(value: Any) -> int | None:
    """A number of tokens; None if it is not a possible one."""
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


def printable(text: str) -> str:
    """The text without control characters and halves of surrogate pairs.

    >>> printable("a\\x1b[31mb\\r\\n\\tc")
    'a[31mb\\n\\tc'
    """
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _CONTROLS.sub("", whole)


def summary(data: bytes) -> str:
    """A server's message in one short line."""
    text = data.decode("utf-8", "replace")
    found = parse_json(text)
    inner = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(inner, dict):
        parts = [inner.get(key) for key in ("code", "message")]
        told = " ".join(str(part) for part in parts if isinstance(part, str | int) and part)
    else:
        told = inner if isinstance(inner, str) else ""
    return " ".join(printable(told or text).split())
