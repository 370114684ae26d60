"""A Ray cluster for tests, on loopback and with a token: ``python ray_machines.py FOLDER MACHINES``, of one CPU each.

Prints its address and obeys the lines of its stdin, with a line when one is done: ``join 3`` starts a machine of three
CPUs, ``lose`` kills the last one with its workers. It ends with its stdin.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

OBJECT_STORE_BYTES = 80_000_000


class Machines:
    """The cluster, from outside."""

    def __init__(self, process: subprocess.Popen[str], environment: dict[str, str]) -> None:
        self._process = process
        self.pid = process.pid
        self.environment = environment
        self.address = self._answer()["address"]

    def _answer(self) -> dict[str, str]:
        assert self._process.stdout is not None
        return dict(json.loads(self._process.stdout.readline()))

    def tell(self, line: str) -> None:
        """Give a command, and wait until it is done."""
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        self._answer()


@contextmanager
def ray_machines(machines: int, environment: dict[str, str]) -> Iterator[Machines]:
    """A cluster of its own; ``environment``, completed by it, is for whoever joins it."""
    with TemporaryDirectory() as folder:  # a short path, as sockets need
        yield from _started(Path(folder), machines, environment)


def _started(folder: Path, machines: int, environment: dict[str, str]) -> Iterator[Machines]:
    token = folder / "token"
    token.write_text("0123456789abcdef" * 4)
    variables = environment | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback alone
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5",  # 60 s is for clusters whose head comes back
    }
    words = [sys.executable, __file__, str(folder), str(machines)]
    with subprocess.Popen(
        words, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield Machines(process, variables)
        finally:
            process.communicate(timeout=60)


def say(answer: dict[str, str]) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


def main(folder: Path, machines: int) -> None:
    from ray.cluster_utils import Cluster

    options: dict[str, Any] = {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(True, head_node_args={"num_cpus": 1, **options, "temp_dir": str(folder / "ray")})
    nodes = [cluster.add_node(num_cpus=1, **options) for _ in range(machines - 1)]
    say({"address": cluster.address})
    for line in sys.stdin:
        match line.split():
            case "join", cpus:
                nodes.append(cluster.add_node(num_cpus=int(cpus), **options))
            case ["lose"]:
                cluster.remove_node(nodes.pop(), allow_graceful=False)
        say({})
    cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
