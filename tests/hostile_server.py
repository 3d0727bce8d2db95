"""A server on the loopback that behaves badly in about 70 ways, one for each path.

A behaviour sends bytes, may repeat some without end, and then closes, resets or says nothing.
`gives` is the text of an answer that can still be used.
"""

import json
import socket
import socketserver
import struct
import threading
from dataclasses import dataclass
from typing import Any, Literal

KEY = "sk-hostile-secret-7"
TEXT = "<action>bet</action>"


@dataclass(frozen=True)
class Behaviour:
    """`slow`: only a time limit ends it. `unread`: it does not wait for the request's body."""

    first: bytes = b""
    repeat: bytes = b""
    pause: float = 0.0
    end: Literal["close", "reset", "wait"] = "close"
    unread: bool = False
    slow: bool = False
    gives: str | None = None


class HostileServer(socketserver.ThreadingTCPServer):
    """`with HostileServer() as server:`; the behaviour is the first part of the path."""

    allow_reuse_address = daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.stopped = threading.Event()
        self.received: list[bytes] = []

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}/v1"

    def __enter__(self) -> "HostileServer":
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
    server: HostileServer

    def handle(self) -> None:
        sock, head = self.request, b""
        while b"\r\n\r\n" not in head:
            head += (part := sock.recv(65536))
            if not part:  # the client gave up before it sent anything
                return
        self.server.received.append(head)
        behaviour = BEHAVIOURS[head.split(b" ")[1].split(b"/")[1].decode()]
        head, _, body = head.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        while len(body) < length and not behaviour.unread:
            body += sock.recv(65536)
        sock.sendall(behaviour.first)
        while behaviour.repeat and not self.server.stopped.wait(behaviour.pause):
            sock.sendall(behaviour.repeat)
        if behaviour.end == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        while behaviour.end == "wait" and not self.server.stopped.is_set() and sock.recv(1):
            pass


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def chat(content: Any = TEXT, usage: Any = None) -> bytes:
    """A chat completion; `usage` defaults to plausible counts."""
    counts = {"prompt_tokens": 50, "completion_tokens": 5} if usage is None else usage
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "usage": counts}).encode()


def drip(first: bytes, repeat: bytes) -> Behaviour:
    return Behaviour(first, repeat, pause=0.02, slow=True)


OPEN = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OPEN + b"Transfer-Encoding: chunked\r\n\r\n"
ESCAPES = "\x1b[31m\x1b]0;title\x07\x9b2J\x00\u202e"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LATE = "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"
NESTED = b'{"prompt_tokens": ' + b"[" * 900 + b"]" * 900 + b', "completion_tokens": 1}'

