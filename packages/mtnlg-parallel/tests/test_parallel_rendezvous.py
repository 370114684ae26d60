"""The job's store: where it listens, and what its keys are under."""

from __future__ import annotations

import socket
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from mtnlg_model.console import UsageFailure, error_status
from mtnlg_parallel import rendezvous
from mtnlg_parallel.environment import Environment
from mtnlg_parallel.launch.agent import local_rank
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.rendezvous import HostedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


MINUTE = timedelta(seconds=60)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux'")


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostedStore]:
    """A launcher's store, whose environment this process has."""
    store = HostedStore()
    for name, value in local_rank(0, Layout(), store, restarts=2).variables().items():
        monkeypatch.setenv(name, value)
    yield store
    store.close()


def listening_addresses(port: int) -> set[str]:
    """The addresses on which this machine listens at ``port``, as the kernel writes them."""
    found = set()
    for name in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{name}", encoding="ascii") as table:  # noqa: PTH123
            for line in list(table)[1:]:
                _, local, _, state, *_ = line.split()
                if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                    found.add(local.rpartition(":")[0])
    return found


@LINUX
def test_a_launchers_store_listens_on_loopback_alone(hosted: HostedStore) -> None:
    assert listening_addresses(hosted.port) == {"0100007F"}
    hosted.close()
    assert not listening_addresses(hosted.port)


def test_each_store_has_its_own_secret(hosted: HostedStore) -> None:
    other = HostedStore()
    assert len(hosted.secret) == len(other.secret) == 32
    assert hosted.secret != other.secret
    other.close()
    rendezvous.join(MINUTE).set("beat", "1")
    stranger = TCPStore("127.0.0.1", hosted.port, is_master=False, timeout=MINUTE)
    assert not stranger.check(["beat"])
    assert PrefixStore(f"{hosted.secret}/2", stranger).get("beat") == b"1"


@LINUX
def test_rank_0_hosts_a_store_on_the_address_of_its_name_alone(
    hosted: HostedStore, monkeypatch: pytest.MonkeyPatch, be_rank: Callable[..., None]
) -> None:
    hosted.close()
    free = hosted.port
    be_rank(address="127.0.0.7", port=free)
    monkeypatch.setattr(rendezvous, "_hosted", [])
    store = rendezvous.join(MINUTE)
    assert listening_addresses(free) == {"0700007F"}
    store.set("beat", "1")
    assert store.get("beat") == b"1"
    rendezvous._hosted[0].close()


@pytest.mark.parametrize(
    ("name", "known", "bound", "asked"),
    [
        ("n1", ["10.0.0.1"], "10.0.0.1", "n1"),
        ("n1", ["fd00::1", "127.0.1.1", "10.0.0.1"], "10.0.0.1", "n1"),
        ("n1", ["127.0.1.1"], "10.9.9.9", "10.9.9.9"),  # Debian's /etc/hosts on n1 itself
        ("127.0.0.1", ["127.0.0.1"], "127.0.0.1", "127.0.0.1"),
        ("localhost", ["::1", "127.0.0.1"], "127.0.0.1", "localhost"),
    ],
)
def test_rank_0_listens_where_other_machines_look_for_it(
    monkeypatch: pytest.MonkeyPatch, name: str, known: list[str], bound: str, asked: str
) -> None:
    def resolve(host: str, *_: Any, **__: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401
        return [(0, 0, 0, "", (address, 0)) for address in (known if host == name else [host])]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    place = Environment(address=name, launch_address="10.9.9.9")
    assert (rendezvous._bound_address(place), rendezvous._master(place)) == (bound, asked)


def test_busy_port_is_retried_and_wrong_address_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match="in use") as taken:
        HostedStore(port=other.getsockname()[1])
    assert error_status(taken.value) == 74
    with pytest.raises(UsageFailure, match=r"MASTER_ADDR: 192\.0\.2\.1 is not an address of rank 0's machine"):
        HostedStore("192.0.2.1")
