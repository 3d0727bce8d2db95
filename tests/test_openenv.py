"""The client of OpenEnv servers: a game on the loopback, limits, hostile servers, training."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mage.config.errors import UserError
from mage.environments._websocket import WebSocket
from mage.environments.base import check
from mage.environments.openenv import OpenEnv
from tests.adapter_runs import check_training, tiny_recipe
from tests.openenv_server import OpenEnvServer


@pytest.fixture(scope="module")
def server():
    with OpenEnvServer() as running:
        yield running


def world_of(server: OpenEnvServer, behaviour: str = "good", **options: object) -> OpenEnv:
    fields = {"text_field": "text", "moves": "1,2,3", "seconds": 600, **options}
    return OpenEnv.model_validate({"url": server.url(behaviour), **fields})


def test_a_server_needs_its_address_and_the_names_of_its_fields(server):
    world = world_of(server, legal_field="legal")
    world.check_data()
    assert check(world, games=4) == []
    state = world.start(7)
    assert state.observe(0).endswith("guess a number from 1 to 5.\nMoves: 1, 2, 3, 4, 5.")
    for guess in "12345":
        if state.turn() is not None:
            state.apply(guess)
    assert state.moves == ["1", "2", "3"][: len(state.moves)]
    assert "You" in state.recap(0)
    assert state.anchor(0).startswith("Game 7: guess a number from 1 to 5. / 1 / 1 is ")


def test_free_text_and_the_seed_of_the_same_task(server):
    world = world_of(server)
    server.seeds.clear()
    for episode in (0, 1):
        world.start(world.episode_seed(3, episode))
    assert server.seeds[0] == server.seeds[1] < 2**31
    state = world.start(1)
    assert (state.read("a long sentence"), state.read("")) == ("a long sentence", None)
    state.apply("a long sentence " * 20)  # a frame with a longer length field
    assert "is wrong." in state.observe(0)


MESSAGES = {
    "hangs": "failed in reset: it gave no answer within 0.5 seconds",
    "drips": "failed in reset: it gave no answer within 0.5 seconds",
    "hangs_later": "failed in step: it gave no answer within 0.5 seconds",
    "floods": "failed in reset: its message has more than 1,000,000 bytes",
    "floods_in_parts": "failed in reset: its message has more than 1,000,000 bytes",
    "closes": "failed in reset: it closed the connection",
    "breaks_off": "failed in reset: it closed the connection",
    "no_websocket": "cannot be used: it does not speak WebSocket: .*404",
    "no_json": "answered reset with '<html>an error page",
    "new_schema": "answered reset with '.*obs.*', not with data that holds an observation",
    "new_schema_later": "answered step with '.*obs.*', not with data that holds an observation",
    "reward_is_text": "gave the reward 'a lot', which is no number",
    "drops_the_seed": "ignores the seed: two resets with seed 11 show",
}


def check_and_step(world: OpenEnv) -> None:
    world.check_data()
    world.start(0).apply("1")


SILENT = {"hangs": "reset", "drips": "reset", "hangs_later": "step"}  # the call without an answer


@pytest.mark.parametrize("behaviour", MESSAGES)
def test_bad_servers_give_one_message_that_names_them(server, behaviour, monkeypatch):
    """Only the call that gets no answer has a short limit: a busy machine answers others late."""
    real = OpenEnv.ask

    def ask(self: OpenEnv, connection: WebSocket, kind: str, data: dict[str, Any]) -> Any:
        if kind == SILENT.get(behaviour):
            connection.seconds = 0.5
        return real(self, connection, kind, data)

    monkeypatch.setattr(OpenEnv, "ask", ask)
    with pytest.raises(UserError, match=MESSAGES[behaviour]) as caught:
        check_and_step(world_of(server, behaviour))
    assert server.url(behaviour) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_fields_and_addresses(server):
    with pytest.raises(UserError, match=r"refused step: .*the action has no field message"):
        check_and_step(world_of(server, action_field="text"))
    with pytest.raises(UserError, match="has no field 'words' in its observation, only text, leg"):
        check_and_step(world_of(server, text_field="words"))
    with pytest.raises(ValueError, match="is not an address"):
        OpenEnv(url="localhost")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = OpenEnv(url=f"http://127.0.0.1:{free.getsockname()[1]}", seconds=5)
        with pytest.raises(UserError, match=r"cannot be used: .*refused"):
            closed.check_data()


@contextmanager
def real_server(sessions: int) -> Iterator[str]:
    """The address of a server of the real package; skips where it is not installed."""
    python, program = os.environ.get("OPENENV_PYTHON", sys.executable), "openenv_real.py"
    probe = [python, "-c", "import openenv.core.env_server.http_server"]
    if subprocess.run(probe, capture_output=True).returncode:
        pytest.skip(f"openenv is not installed for {python} (tests/{program} says how)")
    command = [python, str(Path(__file__).with_name(program)), str(sessions)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(served.stdout.readline())}"
        finally:
            served.terminate()


@pytest.mark.e2e
def test_a_server_of_the_real_package(tmp_path):
    fields = {"text_field": "text", "legal_field": "legal", "seconds": 60}
    with real_server(sessions=16) as url:
        world = OpenEnv.model_validate({"url": url, **fields})
        world.check_data()
        assert check(world, games=4) == []
        check_training(tiny_recipe({"name": "openenv", "url": url, **fields}), tmp_path)
    with real_server(sessions=1) as url:
        world = OpenEnv.model_validate({"url": url, **fields})
        held = world.start(1)
        with pytest.raises(UserError, match=r"at capacity.*raise max_concurrent_envs"):
            world.start(1)
        held.connection.close()


@pytest.mark.e2e
def test_training_resumes_after_a_kill_with_equal_figures(server, tmp_path):
    options = {"url": server.url(), "text_field": "text", "legal_field": "legal", "seconds": 60}
    check_training(tiny_recipe({"name": "openenv", "max_turns": 2, **options}), tmp_path)
