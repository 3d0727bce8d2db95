"""The tokenizer and chat template of a model folder, as pieces that are encoded once and appended.

Chat templates are programs that see the whole chat, and some rewrite earlier turns. Here the
template is rendered ONCE with marked contents and split at the marks. A chat is the concatenation
of these pieces. So the ids of a longer chat start with the ids of the shorter one, and a cached
prefix stays valid. Replies enter as the ids that were sampled.

Thinking models: `thinking` = "on" or "off" sets the template's `enable_thinking`. A template that
writes <think> at the end of the prompt is recognised (`opens_thought`): replies then start inside a
thought, and a reply in the history starts with `thought_end`.

Tools: a template that writes calls as JSON between <tool_call> tags lists the tools itself and has
its own form for results (`writes_calls`). With any other template the rules list them, and results
are user messages.
"""

import json
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer

from mage.agent.chat_template import render_template
from mage.agent.thoughts import CLOSE, is_thinking
from mage.agent.tools import CallError, parse_call, read_call
from mage.agent.word_ids import encode_words
from mage.config.errors import UserError

Ids = tuple[int, ...]
Thinking = Literal["auto", "on", "off"]
LARGEST_FILE = 1 << 28  # bytes of a tokenizer file; the largest public ones have about 40 MB
_MOST_GROWTH = 64  # of a text by a tokenizer; that of public ones is at most 4
_MARKS = ("\u2460system\u2460", "\u2461user\u2461", "\u2462reply\u2462", "\u2463user\u2463")

# A tool and a call of it, to find out how a template shows them.
_CALL: tuple[str, dict[str, Any]] = ("look_up_a_word", {"word": "<mage>"})
_SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _CALL[0],
        "description": "Look up a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}

# Texts repeat within an update, seldom later. A page of 2,000 tokens takes 80 kB.
TEXTS_KEPT = 8192
_MESSAGES_KEPT = 512  # whole prompts: members of a group share their first ones


class Chat:
    """Text to ids and back for one model.

    pieces of a chat:  first(system, user) reply_ids next(user) reply_ids next(user) ...
    a call of a tool:  reply_ids result(text) reply_ids
    a single message:  alone(user)
    """

    opens_thought: bool = False  # the prompt ends inside a thought
    thought_end: str = ""  # ends such a thought without content

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str,
        special: dict[str, str],
        end_ids: Ids,
        thinking: Thinking = "auto",
    ) -> None:
        self.tokenizer = tokenizer
        self.end_ids = end_ids
        self._source = template, special, thinking
        self._cut(_render_with(template, special, thinking))
        self.opens_thought = is_thinking(self._user_to_reply)
        if thinking == "on" and not self.opens_thought:
            _check_switch(template, special, thinking)
        self.thought_end = f"\n{CLOSE}\n\n" if self.opens_thought else ""
        self._by_words = encode_words(tokenizer)
        self.encode = lru_cache(maxsize=TEXTS_KEPT)(self._encode)
        self.decode = lru_cache(maxsize=TEXTS_KEPT)(self._decode)
        self.alone = lru_cache(maxsize=_MESSAGES_KEPT)(self._encode_alone)
        self.opening = lru_cache(maxsize=64)(self._render_opening)

    @classmethod
    def load(cls, folder: str | Path, thinking: Thinking = "auto") -> "Chat":
        """Read tokenizer.json, its config and the chat template of a transformers folder."""
        folder = Path(folder)
        if not (folder / "tokenizer.json").is_file():
            raise UserError(
                f"{folder} has no tokenizer.json: a model folder needs a fast tokenizer"
            )
        config = _read_json(folder / "tokenizer_config.json")
        template = _template(folder, config)
        special = {
            name: _content(config[name])
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if config.get(name)
        }
        tokenizer = _read_tokenizer(folder / "tokenizer.json")
        return cls(tokenizer, template, special, _end_ids(folder, tokenizer, special), thinking)

    def first(self, system: str, user: str, tools: str = "") -> Ids:
        """The start of a chat, up to the position where the reply begins.

        `tools`: a JSON list of schemas for a template that lists tools (`writes_calls`).
        """
        opening, to_user = self.opening(tools) if tools else (self._opening, self._system_to_user)
        return self.encode(opening + system) + self.encode(to_user + user + self._user_to_reply)

    def _render_opening(self, tools: str) -> tuple[str, str]:
        """The template's text before the system message, and between it and the user message."""
        opening, to_user, *_ = _pieces(_render(*self._source, tools=json.loads(tools)))
        return opening, to_user

    def next(self, user: str) -> Ids:
        """The text after a reply: its end, the next message, the start of the next reply."""
        return self.encode(self._reply_to_user + user + self._user_to_reply)

    def result(self, text: str) -> Ids:
        """The text after a call: its end, the result, the start of the next reply."""
        if not self.writes_calls:
            return self.next(f"<tool_response>\n{text}\n</tool_response>")
        before, after = self._around_result
        return self.encode(before + text + after)

    @property
    def writes_calls(self) -> bool:
        """Whether the template lists tools and writes calls in the form that `read_call` reads."""
        return bool(self._around_result)

    @cached_property
    def _around_result(self) -> tuple[str, ...]:
        """The template's text before and after the result of a tool; empty without tools."""
        roles = ("system", "user", "assistant", "tool")
        try:
            rendered = _render(*self._source, roles=roles, tools=[_SCHEMA])
            name, arguments = parse_call(read_call(_render_call(*self._source)) or "")
            *_, before, after = _pieces(rendered)
        except (UserError, CallError):
            return ()
        lists = _SCHEMA["function"]["name"] in rendered
        return (before, after) if lists and (name, arguments) == _CALL else ()

    def _encode_alone(self, user: str) -> Ids:
        """A chat of one user message, without a system message of ours."""
        before, after = self._around_user
        return self._encode(before + user + after)

    @cached_property
    def _around_user(self) -> tuple[str, str]:
        """The template's text before and after a single user message."""
        rendered = _render(*self._source, roles=("user",))
        if rendered.count(_MARKS[0]) != 1:
            raise UserError("the chat template does not show a single user message once")
        before, after = rendered.split(_MARKS[0])
        return before, after

    def _encode(self, text: str) -> Ids:
        return self._by_words(text)

    def _decode(self, ids: Ids) -> str:
        return self.tokenizer.decode(
            [i for i in ids if i not in self.end_ids], skip_special_tokens=False
        )

    def _cut(self, rendered: str) -> None:
        pieces = _pieces(rendered)
        self._opening, self._system_to_user, _, self._reply_to_user, self._user_to_reply = pieces


