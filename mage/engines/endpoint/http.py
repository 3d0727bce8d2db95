"""One request over HTTP with retries. Temporary failures are retried; others are one message.

All requests run in one event loop, in a thread of its own. The time limit covers a whole request,
from the connection to the last byte, so a server that sends byte by byte cannot hold it for ever.
The size of an answer is limited and it is never decompressed. Redirects are not followed, because
the key would be sent to the new address.
"""

import asyncio
import email.utils
import math
import os
import ssl
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

import httpx

from mage.config.errors import UserError
from mage.engines.endpoint.answers import printable, summary
from mage.seeds import derive

LONGEST_WAIT = 60.0  # seconds between attempts by our own rule
PATIENCE = 600.0  # longest Retry-After that is obeyed, in seconds
KEPT = "All answers so far are stored: the same command continues from there"
LARGEST_ANSWER = 16 << 20  # bytes
_SHORT = 10.0  # seconds for the list of models
_SILENCE = 10.0  # seconds without any answer after which a line says what is awaited
_TEMPORARY = (408, 409, 425, 429)
_NO_KEY = "it needs a key: name the environment variable that holds it in engines.key_env"
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
    "User-Agent": "mage",
}
Result = TypeVar("Result")


class EndpointError(UserError):
    """A permanent failure of an endpoint, or a wrong option."""


class TooLong(Exception):
    """The prompt does not fit into the model's context."""


class _Temporary(Exception):
    """A failure that may not occur again; `wait` is the server's Retry-After in seconds.

    `is_lost`: the request was sent and no answer came, so it may have been charged.
    """

    def __init__(self, message: str, wait: float = 0.0, is_lost: bool = False) -> None:
        super().__init__(message)
        self.wait, self.is_lost = wait, is_lost


@cache
def _certificates() -> ssl.SSLContext:
    """The certificates of this machine. Reading them takes 40 ms of processor time."""
    return ssl.create_default_context()


