"""A server on the loopback that behaves badly in more than 60 ways, one for each path.

A behaviour is a function of the connection. It ends when the client closes the connection or when
the server stops. `HARMLESS` behaviours still give a usable answer, with the text listed there.
"""

import json
import socket
import socketserver
import struct
import threading
from collections.abc import Callable
from typing import Any

KEY = "sk-hostile-secret-7"
TEXT = "<action>bet</action>"
Behaviour = Callable[["Connection"], None]
BEHAVIOURS: dict[str, Behaviour] = {}
SLOW: set[str] = set()  # behaviours that only a time limit can end
HARMLESS: dict[str, str] = {}


class Connection:
    """One accepted connection."""

    def __init__(self, sock: socket.socket, stopped: threading.Event) -> None:
        self.sock, self.stopped = sock, stopped

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.sock.sendall(part)

    def forever(self, part: bytes, pause: float = 0.0) -> None:
        """The same bytes without end; a pause makes it a slow drip."""
        while not self.stopped.wait(pause):
            self.send(part)

    def wait(self) -> None:
        """Silence until the client gives up."""
        while not self.stopped.is_set():
            if not self.sock.recv(1):
                return

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


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
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.request.recv(65536)
        self.server.received.append(head)
        name = head.split(b" ")[1].split(b"/")[1].decode()
        head, _, body = head.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        connection = Connection(self.request, self.server.stopped)
        if name not in ("close_unread", "reset_unread"):
            while len(body) < length:
                body += self.request.recv(65536)
        BEHAVIOURS[name](connection)


# --- Building blocks ------------------------------------------------------------------------------


def behaviour(function: Behaviour) -> Behaviour:
    BEHAVIOURS[function.__name__] = function
    return function


def slow(function: Behaviour) -> Behaviour:
    SLOW.add(function.__name__)
    return behaviour(function)


def send(name: str, *parts: bytes, gives: str | None = None) -> None:
    """A behaviour that sends fixed bytes and closes; `gives` is the text of a usable answer."""
    BEHAVIOURS[name] = lambda connection: connection.send(*parts)
    if gives is not None:
        HARMLESS[name] = gives


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def chat(content: Any = TEXT, usage: Any = None, **more: Any) -> bytes:
    """A chat completion; `usage` defaults to plausible counts."""
    counts = {"prompt_tokens": 50, "completion_tokens": 5} if usage is None else usage
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "usage": counts} | more).encode()


def counted(name: str, read: Any, written: Any) -> None:
    usage = {"prompt_tokens": read, "completion_tokens": written}
    send(name, answer(chat(usage=usage)))


OPEN = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OPEN + b"Transfer-Encoding: chunked\r\n\r\n"
ESCAPES = "\x1b[31m\x1b]0;title\x07\x9b2J\x00\u202e"

# --- Connections ----------------------------------------------------------------------------------


@behaviour
def close_unread(connection: Connection) -> None:
    connection.sock.close()


@behaviour
def reset_unread(connection: Connection) -> None:
    connection.reset()


@behaviour
def close_after_request(connection: Connection) -> None:
    connection.sock.shutdown(socket.SHUT_RDWR)


@behaviour
def reset_after_request(connection: Connection) -> None:
    connection.reset()


@behaviour
def reset_inside_the_body(connection: Connection) -> None:
    connection.send(OPEN + b"Content-Length: 5000\r\n\r\n{")
    connection.reset()


@slow
def silence(connection: Connection) -> None:
    connection.wait()


@slow
def silence_after_headers(connection: Connection) -> None:
    connection.send(OPEN + b"Content-Length: 10\r\n\r\n")
    connection.wait()


@slow
def open_end_without_close(connection: Connection) -> None:
    connection.send(OPEN + b"\r\n" + chat())
    connection.wait()


# --- Slow and endless answers ---------------------------------------------------------------------


@slow
def status_line_drips(connection: Connection) -> None:
    connection.send(b"HTTP/1.1 200 ")
    connection.forever(b"O", 0.02)


@slow
def headers_drip(connection: Connection) -> None:
    connection.send(OPEN)
    connection.forever(b"X", 0.02)


@slow
def continue_without_end(connection: Connection) -> None:
    connection.forever(b"HTTP/1.1 100 Continue\r\n\r\n", 0.005)


