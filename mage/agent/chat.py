"""The tokenizer and chat template of a model folder, as pieces that are encoded once and appended.

Chat templates are programs that see the whole chat, and some rewrite earlier turns. Here the
template is rendered ONCE with marked contents and split at the marks. A chat is the concatenation
of these pieces. So the ids of a longer chat start with the ids of the shorter one, and a cached
prefix stays valid. Replies enter as the ids that were sampled.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

Ids = tuple[int, ...]
_MARKS = ("\u2460system\u2460", "\u2461user\u2461", "\u2462reply\u2462", "\u2463user\u2463")

# Texts repeat within an update, seldom later. A page of 2,000 tokens takes 80 kB.
TEXTS_KEPT = 8192


class Chat:
    """Text to ids and back for one model.

    pieces of a chat:  first(system, user) reply_ids next(user) reply_ids next(user) ...
    """

    def __init__(
        self, tokenizer: Tokenizer, template: str, special: dict[str, str], end_ids: Ids
    ) -> None:
        self.tokenizer = tokenizer
        self.end_ids = end_ids
        self._cut(_render(template, special))
        self.encode = lru_cache(maxsize=TEXTS_KEPT)(self._encode)
        self.decode = lru_cache(maxsize=TEXTS_KEPT)(self._decode)

    @classmethod
    def load(cls, folder: str | Path) -> "Chat":
        """Read tokenizer.json, its config and the chat template of a transformers folder."""
        folder = Path(folder)
        if not (folder / "tokenizer.json").is_file():
            raise ValueError(
                f"{folder} has no tokenizer.json: a model folder needs a fast tokenizer"
            )
        config = _read_json(folder / "tokenizer_config.json")
        template = _template(folder, config)
        special = {
            name: _content(config[name])
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if config.get(name)
        }
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return cls(tokenizer, template, special, _end_ids(folder, tokenizer, special))

    def first(self, system: str, user: str) -> Ids:
        """The start of a chat, up to the position where the reply begins."""
        return self.encode(self._opening + system) + self.encode(
            self._system_to_user + user + self._user_to_reply
        )

    def next(self, user: str) -> Ids:
        """The text after a reply: its end, the next message, the start of the next reply."""
        return self.encode(self._reply_to_user + user + self._user_to_reply)

    def _encode(self, text: str) -> Ids:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def _decode(self, ids: Ids) -> str:
        return self.tokenizer.decode(
            [i for i in ids if i not in self.end_ids], skip_special_tokens=False
        )

    def _cut(self, rendered: str) -> None:
        rest, pieces = rendered, []
        for mark in _MARKS:
            if rest.count(mark) != 1:
                raise ValueError(
                    "the chat template does not show system, user and assistant messages "
                    "once each, in order"
                )
            piece, rest = rest.split(mark)
            pieces.append(piece)
        self._opening, self._system_to_user, _, self._reply_to_user = pieces
        self._user_to_reply = rest


def _render(template: str, special: dict[str, str]) -> str:
    system, user, reply, again = _MARKS
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": user},
        {"role": "assistant", "content": reply},
        {"role": "user", "content": again},
    ]
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    try:
        return environment.from_string(template).render(
            messages=messages, add_generation_prompt=True, **special
        )
    except TemplateError as error:
        raise ValueError(
            f"the chat template cannot render system, user and assistant messages: {error}"
        ) from None


def _template(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text()
    if isinstance(config.get("chat_template"), str):
        return str(config["chat_template"])
    raise ValueError(f"{folder} has no chat template: put one into chat_template.jinja there")


def _end_ids(folder: Path, tokenizer: Tokenizer, special: dict[str, str]) -> Ids:
    """Ids that end a reply: from the generation config, else the tokenizer's end token."""
    ends = _read_json(folder / "generation_config.json").get("eos_token_id")
    if ends is None:
        ends = tokenizer.token_to_id(special.get("eos_token", ""))
    if ends is None:
        raise ValueError(
            f"{folder} has no end-of-reply token: set eos_token in tokenizer_config.json"
        )
    return tuple(ends) if isinstance(ends, list) else (ends,)


def _content(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}