def _pieces(rendered: str) -> list[str]:
    """The text before, between and after the marks."""
    pieces = []
    for mark in _MARKS:
        if rendered.count(mark) != 1:
            raise UserError(
                "the chat template does not show system, user and assistant messages "
                "once each, in order"
            )
        piece, rendered = rendered.split(mark)
        pieces.append(piece)
    return [*pieces, rendered]


def _render_with(template: str, special: dict[str, str], thinking: Thinking) -> str:
    """The rendered template; an option without effect is an error."""
    if thinking == "off":
        _check_switch(template, special, thinking)
    return _render(template, special, thinking)


def _check_switch(template: str, special: dict[str, str], thinking: Thinking) -> None:
    """Raise ValueError if the template does not use `enable_thinking`."""
    if "enable_thinking" not in template:
        raise UserError(
            f'agent.thinking = "{thinking}" has no effect: the chat template of this model has no '
            'switch for thinking (enable_thinking); set agent.thinking = "auto"'
        )


def _read_tokenizer(path: Path) -> Tokenizer:
    if path.stat().st_size > LARGEST_FILE:
        raise UserError(f"{path} has {path.stat().st_size:,} bytes: it is not a tokenizer")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises plain exceptions
        raise UserError(f"{path} cannot be read as a tokenizer: {error}") from None
    _check_growth(path, tokenizer)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _check_growth(path: Path, tokenizer: Tokenizer) -> None:
    """Refuse steps that make a text much longer, one after another: nothing can stop them later."""
    for part in (tokenizer.normalizer, tokenizer.decoder):
        growth = 1
        for step in _steps(json.loads(part.__getstate__()) if part is not None else {}):
            pattern = (step.get("pattern") or {}).get("String") or "x"
            growth *= max(1, -(-len(step.get("content") or "") // len(pattern)))
            if growth > _MOST_GROWTH:
                raise UserError(
                    f"{path} makes texts more than {_MOST_GROWTH} times longer: it is not a "
                    "tokenizer of a model"
                )


def _steps(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A normalizer or decoder, or the steps that it consists of."""
    for step in part.get("normalizers") or part.get("decoders") or ():
        yield from _steps(step)
    yield part


def _render(
    template: str,
    special: dict[str, str],
    thinking: Thinking = "auto",
    roles: tuple[str, ...] = ("system", "user", "assistant", "user"),
    tools: list[Any] | None = None,
) -> str:
    marked = zip(roles, _MARKS, strict=False)
    messages = [{"role": role, "content": mark} for role, mark in marked]
    switch = {} if thinking == "auto" else {"enable_thinking": thinking == "on"}
    offered = {} if tools is None else {"tools": tools}
    values = {"messages": messages, "add_generation_prompt": True, **special, **switch, **offered}
    return render_template(template, values)


def _render_call(template: str, special: dict[str, str], thinking: Thinking) -> str:
    """A message of the assistant with a call, without the list of tools."""
    name, arguments = _CALL
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    return render_template(
        template, {"messages": [{"role": "user", "content": "-"}, said], **special}
    )


def _template(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text()
    if isinstance(config.get("chat_template"), str):
        return str(config["chat_template"])
    raise UserError(f"{folder} has no chat template: put one into chat_template.jinja there")


def _end_ids(folder: Path, tokenizer: Tokenizer, special: dict[str, str]) -> Ids:
    """Ids that end a reply: from the generation config, else the tokenizer's end token."""
    ends = _read_json(folder / "generation_config.json").get("eos_token_id")
    if ends is None:
        ends = tokenizer.token_to_id(special.get("eos_token", ""))
    if ends is None:
        raise UserError(
            f"{folder} has no end-of-reply token: set eos_token in tokenizer_config.json"
        )
    ids = tuple(ends) if isinstance(ends, list) else (ends,)
    if not all(type(number) is int and 0 <= number < 2**31 for number in ids):
        raise UserError(f"{folder} has an eos_token_id that is not a token id: {str(ends)[:80]}")
    return ids


def _content(token: Any) -> str:
    """A special token: a text, or an object with its text in `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty if the file does not exist."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{path} is not a JSON object: the file is damaged")
    return found