@slow
def continue_with_headers_without_end(connection: Connection) -> None:
    connection.forever(b"HTTP/1.1 100 Continue\r\nA: b\r\n\r\n", 0.005)


@slow
def body_drips(connection: Connection) -> None:
    connection.send(OPEN + b"Content-Length: 100000\r\n\r\n")
    connection.forever(b" ", 0.02)


@slow
def chunks_drip(connection: Connection) -> None:
    connection.send(CHUNKED)
    connection.forever(b"1\r\n \r\n", 0.02)


@slow
def error_body_drips(connection: Connection) -> None:
    connection.send(b"HTTP/1.1 503 Busy\r\nContent-Length: 100000\r\n\r\n")
    connection.forever(b" ", 0.02)


@slow
def trailers_drip(connection: Connection) -> None:
    connection.send(CHUNKED + b"0\r\n")
    connection.forever(b"A: b\r\n", 0.02)


@behaviour
def continue_flood(connection: Connection) -> None:
    connection.forever(b"HTTP/1.1 100 Continue\r\n\r\n" * 4000)


@behaviour
def body_without_end(connection: Connection) -> None:
    connection.send(OPEN + b"\r\n")
    connection.forever(b" " * 65536)


@behaviour
def chunks_without_end(connection: Connection) -> None:
    connection.send(CHUNKED)
    connection.forever(b"10000\r\n" + b" " * 65536 + b"\r\n")


@behaviour
def trailers_without_end(connection: Connection) -> None:
    connection.send(CHUNKED + b"0\r\n")
    connection.forever(b"A: b\r\n" * 4000)


@behaviour
def header_line_without_end(connection: Connection) -> None:
    connection.send(OPEN + b"X: ")
    connection.forever(b"x" * 65536)


@behaviour
def headers_without_end(connection: Connection) -> None:
    connection.send(OPEN)
    connection.forever(b"X: y\r\n" * 100)


@behaviour
def error_body_without_end(connection: Connection) -> None:
    connection.send(b"HTTP/1.1 400 Bad\r\n\r\n")
    connection.forever(b"x" * 65536)


send("answer_of_17_megabytes", answer(chat("x" * (17 << 20))))
send("huge_headers", OPEN + b"".join(b"H%d: " % n + b"x" * 60000 + b"\r\n" for n in range(99)))

# --- Broken HTTP ----------------------------------------------------------------------------------

