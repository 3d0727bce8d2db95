"""Test processes that are forked after the collection (`pytest --forks 3`).

The collection imports torch and compiles all tests, which takes 10 s of processor time. Here it is
done once, not once in every test process. Forked processes also deal smaller pieces without cost:
a piece is one end-to-end test, a set of end-to-end tests that share fixtures, or the fast tests of
a file. A process that has ended a piece gets the next one.
"""

import gc
import importlib
import multiprocessing
import os
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, arbitrary_address, wait
from typing import Any

import pytest

_LOOK = 1.0  # seconds between two looks for test processes that have crashed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="number of forked test processes")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without collections of garbage. Later ones skip what is loaded here."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forked processes; without `--forks`, pytest runs them here."""
    forks = session.config.getoption("forks")
    if not forks or session.testsfailed or session.config.option.collectonly:
        return None
    pieces = make_pieces(session.items)
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all
    if "torch" in sys.modules:  # otherwise no test may need them
        for name in _server()._preload_modules:
            importlib.import_module(name)
    gc.freeze()  # collections of garbage skip what is loaded, and fewer pages are copied
    workers: list[_Worker] = []
    try:
        for _ in range(min(forks, len(pieces))):
            workers.append(_Worker(session, pieces, workers))
        _deal(session, pieces, workers)
    finally:
        for worker in workers:
            worker.end()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True


def make_pieces(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    """Tests that one process runs one after another. End-to-end tests come first."""
    pieces: dict[Any, list[pytest.Item]] = {}
    long = [item for item in items if item.get_closest_marker("e2e")]
    groups = _groups_of_fixtures(long)
    for item in long:
        shared = _shared_fixtures(item)
        key = groups[min(shared)] if shared else item.nodeid
        pieces.setdefault(key, []).append(item)
    for item in items:
        if not item.get_closest_marker("e2e"):
            pieces.setdefault(item.path, []).append(item)
    return list(pieces.values())


def _shared_fixtures(item: pytest.Item) -> set[tuple[str, str]]:
    """The fixtures of a test that live longer than the test, other than those of pytest."""
    found = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    return {
        (one[-1].baseid, name)
        for name, one in found.items()
        if one[-1].scope != "function" and one[-1].baseid
    }


def _groups_of_fixtures(items: Sequence[pytest.Item]) -> dict[tuple[str, str], tuple[str, str]]:
    """For each shared fixture the first one of its group: one test uses both, directly or not."""
    first: dict[tuple[str, str], tuple[str, str]] = {}
    for item in items:
        shared = _shared_fixtures(item)
        joined = {first.setdefault(one, one) for one in shared}
        for one, group in first.items():
            if group in joined:
                first[one] = min(joined)
    return first


def _deal(session: pytest.Session, pieces: list[Any], workers: list["_Worker"]) -> None:
    """Give pieces to free processes until all are done, and report their results here."""
    left = iter(range(len(pieces)))
    busy = {worker.pipe: worker for worker in workers if worker.take(left)}
    while busy:
        for pipe in wait(list(busy), timeout=_LOOK) or [p for p in busy if busy[p].has_crashed()]:
            worker = busy[pipe]
            message = worker.receive()
            if message is not None:
                _report(session, message)
            elif session.shouldfail or session.shouldstop or not worker.take(left):
                del busy[pipe]


def _report(session: pytest.Session, message: tuple[str, Any]) -> None:
    hook = session.config.hook
    kind, data = message
    if kind == "warning":
        hook.pytest_warning_recorded.call_historic(kwargs=data)
        return
    report = hook.pytest_report_from_serializable(config=session.config, data=data)
    if report.when == "setup":
        hook.pytest_runtest_logstart(nodeid=report.nodeid, location=report.location)
    hook.pytest_runtest_logreport(report=report)
    if report.when == "teardown":
        hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)


