"""Where ranks listen: loopback on one machine, one chosen interface on several."""

import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from mage.ranks import interface
from mage.ranks.interface import address_towards, choose_interface, interface_of

LISTENER = """
import sys, re
from pathlib import Path
from mage.ranks.launch import launch_ranks
from mage.ranks.stop import StopRequest

def task(ranks, folder, stop=None):
    ranks.gather(0)
    if ranks.is_main:
        own = {int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()}
        for kind in ("tcp", "tcp6"):
            sockets = set()
            for pid in ranks_pids(own):
                for link in Path(f"/proc/{pid}/fd").glob("*"):
                    try:
                        sockets.add(str(link.readlink()))
                    except OSError:
                        pass
            for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    print("LISTEN", kind, fields[1])
    ranks.barrier()
    return 0

def ranks_pids(own):
    import os
    me = os.getpid()
    for pid in own:
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if pid == me or parent == me:
            yield pid

if __name__ == "__main__":
    launch_ranks(2, task, sys.argv[1], folder=Path(sys.argv[1]), stop=StopRequest())
"""


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")
def test_workers_listen_on_loopback_only(tmp_path: Path) -> None:
    """Also if the shell names another interface, as users of several machines do."""
    (tmp_path / "listener.py").write_text(LISTENER)
    done = subprocess.run(
        [sys.executable, "listener.py", str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "eth0"},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr
    found = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("LISTEN")]
    assert len(found) >= 2  # gloo: one listener a rank
    assert {address.partition(":")[0] for address in found} == {"0100007F"}, done.stdout


def test_one_host_uses_loopback_unless_the_user_chose() -> None:
    environment: dict[str, str] = {}
    choose_interface("10.1.1.1", is_one_host=True, report=True, environment=environment)
    assert environment == {"GLOO_SOCKET_IFNAME": "lo"}
    choose_interface("10.1.1.1", is_one_host=True, report=True, environment=(own := {"A": "1"}))
    assert own == {"A": "1", "GLOO_SOCKET_IFNAME": "lo"}


def test_several_hosts_use_the_interface_towards_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    name = interface_of("127.0.0.1")
    assert name in {one for _, one in socket.if_nameindex()}
    environment = {"NCCL_SOCKET_IFNAME": "ib0"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_interface("127.0.0.1", is_one_host=False, report=True, environment=environment)
    assert environment == {"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": name}


def test_a_public_address_gives_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "address_towards", lambda host: "8.8.8.8")
    monkeypatch.setattr(interface, "interface_of", lambda address: "eth7")
    with pytest.warns(UserWarning, match=r"public address 8\.8\.8\.8 \(eth7\)"):
        choose_interface("x", is_one_host=False, report=True, environment={})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_interface("x", is_one_host=False, report=False, environment={})
