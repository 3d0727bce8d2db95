"""The network interface on which ranks listen for one another.

Everybody who can reach that interface can disturb a training: gloo and NCCL ask for no password.
Ranks of one machine use the loopback interface. Ranks of several machines use the interface that
leads to the machine of rank 0, and no other one.
"""

import fcntl
import ipaddress
import os
import socket
import struct
import warnings
from collections.abc import MutableMapping
from contextlib import suppress

LOOPBACK = "lo"
_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux


def choose_interface(
    master: str,
    *,
    is_one_host: bool,
    report: bool,
    environment: MutableMapping[str, str] = os.environ,
) -> None:
    """Set the interface, unless the user has chosen one; `report` allows a warning."""
    if is_one_host:
        environment.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
        return
    address = address_towards(master)
    name = interface_of(address) if address else None
    for variable in _VARIABLES if name else ():
        environment.setdefault(variable, name or "")
    if report and address and ipaddress.ip_address(address).is_global:
        warnings.warn(describe_public(address, name), stacklevel=2)


def address_towards(host: str) -> str | None:
    """The own IPv4 address that the system uses to reach a host; None if it has no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((host, 9))  # a datagram socket: nothing is sent
        return str(probe.getsockname()[0])
    return None


def interface_of(address: str) -> str | None:
    """The name of the interface with this IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None


def describe_public(address: str, name: str | None) -> str:
    return (
        f"the ranks of this training listen on the public address {address}"
        + (f" ({name})" if name else "")
        + ": whoever can reach it can disturb the training. Block the ports from outside, or name "
        "a private interface with GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
    )