send("garbage", bytes(range(256)) * 20)
send("tls_bytes", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500))
send("empty_status_line", b"\r\n\r\n")
send("unknown_protocol", b"HTTP/9.9 200 OK\r\n\r\n")
send("status_of_five_digits", b"HTTP/1.1 20000 OK\r\n\r\n")
send("status_is_a_word", b"HTTP/1.1 fine OK\r\n\r\n")
send("switching_protocols", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n")
send("no_content", b"HTTP/1.1 204 No Content\r\n\r\n")
send("body_too_short", OPEN + b"Content-Length: 9999\r\n\r\n" + chat())
send("length_of_an_exabyte", OPEN + b"Content-Length: 1000000000000000000\r\n\r\n" + chat())
send("negative_length", OPEN + b"Content-Length: -5\r\n\r\n" + chat(), gives=TEXT)
send("length_is_a_word", OPEN + b"Content-Length: many\r\n\r\n" + chat(), gives=TEXT)
send("chunk_size_is_a_word", CHUNKED + b"zz\r\n{}\r\n")
send("negative_chunk_size", CHUNKED + b"-5\r\n" + chat() + b"\r\n0\r\n\r\n")
send("huge_chunk_size", CHUNKED + b"f" * 4000 + b"\r\n" + chat())
send("chunks_end_early", CHUNKED + b"5\r\n{}")
send("two_answers_at_once", answer(chat()) + answer(chat("second")), gives=TEXT)
send("body_is_compressed", answer(b"\x1f\x8b\x08" + bytes(200), "200 OK", "Content-Encoding: gzip"))

# --- Redirects and refusals -----------------------------------------------------------------------

send("redirect_to_a_file", answer(b"", "302 Found", "Location: file:///etc/passwd"))
send("redirect_to_nowhere", answer(b"", "302 Found"))
send("redirect_to_a_broken_address", answer(b"", "302 Found", "Location: http://[::1"))
send("redirect_with_escapes", answer(b"", "307 Go", "Location: http://h/\x1b[31m"))
send("redirect_to_itself", answer(b"", "308 Go", "Location: ."))
send("refusal_repeats_the_key", answer(f"bad key {KEY}".encode(), "401 No"))
send("refusal_as_json_repeats_the_key", answer(json.dumps({"error": KEY}).encode(), "403 No"))
send("refusal_with_escapes", answer(json.dumps({"error": {"message": ESCAPES}}).encode(), "400 No"))
send("refusal_of_many_lines", answer(b"a\r\nb\nc\x1b[2J\n" * 500, "404 No"))
send("refusal_nested_deeply", answer(b"[" * 200_000, "400 No"))
send("refusal_with_a_nested_message", answer(b'{"error": {"message": ' + b"[" * 900, "400 No"))
send("pause_of_nan", answer(b"", "429 Slow", "Retry-After: nan"))
send("pause_without_end", answer(b"", "429 Slow", "Retry-After: inf"))
send("pause_of_ages", answer(b"", "503 Slow", "Retry-After: 1e300"))
LATE = "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"
send("pause_until_the_year_9999", answer(b"", "429 Slow", LATE))
send("pause_is_negative", answer(b"", "429 Slow", "Retry-After: -1e9"))
send("pause_is_a_word", answer(b"", "429 Slow", "Retry-After: soon\x1b[31m"))

# --- Answers that are not chat completions --------------------------------------------------------

send("empty_body", answer(b""))
send("not_json", answer(b"<html>welcome</html>"))
send("json_null", answer(b"null"))
send("json_list", answer(b"[1, 2]"))
send("json_number_of_many_digits", answer(b"9" * 100_000))
send("nested_deeply", answer(b"[" * 1_000_000))
send("nested_in_choices", answer(b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"))
send("nested_objects", answer(b'{"a":' * 100_000))
send("choices_missing", answer(b'{"object": "chat.completion"}'))
send("choices_empty", answer(b'{"choices": []}'))
send("choices_is_a_word", answer(b'{"choices": "yes"}'))
send("choice_is_null", answer(b'{"choices": [null]}'))
send("message_is_a_word", answer(b'{"choices": [{"message": "hi"}]}'))
send("content_is_a_list", answer(chat([{"type": "text", "text": "hi"}])))
send("content_is_a_number", answer(chat(7)))
send("content_is_an_object", answer(chat({"a": KEY})))
send("invalid_utf_8", answer(b'{"choices": [{"message": {"content": "\xff\xfe\xfa"}}]}'))
send("utf_16", answer(chat().decode().encode("utf-16")), gives=TEXT)
send("byte_order_mark", answer(b"\xef\xbb\xbf" + chat()), gives=TEXT)
send("content_with_escapes", answer(chat(f"{ESCAPES}{TEXT}")), gives=f"[31m]0;title2J{TEXT}")
send("content_with_half_characters", answer(chat(f"\ud83d{TEXT}")), gives=f"\ufffd{TEXT}")
send("content_repeats_the_key", answer(chat(f"{KEY} {TEXT}")), gives=f"(key) {TEXT}")
send("finish_reason_is_a_list", answer(chat().replace(b'"stop"', b'["stop"]')), gives=TEXT)
send("keys_come_twice", answer(b'{"choices": 1, ' + chat()[1:]), gives=TEXT)

# --- Token counts ---------------------------------------------------------------------------------

counted("two_billion_tokens", 50, 2_000_000_000)
counted("two_billion_prompt_tokens", 2_000_000_000, 5)
counted("negative_tokens", -1000, 5)
counted("negative_reply_tokens", 50, -1000)
counted("no_prompt_tokens", 0, 5)
counted("no_reply_tokens", 50, 0)
counted("tokens_are_floats", 50.0, 5.5)
counted("tokens_are_words", "50", "5")
counted("tokens_are_booleans", True, True)
counted("tokens_are_not_numbers", float("nan"), float("inf"))
counted("tokens_of_many_digits", 10**4000, 5)
counted("tokens_are_lists", [50], [5])
NESTED = b'{"prompt_tokens": ' + b"[" * 900 + b"]" * 900 + b', "completion_tokens": 1}'
send("tokens_nested", answer(chat(usage=0).replace(b'"usage": 0', b'"usage": ' + NESTED)))
send("usage_is_a_list", answer(chat(usage=[1, 2])))
send("usage_missing", answer(b'{"choices": [{"message": {"content": "hi"}}]}'))