class Client:
    """Posts JSON to one URL. `stop` ends all waiting, with one reason."""

    def __init__(self, url: str, key: str, *, timeout: float, retries: int, backoff: float) -> None:
        self.url, self.key = url, key
        self.timeout, self.retries, self.backoff = timeout, retries, backoff
        self.reached, self.retried = False, 0
        self.http = httpx.AsyncClient(
            headers=_HEADERS | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=None,
            verify=_certificates(),
            # A kept connection that the server closes would look like a lost request.
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        self._stopped, self._why = asyncio.Event(), ""
        self._heard, self._told = -math.inf, False  # when the server last began an answer
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=_serve, args=(self.loop,), daemon=True, name="endpoint").start()
        weakref.finalize(self, self.loop.call_soon_threadsafe, self.loop.stop)

    def start(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Run a coroutine in the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def stop(self, why: str) -> None:
        """Send no further request; the first reason is reported."""
        self._why = self._why or why
        self.loop.call_soon_threadsafe(self._stopped.set)

    async def post(self, body: bytes, seed: int, on_lost: Callable[[], None]) -> bytes:
        """The answer to one request; `seed` varies the pauses of requests that failed together.

        `on_lost` is called after every attempt that was sent and got no answer.
        """
        notice = self.loop.create_task(self._tell_wait(time.monotonic()))
        try:
            return await self._post(body, seed, on_lost)
        finally:
            notice.cancel()

    async def _tell_wait(self, began: float) -> None:
        """Say once that nothing comes from the server: it may not be one, or be very slow."""
        while (left := max(began, self._heard) + _SILENCE - time.monotonic()) > 0:
            await asyncio.sleep(left)
        if self._told:
            return
        self._told = True
        with suppress(OSError):
            sys.stderr.write(
                f"waiting for {self.url}: no answer for {_SILENCE:g} s "
                f"(a request may take {self.timeout:g} s: engines.timeout)\n"
            )
            sys.stderr.flush()

    async def _post(self, body: bytes, seed: int, on_lost: Callable[[], None]) -> bytes:
        for attempt in range(self.retries + 1):
            if self._why:
                raise EndpointError(self._why)
            try:
                return await self._send(body)
            except _Temporary as trouble:
                reason, asked = str(trouble), trouble.wait
                if trouble.is_lost:
                    on_lost()
            if asked > PATIENCE:
                raise EndpointError(
                    f"{self.url}: {reason}, and asks for a pause of {min(asked, 1e9):,.0f} seconds "
                    f"or more. {KEPT}"
                )
            if attempt < self.retries:
                self.retried += 1
                await self._wait(max(asked, self._pause(attempt, seed)))
        raise EndpointError(
            f"{self.url}: {reason}, {self.retries + 1} times in a row "
            f"(engines.retries = {self.retries}). {KEPT}"
        )

    async def look(self, url: str) -> bytes:
        """The content of a second address of the server; empty if there is none in a short time."""
        try:
            async with asyncio.timeout(min(self.timeout, _SHORT)):
                response, data = await self._receive("GET", url)
            return data if response.is_success else b""
        except (TimeoutError, httpx.HTTPError, ValueError):  # an EndpointError is a ValueError
            return b""

    def refuse(self, reason: str, data: bytes) -> EndpointError:
        """The error for an answer that is not a valid chat completion."""
        return EndpointError(
            f"{self.url}: {reason}: {self._shown(data)!r}. Check that engines.url ends before "
            "/chat/completions and that the server is OpenAI-compatible"
        )

    def clean(self, text: str) -> str:
        """A text without the key, so that it can be shown."""
        return text.replace(self.key, "(key)") if self.key else text

    def _shown(self, data: bytes) -> str:
        return self.clean(summary(data))[:300]

    def _pause(self, attempt: int, seed: int) -> float:
        """Exponential: doubles with every attempt, times a factor between 0.5 and 1."""
        jitter = 0.5 + derive(seed, "pause", attempt) / 2**64
        return min(LONGEST_WAIT, self.backoff * 2.0**attempt) * jitter

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)

    async def _send(self, body: bytes) -> bytes:
        steps: list[str] = []
        try:
            async with asyncio.timeout(self.timeout):
                response, data = await self._receive("POST", self.url, body, steps)
        except TimeoutError:
            message = f"no answer within {self.timeout:g} seconds (engines.timeout)"
            was_sent = any(step.startswith("http11.send_request") for step in steps)
            raise _Temporary(message, is_lost=was_sent) from None
        except httpx.TransportError as error:
            raise self._failure(error) from None
        if not response.is_success:
            raise self._refusal(response, self._shown(data))
        return data

    async def _receive(
        self, method: str, url: str, body: bytes | None = None, steps: list[str] | None = None
    ) -> tuple[httpx.Response, bytes]:
        data = bytearray()

        async def note(step: str, info: Any) -> None:
            if steps is not None:
                steps.append(step)

        async with self.http.stream(
            method, url, content=body, extensions={"trace": note}
        ) as response:
            self.reached = self.reached or body is not None
            self._heard = time.monotonic()
            async for part in response.aiter_raw():
                data += part
                if len(data) > LARGEST_ANSWER:
                    raise EndpointError(
                        f"{self.url}: the answer has more than {LARGEST_ANSWER >> 20} MB. {KEPT}"
                    )
        return response, bytes(data)

    def _failure(self, error: BaseException) -> Exception:
        unsent = isinstance(error, httpx.ConnectError)
        while cause := error.__cause__ or error.__context__:
            error = cause  # the first error has the system's own words
        number = getattr(error, "errno", None) or 0
        text = os.strerror(number) if number > 0 else str(error) or type(error).__name__
        name = self.clean(" ".join(printable(text).split()))[:300]
        if self.reached:
            return _Temporary(name, is_lost=not unsent)
        what = "cannot be reached" if unsent else "gives no valid HTTP answer"
        return EndpointError(
            f"{self.url} {what}: {name}. Check that the server runs and engines.url"
        )

    def _refusal(self, response: httpx.Response, told: str) -> Exception:
        """The error for a status of failure."""
        status, said = response.status_code, f": {told}" if told else ""
        if status in _TEMPORARY or status >= 500:
            wait = _wait_asked(response.headers.get("Retry-After", ""))
            return _Temporary(f"the server answered {status}{said}", wait)
        if status == 400 and (
            "context_length_exceeded" in told or "maximum context length" in told
        ):
            return TooLong(told)
        advice = {
            400: "omit fields that this server refuses, as in --engines.omit=['top_k','seed']",
            401: "the key is wrong" if self.key else _NO_KEY,
            403: "the key does not allow this" if self.key else _NO_KEY,
            404: "check engines.url, and that engines.model is served there",
        }.get(status, "the server does not accept this request")
        if 300 <= status < 400:
            place = self.clean(printable(str(response.headers.get("Location"))))[:300]
            advice = f"it redirects to {place}: if that is right, put it into engines.url"
        return EndpointError(f"{self.url} answered {status}{said}; {advice}")


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _wait_asked(text: str) -> float:
    """Seconds of a Retry-After header, which is a number or a date; 0 if there is none.

    >>> _wait_asked("3"), _wait_asked("Wed, 21 Oct 2015 07:28:00 GMT"), _wait_asked("")
    (3.0, 0.0, 0.0)
    """
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError, OSError, TypeError):
        return 0.0
