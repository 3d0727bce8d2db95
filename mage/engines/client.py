"""One question over HTTP until it is answered: what passes is tried again, what does not is one clear message.

The standard library does it. Redirects are not followed: a key would go along to wherever they lead.
"""

import email.utils
import itertools
import json
import threading
import time
import urllib.request
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError, URLError

from mage.seeds import derive

LONGEST_WAIT, PATIENCE = (
    60.0,
    600.0,
)  # seconds: between attempts by our own rule, and at a server's word
KEPT = "What was answered is kept: the same command goes on from there"
_PASSING = (408, 409, 425, 429)


class EndpointError(ValueError):
    """What an endpoint does not do, or what a recipe should say otherwise."""


class TooLong(Exception):
    """The prompt does not fit into the model's context."""


class _Passing(Exception):
    """Something that another attempt may not meet; the server may have said when to come back."""

    def __init__(self, told: str, wait: float = 0.0) -> None:
        super().__init__(told)
        self.wait = wait


class Client:
    """Posts JSON to one address. Used by many threads at once; `stop` ends the waiting of all, and all say why."""

    def __init__(self, url: str, key: str, *, timeout: float, retries: int, backoff: float) -> None:
        self.url, self.key, self.timeout, self.retries, self.backoff = (
            url,
            key,
            timeout,
            retries,
            backoff,
        )
        self.opener = urllib.request.build_opener(_NoRedirect)
        self.reached = False
        self.retried = 0
        self._stopped, self._why = threading.Event(), ""

    def stop(self, why: str) -> None:
        """Ask nothing more; the first reason counts."""
        self._why = self._why or why
        self._stopped.set()

    def post(self, body: bytes, seed: int) -> dict[str, Any]:
        """The answer to one question; `seed` spreads the attempts of questions that failed together."""
        for attempt in itertools.count():
            if self._stopped.is_set():
                raise EndpointError(self._why)
            try:
                return self._send(body)
            except _Passing as trouble:
                told, asked = str(trouble), trouble.wait
            if attempt == self.retries:
                raise EndpointError(
                    f"{self.url}: {told}, and so {attempt + 1} times in a row (engines.retries = {self.retries}). {KEPT}"
                )
            if asked > PATIENCE:
                raise EndpointError(
                    f"{self.url}: {told}, and asks to come back in {asked:,.0f} seconds. {KEPT}"
                )
            self.retried += 1
            self._stopped.wait(max(asked, self._pause(attempt, seed)))
        raise AssertionError("counting has no end")

    def _pause(self, attempt: int, seed: int) -> float:
        """Twice as long each time, and between half and all of that."""
        jitter = 0.5 + derive(seed, "pause", attempt) / 2**64
        return min(LONGEST_WAIT, self.backoff * 2.0**attempt) * jitter

    def _send(self, body: bytes) -> dict[str, Any]:
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
        except (OSError, HTTPException) as error:
            raise self._failure(error) from None
        return self._parse(text)

    def _read(self, response: HTTPResponse) -> bytes:
        """All of it, within the time that one question has: a socket's own limit starts anew with every byte."""
        end, parts = time.monotonic() + self.timeout, list[bytes]()
        while part := response.read1(1 << 16):
            parts.append(part)
            if time.monotonic() > end:
                raise TimeoutError
        if response.length:
            raise HTTPException(f"the answer broke off {response.length} bytes before its end")
        return b"".join(parts)

    def _parse(self, text: bytes) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found.get("choices"):
            raise EndpointError(
                f"{self.url}: the answer is no chat completion but {self._told(text)!r}. Does engines.url end where /chat/completions begins?"
            )
        return found

    def _failure(self, error: OSError | HTTPException) -> Exception:
        reason = (
            error.reason
            if isinstance(error, URLError) and isinstance(error.reason, OSError)
            else error
        )
        if isinstance(reason, TimeoutError):
            return _Passing(f"no answer within {self.timeout:g} seconds (engines.timeout)")
        told = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        return (
            _Passing(told)
            if self.reached
            else EndpointError(
                f"{self.url} cannot be reached: {told}. Is the server up, and engines.url right?"
            )
        )

    def _refusal(self, error: HTTPError) -> Exception:
        """What a status other than 200 means."""
        told = self._told(_body(error))
        said = f": {told}" if told else ""
        if error.code in _PASSING or error.code >= 500:
            return _Passing(
                f"the server answered {error.code}{said}",
                _wait_asked(error.headers.get("Retry-After", "")),
            )
        if error.code == 400 and (
            "context_length_exceeded" in told or "maximum context length" in told
        ):
            return TooLong(told)
        advice = {
            400: "a field that this server does not take is left out by engines.omit, as in --engines.omit=['top_k','seed']",
            401: "the key is not right"
            if self.key
            else "it wants a key: name the environment variable that holds it in engines.key_env",
            403: "the key does not allow this"
            if self.key
            else "it wants a key: name the environment variable that holds it in engines.key_env",
            404: "is engines.url right, and does engines.model name a model that is served there?",
        }.get(error.code, "it cannot be asked in this way")
        if 300 <= error.code < 400:
            advice = f"it points to {self.clean(str(error.headers.get('Location')))}: if that is right, put it into engines.url"
        return EndpointError(f"{self.url} answered {error.code}{said}; {advice}")

    def _told(self, body: bytes) -> str:
        """What a server said, short, on one line and without the key, should it repeat it."""
        text = body.decode("utf-8", "replace")
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        inner = found.get("error", found) if isinstance(found, dict) else found
        told = (
            " ".join(str(inner[key]) for key in ("code", "message") if inner.get(key))
            if isinstance(inner, dict)
            else inner
        )
        return self.clean(" ".join(str(told or text).split()))[:300]

    def clean(self, text: str) -> str:
        """A text that may be shown: without the key."""
        return text.replace(self.key, "(key)") if self.key else text


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Nowhere: the status comes back as an error."""


def _body(error: HTTPError) -> bytes:
    try:
        with error:
            return error.read(1 << 16)
    except (OSError, HTTPException):
        return b""


def _wait_asked(text: str) -> float:
    """Seconds of a Retry-After, which is a number or a date; 0 without one.

    >>> _wait_asked("3"), _wait_asked("Wed, 21 Oct 2015 07:28:00 GMT"), _wait_asked("")
    (3.0, 0.0, 0.0)
    """
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return 0.0
