"""A model hub on this machine: serves the embedded model, refuses others, or says nothing."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mage.models.base import SHIPPED

COMMIT = "c0ffee" + "0" * 34
NEWER = "beef" + "0" * 36
REFUSALS = {  # model -> status and error code of the hub
    "lab/unknown": (404, "RepoNotFound"),
    "lab/private": (401, "RepoNotFound"),
    "lab/gated": (403, "GatedRepo"),
}


class FakeHub(ThreadingHTTPServer):
    """`lab/tiny` is the embedded model; `lab/silent` never answers; `lab/late` refuses its files.

    `commit` is the newest version; all versions have the same files.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.commit = COMMIT
        self.asked: list[str] = []
        self.address = f"http://127.0.0.1:{self.server_port}"


@contextmanager
def run_hub() -> Iterator[FakeHub]:
    server = FakeHub()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.server.asked.append(path)
        words = path.removeprefix("/api/models").strip("/").split("/")
        model, rest = "/".join(words[:2]), words[2:]
        if model == "lab/silent":
            time.sleep(5)
        elif model in REFUSALS:
            self._refuse(*REFUSALS[model])
        elif path.startswith("/api/"):
            self._describe(model, rest)
        elif model == "lab/late":
            self._refuse(403, "GatedRepo")
        else:
            self._send_file(rest[1], SHIPPED / "embedded" / rest[2])

    def _describe(self, model: str, rest: list[str]) -> None:
        files = [path for path in sorted((SHIPPED / "embedded").iterdir()) if path.is_file()]
        if rest[:1] == ["tree"]:
            tree = [
                {"type": "file", "path": one.name, "size": one.stat().st_size, "oid": _digest(one)}
                for one in files
            ]
            self._answer(json.dumps(tree).encode())
        elif rest[:1] == ["revision"] and rest[1] not in ("main", COMMIT, NEWER):
            self._refuse(404, "RevisionNotFound")
        else:
            commit = rest[1] if rest and rest[1] != "main" else self.server.commit
            siblings = [{"rfilename": one.name, "size": one.stat().st_size} for one in files]
            about = {"id": model, "sha": commit, "siblings": siblings, "tags": []}
            self._answer(json.dumps(about).encode())

    def _send_file(self, revision: str, path: Path) -> None:
        commit = self.server.commit if revision == "main" else revision
        self._answer(path.read_bytes(), {"ETag": f'"{_digest(path)}"', "X-Repo-Commit": commit})

    def _refuse(self, status: int, code: str) -> None:
        self._answer(b'{"error": "refused"}', {"X-Error-Code": code}, status)

    def _answer(
        self, data: bytes, headers: dict[str, str] | None = None, status: int = 200
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()
