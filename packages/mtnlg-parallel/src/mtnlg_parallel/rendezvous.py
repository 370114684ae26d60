"""The job's store, through which its ranks find each other: who hosts it, on which address, and its secret.

    one machine        the launcher hosts it on 127.0.0.1, at a free port
    under Slurm        rank 0 hosts it on the address of MASTER_ADDR alone, at a port drawn for each attempt
    under torchrun     its agent hosts it, on all interfaces; with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 rank 0, as above

torch's store has no authentication, and lists its keys to anyone who connects (torch 2.13). So a store that we host
listens on one address, and every key begins with the job's secret, which processes inherit in their environment, never
on a command line. Under torchrun there is no secret unless its environment has MTNLG_SECRET.
"""

from __future__ import annotations

import errno
import ipaddress
import secrets
import socket
from typing import TYPE_CHECKING, Final

from mtnlg_model.console import IoFailure, UsageFailure

from .environment import this_rank

if TYPE_CHECKING:
    from datetime import timedelta

    from torch.distributed import Store  # type: ignore[attr-defined]

    from .environment import Environment

LOOPBACK: Final = "127.0.0.1"
BACKLOG: Final = 4096


class HostedStore:
    """A store that this process hosts, listening on one address; ``port`` 0 takes a free port."""

    def __init__(self, address: str = LOOPBACK, port: int = 0, secret: str | None = None) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined] # noqa: PLC0415  (slow to import)

        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listening = socket.create_server((address, port), family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise UsageFailure(f"MASTER_ADDR: {address} is not an address of rank 0's machine; give one") from None
            raise OSError(error.errno, error.strerror, f"{address}:{port}") from None  # a port in use: try again
        self.address, self.port = address, int(listening.getsockname()[1])
        self.secret = secret or secrets.token_hex(16)
        self._store: Store | None = TCPStore(
            address, self.port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )

    def close(self) -> None:
        """End the store."""
        self._store = None


_hosted: list[HostedStore] = []
"""Keeps the store that rank 0 hosts alive as long as the process."""


def join(timeout: timedelta) -> Store:
    """Connect to this attempt's part of the job's store, for the process group. Rank 0 hosts it if no launcher does."""
    place = this_rank()
    if not place.agent_store and place.rank == 0 and not _hosted:
        _hosted.append(HostedStore(_bound_address(place), place.port, place.secret))
    return connect(timeout)


def connect(timeout: timedelta) -> Store:
    """Open another connection to this attempt's part of the store, for another thread.

    If torchrun's agent hosts the store, it keeps it for all attempts, and a rank could read a dead rank's address; so
    keys contain the attempt. Else they do not, since the agents of several nodes may count attempts differently.
    """
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined] # noqa: PLC0415  (as above)

    place = this_rank()
    store = TCPStore(_master(place), place.port, is_master=False, timeout=timeout)
    return PrefixStore(f"{place.secret}/{place.restarts if place.agent_store else 0}", store)


def _master(place: Environment) -> str:
    """MASTER_ADDR, or Slurm's address of that node if the name resolves only to loopback addresses here."""
    name = place.address
    literal = name == "localhost" or name.replace(".", "").isdecimal() or ":" in name
    is_unknown = place.launch_address and not literal and all(map(_is_loopback, _addresses(name)))
    return place.launch_address if is_unknown else name


def _bound_address(place: Environment) -> str:
    """The address of `_master` on which rank 0 listens: preferably reachable from other machines, IPv4 before IPv6."""
    return min(_addresses(_master(place)), key=lambda address: (_is_loopback(address), ":" in address))


def _addresses(name: str) -> list[str]:
    try:
        addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise IoFailure(f"MASTER_ADDR = {name}: {error.strerror}; set it to rank 0's machine") from None
    return [str(address[0]) for *_, address in addresses]


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
