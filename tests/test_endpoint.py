"""The endpoint engine against a real server on the loopback: play, order, budget, resume, errors.

`test_hostile_server.py` has the answers that no honest server gives.
"""

import asyncio
import json
import os
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from endpoint_toys import (
    KEY,
    RECIPE,
    TASKS,
    HttpAnswer,
    Server,
    ask,
    completion,
    engine_at,
    evaluate,
    play,
    refused,
    scripted_model,
    setup_of,
)
from processes import start, wait
from toys import byte_chat, scripted_agent
from typer.testing import CliRunner

from mage.cli.main import app
from mage.config.loading import load_recipe
from mage.engines.base import run
from mage.engines.endpoint.budget import Budget
from mage.engines.endpoint.http import EndpointError
from mage.environments.kuhn_poker import KuhnPoker
from mage.memory.notes import Notes
from mage.play import PlaySetup, play_groups
from mage.types import Request


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    """Run in an own folder, without a proxy for the loopback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("THE_KEY", raising=False)
    (tmp_path / "small.toml").write_text(RECIPE)


def always(status: int, data: bytes = b"", **headers: str) -> Server:
    return at_first(status, data, 10**9, **headers)


def at_first(status: int, data: bytes, count: int = 1, **headers: str) -> Server:
    """The first requests get this answer, all others get a good one."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Server(trouble=lambda number, body: (status, named, data) if number < count else None)


# --- A whole panel --------------------------------------------------------------------------------


@pytest.mark.e2e
def test_the_command_line_evaluates_an_endpoint_with_reflections():
    """A finished evaluation is repeated without requests."""
    with Server() as server:
        told = json.loads(evaluate(server, "--json", size=12).stdout)
        asked = len(server.bodies)
        again = json.loads(evaluate(server, "--json", size=12).stdout)
        assert len(server.bodies) == asked
        evaluate(server, "--evaluate.temperature=0.2", size=1)
    assert len(server.bodies) > asked, "another temperature is another request"
    bodies = server.bodies[:asked]
    assert told["evaluation"]["overall"]["tasks"] == 12
    assert [one["illegal"] for one in told["evaluation"]["overall"]["episodes"]] == [0, 0, 0]
    notes = [body for body in bodies if "Write a short note" in body["messages"][-1]["content"]]
    assert len(notes) == 12 * 2, "a reflection after every episode but the last"
    assert {body["max_tokens"] for body in notes} == {30}
    shown = [body["messages"][1]["content"] for body in bodies]
    assert any("Note 2: A note, " in text for text in shown), "notes are shown in later episodes"
    tokens = {"tokens_in": 100 * asked, "tokens_out": 10 * asked}
    assert told["bill"] == {"asked": asked, "recalled": 0, **tokens, "retried": 0, "cost": 0.0}
    assert again["evaluation"] == told["evaluation"]
    assert again["bill"]["recalled"] == asked


def test_an_endpoint_plays_the_same_games_as_another_engine_with_the_same_replies():
    def newest(prompt: str) -> str:
        return scripted_model(prompt.rsplit("<|user|>", 1)[1].split("<|end|>")[0])

    def games(metas: Any) -> Any:
        return [(m.memories, [(e.moves, e.score, e.recap) for e in m.episodes]) for m in metas]

    with Server() as server:
        remote = play(engine_at(server, concurrency=3))
    agent = scripted_agent(newest, byte_chat())
    local = play_groups(PlaySetup(KuhnPoker(), agent, Notes(keep="both")), TASKS, seed=1)
    assert games(remote) == games(local)
    reply = remote[0].episodes[0].turns[0].completion
    assert len(reply.token_ids) == 10, "as many ids as the server counted"
    assert reply.logprobs == ()


def test_messages_have_roles_and_a_longer_chat_starts_with_the_shorter_one():
    def wrong_at_first(message: str) -> str:
        return f"Let me see. <action>{'bet' if 'not a legal' in message else 'nonsense'}</action>"

    with Server(wrong_at_first) as server:
        (played,) = play(engine_at(server, concurrency=1), TASKS[:1])
    first, second = (body["messages"] for body in server.bodies[:2])
    assert [message["role"] for message in second] == ["system", "user", "assistant", "user"]
    assert second[:2] == first
    assert second[2]["content"] == "<action>nonsense</action>", "the history keeps the action only"
    assert second[3]["content"].startswith("That is not a legal move.")
    before, after = (turn.prompt_ids for turn in played.episodes[0].turns[:2])
    assert after[: len(before)] == before


