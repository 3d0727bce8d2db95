"""A scripted chat-completions server on the loopback, and ways to ask it."""

import hashlib
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typer.testing import CliRunner

from mage.agent.agent import Agent, SamplingOptions
from mage.agent.messages import MessageChat
from mage.cli.main import app
from mage.engines.base import run
from mage.engines.endpoint import EndpointEngine
from mage.environments.kuhn_poker import KuhnPoker
from mage.memory.notes import Notes
from mage.play import PlaySetup, play_groups
from mage.types import MetaEpisode, Request, Task

KEY = "sk-very-secret-42"
RECIPE = """
environments.name = "kuhn_poker"
opponents.train = {conservative = 0.5, aggressive = 0.5}
agent = {max_tokens = 40, reflection_tokens = 30}
engines = {name = "local", context = 1024}
memory.keep = "both"
"""
TASKS = [
    [Task("kuhn_poker", 10 + n, n % 2, ("conservative", "aggressive")[n % 3 > 0], "test")]
    for n in range(6)
]
HttpAnswer = tuple[int, dict[str, str], bytes]  # status, headers, body
Trouble = Callable[[int, dict[str, Any]], HttpAnswer | None]


def scripted_model(message: str) -> str:
    """Legal moves and notes that depend on the newest message only."""
    digest = hashlib.sha256(message.encode()).hexdigest()
    if "Write a short note" in message:
        return f"A note, {digest[:6]}."
    return f"<action>{'bet' if digest[0] in '01234567' else 'pass'}</action>"


def completion(
    text: str | None, finish: str = "stop", tokens: tuple[int, int] | None = (100, 10)
) -> bytes:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish}
    names = ("prompt_tokens", "completion_tokens")
    usage = {"usage": dict(zip(names, tokens, strict=True))} if tokens else {}
    return json.dumps({"choices": [choice], **usage}).encode()


class Server:
    """Chat completions on the loopback. `trouble(number, body)` may replace the model's answer."""

    def __init__(
        self,
        reply: Callable[[str], str] = scripted_model,
        trouble: Trouble = lambda number, body: None,
        delay: float = 0.0,
    ) -> None:
        self.reply, self.trouble, self.delay = reply, trouble, delay
        self.bodies: list[dict[str, Any]] = []
        self.answered: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.busy = self.busiest = 0
        self.models: list[dict[str, Any]] | None = None  # the list of models, if there is one
        self.lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"owner": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"

    def answer(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> HttpAnswer:
        with self.lock:
            number = len(self.bodies)
            self.bodies.append(body)
            self.headers.append(headers)
            self.times.append(time.monotonic())
            self.busy += 1
            self.busiest = max(self.busiest, self.busy)
        time.sleep(self.delay)
        found = self.trouble(number, body) if path == "/v1/chat/completions" else (404, {}, b"")
        found = found or (200, {}, completion(self.reply(body["messages"][-1]["content"])))
        with self.lock:
            self.busy -= 1
            self.answered += [body] if found[0] == 200 else []
        return found

    def __enter__(self) -> "Server":
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,))
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


class _Handler(BaseHTTPRequestHandler):
    owner: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, headers, data = self.owner.answer(self.path, dict(self.headers), body)
        try:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(data))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
        except OSError:  # the client did not wait
            return

    def do_GET(self) -> None:
        found = self.owner.models if self.path == "/v1/models" else None
        data = json.dumps({"data": found}).encode()
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def engine_at(server: Server, **options: Any) -> EndpointEngine:
    defaults: dict[str, Any] = {"model": "toy", "backoff": 0.01, "timeout": 600.0}
    return EndpointEngine(MessageChat(), url=server.url, **(defaults | options))


def setup_of(engine: EndpointEngine) -> PlaySetup:
    options = SamplingOptions(0.7, max_tokens=40, reflection_tokens=30)
    return PlaySetup(KuhnPoker(), Agent(engine, engine.chat, options), Notes(keep="both"), 3)


def play(engine: EndpointEngine, tasks: list[list[Task]] = TASKS) -> list[MetaEpisode]:
    return play_groups(setup_of(engine), tasks, seed=1)


def ask(engine: EndpointEngine, *users: str, seed: int = 0) -> list[str]:
    async def one(user: str) -> str:
        return (await engine.sample(Request(engine.chat.first("Rules.", user), 50, seed))).text

    return run([one(user) for user in users])


def evaluate(server: Server, *words: str, size: int = 4) -> Any:
    model = [f"--engines.url={server.url}", "--engines.model=toy", "--engines.backoff=0.01"]
    command = ["evaluate", "small.toml", "--size", str(size), "--engines.name=endpoint"]
    return CliRunner().invoke(app, [*command, *model, *words])


def refused(server: Server, *words: str, size: int = 4) -> str:
    done = evaluate(server, *words, size=size)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("note: model ")]
    assert len(lines) == 1, "one message besides the note that names the model"
    return str(done.stderr)
