"""A connection to a game server over WebSocket, with limits on time and size.

This file needs the package websockets; only a running OpenEnv server imports it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from websockets.exceptions import ConnectionClosed, InvalidHandshake, WebSocketException
from websockets.sync.client import connect

_TOO_BIG = 1009  # code with which a message beyond the limit ends a connection (RFC 6455)


class WebSocket:
    """One connection. `seconds`: limit of every call. `largest`: bytes of a message."""

    def __init__(self, address: str, seconds: float, largest: int) -> None:
        self.seconds, self.largest = seconds, largest
        with self._explained():
            self.connection = connect(
                address,
                open_timeout=seconds,
                close_timeout=1,
                max_size=largest,
                ping_interval=None,
                compression=None,
                proxy=None,
            )

    def ask(self, message: str) -> str:
        """Send a text and wait for the next text of the server."""
        with self._explained():
            self.connection.send(message)
            return str(self.connection.recv(self.seconds, decode=True))

    def close(self) -> None:
        self.connection.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Every failure is a ConnectionError that says what the server did."""
        try:
            yield
        except TimeoutError:
            raise ConnectionError(f"it gave no answer within {self.seconds:g} seconds") from None
        except InvalidHandshake as error:
            raise ConnectionError(f"it does not speak WebSocket: {error}") from error
        except ConnectionClosed as error:
            too_big = error.sent is not None and error.sent.code == _TOO_BIG
            fault = f"its message has more than {self.largest:,} bytes"
            raise ConnectionError(fault if too_big else "it closed the connection") from error
        except OSError as error:
            raise ConnectionError(error.strerror or str(error)) from error
        except WebSocketException as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