def test_requests_carry_sampling_and_seed_without_the_omitted_fields():
    bare = {"omit": ("seed", "top_k", "temperature"), "limit_name": "max_completion_tokens"}
    with Server() as server:
        for options in ({"extra": {"effort": "low"}}, bare):
            engine = engine_at(server, **options)
            engine.submit(Request(engine.chat.first("Rules.", "Go."), 7, 2**31 + 5, 0.5, 0.9, 20))
            engine.step()
    messages = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "Go."}]
    ours = {"model": "toy", "messages": messages, "top_p": 0.9}
    sampling = {"temperature": 0.5, "seed": 5, "top_k": 20}
    assert server.bodies == [
        {**ours, **sampling, "max_tokens": 7, "effort": "low"},
        {**ours, "max_completion_tokens": 7},
    ]


# --- Order and number -----------------------------------------------------------------------------


def test_as_many_requests_are_concurrent_as_allowed_and_no_more():
    three = threading.Event()

    def wait_for_three(number: int, body: dict[str, Any]) -> None:
        if number == 2:
            three.set()
        three.wait(600)

    with Server(trouble=wait_for_three) as server:
        play(engine_at(server, concurrency=3))
    assert server.busiest == 3


def test_answers_are_returned_in_the_order_of_the_requests():
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


def test_a_reply_ends_with_its_action_but_not_with_an_action_inside_a_thought():
    kept = "<think>perhaps <action>bet</action> or not</think>No. <action>pass</action>"
    said = completion(f"{kept} And then <action>bet</action>", tokens=(50, 30))
    with always(200, said) as server:
        engine = engine_at(server)
        (reply,) = run([setup_of(engine).agent.reply(engine.chat.first("Rules.", "Go."), 3)])
    assert reply.text == kept
    assert len(server.bodies) == 1, "the rest was received before"
    assert 15 < len(reply.token_ids) < 30, "tokens after the action are not part of the reply"
    assert engine.bill()["tokens_out"] == 30, "but they are counted"


def test_an_endless_thought_and_an_empty_reply_are_recorded_as_data():
    thought = "<think>hm <action>bet</action>"
    for said, text, finish, tokens in ((thought, thought, "eos", 10), (None, "", "length", 40)):
        with always(200, completion(said, "length", (5, tokens))) as server:
            engine = engine_at(server, answers=f"{tokens}.jsonl")
            (reply,) = run([setup_of(engine).agent.reply(engine.chat.first("Rules.", "Go."), 1)])
        assert (reply.text, reply.finish, len(reply.token_ids)) == (text, finish, tokens)


def test_a_prompt_longer_than_the_context_gets_an_empty_reply():
    with always(400, b'{"error": {"code": "context_length_exceeded"}}') as server:
        assert ask(engine_at(server), "a", "a") == ["", ""]


# --- Budget ---------------------------------------------------------------------------------------


@pytest.mark.e2e
def test_concurrent_requests_stay_within_the_budget_and_a_larger_one_continues():
    # A request of 100 + 10 tokens costs .15.
    prices = ["--engines.price_in=1000", "--engines.price_out=5000"]
    with Server(delay=0.01) as server:
        told = refused(server, *prices, "--engines.budget=6", "--engines.concurrency=6", size=8)
        asked = len(server.answered)
        assert asked * 0.15 <= 6
        spent = f"engines.budget = 6 is used up: {asked * 0.15:.4g} is spent and the next request"
        assert spent in told
        done = evaluate(server, *prices, "--engines.budget=100", "--json", size=8)
        bill = json.loads(done.stdout)["bill"]
    assert bill["recalled"] == asked > 10
    # The budget covers the whole evaluation, and no request was sent twice.
    assert bill["cost"] == pytest.approx((bill["asked"] + bill["recalled"]) * 0.15)
    assert Counter(map(str, server.answered)).most_common(1)[0][1] == 1


