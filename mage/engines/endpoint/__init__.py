"""An OpenAI-compatible endpoint as the model. For evaluation only: it gives no logprobs.

At most `concurrency` requests are sent at a time. Answers are returned in the order of the
requests. So results do not depend on the speed of single answers. Four conversations are active for
each request that may wait for the server, so one slow answer does not block the others.

Stop strings are not sent: a reply that stops inside a thought cannot be continued over HTTP, and
some models refuse them. The whole reply is received and cut here. The rest is kept, and returned if
the agent asks for more.
"""

import asyncio
import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import urlsplit

from pydantic import Field

from mage.agent.chat import Chat
from mage.agent.messages import MessageChat, Piece
from mage.agent.thoughts import CLOSE as THOUGHT_END
from mage.engines.base import Engine
from mage.engines.endpoint.answers import (
    TOO_LONG,
    Answer,
    Answers,
    BadAnswer,
    read_answer,
    read_served,
)
from mage.engines.endpoint.budget import Budget
from mage.engines.endpoint.http import Client, EndpointError, TooLong
from mage.types import Completion, Request

_ACTIVE = 4  # conversations for each concurrent request
_OMITTED = ("temperature", "top_p", "top_k", "seed")  # fields that some servers refuse
_SECRET = re.compile(r"^key$|api[-_]?key|secret|password|authorization|bearer", re.IGNORECASE)
_OURS = ("model", "messages", "max_tokens", *_OMITTED, "stream", "n")


