"""Any OpenAI-compatible endpoint as the model: for evaluation only, since its weights and logprobs are elsewhere.

Questions go out side by side, at most `concurrency` at a time, but answers are handed out in the order in which they were asked for:
so play goes the same way whoever is quick, and a memory that tasks share fills in the same order. Four times as many conversations are
under way as may wait for the server, so one slow answer holds up nobody.

Stop strings are not sent: a reply that is stopped inside a thought cannot be gone on with over HTTP, and some models refuse them. The
reply comes whole and is cut here; what stands behind the cut is kept, and given if the agent asks for more.
"""

import hashlib
import json
import os
import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field

from mage.agent.chat import Chat
from mage.engines.base import Engine
from mage.engines.client import Client, EndpointError, TooLong
from mage.engines.ledger import Answer, Answers, Purse
from mage.engines.messages import MessageChat, Piece
from mage.types import Completion, Request

_UNDER_WAY = 4  # conversations for each question that may be out
_BYTES_A_TOKEN = 4  # a guess, for servers that count nothing
_OMITTED = ("temperature", "top_p", "top_k", "seed")  # what a server may not take
_OURS = ("model", "messages", "max_tokens", *_OMITTED)


class EndpointEngine(Engine):
    """Completes requests by chat completions at `url` (what stands before /chat/completions).

    `key_env` names the environment variable with the key. `retries` attempts follow a failed one, after `backoff` seconds, twice that, and
    so on, or as the server says. Prices are for a million tokens. `answers` is the file that keeps what was answered. `omit` names
    fields that this server does not take, `extra` holds those that it takes besides, `limit_name` is what it calls the longest reply.
    """

    def __init__(
        self,
        chat: Chat,
        *,
        url: str = "",
        model: str = "",
        key_env: str = "",
        concurrency: Annotated[int, Field(ge=1, le=1024)] = 8,
        timeout: Annotated[float, Field(gt=0)] = 120.0,
        retries: Annotated[int, Field(ge=0, le=100)] = 6,
        backoff: Annotated[float, Field(gt=0)] = 1.0,
        price_in: Annotated[float, Field(ge=0)] = 0.0,
        price_out: Annotated[float, Field(ge=0)] = 0.0,
        budget: Annotated[float, Field(gt=0)] | None = None,
        answers: Annotated[str, Field(min_length=1)] = "runs/answers.jsonl",
        omit: Sequence[str] = (),
        extra: Mapping[str, Any] | None = None,
        limit_name: str = "max_tokens",
    ) -> None:
        assert isinstance(chat, MessageChat), "only its own chat can be read back into messages"
        if not model:
            raise EndpointError(
                "engines.model is missing: it names the model to the server, as in --engines.model=NAME"
            )
        if budget is not None and not price_in + price_out:
            raise EndpointError(
                f"engines.budget = {budget:g}: has no effect without engines.price_in or engines.price_out (per million tokens)"
            )
        self.chat, self.model, self.limit_name = chat, model, limit_name
        self.omit, self.extra = _check_omitted(omit), _check_extra(extra or {}, limit_name)
        self.client = Client(
            _check_url(url), _read_key(key_env), timeout=timeout, retries=retries, backoff=backoff
        )
        self.purse = Purse(price_in, price_out, budget)
        self.answers = Answers(Path(answers))
        self.capacity = _UNDER_WAY * concurrency
        self.pool = ThreadPoolExecutor(concurrency, thread_name_prefix="endpoint")
        self.queue: deque[tuple[Request, Future[Answer]]] = deque()
        self.counts = {"asked": 0, "recalled": 0, "tokens_in": 0, "tokens_out": 0}
        self._lock = threading.Lock()

    @classmethod
    def own_chat(cls) -> Chat:
        return MessageChat()

    def submit(self, request: Request) -> None:
        self.queue.append((request, self._answer(request)))

    def step(self) -> list[tuple[Request, Completion]]:
        """Hand out the answer that was asked for first, as soon as it is there."""
        request, coming = self.queue.popleft()
        try:
            answer = coming.result()
        except BaseException:
            self.client.stop("stopped")
            self.pool.shutdown(
                cancel_futures=True
            )  # what is on its way is paid for, so it is waited for and kept
            raise
        return [(request, self._complete(request, answer))]

    def bill(self) -> dict[str, float]:
        """What was asked, found in the file and tried again, the tokens of all of it, and what they cost."""
        return {**self.counts, "retried": self.client.retried, "cost": self.purse.spent}

    def _answer(self, request: Request) -> Future[Answer]:
        """A reply that was begun has its rest already, a question that was answered its answer; the others are asked."""
        if (begun := self.chat.begun(request.prompt_ids)) is not None:
            return _known(Answer(begun.behind, False, 0, begun.tokens_behind))
        body = self._body(request)
        key = hashlib.sha256(
            json.dumps([self.client.url, request.seed, body], sort_keys=True).encode()
        ).hexdigest()
        if (found := self.answers.find(key)) is not None:
            self._count(found, "recalled")
            return _known(found)
        return self.pool.submit(self._ask, key, body, request)

    def _body(self, request: Request) -> dict[str, Any]:
        draw: dict[str, Any] = {
            "temperature": request.temperature,
            "seed": request.seed % 2**31,
        }  # some servers take no more
        if request.temperature > 0:
            draw |= {"top_p": request.top_p} if request.top_p < 1 else {}
            draw |= {"top_k": request.top_k} if request.top_k else {}
        draw = {name: value for name, value in draw.items() if name not in self.omit}
        return {
            "model": self.model,
            "messages": self.chat.messages(request.prompt_ids),
            self.limit_name: request.max_tokens,
            **draw,
            **self.extra,
        }

    def _ask(self, key: str, body: dict[str, Any], request: Request) -> Answer:
        """In a thread of the pool. Where one question fails for good, the others need not be asked."""
        try:
            return self._ask_and_pay(key, json.dumps(body).encode(), request)
        except Exception as error:
            self.client.stop(str(error))
            raise

    def _ask_and_pay(self, key: str, data: bytes, request: Request) -> Answer:
        with self.purse.set_aside(
            self.purse.cost(len(data), request.max_tokens)
        ):  # a token has a byte or more
            try:
                answer = self._read(self.client.post(data, request.seed), len(data))
            except TooLong:  # the model's limit, so no mistake of the user: it says nothing, as a local one would
                answer = Answer("", True, 0, 0)
            self._count(answer, "asked")
            self.answers.add(key, answer)
        return answer

    def _read(self, found: dict[str, Any], size: int) -> Answer:
        try:
            choice = found["choices"][0]
            text, cut_off = (
                choice["message"].get("content") or "",
                choice.get("finish_reason") == "length",
            )
            text = text.encode("utf-16", "surrogatepass").decode(
                "utf-16", "replace"
            )  # JSON may hold halves of characters
        except (LookupError, TypeError, AttributeError):
            shown = self.client.clean(json.dumps(found))[:300]
            raise EndpointError(
                f"{self.client.url}: the answer has no text at choices[0].message.content: {shown}"
            ) from None
        usage = found.get("usage")
        tokens_in, tokens_out = (
            (usage.get("prompt_tokens"), usage.get("completion_tokens"))
            if isinstance(usage, dict)
            else (None, None)
        )
        if isinstance(tokens_in, int) and isinstance(tokens_out, int):
            return Answer(text, cut_off, tokens_in, tokens_out)
        if self.purse.budget is not None:
            raise EndpointError(
                f"{self.client.url} does not say how many tokens it counted, so engines.budget cannot be kept: take it out"
            )
        return Answer(
            text, cut_off, size // _BYTES_A_TOKEN, -(-len(text.encode()) // _BYTES_A_TOKEN)
        )

    def _count(self, answer: Answer, how: str) -> None:
        self.purse.pay(answer)
        with self._lock:
            self.counts[how] += 1
            self.counts["tokens_in"] += answer.tokens_in
            self.counts["tokens_out"] += answer.tokens_out

    def _complete(self, request: Request, answer: Answer) -> Completion:
        """The answer up to the first stop string."""
        text, tokens = answer.text, answer.tokens_out
        ends = [text.index(stop) + len(stop) for stop in request.stop if stop in text]
        if not ends:
            ids = self.chat.keep(Piece(text), tokens)
            return Completion(
                ids, (), text, "length" if answer.cut_off else "eos", self.policy_version
            )
        shown, behind = text[: min(ends)], text[min(ends) :]
        tokens_behind = -(-tokens * len(behind) // len(text))
        ids = self.chat.keep(Piece(shown, behind, tokens_behind), tokens - tokens_behind)
        return Completion(ids, (), shown, "stop", self.policy_version)


def _known(answer: Answer) -> Future[Answer]:
    done: Future[Answer] = Future()
    done.set_result(answer)
    return done


def _check_url(url: str) -> str:
    """The address of chat completions. What may hold a secret is refused, so an address can be shown."""
    allowed = "it must be like http://127.0.0.1:8000/v1, without a name, a password or a query"
    if not url:
        raise EndpointError(f"engines.url is missing: {allowed}")
    if not re.fullmatch(r"https?://[A-Za-z0-9.\-\[\]:]+(/[!-~]*)?", url) or re.search(
        r"[?#@]", url
    ):
        raise EndpointError(f"engines.url is not an address of this kind: {allowed}")
    try:
        urlsplit(url).port  # noqa: B018 - reading it checks it
    except ValueError as error:
        raise EndpointError(f"engines.url = {url}: {error}; {allowed}") from None
    return url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"


def _read_key(name: str) -> str:
    """The key. Messages never repeat `name`: somebody may have put the key itself there."""
    if not name:
        return ""
    key = os.environ.get(name, "").strip()
    if not key:
        raise EndpointError(
            "engines.key_env names no environment variable that is set: export the key in one and give its name, never the key itself"
        )
    if not re.fullmatch(r"[!-~]+", key):
        raise EndpointError(
            "the environment variable that engines.key_env names holds something that no key can be: blanks or special characters"
        )
    return key


def _check_omitted(names: Sequence[str]) -> frozenset[str]:
    if unknown := sorted(set(names) - set(_OMITTED)):
        raise EndpointError(
            f"engines.omit = {', '.join(unknown)}: what can be left out is {', '.join(_OMITTED)}"
        )
    return frozenset(names)


def _check_extra(fields: Mapping[str, Any], limit_name: str) -> dict[str, Any]:
    if ours := sorted({*fields} & {*_OURS, limit_name, "stream", "n"}):
        raise EndpointError(
            f"engines.extra.{ours[0]}: the recipe decides about this field elsewhere ([agent], [evaluate] or engines.model)"
        )
    return dict(fields)