def test_a_request_waits_while_those_in_flight_may_use_up_the_budget():
    """Two requests of at most .6 with a limit of 1: one after the other. The third has no room."""
    budget, order = Budget(1.0, 1.0, limit=1.0), list[str]()

    async def one(name: str) -> None:
        async with budget.reserve(0.6):
            order.append(name)
            await asyncio.sleep(0.01)
            order.append(name)

    async def both() -> None:
        await asyncio.gather(one("a"), one("b"))

    asyncio.run(both())
    assert order == ["a", "a", "b", "b"]
    budget.pay_lost(0.5)
    with pytest.raises(EndpointError, match=r"engines\.budget = 1 is used up: 0\.5 is spent"):
        asyncio.run(one("c"))


def test_a_budget_needs_a_server_that_reports_token_counts():
    with always(200, completion("hi", tokens=None)) as server:
        assert ask(engine_at(server), "Go.") == ["hi"]
        with pytest.raises(EndpointError, match=r"no token counts, so engines\.budget cannot be"):
            ask(engine_at(server, price_in=1, budget=1), "Go on.")


# --- Resume ------------------------------------------------------------------------------------


def play_at(url: str, folder: Path) -> None:
    os.chdir(folder)
    play(engine_at(SimpleNamespace(url=url), concurrency=2, answers="a.jsonl"))  # type: ignore[arg-type]


@pytest.mark.e2e
def test_a_killed_evaluation_resumes_without_repeated_requests(tmp_path):
    held, free = threading.Event(), threading.Event()

    def hold(number: int, body: dict[str, Any]) -> None:
        if number >= 20 and not free.is_set():
            held.set()
            free.wait(600)

    with Server(trouble=hold) as server:
        child = start(play_at, server.url, tmp_path)
        assert held.wait(600)
        while (tmp_path / "a.jsonl").read_bytes().count(b"\n") < 20:
            time.sleep(0.01)  # the last answer before the held ones is being written
        child.kill()
        wait(child)
        free.set()
        with open(tmp_path / "a.jsonl", "ab") as file:
            file.write(b'{"key": "torn')
        kept, seen = server.answered[:20], len(server.bodies)
        resumed = engine_at(server, answers="a.jsonl")
        played = play(resumed)
        asked_again = [body for body in server.bodies[seen:] if body in kept]
        whole = play(engine_at(server, answers="b.jsonl"))
    assert len(kept) == 20
    assert asked_again == []
    assert resumed.bill()["recalled"] == 20
    assert played == whole, "the same result as without a kill"


def test_another_model_behind_the_same_name_does_not_get_the_old_answers():
    first = {"id": "toy", "root": "one", "created": 1}
    with Server() as server:
        for models, requests in (
            ([first], 1),
            ([first], 1),
            ([first | {"created": 2}], 1),  # a new start of the server
            ([{"id": "other"}, first | {"root": "two"}], 2),
            (None, 2),  # it tells nothing: the newest answer is used
        ):
            server.models = models
            engine = engine_at(server)
            ask(engine, "a")
            assert len(server.bodies) == requests
    assert engine.bill()["recalled"] == 1


def test_answers_are_stored_by_seed_even_if_the_server_takes_no_seed():
    with Server() as server:
        engine = engine_at(server, omit=("seed",))
        for seed in (1, 2, 1):
            ask(engine, "Go.", seed=seed)
    assert len(server.bodies) == 2


# --- Failures -------------------------------------------------------------------------------------


def test_a_busy_server_gets_a_retry_after_the_pause_it_asks_for():
    with at_first(429, b"slow down", Retry_After="1") as server:
        engine = engine_at(server)
        assert ask(engine, "Go.") == [scripted_model("Go.")]
    assert server.times[1] - server.times[0] >= 1
    assert (engine.bill()["retried"], engine.bill()["asked"]) == (1, 1)
    # The loop would report a task of the pause that is left behind at its end.
    assert "wait" not in str(asyncio.all_tasks(engine.client.loop))
    with always(429, Retry_After="3600") as server:
        assert "asks for a pause of 3,600 seconds" in refused(server)


