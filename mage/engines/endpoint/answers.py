"""Answers of an endpoint: checked and cleaned, then stored, so that nothing is paid twice.

An answer is written as soon as it arrives, so a kill loses only requests in flight. Damaged lines
are skipped. The key of an answer is a digest of everything that it depends on, without secrets.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

MOST_TOKENS = 10_000_000  # in one prompt or one reply; more is not a real count
_BYTES_A_TOKEN = 4  # estimate for servers that report no token counts
# All control characters but line break and tab, and marks that change the direction of text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class BadAnswer(ValueError):
    """An answer that is not a valid chat completion."""


def printable(text: str) -> str:
    """The text without control characters and halves of surrogate pairs.

    >>> printable("a\\x1b[31mb\\r\\n\\tc")
    'a[31mb\\n\\tc'
    """
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _CONTROLS.sub("", whole)


Text = Annotated[
    str, BeforeValidator(lambda text: printable(text) if isinstance(text, str) else text)
]
Tokens = Annotated[int, Field(ge=0, le=MOST_TOKENS)]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class Answer(_Record):
    """A reply, whether the length limit cut it off, and its token counts."""

    text: Text
    cut_off: bool
    tokens_in: Tokens
    tokens_out: Tokens


TOO_LONG = Answer(text="", cut_off=True, tokens_in=0, tokens_out=0)  # the prompt did not fit


class _Message(_Record):
    content: Text | None = None


class _Choice(_Record):
    message: _Message
    finish_reason: Any = None


class _Usage(_Record):
    prompt_tokens: Annotated[Tokens, Field(ge=1)] | None = None
    completion_tokens: Tokens | None = None


class _ChatCompletion(_Record):
    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: _Usage | None = None


def read_answer(data: bytes, asked: int, must_count: bool) -> Answer:
    """Check an answer to a request of `asked` bytes. Raises BadAnswer with the reason.

    Token counts are estimated if the server reports none, unless `must_count`.
    """
    try:
        found = _ChatCompletion.model_validate(_parse_json(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        raise BadAnswer(f"the answer is not a chat completion ({where}: {first['msg']})") from None
    choice, usage = found.choices[0], found.usage or _Usage()
    text, read, written = choice.message.content or "", usage.prompt_tokens, usage.completion_tokens
    if text and written == 0:
        raise BadAnswer("the answer is not a chat completion (a text of 0 tokens)")
    if read is None or written is None:
        if must_count:
            raise BadAnswer(
                "the server reports no token counts, so engines.budget cannot be enforced: "
                "remove it"
            )
        read, written = asked // _BYTES_A_TOKEN, -(-len(text.encode()) // _BYTES_A_TOKEN)
    cut_off = choice.finish_reason == "length"
    return Answer(text=text, cut_off=cut_off, tokens_in=read, tokens_out=written)


def summary(data: bytes) -> str:
    """A server's message in one line."""
    text = data.decode("utf-8", "replace")
    found = _parse_json(data)
    inner = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(inner, dict):
        parts = [inner.get(key) for key in ("code", "message")]
        told = " ".join(str(part) for part in parts if isinstance(part, str | int) and part)
    else:
        told = inner if isinstance(inner, str) else ""
    return " ".join(printable(told or text).split())


class Answers:
    """A file of answers by key. Several processes may append; each reads it once, at its start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes() if path.exists() else b""
        self._known: dict[str, dict[str, Answer]] = {}
        for key, served, answer in _read_lines(data):
            self._known.setdefault(key, {})[served] = answer
        if data and not data.endswith(b"\n"):
            self._append("")

    def is_known(self, key: str) -> bool:
        return key in self._known

    def find(self, key: str, served: str = "") -> Answer | None:
        """The answer of the model that is served now.

        An answer without this fact (of an old file, or of a server that tells nothing) is used for
        any model; without it about the present model, the newest answer is used.
        """
        found = self._known.get(key, {})
        if served:
            return found.get(served, found.get(""))
        return next(reversed(found.values()), None)

    def add(self, key: str, answer: Answer, served: str = "") -> None:
        self._known.setdefault(key, {})[served] = answer
        fact = {"served": served} if served else {}
        self._append(json.dumps({"key": key} | fact | answer.model_dump()))

    def _append(self, line: str) -> None:
        with open(self.path, "ab", buffering=0) as file:
            file.write(f"{line}\n".encode())


def read_served(data: bytes, model: str) -> str:
    """A digest of what a server's list of models tells about a model; empty if it tells nothing.

    `created` and `permission` change with every start of some servers.
    """
    found = _parse_json(data)
    listed = found.get("data") if isinstance(found, dict) else None
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and one.get("id") == model:
            facts = {name: one[name] for name in one.keys() - {"created", "permission"}}
            return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return ""


def _read_lines(data: bytes) -> Iterator[tuple[str, str, Answer]]:
    """All valid lines; damaged ones are skipped, so their requests are sent again."""
    for line in data.splitlines():
        record = _parse_json(line)
        if isinstance(record, dict) and isinstance(record.get("key"), str):
            try:
                answer = Answer.model_validate(record)
                yield record["key"], str(record.get("served", "")), answer
            except ValidationError:
                continue


def _parse_json(data: bytes) -> Any:
    """The value of a JSON text; None if it is not valid or nested too deeply."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
