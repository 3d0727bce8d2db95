"""A WebSocket client in one file (RFC 6455), with limits on time and size.

Only what a client of a game server needs: the handshake, masked text messages, fragments, pings and
the end of a connection. Every call has a deadline: a server that drips single bytes ends with an
error too.
"""

import base64
import hashlib
import os
import socket
import ssl
import struct
import time
from urllib.parse import urlsplit

_ACCEPT = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_LARGEST_HEAD = 65536
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10


class WebSocketError(ConnectionError):
    """The connection failed or the server broke the protocol or a limit."""


class WebSocket:
    """One connection. `seconds`: limit of every call. `largest`: bytes of a message."""

    def __init__(self, address: str, seconds: float, largest: int) -> None:
        self.seconds, self.largest = seconds, largest
        self.deadline = time.monotonic() + seconds
        self.buffer = bytearray()
        url = urlsplit(address)
        secure = url.scheme == "wss"
        host, port = url.hostname or "", url.port or (443 if secure else 80)
        try:
            self.socket = socket.create_connection((host, port), timeout=seconds)
        except OSError as error:
            raise self._explain(error) from error
        try:
            if secure:
                context = ssl.create_default_context()
                self.socket = context.wrap_socket(self.socket, server_hostname=host)
            self._shake_hands(url.path or "/", f"{host}:{port}")
        except OSError as error:
            self.socket.close()
            raise self._explain(error) from error

    def ask(self, message: str) -> str:
        """Send a text and wait for the next text of the server."""
        self.deadline = time.monotonic() + self.seconds
        try:
            self._send(_TEXT, message.encode())
            return self._receive().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise self._explain(error) from error

    def close(self) -> None:
        """End the connection; an error is of no interest any more."""
        try:
            self.socket.settimeout(1)
            self._send(_CLOSE, b"")
        except OSError:
            pass
        finally:
            self.socket.close()

    def _explain(self, error: Exception) -> WebSocketError:
        if isinstance(error, WebSocketError):
            return error
        if isinstance(error, TimeoutError):
            return WebSocketError(f"it gave no answer within {self.seconds:g} seconds")
        return WebSocketError(str(error) or type(error).__name__)

    def _shake_hands(self, path: str, host: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        ]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        while b"\r\n\r\n" not in self.buffer:
            if len(self.buffer) > _LARGEST_HEAD:
                raise WebSocketError("its answer to the handshake has no end")
            self._fill()
        head, _, rest = bytes(self.buffer).partition(b"\r\n\r\n")
        self.buffer = bytearray(rest)
        status, *headers = head.decode("latin-1").split("\r\n")
        pairs = [line.partition(":")[::2] for line in headers]
        found = {name.strip().lower(): value.strip() for name, value in pairs}
        proof = base64.b64encode(hashlib.sha1((key + _ACCEPT).encode()).digest()).decode()
        if " 101" not in status or found.get("sec-websocket-accept") != proof:
            raise WebSocketError(f"it does not speak WebSocket at {path}: {status[:80]!r}")

    def _send(self, kind: int, data: bytes) -> None:
        size = len(data)
        if size < 126:
            head = struct.pack("!BB", 0x80 | kind, 0x80 | size)
        elif size < 65536:
            head = struct.pack("!BBH", 0x80 | kind, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", 0x80 | kind, 0x80 | 127, size)
        mask = os.urandom(4)
        repeated = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size)
        self.socket.sendall(head + mask + masked)

    def _receive(self) -> bytes:
        """The next message; pings are answered, fragments are joined."""
        message = bytearray()
        while True:
            last, kind, data = self._frame(len(message))
            if kind == _PING:
                self._send(_PONG, data)
            elif kind == _CLOSE:
                raise WebSocketError(
                    f"it closed the connection {data[2:82].decode(errors='replace')}"
                )
            elif kind != _PONG:
                message += data
                if last:
                    return bytes(message)

    def _frame(self, before: int) -> tuple[bool, int, bytes]:
        first, second = self._take(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", self._take(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", self._take(8))
        if second & 0x80 or first & 0x70:
            raise WebSocketError("it broke the WebSocket protocol")
        if before + size > self.largest:
            raise WebSocketError(f"its message has more than {self.largest:,} bytes")
        return bool(first & 0x80), first & 0x0F, self._take(size)

    def _take(self, count: int) -> bytes:
        while len(self.buffer) < count:
            self._fill()
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def _fill(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.socket.settimeout(left)
        data = self.socket.recv(65536)
        if not data:
            raise WebSocketError("it closed the connection")
        self.buffer += data
