"""Where ranks listen: loopback on one machine, one chosen interface on several."""

import os
import socket
import warnings
from pathlib import Path
from typing import Any

import pytest
from processes import start, wait

from mage.ranks import interface
from mage.ranks.interface import address_towards, choose_interface, interface_of
from mage.ranks.launch import launch_ranks
from mage.ranks.ranks import Ranks
from mage.ranks.stop import StopRequest


def listening(ranks: Ranks, stop: Any = None) -> list[str]:
    """On rank 0: the addresses on which it and its children listen, as /proc writes them."""
    ranks.gather(0)
    found = _addresses([os.getpid(), *_children(os.getpid())]) if ranks.is_main else []
    ranks.barrier()
    return found


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _addresses(pids: list[int]) -> list[str]:
    links = [
        link for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()
    ]
    sockets = {os.readlink(link) for link in links if os.path.lexists(link)}
    lines = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    return [one[1] for one in lines if one[3] == "0A" and f"socket:[{one[9]}]" in sockets]


def listen(folder: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    found = launch_ranks(2, listening, folder=folder, stop=StopRequest())
    (folder / "found").write_text(" ".join(found))


@pytest.mark.e2e
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")
def test_workers_listen_on_loopback_only(tmp_path):
    """Also if the shell names another interface, as users of several machines do."""
    assert wait(start(listen, tmp_path)) == 0
    found = (tmp_path / "found").read_text().split()
    assert len(found) >= 2  # gloo: one listener a rank
    assert {address.partition(":")[0] for address in found} == {"0100007F"}


def test_one_host_uses_loopback_unless_the_user_chose():
    environment: dict[str, str] = {}
    choose_interface("10.1.1.1", is_one_host=True, report=True, environment=environment)
    assert environment == {"GLOO_SOCKET_IFNAME": "lo"}
    choose_interface("10.1.1.1", is_one_host=True, report=True, environment=(own := {"A": "1"}))
    assert own == {"A": "1", "GLOO_SOCKET_IFNAME": "lo"}


def test_several_hosts_use_the_interface_towards_rank_0(monkeypatch):
    assert address_towards("127.0.0.1") == "127.0.0.1"
    name = interface_of("127.0.0.1")
    assert name in {one for _, one in socket.if_nameindex()}
    environment = {"NCCL_SOCKET_IFNAME": "ib0"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_interface("127.0.0.1", is_one_host=False, report=True, environment=environment)
    assert environment == {"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": name}


def test_a_public_address_gives_one_warning(monkeypatch):
    monkeypatch.setattr(interface, "address_towards", lambda host: "8.8.8.8")
    monkeypatch.setattr(interface, "interface_of", lambda address: "eth7")
    with pytest.warns(UserWarning, match=r"public address 8\.8\.8\.8 \(eth7\)"):
        choose_interface("x", is_one_host=False, report=True, environment={})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_interface("x", is_one_host=False, report=False, environment={})