CONNECTIONS = {
    "reset_unread": Behaviour(unread=True, end="reset"),
    "close_after_request": Behaviour(),
    "reset_after_request": Behaviour(end="reset"),
    "silence": Behaviour(end="wait", slow=True),
    "silence_after_headers": Behaviour(OPEN + b"Content-Length: 10\r\n\r\n", end="wait", slow=True),
    "open_end_without_close": Behaviour(OPEN + b"\r\n" + chat(), end="wait", slow=True),
    "status_line_drips": drip(b"HTTP/1.1 200 ", b"O"),
    "headers_drip": drip(OPEN, b"X"),
    "continue_without_end": drip(b"", CONTINUE),
    "body_drips": drip(OPEN + b"Content-Length: 100000\r\n\r\n", b" "),
    "chunks_drip": drip(CHUNKED, b"1\r\n \r\n"),
    "error_body_drips": drip(b"HTTP/1.1 503 Busy\r\nContent-Length: 100000\r\n\r\n", b" "),
    "trailers_drip": drip(CHUNKED + b"0\r\n", b"A: b\r\n"),
    "continue_flood": Behaviour(b"", CONTINUE * 4000, slow=True),
    "body_without_end": Behaviour(OPEN + b"\r\n", b" " * 65536),
    "chunks_without_end": Behaviour(CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n"),
    "trailers_without_end": Behaviour(CHUNKED + b"0\r\n", b"A: b\r\n" * 4000),
    "header_line_without_end": Behaviour(OPEN + b"X: ", b"x" * 65536),
    "error_body_without_end": Behaviour(b"HTTP/1.1 400 Bad\r\n\r\n", b"x" * 65536),
}
REFUSED = {
    "answer_of_17_megabytes": answer(chat("x" * (17 << 20))),
    "huge_headers": OPEN + b"".join(b"H%d: " % n + b"x" * 60000 + b"\r\n" for n in range(99)),
    # Broken HTTP
    "garbage": bytes(range(256)) * 20,
    "tls_bytes": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "switching_protocols": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
    "no_content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "body_too_short": OPEN + b"Content-Length: 9999\r\n\r\n" + chat(),
    "negative_length": OPEN + b"Content-Length: -5\r\n\r\n" + chat(),
    "huge_chunk_size": CHUNKED + b"f" * 4000 + b"\r\n" + chat(),
    "chunks_end_early": CHUNKED + b"5\r\n{}",
    "body_is_compressed": answer(b"\x1f\x8b\x08" + bytes(200), "200 OK", "Content-Encoding: gzip"),
    # Redirects and refusals
    "redirect_to_a_file": answer(b"", "302 Found", "Location: file:///etc/passwd"),
    "redirect_to_a_broken_address": answer(b"", "302 Found", "Location: http://[::1"),
    "redirect_with_escapes": answer(b"", "307 Go", "Location: http://h/\x1b[31m"),
    "refusal_repeats_the_key": answer(f"bad key {KEY}".encode(), "401 No"),
    "refusal_as_json_repeats_the_key": answer(json.dumps({"error": KEY}).encode(), "403 No"),
    "refusal_with_escapes": answer(json.dumps({"error": {"message": ESCAPES}}).encode(), "400 No"),
    "refusal_of_many_lines": answer(b"a\r\nb\nc\x1b[2J\n" * 500, "404 No"),
    "refusal_with_a_nested_message": answer(b'{"error": {"message": ' + b"[" * 900, "400 No"),
    "pause_of_nan": answer(b"", "429 Slow", "Retry-After: nan"),
    "pause_without_end": answer(b"", "429 Slow", "Retry-After: inf"),
    "pause_until_the_year_9999": answer(b"", "429 Slow", LATE),
    "pause_is_a_word": answer(b"", "429 Slow", "Retry-After: soon\x1b[31m"),
    # Answers that are not chat completions
    "empty_body": answer(b""),
    "not_json": answer(b"<html>welcome</html>"),
    "json_number_of_many_digits": answer(b"9" * 100_000),
    "nested_deeply": answer(b"[" * 1_000_000),
    "nested_in_choices": answer(b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "choices_empty": answer(b'{"choices": []}'),
    "content_is_a_list": answer(chat([{"type": "text", "text": "hi"}])),
    "content_is_an_object": answer(chat({"a": KEY})),
    "invalid_utf_8": answer(b'{"choices": [{"message": {"content": "\xff\xfe\xfa"}}]}'),
    "tokens_nested": answer(chat(usage=0).replace(b'"usage": 0', b'"usage": ' + NESTED)),
    "usage_is_a_list": answer(chat(usage=[1, 2])),
    "usage_missing": answer(b'{"choices": [{"message": {"content": "hi"}}]}'),
}
COUNTS = {
    "two_billion_tokens": (50, 2_000_000_000),
    "negative_tokens": (-1000, 5),
    "no_prompt_tokens": (0, 5),
    "no_reply_tokens": (50, 0),
    "tokens_are_floats": (50.0, 5.5),
    "tokens_are_booleans": (True, True),
    "tokens_of_many_digits": (10**4000, 5),
}
HARMLESS = {
    "two_answers_at_once": (answer(chat()) + answer(chat("second")), TEXT),
    "utf_16": (answer(chat().decode().encode("utf-16")), TEXT),
    "byte_order_mark": (answer(b"\xef\xbb\xbf" + chat()), TEXT),
    "content_with_escapes": (answer(chat(f"{ESCAPES}{TEXT}")), f"[31m]0;title2J{TEXT}"),
    "content_with_half_characters": (answer(chat(f"\ud83d{TEXT}")), f"\ufffd{TEXT}"),
    "content_repeats_the_key": (answer(chat(f"{KEY} {TEXT}")), f"(key) {TEXT}"),
    "finish_reason_is_a_list": (answer(chat().replace(b'"stop"', b'["stop"]')), TEXT),
    "keys_come_twice": (answer(b'{"choices": 1, ' + chat()[1:]), TEXT),
}
BEHAVIOURS = {
    **CONNECTIONS,
    **{name: Behaviour(data) for name, data in REFUSED.items()},
    **{
        name: Behaviour(answer(chat(usage={"prompt_tokens": read, "completion_tokens": written})))
        for name, (read, written) in COUNTS.items()
    },
    **{name: Behaviour(data, gives=text) for name, (data, text) in HARMLESS.items()},
}
