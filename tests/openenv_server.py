"""An OpenEnv server on the loopback: a number to guess, and servers that behave badly.

The first part of the path chooses the behaviour: `http://127.0.0.1:PORT/good`.
"""

import base64
import hashlib
import json
import random
import socketserver
import struct
import threading
from typing import Any

ACCEPT = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
MEGABYTE = b"x" * 1_000_000


class OpenEnvServer(socketserver.ThreadingTCPServer):
    """`with OpenEnvServer() as server:`; `seeds` are those of all resets so far."""

    allow_reuse_address = daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.stopped = threading.Event()
        self.seeds: list[int] = []

    def url(self, behaviour: str = "good") -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{behaviour}"

    def __enter__(self) -> "OpenEnvServer":
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,))
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.shutdown()
        self.server_close()
        self.thread.join()

    def handle_error(self, *_: Any) -> None:
        """The client closed the connection: nothing to report."""


class _Handler(socketserver.BaseRequestHandler):
    server: OpenEnvServer

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (more := self.request.recv(65536)):
                return  # the client closed the connection
            head += more
        behaviour = head.split(b" ")[1].split(b"/")[1].decode()
        if behaviour == "no_websocket":
            self.request.sendall(b"HTTP/1.1 404 Not Found\r\n\r\n")
            return
        key = head.split(b"Sec-WebSocket-Key: ")[1].split(b"\r\n")[0].decode()
        proof = base64.b64encode(hashlib.sha1((key + ACCEPT).encode()).digest()).decode()
        upgrade = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade"
        self.request.sendall(f"{upgrade}\r\nSec-WebSocket-Accept: {proof}\r\n\r\n".encode())
        session = Session()
        while (message := self._receive()) is not None:
            answer = session.answer(message, behaviour)
            if message["type"] == "reset":
                self.server.seeds.append(message["data"]["seed"])
            self._misbehave(behaviour, message["type"]) or self._send(answer)

    def _misbehave(self, behaviour: str, kind: str) -> bool:
        """Do what a bad server does instead of an answer; False if it answers."""
        if behaviour == "hangs" or (behaviour == "hangs_later" and kind == "step"):
            self.server.stopped.wait(60)
        elif behaviour == "drips":
            self.request.sendall(b"\x81\x7f" + struct.pack("!Q", 900_000))
            while not self.server.stopped.wait(0.05):
                self.request.sendall(b" ")
        elif behaviour == "floods":
            self.request.sendall(b"\x81\x7f" + struct.pack("!Q", 100 * len(MEGABYTE)))
            for _ in range(100):
                self.request.sendall(MEGABYTE)
        elif behaviour == "floods_in_parts":
            for number in range(100):
                first = b"\x01" if number == 0 else b"\x00"
                self.request.sendall(first + b"\x7f" + struct.pack("!Q", 1_000_000) + MEGABYTE)
        elif behaviour == "closes":
            self.request.sendall(b"\x88\x02\x03\xe8")
        elif behaviour == "breaks_off":
            self.request.sendall(b"\x81\x05{")
            self.request.close()
        else:
            return False
        return True

    def _send(self, answer: Any) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.request.sendall(b"\x89\x02hi")  # a ping before every answer
        middle = len(data) // 2  # in two fragments
        for first, part in ((b"\x01", data[:middle]), (b"\x80", data[middle:])):
            self.request.sendall(first + b"\x7e" + struct.pack("!H", len(part)) + part)

    def _receive(self) -> Any:
        """The next text message of the client; None at its end."""
        while True:
            first, second = self._take(2)
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack("!H", self._take(2))
            assert second & 0x80, "a client masks its frames"
            mask, data = self._take(4), bytearray()
            data += self._take(size)
            plain = bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))
            if first & 0x0F == 8:
                return None
            if first & 0x0F == 1:
                return json.loads(plain)

    def _take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.request.recv(count - len(data))
            if not more:
                raise ConnectionError
            data += more
        return data


class Session:
    """Guess a number from 1 to 5 with three guesses."""

    def answer(self, message: dict[str, Any], behaviour: str) -> Any:
        data = message.get("data", {})
        if message["type"] == "reset":
            self.guesses = 0
            self.secret = random.Random(data["seed"]).randint(1, 5)
            shown = random.random() if behaviour == "drops_the_seed" else data["seed"] % 1000
            return _told(behaviour, f"Game {shown}: guess a number from 1 to 5.", 0.0, False)
        if "message" not in data:
            return {"type": "error", "data": {"message": "the action has no field message"}}
        self.guesses += 1
        right = data["message"] == str(self.secret)
        far = "right" if right else "wrong"
        done = right or self.guesses == 3
        behaviour = "new_schema" if behaviour == "new_schema_later" else behaviour
        return _told(behaviour, f"{data['message']} is {far}.", float(right), done)


def _told(behaviour: str, text: str, reward: Any, done: bool) -> Any:
    if behaviour == "no_json":
        return b"<html>an error page of a proxy with a few words</html>"
    if behaviour == "new_schema":
        return {"data": {"obs": text, "r": reward, "terminated": done}}
    if behaviour == "reward_is_text":
        reward = "a lot"
    observation = {"text": text, "legal": ["1", "2", "3", "4", "5"]}
    return {
        "type": "observation",
        "data": {"observation": observation, "reward": reward, "done": done},
    }
