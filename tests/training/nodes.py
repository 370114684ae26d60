"""Several nodes on this machine, as root: a network namespace each, with its own address and host name.

    switch         one more namespace, with a bridge; a node is cut off by taking its link there down
    shared folder  any folder of the machine; a node may list it as it was a while ago (`Node.freeze`)
    clock          may be ahead in a node's Python processes

Nothing outside these namespaces changes, and all of it goes with them when the block of `nodes` ends.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SITE = Path(__file__).with_name("node_site")
NETNS = Path("/etc/netns")
TOOLS = ("ip", "unshare")
ENTER = 'hostname "$0" && exec "$@"'
"""What a process does before it becomes the node's: it holds in its own namespace alone."""


class Node:
    """One node: where its processes run, and what can happen to it."""

    def __init__(self, number: int, group: str, folder: Path) -> None:
        self.name, self.address = f"node-{number}", f"198.18.0.{number}"
        self.namespace, self._switch, self._link = f"{group}-{number}", f"{group}-switch", f"to-{number}"
        self._view = folder / f"{self.name}.view.json"
        self.clock = 0
        """Seconds by which the clock of processes started from now on is ahead."""
        self.started: list[subprocess.Popen[bytes]] = []

    def start(
        self, command: Sequence[str], stdout: Path | None = None, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process here, in a process group of its own; stdout and stderr go to a file where one is given."""
        paths = os.pathsep.join(filter(None, (str(SITE), os.environ.get("PYTHONPATH"))))
        here = {"PYTHONPATH": paths, "NODE_CLOCK": str(self.clock), "NODE_VIEW": str(self._view)}
        enter = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", ENTER]
        line = [*enter, self.name, *command]
        output = os.open(stdout or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            process = subprocess.Popen(
                line,
                env={**os.environ, **here, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )
        finally:
            os.close(output)
        self.started.append(process)
        return process

    def cut_off(self) -> None:
        """Take the node's link down: what is sent to it is lost, without an error."""
        run("ip", "-netns", self._switch, "link", "set", self._link, "down")

    def reconnect(self) -> None:
        """Take the link up again."""
        run("ip", "-netns", self._switch, "link", "set", self._link, "up")

    def freeze(self, folder: Path) -> None:
        """From now on the node's processes list this shared folder as it is now; what is new opens by its name."""
        folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
        names = {str(path.resolve()): sorted(entry.name for entry in path.iterdir()) for path in folders}
        self._view.write_text(json.dumps(names))

    def processes(self) -> list[int]:
        """The ids of the processes here."""
        return [int(word) for word in run("ip", "netns", "pids", self.namespace).split()]

    def fail(self) -> None:
        """Kill all processes of the node, as a crash of the machine does."""
        kill(self.processes)


@contextmanager
def nodes(count: int, folder: Path) -> Iterator[list[Node]]:
    """``count`` nodes, with their files in ``folder``; ended with all their processes when the block ends."""
    group = f"nodes{os.getpid()}"
    made = [Node(number, group, folder) for number in range(1, count + 1)]
    switch = f"{group}-switch"
    try:
        run("ip", "netns", "add", switch)
        run("ip", "-netns", switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-netns", switch, "link", "set", "bridge", "up")
        hosts = "".join(f"{node.address} {node.name}\n" for node in made)
        for number, node in enumerate(made, 1):
            _add(node, switch, f"to-{number}", f"127.0.0.1 localhost\n{hosts}")
        yield made
    finally:
        for node in made:
            with suppress(subprocess.CalledProcessError):  # it was never made
                kill(node.processes)
            for process in node.started:
                process.wait()
            subprocess.run(["ip", "netns", "delete", node.namespace], capture_output=True, check=False)  # noqa: S607
            shutil.rmtree(NETNS / node.namespace, ignore_errors=True)
        subprocess.run(["ip", "netns", "delete", switch], capture_output=True, check=False)  # noqa: S607


def kill(processes: Callable[[], list[int]]) -> None:
    """Kill processes, and those that they start meanwhile, until there are none."""
    while running := processes():
        for process in running:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def run(*command: str) -> str:
    """The output of a command. Raises ``CalledProcessError`` where it fails."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _add(node: Node, switch: str, link: str, hosts: str) -> None:
    """Make the namespace, its link to the switch and its /etc/hosts."""
    space = node.namespace
    run("ip", "netns", "add", space)
    run(*f"ip -netns {switch} link add {link} type veth peer name eth0 netns {space}".split())
    run(*f"ip -netns {switch} link set {link} master bridge up".split())
    run(*f"ip -netns {space} address add {node.address}/24 dev eth0".split())
    for device in ("lo", "eth0"):
        run(*f"ip -netns {space} link set {device} up".split())
    etc = NETNS / space
    etc.mkdir(parents=True, exist_ok=True)
    (etc / "hosts").write_text(hosts)  # `ip netns exec` binds it over /etc/hosts


def missing() -> str:
    """Why there can be no nodes here; empty where there can."""
    if sys.platform != "linux" or os.geteuid():
        return "nodes are network namespaces, which only root can make"
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"nodes need {', '.join(lacking)}"
    name = f"nodes{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)  # noqa: S607
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)  # noqa: S607
    return f"no network namespaces here: {made.stderr.strip()}" if made.returncode else ""
