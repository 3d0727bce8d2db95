"""The endpoint engine with failing servers, wrong options and secrets."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mage.cli.main import app
from mage.config.loading import load_recipe
from mage.engines.endpoint import EndpointEngine
from mage.engines.endpoint.http import EndpointError
from mage.engines.endpoint.messages import MessageChat
from mage.memory.notes import Notes
from tests.endpoint_toys import (
    KEY,
    RECIPE,
    Server,
    ask,
    completion,
    engine_at,
    evaluate,
    refused,
    scripted_model,
)


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an own folder, without a proxy for the loopback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("THE_KEY", raising=False)
    (tmp_path / "small.toml").write_text(RECIPE)


# --- Failures -------------------------------------------------------------------------------------


def test_a_busy_server_gets_a_retry_after_the_pause_it_asks_for() -> None:
    with Server(
        trouble=lambda number, body: (
            (429, {"Retry-After": "1"}, b"slow down") if number == 0 else None
        )
    ) as server:
        engine = engine_at(server)
        assert ask(engine, "Go.") == [scripted_model("Go.")]
    assert server.times[1] - server.times[0] >= 1
    assert engine.bill()["retried"] == 1
    assert engine.bill()["asked"] == 1


def test_pauses_double_with_every_attempt_and_differ_between_requests() -> None:
    client = engine_at_nowhere().client
    for attempt in range(12):
        pauses = {client._pause(attempt, seed) for seed in range(20)}
        longest = min(60.0, 0.5 * 2**attempt)
        assert longest / 2 <= min(pauses) < max(pauses) <= longest


def engine_at_nowhere() -> EndpointEngine:
    return EndpointEngine(MessageChat(), url="http://127.0.0.1:1/v1", model="toy", backoff=0.5)


def test_a_server_that_always_fails_is_one_message_and_earlier_answers_are_stored() -> None:
    with Server(
        trouble=lambda number, body: (
            (500, {}, b'{"error": {"message": "out of order"}}') if number >= 5 else None
        )
    ) as server:
        told = refused(server, "--engines.retries=2", "--engines.concurrency=1")
    assert "the server answered 500: out of order, 3 times in a row (engines.retries = 2)" in told
    assert "the same command continues from there" in told
    assert len(Path("runs/answers.jsonl").read_text().splitlines()) == 5
    assert len(server.bodies) == 5 + 3


def test_a_retry_after_of_an_hour_is_an_error() -> None:
    with Server(trouble=lambda number, body: (429, {"Retry-After": "3600"}, b"")) as server:
        assert "asks for a pause of 3,600 seconds" in refused(server)


def test_a_silent_server_gets_a_retry_and_then_an_error() -> None:
    asked_again = threading.Event()

    def silent_at_first(number: int, body: dict[str, Any]) -> None:
        if number == 0:
            asked_again.wait(600)
        else:
            asked_again.set()

    with Server(trouble=silent_at_first) as server:
        assert ask(engine_at(server, timeout=2.0, retries=100), "Go.") == [scripted_model("Go.")]
    assert len(server.bodies) >= 2, "more if the second answer was late too"
    with (
        Server(delay=0.5) as server,
        pytest.raises(
            EndpointError,
            match=r"no answer within 0\.1 seconds \(engines\.timeout\), 2 times",
        ),
    ):
        ask(engine_at(server, timeout=0.1, retries=1), "Go.")


def test_a_body_sent_byte_by_byte_exceeds_the_time_limit() -> None:
    class Trickle(Server):
        def answer(self, handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", "1000")
            handler.end_headers()
            for _ in range(20):
                try:
                    handler.wfile.write(b" ")
                except OSError:
                    return
                time.sleep(0.05)

    with Trickle() as server, pytest.raises(EndpointError, match="no answer within"):
        ask(engine_at(server, timeout=0.3, retries=0), "Go.")


def test_a_truncated_answer_is_requested_again() -> None:
    cut = completion("half")
    with Server(
        trouble=lambda number, body: (
            (200, {"Content-Length": str(len(cut) + 9)}, cut) if number == 0 else None
        )
    ) as server:
        assert ask(engine_at(server), "Go.") == [scripted_model("Go.")]


@pytest.mark.parametrize(
    ("status", "data", "message"),
    [
        (
            401,
            b'{"error": {"message": "no key"}}',
            "answered 401: no key; it needs a key: name the environment variable",
        ),
        (
            404,
            b'{"error": {"message": "no model toy"}}',
            "answered 404: no model toy; check engines.url, and that engines.model is served",
        ),
        (
            400,
            b'{"message": "top_k is unknown"}',
            "answered 400: top_k is unknown; omit fields that this server refuses",
        ),
        (
            200,
            b"<html>welcome</html>",
            "the answer is not a chat completion: '<html>welcome</html>'",
        ),
        (
            200,
            b'{"choices": [{"text": "old"}]}',
            "the answer has no text at choices[0].message.content",
        ),
        (
            200,
            b'{"error": {"message": "overloaded"}}',
            "the answer is not a chat completion: 'overloaded'",
        ),
        (302, b"", "it redirects to None"),
    ],
)
def test_a_permanent_failure_is_one_message_without_a_retry(
    status: int, data: bytes, message: str
) -> None:
    with Server(trouble=lambda number, body: (status, {}, data)) as server:
        assert message in refused(server, "--engines.concurrency=1")
    assert len(server.bodies) == 1


def test_a_port_without_a_server_is_one_message_without_a_retry() -> None:
    server = Server()
    server.http.server_close()
    engine = engine_at(server, backoff=100)
    with pytest.raises(
        EndpointError,
        match=r"cannot be reached: Connection refused\. Check that the server runs",
    ):
        ask(engine, "Go.")
    assert engine.bill()["retried"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engines.url="], "engines.url is missing: expected is http://HOST:PORT/v1"),
        (["--engines.url=ftp://x/v1"], "engines.url is not valid"),
        (["--engines.url=http://me:word@host/v1"], "engines.url is not valid"),
        (["--engines.url=http://host:99999/v1"], "Port out of range"),
        (["--engines.model="], "engines.model is missing"),
        (
            ["--engines.concurrency=0"],
            "engines.concurrency = 0: must be greater than or equal to 1",
        ),
        (
            ["--engines.budget=1"],
            "engines.budget = 1 has no effect without engines.price_in or engines.price_out",
        ),
        (
            ["--engines.omit=['messages']"],
            "only temperature, top_p, top_k, seed can be omitted",
        ),
        (
            ["--engines.extra.model=other"],
            "engines.extra.model: this field is set elsewhere in the recipe",
        ),
        (["--engines.modle=x"], "engines.modle is unknown (did you mean 'model'?)"),
    ],
)
def test_a_wrong_option_is_one_message(words: list[str], message: str) -> None:
    with Server() as server:
        told = refused(server, *words)
    assert message in told
    assert "me:word" not in told
    assert server.bodies == []


# --- Secrets, and what an endpoint cannot do ------------------------------------------------------


def test_the_key_is_sent_to_the_server_and_appears_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("THE_KEY", f"{KEY}\n")
    with Server() as server:
        done = evaluate(server, "--engines.key_env=THE_KEY", "--json")
    assert done.exit_code == 0
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    echo = json.dumps({"error": {"message": f"wrong key {KEY}"}}).encode()
    with Server(trouble=lambda number, body: (401, {}, echo)) as server:
        told = refused(server, "--engines.key_env=THE_KEY")
    assert "answered 401: wrong key (key); the key is wrong" in told
    with Server(
        trouble=lambda number, body: (302, {"Location": "http://127.0.0.1:9/v1"}, b"")
    ) as server:
        assert "it redirects to http://127.0.0.1:9/v1" in refused(
            server, "--engines.key_env=THE_KEY"
        ), "the key is not sent to the new address"
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY not in done.output + told
    assert KEY.encode() not in written


def test_a_key_is_sent_only_on_request_and_never_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("THE_KEY", f"{KEY} and more")
    with Server() as server:
        ask(engine_at(server), "Go.")
        assert "Authorization" not in server.headers[0]
        for name, message in (
            (KEY, "engines.key_env names is not set"),
            ("THE_KEY", "does not hold a key"),
        ):
            told = refused(server, f"--engines.key_env={name}")
            assert message in told
            assert KEY not in told


def test_an_endpoint_cannot_be_trained(tmp_path: Path) -> None:
    with Server() as server:
        words = ["--engines.name=endpoint", f"--engines.url={server.url}", "--engines.model=toy"]
        for verb in ("train", "warmup"):
            done = CliRunner().invoke(app, [verb, "small.toml", *words])
            assert done.exit_code == 2
            assert (
                "uses a model that runs elsewhere: it cannot be trained and has no checkpoints; "
                "use it with mage evaluate RECIPE" in done.stderr
            )
    assert server.bodies == []
    assert not list(tmp_path.glob("runs/small-*")), "no run folder is created"


def test_another_menu_item_does_not_inherit_the_options_of_the_first() -> None:
    changed = load_recipe(
        "small.toml", ["--engines.url=http://h/v1", "--engines.name=endpoint", "--run.name=x"]
    )
    assert changed.engines.options == {"url": "http://h/v1"}
    assert load_recipe("small.toml", ["--engines.name=local"]).engines.options == {"context": 1024}
    assert load_recipe("small.toml", ["--memory.name=notes"]).memory() == Notes(keep="both")
