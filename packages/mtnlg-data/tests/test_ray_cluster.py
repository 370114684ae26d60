"""Ray: who may join a cluster, what its machines are given to do, and that some may join and die meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ray_machines import ray_machines

from mtnlg_data import open_engine
from mtnlg_data.console import UsageFailure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ray_machines import Machines

#: A Ray without authentication, as somebody else may run it on this machine, until its stdin ends.
CLUSTER = """
import json, sys, ray
ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)
print(json.dumps({"address": ray.get_runtime_context().gcs_address}), flush=True)
sys.stdin.read()
"""
#: Runs a unit on the Ray engine, and tells where; it waits for its stdin to end before it leaves.
ENGINE = """
import json, os, sys
from pathlib import Path
from echo_tasks import tasks_in
from mtnlg_data.engine import open_engine, run_tasks
with open_engine("ray", 1, *sys.argv[2:]) as engine:
    run_tasks(engine, tasks_in(Path(sys.argv[1]), "a"), "echo")
    import ray
    token = os.environ.get("RAY_AUTH_TOKEN_PATH")
    print(json.dumps({"address": ray.get_runtime_context().gcs_address, "token": token}), flush=True)
    sys.stdin.read()
"""
#: Asks a cluster for its keys.
ASK = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).internal_kv_keys(b"", namespace=b"fun", timeout=10)
"""
NO_RAY = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
# For the workers too: echo_tasks, and the code under test where it is not installed.
NO_RAY["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])


@contextmanager
def answer(code: str, *words: str, environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    """What a process prints; it goes on until the block ends."""
    command = [sys.executable, "-c", code, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.communicate(timeout=60)


def ask(address: str, **variables: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", ASK, address], env=NO_RAY | variables, capture_output=True, text=True, check=False
    )
    return ended.stderr


def listening_addresses(token: str) -> set[str]:
    """Addresses, in the kernel's hex, on which the processes listen that have this token."""
    inodes = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"RAY_AUTH_TOKEN_PATH={token}\0".encode() in (process / "environ").read_bytes():
                inodes |= {str(descriptor.readlink()) for descriptor in (process / "fd").iterdir()}
        except OSError:
            continue  # it has ended, or is another user's
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def test_cluster_is_joined_by_address_and_own_one_is_private(tmp_path: Path) -> None:
    open_to_all = NO_RAY | {"RAY_AUTH_MODE": "disabled"}
    with answer(CLUSTER, environment=open_to_all) as stranger:
        with answer(ENGINE, str(tmp_path), environment=NO_RAY) as own:
            assert own["address"] != stranger["address"]
            token = Path(own["token"])
            assert token.stat().st_mode & 0o777 == 0o600
            assert token.parent.stat().st_mode & 0o777 == 0o700
            assert listening_addresses(own["token"]) <= LOOPBACK
            assert "AuthenticationError" in ask(own["address"])
            assert "AuthenticationError" in ask(own["address"], RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
            assert not ask(own["address"], RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token.read_text())
        assert not token.parent.exists()
        (tmp_path / "0").unlink()
        with answer(ENGINE, str(tmp_path), stranger["address"], environment=open_to_all) as joined:
            assert joined["address"] == stranger["address"]


@pytest.mark.parametrize("address", ["auto", "local"])
def test_invalid_cluster_address_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    with pytest.raises(UsageFailure, match=f"--ray {address}: no address"):
        open_engine("ray", 1, address)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UsageFailure, match=f"--ray {address}: no address"):
        open_engine("ray", 1)


def test_an_address_without_the_ray_engine_is_refused() -> None:
    with pytest.raises(UsageFailure, match="--ray host:6379: goes with --engine ray"):
        open_engine("local", 1, "host:6379")


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with ray_machines(2, NO_RAY) as cluster:
        yield cluster


#: Runs units on a cluster, each kind in a folder of its own, and prints what came of it.
OUTCOMES = """
import json, sys
from pathlib import Path
import echo_tasks
from mtnlg_data.engine import open_engine, ray_cluster, run_tasks
folder = Path(sys.argv[1])
outcomes = {}
def outcome(name, work):
    try:
        outcomes[name] = run_tasks(engine, work, "echo")
    except Exception as error:
        outcomes[name] = f"{type(error).__name__}: {error}"
def work(name, words, function, memory=0):
    (folder / name).mkdir(exist_ok=True)
    return echo_tasks.tasks_in(folder / name, words, function, memory)
with open_engine("ray", 1, sys.argv[2]) as engine:
    small, large = work("resources", "ab", "tell_resources"), work("resources", "ab", "tell_resources", 3 << 20)
    outcome("resources", [small[0], large[1]])
    outcome("full", work("full", "a", "fill_the_disk"))
    outcome("panic", work("panic", "a", "panic"))
    outcome("dies", work("dies", "abc", "die_at_b"))
    run_tasks(engine, work("dies", "abc", "echo"), "echo")
    ray_cluster._package_digest = lambda: "of another version"
    outcome("version", work("version", "a", "echo"))
print(json.dumps(outcomes), flush=True)
"""


def test_task_resources_and_one_line_failures(machines: Machines, tmp_path: Path) -> None:
    with answer(OUTCOMES, str(tmp_path), machines.address, environment=machines.environment) as outcomes:
        small, large = (summary["resources"] for summary in outcomes["resources"])
    assert (small["CPU"], small.get("memory", 0)) == (1, 0)
    assert (large["CPU"], large["memory"]) == (1, 3 << 20)
    assert outcomes["full"] == f"OSError: [Errno 28] No space left on device: '{tmp_path}/full/0'"
    assert outcomes["panic"] == f"Failure: {tmp_path}/panic/0: a library gave up on it: a"
    assert outcomes["dies"].startswith(f"Failure: {tmp_path}/dies/1: its worker died repeatedly: ")
    assert "\n" not in outcomes["dies"]
    assert (tmp_path / "dies/1").read_text() == "b", "the same engine goes on"
    assert "has another version of mtnlg-data than the machine that started the run" in outcomes["version"]
    assert not list((tmp_path / "version").iterdir())


#: Runs units that wait for a file ``go`` on a cluster, and prints their summaries.
WAITING = """
import json, sys
from pathlib import Path
from echo_tasks import tasks_in
from mtnlg_data.engine import open_engine, run_tasks
with open_engine("ray", None, sys.argv[2]) as engine:
    print(json.dumps({}), flush=True)
    print(json.dumps(run_tasks(engine, tasks_in(Path(sys.argv[1]), sys.argv[3], "wait_for_go"), "echo")), flush=True)
"""


def test_joining_machine_gets_tasks_and_lost_tasks_rerun(machines: Machines, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()

    def until_begun(units: int) -> set[str]:
        """The machines that so many units have begun on."""
        deadline = time.monotonic() + 120
        while len(list(begun.iterdir())) < units:
            assert driver.poll() is None
            assert time.monotonic() < deadline, f"no {units} units at a time"
            time.sleep(0.01)
        return {path.read_text() for path in begun.iterdir()}

    command = [sys.executable, "-c", WAITING, str(tmp_path), machines.address, "abcdefgh"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=machines.environment, text=True) as driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        try:
            first = until_begun(2)
            machines.tell("join 3")
            joined = until_begun(5) - first  # of four that were submitted for two CPUs, and more
            machines.tell("lose")
        finally:
            (tmp_path / "go").touch()
        assert len(first) == 2
        assert len(joined) == 1
        summaries = json.loads(driver.stdout.readline())
    assert [summary["word"] for summary in summaries] == [*"abcdefgh"]
    assert {summary["machine"] for summary in summaries} <= first, "where the last machine had begun one"
