"""The endpoint engine against a real server on the loopback: play, order, budget, resume."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from toys import byte_chat, scripted_agent

import mage
from mage.engines.base import run
from mage.engines.endpoint.http import EndpointError
from mage.environments.kuhn_poker import KuhnPoker
from mage.memory.notes import Notes
from mage.play import PlaySetup, play_groups
from mage.types import Request
from tests.endpoint_toys import (
    RECIPE,
    TASKS,
    Server,
    ask,
    completion,
    engine_at,
    evaluate,
    play,
    refused,
    scripted_model,
    setting_of,
)


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an own folder, without a proxy for the loopback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("THE_KEY", raising=False)
    (tmp_path / "small.toml").write_text(RECIPE)


# --- A whole panel --------------------------------------------------------------------------------


def test_the_command_line_evaluates_an_endpoint_with_reflections() -> None:
    with Server() as server:
        done = evaluate(server, "--json", size=12)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["evaluation"]["overall"]["tasks"] == 12
    assert [one["illegal"] for one in told["evaluation"]["overall"]["episodes"]] == [0, 0, 0]
    notes = [
        body for body in server.bodies if "Write a short note" in body["messages"][-1]["content"]
    ]
    assert len(notes) == 12 * 2, "a reflection after every episode but the last"
    assert any("Note 2: A note, " in body["messages"][1]["content"] for body in server.bodies), (
        "notes are shown in later episodes"
    )
    assert {body["max_tokens"] for body in notes} == {30}
    asked = len(server.bodies)
    assert told["bill"] == {
        "asked": asked,
        "recalled": 0,
        "tokens_in": 100 * asked,
        "tokens_out": 10 * asked,
        "retried": 0,
        "cost": 0.0,
    }


def test_an_endpoint_plays_the_same_games_as_another_engine_with_the_same_replies() -> None:
    def newest(prompt: str) -> str:
        return scripted_model(prompt.rsplit("<|user|>", 1)[1].split("<|end|>")[0])

    with Server() as server:
        remote = play(engine_at(server, concurrency=3))
    local = play_groups(
        PlaySetup(KuhnPoker(), scripted_agent(newest, byte_chat()), Notes(keep="both")),
        TASKS,
        seed=1,
    )
    assert [
        (meta.memories, [(e.moves, e.score, e.recap) for e in meta.episodes]) for meta in remote
    ] == [(meta.memories, [(e.moves, e.score, e.recap) for e in meta.episodes]) for meta in local]
    reply = remote[0].episodes[0].turns[0].completion
    assert (len(reply.token_ids), reply.logprobs) == (10, ()), (
        "as many ids as the server counted, and no logprobs"
    )


def test_messages_have_roles_and_a_longer_chat_starts_with_the_shorter_one() -> None:
    with Server(
        lambda message: (
            f"Let me see. <action>{'nonsense' if 'not a legal' not in message else 'bet'}</action>"
        )
    ) as server:
        (played,) = play(engine_at(server, concurrency=1), TASKS[:1])
    first, second = (body["messages"] for body in server.bodies[:2])
    assert [message["role"] for message in second] == ["system", "user", "assistant", "user"]
    assert second[:2] == first
    assert second[2]["content"] == "<action>nonsense</action>", "the history keeps the action only"
    assert second[3]["content"].startswith("That is not a legal move.")
    before, after = (turn.prompt_ids for turn in played.episodes[0].turns[:2])
    assert after[: len(before)] == before


def test_requests_carry_sampling_and_seed_without_the_omitted_fields() -> None:
    with Server() as server:
        full = engine_at(server, answers="full.jsonl", extra={"effort": "low"})
        bare = engine_at(
            server,
            answers="bare.jsonl",
            omit=("seed", "top_k", "temperature"),
            limit_name="max_completion_tokens",
        )
        for engine in (full, bare):
            request = Request(engine.chat.first("Rules.", "Go."), 7, 2**31 + 5, 0.5, 0.9, 20)
            engine.submit(request)
            engine.step()
    messages = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "Go."}]
    assert server.bodies[0] == {
        "model": "toy",
        "messages": messages,
        "max_tokens": 7,
        "temperature": 0.5,
        "seed": 5,
        "top_p": 0.9,
        "top_k": 20,
        "effort": "low",
    }
    assert server.bodies[1] == {
        "model": "toy",
        "messages": messages,
        "max_completion_tokens": 7,
        "top_p": 0.9,
    }


# --- Order and number -----------------------------------------------------------------------------


def test_as_many_requests_are_concurrent_as_allowed_and_no_more() -> None:
    three = threading.Event()

    def wait_for_three(number: int, body: dict[str, Any]) -> None:
        if number == 2:
            three.set()
        three.wait(600)

    with Server(trouble=wait_for_three) as server:
        play(engine_at(server, concurrency=3))
    assert server.busiest == 3


def test_answers_are_returned_in_the_order_of_the_requests() -> None:
    def slow_first(number: int, body: dict[str, Any]) -> None:
        time.sleep(0.3 if body["messages"][-1]["content"] == "0" else 0)

    order: list[str] = []
    with Server(str, slow_first) as server:
        engine = engine_at(server, concurrency=4)

        async def talk(name: str) -> None:
            for _ in range(2):
                order.append((await engine.sample(Request(engine.chat.first("", name), 5, 0))).text)

        run([talk(str(n)) for n in range(4)])
    assert order == ["0", "1", "2", "3"] * 2


# --- Thoughts ------------------------------------------------------------------------------------


def test_a_reply_ends_with_its_action_but_not_with_an_action_inside_a_thought() -> None:
    said = (
        "<think>perhaps <action>bet</action> or not</think>No. <action>pass</action> "
        "And then <action>bet</action>"
    )
    with Server(
        trouble=lambda number, body: (200, {}, completion(said, tokens=(50, 30)))
    ) as server:
        engine = engine_at(server)
        (reply,) = run([setting_of(engine).agent.reply(engine.chat.first("Rules.", "Go."), 3)])
    assert (
        reply.text == "<think>perhaps <action>bet</action> or not</think>No. <action>pass</action>"
    )
    assert len(server.bodies) == 1, "the rest was received before"
    assert 15 < len(reply.token_ids) < 30, "tokens after the action are not part of the reply"
    assert engine.bill()["tokens_out"] == 30, "but they are counted"


def test_an_endless_thought_and_an_empty_reply_are_recorded_as_data() -> None:
    texts = iter(
        [
            completion("<think>hm <action>bet</action>", "length"),
            completion(None, "length", (5, 40)),
        ]
    )
    with Server(trouble=lambda number, body: (200, {}, next(texts))) as server:
        engine = engine_at(server)
        prompt = engine.chat.first("Rules.", "Go.")
        (endless,), (empty,) = (
            run([setting_of(engine).agent.reply(prompt, seed)]) for seed in (1, 2)
        )
    assert endless.text == "<think>hm <action>bet</action>"
    assert (empty.text, empty.finish, len(empty.token_ids)) == ("", "length", 40)


def test_a_prompt_longer_than_the_context_gets_an_empty_reply() -> None:
    told = json.dumps(
        {"error": {"code": "context_length_exceeded", "message": "too long"}}
    ).encode()
    with Server(trouble=lambda number, body: (400, {}, told)) as server:
        assert ask(engine_at(server), "a", "a") == ["", ""]


# --- Budget ---------------------------------------------------------------------------------------


def test_concurrent_requests_stay_within_the_budget_and_a_larger_one_continues() -> None:
    # A request of 100 + 10 tokens costs .15.
    prices = ["--engines.price_in=1000", "--engines.price_out=5000"]
    with Server(delay=0.01) as server:
        told = refused(server, *prices, "--engines.budget=6", "--engines.concurrency=6", size=16)
        asked = len(server.answered)
        assert asked * 0.15 <= 6
        assert (
            f"engines.budget = 6 is used up: {asked * 0.15:.4g} is spent and the next request"
            in told
        )
        done = evaluate(server, *prices, "--engines.budget=100", "--json", size=16)
        bill = json.loads(done.stdout)["bill"]
    assert bill["recalled"] == asked > 10
    assert bill["cost"] == pytest.approx((bill["asked"] + bill["recalled"]) * 0.15), (
        "the budget covers the whole evaluation"
    )
    assert Counter(map(str, server.answered)).most_common(1)[0][1] == 1, "no request was sent twice"


def test_a_budget_needs_a_server_that_reports_token_counts() -> None:
    with Server(trouble=lambda number, body: (200, {}, completion("hi", tokens=None))) as server:
        assert ask(engine_at(server), "Go.") == ["hi"]
        with pytest.raises(
            EndpointError,
            match=r"reports no token counts, so engines\.budget cannot be",
        ):
            ask(engine_at(server, price_in=1, budget=1), "Go on.")


# --- Resume ------------------------------------------------------------------------------------


def test_a_finished_evaluation_is_repeated_without_requests() -> None:
    with Server() as server:
        first, asked = evaluate(server, "--json"), len(server.bodies)
        again = evaluate(server, "--json")
        assert len(server.bodies) == asked
        assert json.loads(again.stdout)["evaluation"] == json.loads(first.stdout)["evaluation"]
        assert json.loads(again.stdout)["bill"]["recalled"] == asked
        evaluate(server, "--evaluate.temperature=0.2")
    assert len(server.bodies) > asked, "another temperature is another request"


@pytest.mark.e2e
def test_a_killed_evaluation_resumes_without_repeated_requests(tmp_path: Path) -> None:
    program = f"""
