"""The endpoint engine against a real server on the loopback: a scripted model behind chat completions, with every kind of trouble."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from toys import byte_chat, scripted_agent
from typer.testing import CliRunner

import mage
from mage.agent.agent import Agent, SamplingOptions
from mage.cli.main import app
from mage.config.loading import load_recipe
from mage.engines.base import run
from mage.engines.client import EndpointError
from mage.engines.endpoint import EndpointEngine
from mage.engines.messages import MessageChat
from mage.environments.kuhn_poker import KuhnPoker
from mage.memory.notes import Notes
from mage.play import Setting, play_groups
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
    """Legal moves and notes that depend on the newest message and nothing else, so that another engine can say the same."""
    digest = hashlib.sha256(message.encode()).hexdigest()
    return (
        f"A note, {digest[:6]}."
        if "Write a short note" in message
        else f"<action>{'bet' if digest[0] in '01234567' else 'pass'}</action>"
    )


Trouble = Callable[[int, dict[str, Any]], tuple[int, dict[str, str], bytes] | None]


class Server:
    """Chat completions on the loopback. `trouble(number, body)` may answer a question in another way than the model would."""

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


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own, without a proxy between here and the loopback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("THE_KEY", raising=False)
    (tmp_path / "small.toml").write_text(RECIPE)


def engine_at(server: Server, **options: Any) -> EndpointEngine:
    defaults: dict[str, Any] = {"model": "toy", "backoff": 0.01, "timeout": 5.0}
    return EndpointEngine(MessageChat(), url=server.url, **(defaults | options))


def setting_of(engine: EndpointEngine, episodes: int = 3) -> Setting:
    return Setting(
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


# --- A whole panel ---------------------------------------------------------------------------------------------------


def test_a_panel_with_reflections_is_played_by_an_endpoint_from_the_command_line() -> None:
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
        "what was written is shown later"
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


def test_an_endpoint_plays_exactly_what_another_engine_plays_that_says_the_same() -> None:
    def newest(prompt: str) -> str:
        return scripted_model(prompt.rsplit("<|user|>", 1)[1].split("<|end|>")[0])

    with Server() as server:
        remote = play(engine_at(server, concurrency=3))
    local = play_groups(
        Setting(KuhnPoker(), scripted_agent(newest, byte_chat()), Notes(keep="both")), TASKS, seed=1
    )
    assert [
        (meta.memories, [(e.moves, e.score, e.recap) for e in meta.episodes]) for meta in remote
    ] == [(meta.memories, [(e.moves, e.score, e.recap) for e in meta.episodes]) for meta in local]
    reply = remote[0].episodes[0].turns[0].completion
    assert (len(reply.token_ids), reply.logprobs) == (10, ()), (
        "as many ids as the server counted, and no logprobs"
    )


def test_messages_have_their_roles_and_each_longer_chat_begins_with_the_shorter() -> None:
    with Server(
        lambda message: (
            f"Let me see. <action>{'nonsense' if 'not a legal' not in message else 'bet'}</action>"
        )
    ) as server:
        (played,) = play(engine_at(server, concurrency=1), TASKS[:1])
    first, second = (body["messages"] for body in server.bodies[:2])
    assert [message["role"] for message in second] == ["system", "user", "assistant", "user"]
    assert second[:2] == first
    assert second[2]["content"] == "<action>nonsense</action>", (
        "the history keeps the action and drops what was said around it"
    )
    assert second[3]["content"].startswith("That is not a legal move.")
    before, after = (turn.prompt_ids for turn in played.episodes[0].turns[:2])
    assert after[: len(before)] == before


def test_sampling_and_seeds_go_along_and_what_a_server_does_not_take_is_left_out() -> None:
    with Server() as server:
        full, bare = (engine_at(server, omit=omit, answers=f"{len(omit)}.jsonl", extra=extra, limit_name=limit) for omit, extra, limit in
                      (((), {"effort": "low"}, "max_tokens"), (("seed", "top_k", "temperature"), None, "max_completion_tokens")))  # fmt: skip
        for engine in (full, bare):
            request = Request(engine.chat.first("Rules.", "Go."), 7, 2**31 + 5, 0.5, 0.9, 20)
            engine.submit(request)
            engine.step()
    messages = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "Go."}]
    assert server.bodies[0] == {
        "model": "toy", "messages": messages, "max_tokens": 7, "temperature": 0.5, "seed": 5, "top_p": 0.9, "top_k": 20, "effort": "low",
    }  # fmt: skip
    assert server.bodies[1] == {
        "model": "toy",
        "messages": messages,
        "max_completion_tokens": 7,
        "top_p": 0.9,
    }


# --- Order and number ------------------------------------------------------------------------------------------------


def test_no_more_questions_are_out_than_allowed_and_as_many_as_that() -> None:
    with Server(delay=0.03) as server:
        play(engine_at(server, concurrency=3))
    assert server.busiest == 3


def test_answers_come_in_the_order_of_the_questions_whoever_is_quick() -> None:
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


# --- Thoughts --------------------------------------------------------------------------------------------------------


def test_a_reply_ends_with_its_action_and_an_action_inside_a_thought_does_not_end_it() -> None:
    said = "<think>perhaps <action>bet</action> or not</think>No. <action>pass</action> And then <action>bet</action>"
    with Server(
        trouble=lambda number, body: (200, {}, completion(said, tokens=(50, 30)))
    ) as server:
        engine = engine_at(server)
        (reply,) = run([setting_of(engine).agent.reply(engine.chat.first("Rules.", "Go."), 3)])
    assert (
        reply.text == "<think>perhaps <action>bet</action> or not</think>No. <action>pass</action>"
    )
    assert len(server.bodies) == 1, "the rest was there already"
    assert 15 < len(reply.token_ids) < 30, "the tokens behind the action are not the reply's"
    assert engine.bill()["tokens_out"] == 30, "but they are paid for"


def test_a_thought_without_end_and_a_reply_without_words_are_data() -> None:
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


def test_a_prompt_beyond_the_models_context_gets_an_empty_reply() -> None:
    told = json.dumps(
        {"error": {"code": "context_length_exceeded", "message": "too long"}}
    ).encode()
    with Server(trouble=lambda number, body: (400, {}, told)) as server:
        assert ask(engine_at(server), "a", "a") == ["", ""]


# --- Trouble ---------------------------------------------------------------------------------------------------------


def test_a_busy_server_is_asked_again_when_it_says() -> None:
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


def test_pauses_double_with_every_attempt_and_differ_between_questions() -> None:
    client = engine_at_nowhere().client
    for attempt in range(12):
        pauses = {client._pause(attempt, seed) for seed in range(20)}
        longest = min(60.0, 0.5 * 2**attempt)
        assert longest / 2 <= min(pauses) < max(pauses) <= longest


def engine_at_nowhere() -> EndpointEngine:
    return EndpointEngine(MessageChat(), url="http://127.0.0.1:1/v1", model="toy", backoff=0.5)


def test_a_server_that_always_fails_is_one_message_and_what_was_answered_before_is_kept() -> None:
    with Server(
        trouble=lambda number, body: (
            (500, {}, b'{"error": {"message": "out of order"}}') if number >= 5 else None
        )
    ) as server:
        told = refused(server, "--engines.retries=2", "--engines.concurrency=1")
    assert (
        "the server answered 500: out of order, and so 3 times in a row (engines.retries = 2)"
        in told
    )
    assert "the same command goes on from there" in told
    assert len(Path("runs/answers.jsonl").read_text().splitlines()) == 5
    assert len(server.bodies) == 5 + 3


def test_an_hour_of_waiting_is_told_instead_of_waited() -> None:
    with Server(trouble=lambda number, body: (429, {"Retry-After": "3600"}, b"")) as server:
        assert "asks to come back in 3,600 seconds" in refused(server)


def test_a_silent_server_is_asked_again_and_then_told() -> None:
    with Server(trouble=lambda number, body: time.sleep(2.0 if number == 0 else 0)) as server:  # type: ignore[func-returns-value]
        assert ask(engine_at(server, timeout=1.0), "Go.") == [scripted_model("Go.")]
    assert len(server.bodies) == 2
    with (
        Server(delay=0.5) as server,
        pytest.raises(
            EndpointError,
            match=r"no answer within 0\.1 seconds \(engines\.timeout\), and so 2 times",
        ),
    ):
        ask(engine_at(server, timeout=0.1, retries=1), "Go.")


def test_a_server_that_trickles_is_out_of_time_too() -> None:
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


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
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
            "answered 401: no key; it wants a key: name the environment variable that holds it in engines.key_env",
        ),
        (
            404,
            b'{"error": {"message": "no model toy"}}',
            "answered 404: no model toy; is engines.url right, and does engines.model name",
        ),
        (
            400,
            b'{"message": "top_k is unknown"}',
            "answered 400: top_k is unknown; a field that this server does not take is left out by engines.omit",
        ),
        (
            200,
            b"<html>welcome</html>",
            "the answer is no chat completion but '<html>welcome</html>'",
        ),
        (
            200,
            b'{"choices": [{"text": "old"}]}',
            "the answer has no text at choices[0].message.content",
        ),
        (
            200,
            b'{"error": {"message": "overloaded"}}',
            "the answer is no chat completion but 'overloaded'",
        ),
        (302, b"", "it points to None"),
    ],
)
def test_what_cannot_be_mended_by_trying_is_one_message_at_once(
    status: int, data: bytes, message: str
) -> None:
    with Server(trouble=lambda number, body: (status, {}, data)) as server:
        assert message in refused(server, "--engines.concurrency=1")
    assert len(server.bodies) == 1


def test_an_address_where_nobody_listens_is_told_at_once() -> None:
    server = Server()
    server.http.server_close()
    engine = engine_at(server, backoff=100)
    with pytest.raises(
        EndpointError,
        match=r"cannot be reached: Connection refused\. Is the server up, and engines\.url right\?",
    ):
        ask(engine, "Go.")
    assert engine.bill()["retried"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engines.url="], "engines.url is missing: it must be like http://127.0.0.1:8000/v1"),
        (["--engines.url=ftp://x/v1"], "engines.url is not an address of this kind"),
        (["--engines.url=http://me:word@host/v1"], "engines.url is not an address of this kind"),
        (["--engines.url=http://host:99999/v1"], "Port out of range"),
        (["--engines.model="], "engines.model is missing"),
        (
            ["--engines.concurrency=0"],
            "engines.concurrency = 0: must be greater than or equal to 1",
        ),
        (
            ["--engines.budget=1"],
            "engines.budget = 1: has no effect without engines.price_in or engines.price_out",
        ),
        (
            ["--engines.omit=['messages']"],
            "what can be left out is temperature, top_p, top_k, seed",
        ),
        (
            ["--engines.extra.model=other"],
            "engines.extra.model: the recipe decides about this field elsewhere",
        ),
        (["--engines.modle=x"], "engines.modle is unknown (did you mean 'model'?)"),
    ],
)
def test_a_mistake_in_the_options_is_one_message(words: list[str], message: str) -> None:
    with Server() as server:
        told = refused(server, *words)
    assert message in told
    assert "me:word" not in told
    assert server.bodies == []


# --- Money -----------------------------------------------------------------------------------------------------------


def test_the_budget_is_never_passed_even_by_answers_on_their_way_and_a_larger_one_goes_on() -> None:
    prices = [
        "--engines.price_in=1000",
        "--engines.price_out=5000",
    ]  # a question of 100 + 10 tokens costs .15
    with Server(delay=0.01) as server:
        told = refused(server, *prices, "--engines.budget=6", "--engines.concurrency=6", size=16)
        asked = len(server.answered)
        assert asked * 0.15 <= 6
        assert (
            f"engines.budget = 6 is used up: {asked * 0.15:.4g} is spent and one more question may cost"
            in told
        )
        done = evaluate(server, *prices, "--engines.budget=100", "--json", size=16)
        bill = json.loads(done.stdout)["bill"]
    assert bill["recalled"] == asked > 10
    assert bill["cost"] == pytest.approx((bill["asked"] + bill["recalled"]) * 0.15), (
        "the budget is that of the whole evaluation"
    )
    assert Counter(map(str, server.answered)).most_common(1)[0][1] == 1, (
        "nothing was asked for twice"
    )


def test_a_budget_needs_a_server_that_counts() -> None:
    with Server(trouble=lambda number, body: (200, {}, completion("hi", tokens=None))) as server:
        assert ask(engine_at(server), "Go.") == ["hi"]
        with pytest.raises(
            EndpointError,
            match=r"does not say how many tokens it counted, so engines\.budget cannot be kept",
        ):
            ask(engine_at(server, price_in=1, budget=1), "Go on.")


# --- Going on --------------------------------------------------------------------------------------------------------


def test_a_finished_evaluation_is_repeated_without_a_question() -> None:
    with Server() as server:
        first, asked = evaluate(server, "--json"), len(server.bodies)
        again = evaluate(server, "--json")
        assert len(server.bodies) == asked
        assert json.loads(again.stdout)["evaluation"] == json.loads(first.stdout)["evaluation"]
        assert json.loads(again.stdout)["bill"]["recalled"] == asked
        evaluate(server, "--evaluate.temperature=0.2")
    assert len(server.bodies) > asked, "another temperature is another question"


def test_a_killed_evaluation_goes_on_without_asking_again(tmp_path: Path) -> None:
    program = f"""