def test_pauses_double_with_every_attempt_and_differ_between_requests():
    client = engine_at(Server(), backoff=0.5).client
    for attempt in range(12):
        pauses = {client._pause(attempt, seed) for seed in range(20)}
        longest = min(60.0, 0.5 * 2**attempt)
        assert longest / 2 <= min(pauses) < max(pauses) <= longest


def test_a_server_that_always_fails_is_one_message_and_earlier_answers_are_stored():
    broken: HttpAnswer = (500, {}, b'{"error": {"message": "out of order"}}')
    with Server(trouble=lambda number, body: broken if number >= 5 else None) as server:
        told = refused(server, "--engines.retries=2", "--engines.concurrency=1")
    assert "the server answered 500: out of order, 3 times in a row (engines.retries = 2)" in told
    assert "the same command continues from there" in told
    assert len(Path("runs/answers.jsonl").read_text().splitlines()) == 5
    assert len(server.bodies) == 5 + 3


def test_a_failure_waits_for_the_paid_requests_in_flight_and_sends_no_further_ones(monkeypatch):
    """The first answer comes when three requests are there, the others after its failure."""
    all_three, failed = threading.Barrier(3), threading.Event()

    def first_fails(number: int, body: dict[str, Any]) -> HttpAnswer | None:
        if number < 3:
            all_three.wait(600)
        if body["messages"][-1]["content"] == "1":
            return (404, {}, b"")
        failed.wait(600)
        return None

    with Server(trouble=first_fails) as server:
        engine = engine_at(server, concurrency=3)
        stop = engine.client.stop

        def stop_and_tell(why: str) -> None:
            stop(why)
            failed.set()

        monkeypatch.setattr(engine.client, "stop", stop_and_tell)
        with pytest.raises(EndpointError, match="answered 404"):
            ask(engine, "1", "2", "3", "4", "5")
        assert len(server.bodies) == 3
    assert len(Path("runs/answers.jsonl").read_text().splitlines()) == 2


def test_a_silent_server_gets_a_retry_and_then_an_error():
    asked_again = threading.Event()

    def silent_at_first(number: int, body: dict[str, Any]) -> None:
        if number == 0:
            asked_again.wait(600)
        else:
            asked_again.set()

    with Server(trouble=silent_at_first) as server:
        assert ask(engine_at(server, timeout=2.0, retries=100), "Go.") == [scripted_model("Go.")]
    assert len(server.bodies) >= 2, "more if the second answer was late too"
    late = r"no answer within 0\.1 seconds \(engines\.timeout\), 2 times"
    with Server(delay=0.5) as server, pytest.raises(EndpointError, match=late):
        ask(engine_at(server, timeout=0.1, retries=1), "Go.")


def test_a_silent_server_is_named_once_while_the_program_waits(monkeypatch, capsys):
    monkeypatch.setattr("mage.engines.endpoint.http._SILENCE", 0.05)
    with Server(delay=0.3) as server:
        engine = engine_at(server)
        assert ask(engine, "Go.") == ask(engine, "Go.") == [scripted_model("Go.")]
        assert capsys.readouterr().err == (
            f"waiting for {server.url}/chat/completions: no answer for 0.05 s "
            "(a request may take 600 s: engines.timeout)\n"
        )


def test_a_truncated_answer_is_requested_again():
    cut = completion("half")
    with at_first(200, cut, Content_Length=str(len(cut) + 9)) as server:
        assert ask(engine_at(server), "Go.") == [scripted_model("Go.")]


@pytest.mark.parametrize(
    ("status", "data", "message"),
    [
        (401, '{"error": {"message": "no key"}}', "answered 401: no key; it needs a key: name the"),
        (404, '{"error": {"message": "no x"}}', "404: no x; check engines.url, and that engines"),
        (400, '{"message": "no top_k"}', "400: no top_k; omit fields that this server refuses"),
        (200, "<html>welcome</html>", "is not a chat completion (all of it: Input should be"),
        (200, '{"choices": [{"text": "old"}]}', "(choices.0.message: Field required): '{"),
        (200, '{"error": {"message": "overloaded"}}', "(choices: Field required): 'overloaded'"),
        (302, "", "it redirects to None"),
    ],
)
def test_a_permanent_failure_is_one_message_without_a_retry(status, data, message):
    with always(status, data.encode()) as server:
        assert message in refused(server, "--engines.concurrency=1")
    assert len(server.bodies) == 1


