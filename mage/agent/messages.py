"""The chat of a remote model that takes messages, not ids.

Everywhere else a prompt is a tuple of ids that only grows. Here one id stands for a whole text (its
digest), and four small ids mark the role of the next text. So prompts stay tuples, no text can
imitate a mark, and `messages` restores the exact messages.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

from mage.agent.chat import Chat, Ids

Message = dict[str, str]
NOTHING, SYSTEM, USER, REPLY = range(4)
_ROLES = {SYSTEM: "system", USER: "user", REPLY: "assistant"}


@dataclass(frozen=True, slots=True)
class Piece:
    """A text. `behind` is the part after the cut of a reply, with its number of tokens."""

    text: str
    behind: str = ""
    tokens_behind: int = 0


class MessageChat(Chat):
    """Texts to ids and back.

    >>> chat = MessageChat()
    >>> ids = chat.first("Rules.", "Your card: K.") + chat.encode("bet") + chat.next("You won.")
    >>> chat.messages(ids)[-2:]
    [{'role': 'assistant', 'content': 'bet'}, {'role': 'user', 'content': 'You won.'}]
    """

    def __init__(self) -> None:
        self.end_ids = ()
        self.pieces: dict[int, Piece] = {}
        self.encode = lru_cache(maxsize=4096)(self._encode)
        self.decode = lru_cache(maxsize=4096)(self._decode)
        self.alone = lru_cache(maxsize=4096)(self._encode_alone)

    def first(self, system: str, user: str, tools: str = "") -> Ids:
        return (SYSTEM, *self.encode(system), *self.next(user))

    def _encode_alone(self, user: str) -> Ids:
        return self.next(user)

    def next(self, user: str) -> Ids:
        return (USER, *self.encode(user), REPLY)

    @property
    def writes_calls(self) -> bool:
        """Servers have different formats, so the rules list the tools."""
        return False

    def keep(self, piece: Piece, tokens: int) -> Ids:
        """A reply as ids: one for its text, then NOTHING up to the number of tokens."""
        said = (self._id(piece),) if piece.text or piece.behind else ()
        return said + (NOTHING,) * (tokens - len(said))

    def messages(self, prompt: Ids) -> list[Message]:
        """The messages of a prompt, without the reply that it starts."""
        found: list[Message] = []
        for number in prompt:
            if number in _ROLES:
                found.append({"role": _ROLES[number], "content": ""})
            elif number != NOTHING:
                found[-1]["content"] += self.pieces[number].text
        return found[:-1]

    def begun(self, prompt: Ids) -> Piece | None:
        """The last piece of a reply that the prompt has started, or None."""
        inside = [number for number in prompt[_last(prompt, REPLY) + 1 :] if number != NOTHING]
        return self.pieces[inside[-1]] if inside else None

    def _encode(self, text: str) -> Ids:
        return (self._id(Piece(text)),)

    def _decode(self, ids: Ids) -> str:
        return "".join(
            f"<|{_ROLES[number]}|>" if number in _ROLES else self.pieces[number].text
            for number in ids
            if number != NOTHING
        )

    def _id(self, piece: Piece) -> int:
        """The same id in every process, so that results do not depend on the order of play."""
        digest = hashlib.blake2b(
            repr((piece.text, piece.behind, piece.tokens_behind)).encode(), digest_size=8
        ).digest()
        number = (int.from_bytes(digest, "little") >> 1) + len(_ROLES) + 1
        kept = self.pieces.setdefault(number, piece)
        assert kept == piece, f"digest collision: two texts share the id {number}"
        return number


def _last(ids: Ids, mark: int) -> int:
    return len(ids) - 1 - ids[::-1].index(mark)