from mage.engines.endpoint import EndpointEngine
import test_endpoint as t
class At: url = {{url!r}}
t.play(t.engine_at(At, concurrency=2, answers={str(tmp_path / "a.jsonl")!r}))
"""
    child: list[subprocess.Popen[bytes]] = []
    held, free = threading.Event(), threading.Event()

    def hold(number: int, body: dict[str, Any]) -> None:
        if number >= 20 and not free.is_set():
            held.set()
            free.wait(30)

    paths = os.pathsep.join([str(Path(mage.__file__).parent.parent), str(Path(__file__).parent)])
    with Server(trouble=hold) as server:
        child.append(
            subprocess.Popen(
                [sys.executable, "-c", program.format(url=server.url)],
                env=os.environ | {"PYTHONPATH": paths},
            )
        )
        assert held.wait(60)
        time.sleep(0.2)  # the answer before the held ones is being written
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
    assert played == whole, "as if it had not been killed"


def test_answers_are_kept_apart_by_seed_even_if_the_server_takes_none() -> None:
    with Server() as server:
        engine = engine_at(server, omit=("seed",))
        ask(engine, "Go.", seed=1)
        ask(engine, "Go.", seed=2)
        ask(engine, "Go.", seed=1)
    assert len(server.bodies) == 2


# --- Secrets, and what an endpoint cannot do -------------------------------------------------------------------------


def test_the_key_goes_to_the_server_and_nowhere_else(
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
    assert "answered 401: wrong key (key); the key is not right" in told
    with Server(
        trouble=lambda number, body: (302, {"Location": "http://127.0.0.1:9/v1"}, b"")
    ) as server:
        assert "it points to http://127.0.0.1:9/v1" in refused(
            server, "--engines.key_env=THE_KEY"
        ), "nobody follows with the key"
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY not in done.output + told
    assert KEY.encode() not in written


def test_a_key_is_never_sent_unasked_and_never_repeated_when_given_in_place_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("THE_KEY", f"{KEY} and more")
    with Server() as server:
        ask(engine_at(server), "Go.")
        assert "Authorization" not in server.headers[0]
        for name, message in (
            (KEY, "engines.key_env names no environment variable that is set"),
            ("THE_KEY", "holds something that no key can be"),
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
                "its model is elsewhere and cannot be trained or take a checkpoint; use it with mage evaluate RECIPE"
                in done.stderr
            )
    assert server.bodies == []
    assert not list(tmp_path.glob("runs/small-*")), "no folder is left of a run that cannot be"


def test_another_item_of_a_menu_takes_none_of_the_options_of_the_one_before_it() -> None:
    changed = load_recipe(
        "small.toml", ["--engines.url=http://h/v1", "--engines.name=endpoint", "--run.name=x"]
    )
    assert changed.engines.options == {"url": "http://h/v1"}
    assert load_recipe("small.toml", ["--engines.name=local"]).engines.options == {"context": 1024}
    assert load_recipe("small.toml", ["--memory.name=notes"]).memory() == Notes(keep="both")