def test_a_port_without_a_server_is_one_message_without_a_retry():
    server = Server()
    server.http.server_close()
    engine = engine_at(server, backoff=100)
    told = r"cannot be reached: Connection refused\. Check that the server runs"
    with pytest.raises(EndpointError, match=told):
        ask(engine, "Go.")
    assert engine.bill()["retried"] == 0


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("url=", "engines.url is missing: expected is http://HOST:PORT/v1"),
        ("url=ftp://x/v1", "engines.url is not valid"),
        ("url=http://me:word@host/v1", "engines.url is not valid"),
        ("url=http://host/v1?key=word", "engines.url is not valid"),
        ("url=http://host:99999/v1", "Port out of range"),
        ("model=", "engines.model is missing"),
        ("concurrency=0", "engines.concurrency = 0: must be greater than or equal to 1"),
        ("budget=1", "engines.budget = 1 has no effect without engines.price_in or engines.price_"),
        ("omit=['messages']", "only temperature, top_p, top_k, seed can be omitted"),
        ("extra.model=x", "engines.extra.model: this field is set elsewhere in the recipe"),
        ("modle=x", "engines.modle is unknown (did you mean 'model'?)"),
    ],
)
def test_a_wrong_option_is_one_message(word, message):
    with Server() as server:
        told = refused(server, f"--engines.{word}")
    assert message in told
    assert "word" not in told.replace("password", "")
    assert server.bodies == []


# --- Secrets, and what an endpoint cannot do ------------------------------------------------------


def test_the_key_is_sent_to_the_server_and_appears_nowhere_else(monkeypatch, tmp_path):
    monkeypatch.setenv("THE_KEY", f"{KEY}\n")
    key = "--engines.key_env=THE_KEY"
    with Server() as server:
        done = evaluate(server, key, "--json", size=2)
    assert done.exit_code == 0
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    with always(401, json.dumps({"error": {"message": f"wrong key {KEY}"}}).encode()) as server:
        told = refused(server, key)
    assert "answered 401: wrong key (key); the key is wrong" in told
    with always(302, Location="http://127.0.0.1:9/v1") as server:  # the key is not sent there
        assert "it redirects to http://127.0.0.1:9/v1" in refused(server, key)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY not in done.output + told
    assert KEY.encode() not in written


def test_a_key_is_sent_only_on_request_and_never_shown(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("THE_KEY", f"{KEY} and more")
    with Server() as server:
        ask(engine_at(server), "Go.")
        assert "Authorization" not in server.headers[0]
        unset = refused(server, f"--engines.key_env={KEY}")
        blank = refused(server, "--engines.key_env=THE_KEY")
    assert "engines.key_env names is not set" in unset
    assert "does not hold a key" in blank
    assert KEY not in unset + blank


def test_an_endpoint_cannot_be_trained(tmp_path):
    words = ["--engines.name=endpoint", "--engines.url=http://h/v1", "--engines.model=toy"]
    told = "uses a model that runs elsewhere: it cannot be trained and has no checkpoints; use it "
    for verb in ("train", "warmup"):
        done = CliRunner().invoke(app, [verb, "small.toml", *words])
        assert done.exit_code == 2
        assert f"{told}with mage evaluate RECIPE" in done.stderr
    assert not list(tmp_path.glob("runs/small-*")), "no run folder is created"


def test_another_menu_item_does_not_inherit_the_options_of_the_first():
    words = ["--engines.url=http://h/v1", "--engines.name=endpoint", "--run.name=x"]
    assert load_recipe("small.toml", words).engines.options == {"url": "http://h/v1"}
    assert load_recipe("small.toml", ["--engines.name=local"]).engines.options == {"context": 1024}
    assert load_recipe("small.toml", ["--memory.name=notes"]).memory() == Notes(keep="both")
