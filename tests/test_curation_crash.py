"""No kill, power loss, full disk or Ctrl-C changes a curation: the same command ends it with the same bytes."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import curations

if TYPE_CHECKING:
    from collections.abc import Callable

    from curations import Undisturbed

MAX_KILLS = 2
MIN_DEATHS = 12  # usually there are 40
#: Runs a command on a small disk and copies its files, in a mount namespace of its own.
ON_A_SMALL_DISK = """
mount -t tmpfs -o size=400k tmpfs "$1" || exit 99
"${@:3}" --out "$1"; status=$?
cp -a "$1/." "$2" && exit $status
"""


def command(recipe: Path, out: Path, *options: str) -> list[str]:
    return [curations.COMMAND, "run", str(recipe), "--out", str(out), "--workers", "2", *options]


def last_line(stderr: str) -> str:
    assert "Traceback" not in stderr, stderr
    return stderr.strip().splitlines()[-1]


def test_kill_or_power_loss_at_any_step_keeps_the_bytes(undisturbed: Undisturbed, tmp_path: Path) -> None:
    seed = str(random.SystemRandom().randrange(1 << 32))  # other steps in every test run
    script = [sys.executable, str(Path(__file__).with_name("crashing.py")), str(undisturbed.recipe)]
    ended = subprocess.run([*script, str(tmp_path / "data"), seed], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"seed {seed}: {ended.stderr}"
    assert json.loads(ended.stdout)["deaths"] >= MIN_DEATHS
    assert curations.left_by(tmp_path / "data") == undisturbed.left, f"seed {seed}"


KILLS: list[tuple[Callable[[int, int], None], signal.Signals]] = [
    (os.killpg, signal.SIGKILL),
    (os.kill, signal.SIGKILL),
    (os.killpg, signal.SIGTERM),
]


def interrupted(words: list[str], rng: random.Random) -> int | None:
    """Start the command and kill it at a random moment; return its exit status if it ended before."""
    with subprocess.Popen(words, stderr=subprocess.PIPE, start_new_session=True) as process:
        assert process.stderr is not None
        for _ in range(rng.randrange(6)):  # lines of progress
            process.stderr.readline()
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=rng.uniform(0, 0.4))
        kill, number = rng.choice(KILLS)
        kill(process.pid, number)
    return None


def test_killed_run_resumed_by_other_workers_has_equal_bytes(undisturbed: Undisturbed, tmp_path: Path) -> None:
    rng = random.Random()  # other moments in every test run
    words = command(undisturbed.recipe, tmp_path / "data")
    kills = 0
    while kills < MAX_KILLS and interrupted(words, rng) is None:
        kills += 1
    assert kills, "no kill came in time: the test shows nothing"
    curations.run(undisturbed.recipe, tmp_path / "data")
    assert curations.left_by(tmp_path / "data") == undisturbed.left


def descendants(pid: int) -> dict[int, str]:
    """Processes that a process has started, they too, and their command lines."""
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        with suppress(OSError):
            for children in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
                for child in map(int, children.read_text().split()):
                    waiting.append(child)
                    found[child] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
    return found


def on_ray(
    words: list[str], environment: dict[str, str], rng: random.Random, victim: Callable[[int], list[int]]
) -> int:
    """Start the command on Ray, kill one of its processes at a random moment, and return its exit status."""
    with subprocess.Popen([*words, "--engine", "ray"], stderr=subprocess.PIPE, env=environment) as process:
        assert process.stderr is not None
        for _ in range(rng.randint(1, 3)):  # stages
            process.stderr.readline()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=rng.uniform(0, 0.4))
        for pid in rng.sample(victims := victim(process.pid), min(1, len(victims))):
            os.kill(pid, signal.SIGKILL)
        sys.stderr.buffer.write(process.stderr.read())  # shown where the test fails
    return process.returncode


def ray_process(name: str) -> Callable[[int], list[int]]:
    """Finds the processes that a run has started for its own Ray, by a pattern of their command lines."""
    return lambda driver: [pid for pid, line in descendants(driver).items() if re.search(name, line)]


#: Not "ray::": so are a machine's agents called, without which it ends; without the head's the whole cluster does.
WORKER = "ray::(IDLE|_run_on_machine)"


def test_killed_ray_head_driver_worker_and_machine_keep_the_bytes(undisturbed: Undisturbed, tmp_path: Path) -> None:
    ray_machines = curations.beside_the_package("ray_machines").ray_machines
    rng = random.Random()  # other moments in every test run
    words = command(undisturbed.recipe, tmp_path / "data")
    quick = os.environ | {"RAY_gcs_rpc_server_reconnect_timeout_s": "2"}  # until the driver gives its head up
    assert on_ray(words, quick, rng, ray_process("/gcs_server ")) == 1
    assert on_ray(words, quick, rng, lambda driver: [driver]) == -signal.SIGKILL
    with ray_machines(3, dict(os.environ)) as machines:

        def disturb(_: int) -> list[int]:
            machines.tell("lose")
            machines.tell("join 1")
            return ray_process(WORKER)(machines.pid)

        assert on_ray([*words, "--ray", machines.address], machines.environment, rng, disturb) == 0
    assert curations.left_by(tmp_path / "data") == undisturbed.left


def test_ctrl_c_is_status_130_and_the_run_resumes(undisturbed: Undisturbed, tmp_path: Path) -> None:
    words = command(undisturbed.recipe, tmp_path / "data")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        process.stderr.readline()  # printed when the first stage is done
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert last_line(stderr) == "mtnlg-data: interrupted; run the same command again to continue"
    curations.run(undisturbed.recipe, tmp_path / "data")
    assert curations.left_by(tmp_path / "data") == undisturbed.left


def test_full_disk_is_one_line_and_the_run_resumes(undisturbed: Undisturbed, tmp_path: Path) -> None:
    small, roomy = tmp_path / "small", tmp_path / "roomy"
    small.mkdir()
    roomy.mkdir()
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare on this machine to mount a small disk with")
    words = [unshare, *user, "--mount", "bash", "-c", ON_A_SMALL_DISK, "bash", str(small), str(roomy)]
    run = [curations.COMMAND, "run", str(undisturbed.recipe), "--workers", "1"]
    ended = subprocess.run([*words, *run], capture_output=True, text=True, check=False)
    if ended.returncode == 99 or "unshare" in ended.stderr:
        pytest.skip(f"no disk can be mounted here: {ended.stderr.strip()}")
    assert ended.returncode == 74, ended.stderr  # EX_IOERR: the same command may work later
    assert last_line(ended.stderr).startswith(f"mtnlg-data: {small}/")
    assert last_line(ended.stderr).endswith(": No space left on device")
    curations.run(undisturbed.recipe, roomy)
    assert curations.left_by(roomy) == undisturbed.left