from mage.engines.endpoint import EndpointEngine
import endpoint_toys as t
class At: url = {{url!r}}
t.play(t.engine_at(At, concurrency=2, answers={str(tmp_path / "a.jsonl")!r}))
"""
    child: list[subprocess.Popen[bytes]] = []
    held, free = threading.Event(), threading.Event()

    def hold(number: int, body: dict[str, Any]) -> None:
        if number >= 20 and not free.is_set():
            held.set()
            free.wait(600)

    folders = [str(Path(mage.__file__).parent.parent), str(Path(__file__).parent)]
    paths = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    with Server(trouble=hold) as server:
        child.append(
            subprocess.Popen(
                [sys.executable, "-c", program.format(url=server.url)],
                env=os.environ | {"PYTHONPATH": paths},
            )
        )
        assert held.wait(600)
        while (tmp_path / "a.jsonl").read_bytes().count(b"\n") < 20:
            time.sleep(0.01)  # the last answer before the held ones is being written
        child[0].send_signal(signal.SIGKILL)
        child[0].wait()
        free.set()
        with open(tmp_path / "a.jsonl", "ab") as file:
            file.write(b'{"key": "torn')
        kept = server.answered[:20]
        seen = len(server.bodies)
        resumed = engine_at(server, answers=str(tmp_path / "a.jsonl"))
        played = play(resumed)
        asked_again = [body for body in server.bodies[seen:] if body in kept]
        whole = play(engine_at(server, answers=str(tmp_path / "b.jsonl")))
    assert len(kept) == 20
    assert asked_again == []
    assert resumed.bill()["recalled"] == 20
    assert played == whole, "the same result as without a kill"


def test_answers_are_stored_by_seed_even_if_the_server_takes_no_seed() -> None:
    with Server() as server:
        engine = engine_at(server, omit=("seed",))
        ask(engine, "Go.", seed=1)
        ask(engine, "Go.", seed=2)
        ask(engine, "Go.", seed=1)
    assert len(server.bodies) == 2