class EndpointEngine(Engine):
    """Completes requests by chat completions at `url` (the part before /chat/completions).

    `key_env` names the environment variable that holds the key. A failed request is repeated up to
    `retries` times, after `backoff` seconds, twice that, and so on, or when the server says.
    Prices are for a million tokens. `answers` is the file that stores all answers. `omit` names
    fields that this server refuses, `extra` holds additional fields, and `limit_name` is the name
    of the field for the longest reply.
    """

    def __init__(
        self,
        chat: Chat,
        *,
        url: Annotated[str, Field(description="address before /chat/completions")] = "",
        model: Annotated[str, Field(description="name of the model on the server")] = "",
        key_env: Annotated[str, Field(description="environment variable that holds the key")] = "",
        concurrency: Annotated[
            int, Field(ge=1, le=1024, description="requests at the same time")
        ] = 8,
        timeout: Annotated[float, Field(gt=0, description="seconds for one request")] = 120.0,
        retries: Annotated[
            int, Field(ge=0, le=100, description="repetitions of a failed request")
        ] = 6,
        backoff: Annotated[
            float, Field(gt=0, description="seconds before the first repetition; then doubled")
        ] = 1.0,
        price_in: Annotated[
            float, Field(ge=0, description="price of a million prompt tokens")
        ] = 0.0,
        price_out: Annotated[
            float, Field(ge=0, description="price of a million reply tokens")
        ] = 0.0,
        budget: Annotated[
            Annotated[float, Field(gt=0)] | None, Field(description="limit of the total price")
        ] = None,
        answers: Annotated[
            str, Field(min_length=1, description="file that stores all answers")
        ] = "runs/answers.jsonl",
        omit: Annotated[
            Sequence[str], Field(description="request fields that the server refuses")
        ] = (),
        extra: Annotated[
            Mapping[str, Any] | None, Field(description="additional request fields")
        ] = None,
        limit_name: Annotated[
            str, Field(description="request field for the longest reply")
        ] = "max_tokens",
    ) -> None:
        assert isinstance(chat, MessageChat), "only this chat can be converted to messages"
        if not model:
            raise EndpointError(
                "engines.model is missing: set the server's name of the model, "
                "as in --engines.model=NAME"
            )
        if budget is not None and not price_in + price_out:
            raise EndpointError(
                f"engines.budget = {budget:g} has no effect without engines.price_in or "
                "engines.price_out (per million tokens)"
            )
        self.chat, self.model, self.limit_name = chat, model, limit_name
        self.omit, self.extra = _check_omitted(omit), _check_extra(extra or {}, limit_name)
        self.client = Client(
            _check_url(url), _read_key(key_env), timeout=timeout, retries=retries, backoff=backoff
        )
        self.budget = Budget(price_in, price_out, budget)
        self.answers = Answers(Path(answers))
        self.capacity = _ACTIVE * concurrency
        self.turns = asyncio.Semaphore(concurrency)
        self._looking, self._model_now = asyncio.Lock(), cast("str | None", None)
        self.queue: deque[tuple[Request, Future[Answer]]] = deque()
        self.counts = {"asked": 0, "recalled": 0, "tokens_in": 0, "tokens_out": 0}

    @classmethod
    def own_chat(cls) -> Chat:
        return MessageChat()

    def submit(self, request: Request) -> None:
        body = self._body(request)
        named = json.dumps([self.client.url, request.seed, body], sort_keys=True).encode()
        answer = self._answer(hashlib.sha256(named).hexdigest(), json.dumps(body).encode(), request)
        self.queue.append((request, self.client.start(answer)))

    def step(self) -> list[tuple[Request, Completion]]:
        """Wait for the answer to the oldest request and return it."""
        request, coming = self.queue.popleft()
        try:
            answer = coming.result()
        except BaseException:
            self.client.stop("stopped")
            # Requests in flight are paid for, so their answers are awaited and stored.
            wait([coming, *(other for _, other in self.queue)])
            raise
        return [(request, self._complete(request, answer))]

    def bill(self) -> dict[str, float]:
        """Numbers of new, stored and repeated requests, their tokens and their cost."""
        return {**self.counts, "retried": self.client.retried, "cost": self.budget.spent}

    def _body(self, request: Request) -> dict[str, Any]:
        draw: dict[str, Any] = {
            "temperature": request.temperature,
            "seed": request.seed % 2**31,  # some servers accept no larger seed
        }
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

    async def _answer(self, key: str, body: bytes, request: Request) -> Answer:
        """From the rest of a begun reply, from the file of answers, or from the server.

        This runs in the client's thread. One permanent failure stops all other requests.
        """
        if (begun := self.chat.begun(request.prompt_ids)) is not None:
            tokens = begun.tokens_behind
            return Answer(text=begun.behind, cut_off=False, tokens_in=0, tokens_out=tokens)
        if self.answers.is_known(key):
            found = self.answers.find(key, await self._served())
            if found is not None:
                return self._count(found, "recalled")
        try:
            async with self.turns:
                return await self._ask(key, body, request)
        except Exception as error:
            self.client.stop(str(error))
            raise

    async def _ask(self, key: str, body: bytes, request: Request) -> Answer:
        # A token has at least one byte, so the body bounds the prompt tokens.
        most = self.budget.cost(len(body), request.max_tokens)
        async with self.budget.reserve(most):
            try:
                data = await self.client.post(
                    body, request.seed, on_lost=lambda: self.budget.pay_lost(most)
                )
                answer = self._read(data, len(body))
            except TooLong:
                answer = TOO_LONG
            self._count(answer, "asked")
            self.answers.add(key, answer, await self._served())
        return answer

    async def _served(self) -> str:
        """Which model is behind the name now; asked once, after an answer or before a recall."""
        async with self._looking:
            if self._model_now is None:
                listed = self.client.url.removesuffix("chat/completions") + "models"
                self._model_now = read_served(await self.client.look(listed), self.model)
        return self._model_now

    def _read(self, data: bytes, asked: int) -> Answer:
        try:
            answer = read_answer(data, asked, must_count=self.budget.limit is not None)
        except BadAnswer as error:
            raise self.client.refuse(str(error), data) from None
        return answer.model_copy(update={"text": self.client.clean(answer.text)})

    def _count(self, answer: Answer, how: str) -> Answer:
        self.budget.spent += self.budget.cost(answer.tokens_in, answer.tokens_out)
        self.counts[how] += 1
        self.counts["tokens_in"] += answer.tokens_in
        self.counts["tokens_out"] += answer.tokens_out
        return answer

    def _complete(self, request: Request, answer: Answer) -> Completion:
        """The answer up to the first stop string."""
        text, tokens = answer.text, answer.tokens_out
        if answer == TOO_LONG:
            return Completion((), (), "", "overflow", self.policy_version)
        # An action inside a thought does not end the reply.
        after = max(0, text.rfind(THOUGHT_END))
        ends = [
            text.index(stop, after) + len(stop) for stop in request.stop if stop in text[after:]
        ]
        if not ends:
            ids = self.chat.keep(Piece(text), tokens)
            return Completion(
                ids, (), text, "length" if answer.cut_off else "eos", self.policy_version
            )
        shown, behind = text[: min(ends)], text[min(ends) :]
        tokens_behind = -(-tokens * len(behind) // len(text))
        ids = self.chat.keep(Piece(shown, behind, tokens_behind), tokens - tokens_behind)
        return Completion(ids, (), shown, "stop", self.policy_version)


def _check_url(url: str) -> str:
    """The URL of chat completions. Parts that may hold a secret are refused: URLs are shown."""
    allowed = "expected is http://HOST:PORT/v1 or https://HOST/v1, without user, password or query"
    if not url:
        raise EndpointError(f"engines.url is missing: {allowed}")
    if not re.fullmatch(r"https?://[A-Za-z0-9.\-\[\]:]+(/[!-\"$->A-~]*)?", url):
        raise EndpointError(f"engines.url is not valid: {allowed}")
    try:
        urlsplit(url).port  # noqa: B018 - the access checks the port
    except ValueError as error:
        raise EndpointError(f"engines.url = {url}: {error}; {allowed}") from None
    return url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"


def _read_key(name: str) -> str:
    """The key. Messages never show `name`: a user may have put the key itself there."""
    if not name:
        return ""
    key = os.environ.get(name, "").strip()
    if not key:
        raise EndpointError(
            "the environment variable that engines.key_env names is not set: export the key in a "
            "variable and give the variable's name, never the key itself"
        )
    if not re.fullmatch(r"[!-~]+", key):
        raise EndpointError(
            "the environment variable that engines.key_env names does not hold a key: "
            "it contains blanks or special characters"
        )
    return key


def _check_omitted(names: Sequence[str]) -> frozenset[str]:
    if unknown := sorted(set(names) - set(_OMITTED)):
        raise EndpointError(
            f"engines.omit = {', '.join(unknown)}: only {', '.join(_OMITTED)} can be omitted"
        )
    return frozenset(names)


def _check_extra(fields: Mapping[str, Any], limit_name: str) -> dict[str, Any]:
    if ours := sorted({*fields} & {*_OURS, limit_name}):
        raise EndpointError(
            f"engines.extra.{ours[0]}: this field is set elsewhere in the recipe "
            "([agent], [evaluate] or engines.model)"
        )
    if any(_SECRET.search(name) for name in fields):
        raise EndpointError(
            "engines.extra has a field that looks like a key. Recipes are stored in files: export "
            "the key in an environment variable and name the variable in engines.key_env"
        )
    return dict(fields)
