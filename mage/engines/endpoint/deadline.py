"""HTTP connections with one deadline and one size limit for the whole answer.

The time limit of a socket restarts with every received byte. So a server that sends its headers
slowly, or `100 Continue` without end, could hold a request for ever. Here every read gets only the
time that is left, and all received bytes are counted, headers included.
"""

import http.client
import io
import socket
import time
import urllib.request
from typing import Any


class TooLarge(Exception):
    """The answer has more bytes than allowed."""


class _LimitedReader(io.RawIOBase):
    """Reads from a socket until the deadline or the size limit is reached."""

    def __init__(self, sock: socket.socket, deadline: float, limit: int) -> None:
        super().__init__()
        self.sock, self.deadline, self.left = sock, deadline, limit
        self.raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.sock.settimeout(time_left(self.deadline))
        count = self.raw.readinto(buffer) or 0
        self.left -= count
        if self.left < 0:
            raise TooLarge
        return count

    def close(self) -> None:
        self.raw.close()
        super().close()


class _LimitedSocket:
    """A connected socket whose reads and writes obey the deadline."""

    def __init__(self, sock: socket.socket, deadline: float, limit: int) -> None:
        self.sock, self.deadline, self.limit = sock, deadline, limit

    def makefile(self, mode: str, *_: Any) -> io.BufferedReader:
        assert mode == "rb", "only answers are read as files"
        return io.BufferedReader(_LimitedReader(self.sock, self.deadline, self.limit))

    def sendall(self, data: Any) -> None:
        self.sock.settimeout(time_left(self.deadline))
        self.sock.sendall(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)


def time_left(deadline: float) -> float:
    """Seconds until the deadline; raises TimeoutError if it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _Http(http.client.HTTPConnection):
    limits: tuple[float, int]  # deadline and bytes

    def connect(self) -> None:
        super().connect()
        self.sock = _LimitedSocket(self.sock, *self.limits)


class _Https(http.client.HTTPSConnection):
    limits: tuple[float, int]

    def connect(self) -> None:
        super().connect()
        self.sock = _LimitedSocket(self.sock, *self.limits)


class _HttpHandler(urllib.request.HTTPHandler):
    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_limited(_Http, request, self.limit), request)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_limited(_Https, request, self.limit), request)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """No redirect: the status becomes an error."""


def _limited(kind: Any, request: urllib.request.Request, limit: int) -> Any:
    """A function that creates a connection; its deadline starts now."""
    limits = (time.monotonic() + (request.timeout or 0.0), limit)

    def create(host: str, **options: Any) -> Any:
        connection = kind(host, **options)
        connection.limits = limits
        return connection

    return create


def make_opener(limit: int) -> urllib.request.OpenerDirector:
    """An opener whose `timeout` covers the whole request; an answer has at most `limit` bytes."""
    return urllib.request.build_opener(_HttpHandler(limit), _HttpsHandler(limit), _NoRedirect)