class _Worker:
    """A forked test process, as its parent sees it."""

    def __init__(self, session: pytest.Session, pieces: list[Any], others: list["_Worker"]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self.piece: list[pytest.Item] = []
        self.ended = 0  # tests of the piece
        self.pieces = pieces
        self.pid = os.fork()
        if self.pid == 0:
            try:
                for pipe in [self.pipe, *(other.pipe for other in others)]:
                    pipe.close()
                _serve(session, pieces, theirs)
            finally:
                os._exit(0)
        theirs.close()

    def take(self, left: Iterator[int]) -> bool:
        """Take the next piece; False if none is left."""
        number = next(left, None)
        if number is None:
            return False
        self.piece, self.ended = self.pieces[number], 0
        self.pipe.send(number)
        return True

    def receive(self) -> tuple[str, Any] | None:
        """The next report; None if the piece is done."""
        try:
            message: tuple[str, Any] | None = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            test = self.piece[self.ended].nodeid
            raise pytest.UsageError(f"a test process has crashed. It ran {test}") from None
        self.ended += message is not None and message[1].get("when") == "teardown"
        return message

    def has_crashed(self) -> bool:
        return not self.pipe.poll() and os.waitpid(self.pid, os.WNOHANG) != (0, 0)

    def end(self) -> None:
        """End the process; it runs no test, unless the session is interrupted."""
        self.pipe.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _serve(session: pytest.Session, pieces: list[list[pytest.Item]], pipe: Connection) -> None:
    """The test process: run the pieces that come through the pipe until it is closed."""
    gc.set_threshold(50_000)  # no test leaves so much garbage that it must be found sooner
    config = session.config
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # its files belong to the parent
    capture.start_global_capturing()
    config.pluginmanager.unregister(name="terminalreporter")
    _fork_server(pipe)
    config.pluginmanager.register(_Sender(config, pipe))
    while True:
        try:
            piece = pieces[pipe.recv()]
        except EOFError:
            return
        for item, following in zip(piece, [*piece[1:], None], strict=True):
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        pipe.send(None)


class _Sender:
    """A plugin of the test process that sends reports and warnings to the parent."""

    def __init__(self, config: pytest.Config, pipe: Connection) -> None:
        self.config, self.pipe = config, pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.pipe.send(("report", data))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        of, text = warning_message, str(warning_message.message)  # some cannot be pickled
        kind = of.category if of.category.__module__ == "builtins" else UserWarning
        plain = warnings.WarningMessage(kind(text), kind, of.filename, of.lineno)
        details = {"warning_message": plain, "when": when, "nodeid": nodeid, "location": location}
        self.pipe.send(("warning", details))


def _server() -> Any:
    return forkserver._forkserver  # type: ignore[attr-defined]


def _fork_server(unused: Connection) -> None:
    """Fork the server of `multiprocessing`, so that it has all modules and need not load them.

    Nothing may have used autograd before. If its modules are not here, it is started as usual.
    """
    server = _server()
    if not set(server._preload_modules) <= set(sys.modules):
        return
    resource_tracker.ensure_running()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(arbitrary_address("AF_UNIX"))
    listener.listen()
    alive, ours = os.pipe()  # the server ends when all its clients have closed their end
    key = {}
    if length := getattr(forkserver, "_AUTHKEY_LEN", 0):  # since Python 3.14 clients have a key
        key["authkey_r"], writer = os.pipe()
        server._forkserver_authkey = os.urandom(length)
        os.write(writer, server._forkserver_authkey)
        os.close(writer)
    process = os.fork()
    if process == 0:
        try:
            unused.close()
            os.close(ours)
            sys.stdout, sys.stderr = (open(one, "w", closefd=False) for one in (1, 2))  # noqa: SIM115
            forkserver.main(listener.detach(), alive, [], **key)  # type: ignore[attr-defined]
        finally:
            os._exit(0)
    for one in (alive, *key.values()):
        os.close(one)
    server._forkserver_address = listener.getsockname()
    server._forkserver_alive_fd, server._forkserver_pid = ours, process
    listener.close()
