"""The local server of the viewer: loopback only, a random token in the address, reading only.

Requests are refused without the token, with another Host (DNS rebinding), from another origin, and
with any method but GET and HEAD. A content policy forbids the page every address but its own.
"""

import secrets
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mage.config.errors import UserError
from mage.viewer.export import STATIC, TYPES, page_html, to_json
from mage.viewer.library import Library

HOST = "127.0.0.1"
LAST_PORT = 65535
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(library: Library, token: str, port: int) -> Starlette:
    """The application; `token` and `port` are those of its address."""
    hosts = {f"{HOST}:{port}", f"localhost:{port}"}

    def guarded(endpoint: Endpoint) -> Endpoint:
        async def answer(request: Request) -> Response:
            refusal = _refuse(request, token, hosts)
            response = refusal or await endpoint(request)
            response.headers.update(HEADERS)
            return response

        return answer

    async def page(request: Request) -> Response:
        return Response(page_html(), media_type="text/html")

    async def static(request: Request) -> Response:
        return _static(request.path_params["name"])

    async def data(request: Request) -> Response:
        return await run_in_threadpool(_data, library, request.path_params["path"])

    app = Starlette(
        routes=[
            Route("/{token}/", guarded(page)),
            Route("/{token}/static/{name:path}", guarded(static)),
            Route("/{token}/data/{path:path}", guarded(data)),
        ],
        exception_handlers={404: _not_found, 405: _not_found},
    )
    app.router.redirect_slashes = False
    return app


async def _not_found(request: Request, error: Exception) -> Response:
    return PlainTextResponse("not found", 404, headers=HEADERS)


def _refuse(request: Request, token: str, hosts: set[str]) -> Response | None:
    given = str(request.path_params["token"]).encode()
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    trusted = (
        secrets.compare_digest(given, token.encode())
        and request.headers.get("host") in hosts
        and (origin is None or origin in {f"http://{host}" for host in hosts})
        and site in (None, "none", "same-origin")
    )
    return None if trusted else PlainTextResponse("forbidden", 403)


def _static(name: str) -> Response:
    """A file of the page; names are looked up in the list of these files."""
    if name not in STATIC:
        return PlainTextResponse("not found", 404)
    return Response(STATIC[name].read_bytes(), media_type=TYPES[Path(name).suffix])


def _data(library: Library, path: str) -> Response:
    try:
        value: Any = library.get(path)
    except LookupError:
        return PlainTextResponse("not found", 404)
    except (ValueError, OSError, KeyError, TypeError) as error:
        return PlainTextResponse(f"cannot read {path}: {error}", 500)
    return Response(to_json(value), media_type="application/json")


class Server:
    """A server that listens: the address is known before it runs, and early requests wait."""

    def __init__(self, library: Library, port: int = 0) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind((HOST, port))
        except OSError as error:
            self.socket.close()
            other = port + 1 if port < LAST_PORT else port - 1
            raise UserError(
                f"--port {port} cannot be used ({error.strerror}): name another one, as in "
                f"--port {other}, or leave it out to use any free port"
            ) from None
        self.socket.listen()
        self.port = int(self.socket.getsockname()[1])
        self.token = secrets.token_urlsafe(16)
        app = make_app(library, self.token, self.port)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._library = library

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/{self.token}/"

    def run(self) -> None:
        """Serve until Ctrl-C, SIGTERM or `stop`."""
        threading.Thread(target=self._read_ahead, daemon=True).start()
        self._server.run(sockets=[self.socket])

    def _read_ahead(self) -> None:
        """Read the list of runs while the browser starts: the first reading loads modules."""
        _data(self._library, "runs")

    def stop(self) -> None:
        """End `run`, which another thread is in."""
        self._server.should_exit = True
