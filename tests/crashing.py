"""Run a curation in forked processes that die at a random step, by kill -9 or power loss, until one completes.

    python crashing.py RECIPE OUT SEED

A step is a moment before or after a sync, a rename or a removal, the operations that publish a result. A power loss
reverts some of the renames and removals in folders that were not synced since, in any order, and all content of files
that were not synced. Below the library of benchmarks/trouble.py, if that is preloaded, a drawn trouble happens to the
files too, and may end a process with status 74. After each end every manifest must match its files. Prints the number
of deaths, and of ends by trouble.
"""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curations import run
from mtnlg_data.console import IoFailure, error_status
from mtnlg_data.exchange import run_digest
from mtnlg_data.files import sha256

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from trouble import NEVER, TROUBLES, begin

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_STEPS = 80  # until a death; a store takes half as many


class Disk:
    """Wraps the program's disk operations, and knows what a power loss would revert."""

    def __init__(self, rng: random.Random, *, power: bool) -> None:
        self._rng = rng
        self._power = power
        self._left = rng.randint(1, MAX_STEPS)
        self._synced: set[int] = set()
        self._renamed: list[Path] = []
        self._unsynced: list[tuple[Path, Callable[[], object]]] = []  # changed path, and what reverts the change
        self._replace, self._unlink = Path.replace, Path.unlink

    def install(self) -> None:
        """Replace the functions that publish files by the methods of this disk."""
        disk = self

        def replace(path: Path, target: Path) -> Path:
            return disk.replace(path, target)

        def unlink(path: Path, missing_ok: bool = False) -> None:
            disk.unlink(path, missing_ok=missing_ok)

        os.fsync, Path.replace, Path.unlink = disk.sync, replace, unlink  # type: ignore[assignment, method-assign]

    def sync(self, handle: int) -> None:
        self._step()
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            folder = Path(f"/proc/self/fd/{handle}").readlink()
            self._unsynced = [change for change in self._unsynced if change[0].parent != folder]
        else:
            self._synced.add(status.st_ino)
        self._step()

    def replace(self, path: Path, target: Path) -> Path:
        self._step()
        before = target.read_bytes() if target.exists() else None
        self._replace(path, target)
        self._renamed.append(target)

        def revert() -> None:
            self._replace(target, path)
            if before is not None:
                target.write_bytes(before)

        self._unsynced.append((target.resolve(), revert))
        self._step()
        return target

    def unlink(self, path: Path, *, missing_ok: bool) -> None:
        if missing_ok and not path.exists():
            return
        self._step()
        before = path.read_bytes()
        self._unlink(path)
        self._unsynced.append((path.resolve(), lambda: path.write_bytes(before)))
        self._step()

    def _step(self) -> None:
        self._left -= 1
        if self._left:
            return
        if self._power:
            self._lose_power()
        os.kill(os.getpid(), signal.SIGKILL)

    def _lose_power(self) -> None:
        for path in self._renamed:
            if path.exists() and path.stat().st_ino not in self._synced:
                os.truncate(path, 0)
        persisted = set()
        for path, revert in reversed(self._unsynced):
            if path in persisted or self._rng.random() < 0.5:
                persisted.add(path)
            elif path.parent.exists():  # else all that was in it went with the folder
                revert()


GONE_AT_THE_END = {"encoded", "candidates", "verify", "names"}


def check(out: Path) -> None:
    """Check that every unit's manifest matches the files beside it.

    Files of rows that tasks hand on have a digest of their own, which ends with their length.

    What leads to the stores, or to removed duplicates, goes when their stage ends: the files before their manifests.
    """
    for path in out.rglob("*.json"):
        manifest: Any = json.loads(path.read_text())
        if set(manifest) == {"key", "sha256", "files", "summary"} and not GONE_AT_THE_END & {*path.parts}:
            for name, digest in {path.stem: manifest["sha256"], **manifest["files"]}.items():
                found = (run_digest if "-" in digest else sha256)(path.parent / name)
                assert found == digest, f"{path} does not match {name}"


def main(recipe: Path, out: Path, seed: int) -> None:
    run(recipe, out.with_name(f"{out.name}-undisturbed"))  # also imports all that the children share
    rng = random.Random(seed)
    ends = Counter(deaths=0)
    while True:
        disk = Disk(rng, power=rng.random() < 0.5)
        kind = rng.choice(TROUBLES) if "LD_PRELOAD" in os.environ else "none"
        moment, seed = rng.randint(1, 10 * MAX_STEPS), rng.randrange(1, 1 << 31)
        child = os.fork()
        if not child:
            disk.install()
            if kind != "none":
                begin(out, kind, NEVER, moment, seed)
            try:
                run(recipe, out)
            except Exception as error:
                if (status := error_status(error)) != IoFailure.exit_status:
                    raise
                os._exit(status)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            break
        assert status == -signal.SIGKILL or (status == IoFailure.exit_status and kind in {"full", "error"}), status
        check(out)
        ends[kind if status > 0 else "deaths"] += 1
    sys.stdout.write(json.dumps(ends))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
