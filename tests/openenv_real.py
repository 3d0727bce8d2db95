"""A game on a server of the real package openenv: `python openenv_real.py SESSIONS`.

It prints its port. It needs openenv 0.10, fastapi, uvicorn, websockets and fastmcp, which are too
many packages for the development environment. OPENENV_PYTHON may name another interpreter:

    python -m venv served && served/bin/pip install fastapi uvicorn websockets 'fastmcp>=3,<4'
    served/bin/pip install --no-deps openenv
    OPENENV_PYTHON=served/bin/python pytest tests/test_openenv.py
"""

import random
import socket
import sys
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    message: str


class Told(Observation):
    text: str
    legal: tuple[str, ...] = ("1", "2", "3", "4", "5")


class Guessing(Environment):
    """Guess a number from 1 to 5 with three guesses."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, **more: Any) -> Told:
        self.secret, self.guesses = random.Random(seed).randint(1, 5), 0
        return Told(text=f"Game {(seed or 0) % 1000}: guess a number.", reward=0.0, done=False)

    def step(self, action: Guess, **more: Any) -> Told:
        self.guesses += 1
        right = action.message == str(self.secret)
        text = f"{action.message} is {'right' if right else 'wrong'}."
        return Told(text=text, reward=float(right), done=right or self.guesses == 3)

    @property
    def state(self) -> State:
        return State(step_count=self.guesses)


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0))
    app = create_fastapi_app(Guessing, Guess, Told, max_concurrent_envs=int(sys.argv[1]))
    print(listening.getsockname()[1], flush=True)  # noqa: T201
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
