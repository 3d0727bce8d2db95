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
from mage.cli.main import app
from mage.engines.base import run
from mage.engines.endpoint import EndpointEngine
from mage.engines.endpoint.messages import MessageChat
from mage.environments.kuhn_poker import KuhnPoker
from mage.memory.notes import Notes
from mage.play import PlaySetup, play_groups
from mage.types import MetaEpisode, Request, Task

KEY = "sk-very-secret-42"
RECIPE = """
[environments]
name = "kuhn_poker"
[opponents.train]
conservative = 0.5
aggressive = 0.5
[agent]
max_tokens = 40
reflection_tokens = 30
[engines]
name = "local"
context = 1024
[memory]
keep = "both"
"""
TASKS = [
    [Task("kuhn_poker", 10 + n, n % 2, ("conservative", "aggressive")[n % 3 > 0], "test")]
    for n in range(6)
]


def scripted_model(message: str) -> str:
    """Legal moves and notes that depend on the newest message only."""
    digest = hashlib.sha256(message.encode()).hexdigest()
    return (
        f"A note, {digest[:6]}."
        if "Write a short note" in message
        else f"<action>{'bet' if digest[0] in '01234567' else 'pass'}</action>"
    )


Trouble = Callable[[int, dict[str, Any]], tuple[int, dict[str, str], bytes] | None]


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
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self.lock:
            number = len(self.bodies)
            self.bodies.append(body)
            self.headers.append(dict(handler.headers))
            self.times.append(time.monotonic())
            self.busy += 1
            self.busiest = max(self.busiest, self.busy)
        time.sleep(self.delay)
        other = (
            self.trouble(number, body)
            if handler.path == "/v1/chat/completions"
            else (404, {}, b'{"error": {"message": "no such path"}}')
        )
        status, headers, data = other or (
            200,
            {},
            completion(self.reply(body["messages"][-1]["content"])),
        )
        with self.lock:
            self.busy -= 1
            if status == 200:
                self.answered.append(body)
        try:
            handler.send_response(status)
            for name, value in ({"Content-Length": str(len(data))} | headers).items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(data)
        except OSError:  # the client did not wait
            return

    def __enter__(self) -> "Server":
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,))
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def completion(
    text: str | None, finish: str = "stop", tokens: tuple[int, int] | None = (100, 10), **more: Any
) -> bytes:
    usage = (
        {"usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}} if tokens else {}
    )
    return json.dumps(
        {
            "choices": [
                {"message": {"role": "assistant", "content": text}, "finish_reason": finish}
            ],
            **usage,
            **more,
        }
    ).encode()


def engine_at(server: Server, **options: Any) -> EndpointEngine:
    defaults: dict[str, Any] = {"model": "toy", "backoff": 0.01, "timeout": 600.0}
    return EndpointEngine(MessageChat(), url=server.url, **(defaults | options))


def setting_of(engine: EndpointEngine, episodes: int = 3) -> PlaySetup:
    return PlaySetup(
        KuhnPoker(),
        Agent(engine, engine.chat, SamplingOptions(0.7, max_tokens=40, reflection_tokens=30)),
        Notes(keep="both"),
        episodes,
    )


def play(engine: EndpointEngine, tasks: list[list[Task]] = TASKS) -> list[MetaEpisode]:
    return play_groups(setting_of(engine), tasks, seed=1)


def ask(
    engine: EndpointEngine, *users: str, stop: tuple[str, ...] = (), seed: int = 0, limit: int = 50
) -> list[str]:
    async def one(user: str) -> str:
        return (
            await engine.sample(Request(engine.chat.first("Rules.", user), limit, seed, stop=stop))
        ).text

    return run([one(user) for user in users])


def evaluate(server: Server, *words: str, size: int = 4) -> Any:
    asked = [
        "evaluate",
        "small.toml",
        "--size",
        str(size),
        "--engines.name=endpoint",
        f"--engines.url={server.url}",
        "--engines.model=toy",
    ]
    return CliRunner().invoke(app, [*asked, "--engines.backoff=0.01", *words])


def refused(server: Server, *words: str, size: int = 4) -> str:
    done = evaluate(server, *words, size=size)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    return str(done.stderr)
