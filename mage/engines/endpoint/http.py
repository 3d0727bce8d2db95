"""One request over HTTP with retries. Temporary failures are retried; others are one message.

Redirects are not followed, because the key would be sent to the new address. The time limit covers
the whole request, and the size of an answer is limited (see deadline.py).
"""

import email.utils
import itertools
import threading
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from urllib.error import HTTPError, URLError

from mage.config.errors import UserError
from mage.engines.endpoint.deadline import TooLarge, make_opener
from mage.engines.endpoint.replies import (
    BadReply,
    Reply,
    parse_json,
    printable,
    read_reply,
    summary,
)
from mage.seeds import derive

LONGEST_WAIT = 60.0  # seconds between attempts by our own rule
PATIENCE = 600.0  # longest Retry-After that is obeyed, in seconds
KEPT = "All answers so far are stored: the same command continues from there"
LARGEST_ANSWER = 16 << 20  # bytes, headers included
_TEMPORARY = (408, 409, 425, 429)
_NO_KEY = "it needs a key: name the environment variable that holds it in engines.key_env"


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


class Client:
    """Posts JSON to one URL from many threads. `stop` ends all waiting, with one reason."""

    def __init__(self, url: str, key: str, *, timeout: float, retries: int, backoff: float) -> None:
        self.url, self.key = url, key
        self.timeout, self.retries, self.backoff = timeout, retries, backoff
        self.opener = make_opener(LARGEST_ANSWER)
        self.reached = False
        self.retried = 0
        self._stopped, self._why = threading.Event(), ""

    def stop(self, why: str) -> None:
        """Send no further request; the first reason is reported."""
        self._why = self._why or why
        self._stopped.set()

    def post(self, body: bytes, seed: int, on_lost: Callable[[], None] = lambda: None) -> Reply:
        """The answer to one request; `seed` varies the pauses of requests that failed together.

        `on_lost` is called after every attempt that was sent and got no answer.
        """
        for attempt in itertools.count():
            if self._stopped.is_set():
                raise EndpointError(self._why)
            try:
                return self._send(body)
            except _Temporary as trouble:
                reason, asked = str(trouble), trouble.wait
                if trouble.is_lost:
                    on_lost()
            if attempt == self.retries:
                raise EndpointError(
                    f"{self.url}: {reason}, {attempt + 1} times in a row "
                    f"(engines.retries = {self.retries}). {KEPT}"
                )
            if asked > PATIENCE:
                raise EndpointError(
                    f"{self.url}: {reason}, and asks for a pause of {min(asked, 1e9):,.0f} seconds "
                    f"or more. {KEPT}"
                )
            self.retried += 1
            self._stopped.wait(max(asked, self._pause(attempt, seed)))
        raise AssertionError("itertools.count never ends")

    def _pause(self, attempt: int, seed: int) -> float:
        """Exponential: doubles with every attempt, times a factor between 0.5 and 1."""
        jitter = 0.5 + derive(seed, "pause", attempt) / 2**64
        return min(LONGEST_WAIT, self.backoff * 2.0**attempt) * jitter

    def _send(self, body: bytes) -> Reply:
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": "mage",
        }
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            with self.opener.open(
                urllib.request.Request(self.url, body, headers), timeout=self.timeout
            ) as response:
                self.reached = True
                text = self._read(response)
        except HTTPError as error:
            self.reached = True
            raise self._refusal(error) from None
        except TooLarge:
            raise EndpointError(
                f"{self.url}: the answer has more than {LARGEST_ANSWER >> 20} MB. {KEPT}"
            ) from None
        except (OSError, HTTPException, ValueError) as error:
            raise self._failure(error) from None
        return self._parse(text)

    def _read(self, response: HTTPResponse) -> bytes:
        parts = list[bytes]()
        while part := response.read1(1 << 16):
            parts.append(part)
        if response.length:
            raise HTTPException(f"the answer ended {response.length} bytes too early")
        return b"".join(parts)

    def _parse(self, text: bytes) -> Reply:
        try:
            reply = read_reply(parse_json(text))
        except BadReply as error:
            raise EndpointError(
                f"{self.url}: {error}: {self._shown(text)!r}. Check that engines.url ends before "
                "/chat/completions and that the server is OpenAI-compatible"
            ) from None
        return Reply(self.clean(reply.text), reply.cut_off, reply.tokens)

    def _failure(self, error: Exception) -> Exception:
        reason = (
            error.reason
            if isinstance(error, URLError) and isinstance(error.reason, OSError)
            else error
        )
        if isinstance(reason, TimeoutError):
            message = f"no answer within {self.timeout:g} seconds (engines.timeout)"
            return _Temporary(message, is_lost=True)
        text = str(getattr(reason, "strerror", None) or reason or type(reason).__name__)
        name = self.clean(" ".join(printable(text).split()))[:300]
        if self.reached:
            return _Temporary(name, is_lost=True)
        what = "cannot be reached" if isinstance(reason, OSError) else "gives no valid HTTP answer"
        return EndpointError(
            f"{self.url} {what}: {name}. Check that the server runs and engines.url"
        )

    def _refusal(self, error: HTTPError) -> Exception:
        """The error for a status other than 200."""
        told = self._shown(_body(error))
        said = f": {told}" if told else ""
        if error.code in _TEMPORARY or error.code >= 500:
            return _Temporary(
                f"the server answered {error.code}{said}",
                _wait_asked(error.headers.get("Retry-After", "")),
            )
        if error.code == 400 and (
            "context_length_exceeded" in told or "maximum context length" in told
        ):
            return TooLong(told)
        advice = {
            400: "omit fields that this server refuses, as in --engines.omit=['top_k','seed']",
            401: "the key is wrong" if self.key else _NO_KEY,
            403: "the key does not allow this" if self.key else _NO_KEY,
            404: "check engines.url, and that engines.model is served there",
        }.get(error.code, "the server does not accept this request")
        if 300 <= error.code < 400:
            place = self.clean(printable(str(error.headers.get("Location"))))[:300]
            advice = f"it redirects to {place}: if that is right, put it into engines.url"
        return EndpointError(f"{self.url} answered {error.code}{said}; {advice}")

    def _shown(self, body: bytes) -> str:
        """A server's message in one short line, without the key."""
        return self.clean(summary(body))[:300]

    def clean(self, text: str) -> str:
        """A text without the key, so that it can be shown."""
        return text.replace(self.key, "(key)") if self.key else text


def _body(error: HTTPError) -> bytes:
    try:
        with error:
            return error.read(1 << 16)
    except (OSError, HTTPException, ValueError, TooLarge):
        return b""


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
