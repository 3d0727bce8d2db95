"""Processes on the nodes of a Ray cluster. Imports no torch: actors load this file on every node.

A Ray actor reserves CPUs and GPUs and starts one process, as torchrun does on one host. If the
actor or its node ends, the process ends too.
"""

import codecs
import ctypes
import importlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from mage.config.errors import UserError

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl
LOST = "lost"  # instead of an exit code: the node or the actor has ended


class Host:
    """The actor: it starts a process on its node and reads its output."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the actor
        self.read = 0
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")  # keeps parts of letters

    def address(self) -> tuple[str, int]:
        """The address of this node and a free port."""
        ray = import_ray()
        with socket.socket() as found:
            found.bind(("", 0))
            return str(ray.util.get_node_ip_address()), int(found.getsockname()[1])

    def start(self, command: Sequence[str], environment: Mapping[str, str], folder: str) -> None:
        self.process = subprocess.Popen(
            command,
            env=os.environ | dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=self.output,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )

    def poll(self) -> tuple[int | None, str]:
        """The exit code, or None while the process runs, and new output."""
        assert self.process is not None, "the process has been started"
        code = self.process.poll()
        new = os.pread(self.output.fileno(), 2**20, self.read)
        self.read += len(new)
        return code, self.decoder.decode(new)

    def send(self, number: int) -> None:
        """Send a signal to the process."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)


def _end_with_parent() -> None:
    """In the new process: Linux kills it when the actor ends."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UserError(
            "a Ray cluster needs the package ray, which is not installed: "
            "pip install '.[ray]' in the checkout of MAGE"
        ) from None


def connect(address: str) -> Any:
    """The package ray, connected to a cluster. `address` is HOST:PORT, or auto for this host's."""
    ray = import_ray()
    if ray.is_initialized():
        return ray
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"there is no Ray cluster at {address} ({str(error).splitlines()[0]}): start one with "
            "ray start --head, or name its head node with --address HOST:PORT"
        ) from None
    return ray


class RemoteProcess:
    """A process on a node, with the methods of `subprocess.Popen` that callers need."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self.ray, self.actor = ray, actor
        self.returncode: int | str | None = None
        self.text = ""  # output that has not been taken

    def address(self) -> tuple[str, int]:
        found: tuple[str, int] = self.ray.get(self.actor.address.remote())
        return found

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        given = command, dict(environment), os.getcwd()
        self._call(self.actor.start, *given)

    def poll(self) -> int | str | None:
        """The exit code, `LOST`, or None while the process runs."""
        if self.returncode is None and (found := self._call(self.actor.poll)) is not None:
            self.returncode, new = found
            self.text += new
        return self.returncode

    def take_text(self) -> str:
        text, self.text = self.text, ""
        return text

    def terminate(self) -> None:
        self._call(self.actor.send, int(signal.SIGTERM))

    def close(self) -> None:
        """End the actor and its process at once."""
        self.ray.kill(self.actor)

    def _call(self, method: Any, *arguments: Any) -> Any:
        """The result of a method of the actor; None if the node is lost."""
        if self.returncode == LOST:
            return None
        try:
            return self.ray.get(method.remote(*arguments))
        except self.ray.exceptions.RayError:
            self.returncode = LOST
            return None


def place(
    ray: Any, count: int, *, cpus: float, gpus: float, spread: bool, seconds: float
) -> tuple[Any, list[RemoteProcess]]:
    """Reserve `count` places in the cluster, with an actor on each; also the placement group."""
    group = ray.util.placement_group(
        [{"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}] * count,
        strategy="SPREAD" if spread else "PACK",
    )
    if not group.wait(seconds):
        ray.util.remove_placement_group(group)
        raise UserError(
            f"the cluster has no room for {count} processes with {cpus:g} CPUs and {gpus:g} GPUs "
            f"each (waited {seconds:.0f} s; it has {describe_resources(ray)}): use fewer ranks, or "
            "add nodes"
        )
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    actors = [
        ray.remote(Host)
        .options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=strategy(group, index))
        .remote()
        for index in range(count)
    ]
    return group, [RemoteProcess(ray, actor) for actor in actors]


def describe_resources(ray: Any) -> str:
    found = ray.cluster_resources()
    nodes = sum(node["Alive"] for node in ray.nodes())
    return f"{nodes} nodes, {found.get('CPU', 0):g} CPUs, {found.get('GPU', 0):g} GPUs"
