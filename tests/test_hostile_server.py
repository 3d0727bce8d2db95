"""The endpoint engine against a hostile server: one message, nothing stored, no secret shown."""

import json
import time
import unicodedata
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from endpoint_toys import ask
from hostile_server import BEHAVIOURS, KEY, HostileServer
from typer.testing import CliRunner

from mage.agent.messages import MessageChat
from mage.cli.main import app
from mage.engines.endpoint import EndpointEngine
from mage.engines.endpoint.answers import Answers
from mage.engines.endpoint.http import EndpointError


@pytest.fixture(scope="module")
def server():
    with HostileServer() as one:
        yield one


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HOSTILE_KEY", KEY)


def engine_at(server: HostileServer, name: str, **options: Any) -> EndpointEngine:
    limits = {"timeout": 0.25 if BEHAVIOURS[name].slow else 60.0, "retries": 1, "backoff": 0.01}
    prices = {"price_in": 1.0, "price_out": 1.0, "budget": 1.0, "key_env": "HOSTILE_KEY"}
    return EndpointEngine(
        MessageChat(), url=server.url(name), model="toy", **(limits | prices | options)
    )


def is_plain(text: str) -> bool:
    """One short line without control or formatting characters."""
    kinds = {unicodedata.category(letter) for letter in text}
    return len(text) < 1000 and not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_a_hostile_server_gets_one_message_and_nothing_is_stored(name, server, tmp_path):
    engine, text = engine_at(server, name), BEHAVIOURS[name].gives
    if text is not None:
        assert ask(engine, "Go.") == [text]
        assert engine.bill()["cost"] > 0
    else:
        with pytest.raises(EndpointError) as caught:
            ask(engine, "Go.")
        assert is_plain(str(caught.value)), str(caught.value)
        assert KEY not in str(caught.value)
        assert engine.bill()["cost"] <= 1.0, "within the budget"
    stored = Path("runs/answers.jsonl")
    assert len(stored.read_text().splitlines() if stored.exists() else []) == (text is not None)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY.encode() not in written


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("tokens_out", 2_000_000_000), ("tokens_in", -5), ("tokens_in", 1.5)),
        *(("tokens_out", True), ("text", 7), ("text", None), ("cut_off", "no"), ("cut_off", 1)),
    ],
)
def test_an_impossible_stored_answer_is_skipped(name, value, tmp_path):
    good = {"key": "good", "text": "hi", "cut_off": False, "tokens_in": 5, "tokens_out": 1}
    bad = good | {"key": "bad", name: value}
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join([json.dumps(good), json.dumps(bad), "[" * 100_000, '{"key"', ""]))
    answers = Answers(path)
    assert answers.find("good") is not None
    assert answers.find("bad") is None


def test_a_key_in_the_extra_fields_is_refused_and_not_repeated(server):
    with pytest.raises(EndpointError, match="looks like a key") as caught:
        engine_at(server, "silence", extra={"api_key": KEY})
    assert KEY not in str(caught.value)
    engine_at(server, "silence", extra={"prompt_cache_key": "a"})


def test_requests_without_an_answer_count_against_the_budget():
    """A request may cost .000206 (156 bytes and 50 tokens); the budget allows two of them."""
    with HostileServer() as server:
        engine = engine_at(server, "silence", retries=9, budget=0.0005)
        with pytest.raises(EndpointError, match=r"engines\.budget = 0\.0005 is used up"):
            ask(engine, "Go.")
        while len(server.received) < 2:  # a busy machine reads a request after its time limit
            time.sleep(0.01)
        assert len(server.received) == 2


NUMBERS = list(product(("budget", "price_in", "timeout"), ("nan", "inf", "-1", "0", "1e400")))
NUMBERS.remove(("price_in", "0"))


@pytest.mark.parametrize(("name", "value"), NUMBERS)
def test_an_impossible_number_as_an_option_is_one_message(name, value):
    words = ["evaluate", "kuhn_poker", "--engines.name=endpoint", "--engines.model=toy"]
    words += ["--engines.url=http://127.0.0.1:1/v1", "--engines.price_out=1"]
    done = CliRunner().invoke(app, [*words, f"--engines.{name}={value}"])
    assert done.exit_code == 2
    assert f"engines.{name}" in done.stderr
    assert "Traceback" not in done.output
