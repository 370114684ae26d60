"""A run under random faults, restarted without a person: are its samples and losses those of an untouched run?

    python benchmarks/chaos.py --minutes 60 --seed 1 [--layout dp=2] [--faults KIND …] [--out FILE]

A small decoder trains on the CPU. When it has made a drawn number of new steps, a drawn fault strikes, and the next one
when it has made a new step again. Every kind comes up before any comes twice.

    kill-rank, kill-ranks   SIGKILL to one rank; to several at once
    kill-starting           SIGKILL to a rank, and to another while the ranks start again
    stop-rank               SIGSTOP: a rank that answers nothing
    signal-rank             SIGTERM to one rank
    full-disk               no room for checkpoints until the run has failed for it (as root: a small tmpfs)
    kill-launcher           SIGKILL to the launcher; its command is run again
    signal-launcher         SIGTERM to the launcher; its command is run again
    change                  the recipe gets a drawn change (learning rate, batch, clip, weight decay, samples to skip,
                            another token folder) at a sample to come, and the launcher SIGTERM or SIGKILL

The launcher is ``mtnlg-parallel train``.

At the end every step must be in metrics.jsonl once, its samples beginning where those of the step before ended, and
every loss and gradient norm must equal that of an untouched run of the same recipe within 1e-5 (fp32). The result has
the goodput, the number of each fault, and the seconds from a fault until its ranks had ended, and until all ranks held
their state again.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel", "torch==2.13.0"]
# ///

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mtnlg_model.files import write_text
from mtnlg_model.settings import dump
from mtnlg_parallel.layout import Layout, parse_layout
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.recipe_file import load_recipe
from mtnlg_parallel.record.history import goodput, read_events
from mtnlg_parallel.record.metrics import last_step, read_steps
from record import run
from training_engine import make_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

FP32 = 1e-5
BATCH = 8
LIMIT_SECONDS = 180.0
"""Longest wait for anything, after which the run counts as lost."""

POLL_SECONDS = 0.02
PATIENCE = 3.0
"""Seconds of a step after which a rank hangs."""

MAX_STEPS = 30
"""From a recovery to the next fault."""

BALLAST, LOG = "ballast", "launcher.log"
RANK_KINDS = ("kill-rank", "kill-ranks", "kill-starting", "stop-rank", "signal-rank", "full-disk")
LAUNCHER_KINDS = ("kill-launcher", "signal-launcher", "change")
ENDLESS = 1 << 24
"""Samples of the run until it is told where to end."""


class Lost(Exception):  # noqa: N818  (not an error of this program)
    """The run did not do what it must."""


class Recovery(NamedTuple):
    """One fault: seconds from it until its ranks had ended, and until all ranks had a state again."""

    kind: str
    ended: float
    resumed: float


def make_recipe(layout: Layout) -> Recipe:
    """The run: a step takes some tens of milliseconds."""
    shape = {"layers": 4, "hidden": 64, "heads": 2, "sequence": 64, "vocabulary": 512}
    train: dict[str, Any] = {"samples": ENDLESS, "batch": BATCH, "micro_batch": 2, "lr": 1e-3, "warmup": 80}
    train |= {"decay": 1 << 16, "min_lr": 1e-4, "precision": "fp32", "recompute": "none"}
    train |= {"checkpoint_every": 5, "keep": 2}
    sections = {
        "model": {**shape, "dropout": 0.1, "attention_dropout": 0.1},
        "layout": layout.model_dump(),
        "train": train,
        "guard": {"patience": PATIENCE, "disk_patience": 10 * PATIENCE},
    }
    return Recipe.model_validate(sections, strict=False)


class Job:
    """The run by the launcher of this machine, which is started at once."""

    launcher: subprocess.Popen[bytes]

    def __init__(self, folder: Path, out: Path, *words: str) -> None:
        self.folder, self.out, self.words = folder, out, words
        self.start()

    def start(self) -> None:
        """Start a launcher, whose output is appended to the log."""
        folders = ("--data", str(self.folder / "data"), "--out", str(self.out), "--device", "cpu")
        command = ["-m", "mtnlg_parallel.cli", "train", str(self.folder / "train.toml"), *folders]
        command += ["--max-restarts", str(1 << 20), *self.words]
        with (self.folder / LOG).open("ab") as log:
            self.launcher = subprocess.Popen(
                [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )

    @property
    def has_ended(self) -> bool:
        """Whether the launcher has ended."""
        return self.launcher.poll() is not None

    def ranks(self) -> list[int]:
        """The process ids of the run's ranks."""
        return [int(entry.name) for entry in Path("/proc").iterdir() if is_rank_of(entry, self.out)]

    def last(self) -> Mapping[str, Any]:
        """The last step recorded."""
        return last_step(self.out) or {"step": 0, "samples": 0}

    def change(self, draw: random.Random) -> None:
        """Add a drawn change to the recipe that the next command reads."""
        path = self.folder / "train.toml"
        recipe = load_recipe(path)
        changes, batch = recipe.train.change, recipe.batch_size.multiple
        now = max([self.last()["samples"], *(change.at for change in changes)])
        drawn: dict[str, Any] = {"at": now + draw.randint(120, 600)}
        drawn |= draw.choice(
            [
                {"lr": draw.uniform(2e-4, 2e-3)},
                {"batch": batch * draw.randint(1, 4)},
                {"clip": draw.uniform(0.1, 1.0), "weight_decay": draw.uniform(0.0, 0.3)},
                {"data": draw.choice(["", str(self.folder / "other")])},
            ]
        )
        if "data" not in drawn:
            first = recipe.train.stream_parts[-1].number(drawn["at"]) + draw.randint(0, 80)
            drawn["skip"] = [[first, first + draw.randint(1, 40)]]
        train = recipe.train.model_dump(mode="json") | {"change": [*(c.model_dump() for c in changes), drawn]}
        content = recipe.model_dump(mode="json") | {"train": train}
        write_text(path, dump(Recipe.model_validate(content, strict=False)))

    def stop(self, number: int) -> None:
        """Signal the launcher, and wait for its end."""
        self.launcher.send_signal(number)
        self.launcher.wait(LIMIT_SECONDS)


def is_rank_of(process: Path, out: Path) -> bool:
    """Whether this folder of /proc is that of a rank that trains into ``out``."""
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        return os.fsencode(out) in words and b"\0RANK=" in b"\0" + (process / "environ").read_bytes()
    except OSError:  # no process, or one that has ended meanwhile
        return False


def fill(disk: Path) -> None:
    """Leave no room."""
    with (disk / BALLAST).open("ab", buffering=0) as file, suppress(OSError):
        while file.write(bytes(64 << 10)):
            pass


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """Mount a tmpfs of a few checkpoints at ``folder``; None where this process may not mount."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=True)  # noqa: S607


class Chaos:
    """Lets faults happen to a run, one at a time, and waits until it has recovered."""

    def __init__(self, job: Job, disk: Path | None, kinds: Sequence[str], seed: int) -> None:
        self.job, self.disk = job, disk
        self.draw, self.kinds = random.Random(seed), list(kinds)
        self._pending: list[str] = []
        self.recoveries: list[Recovery] = []

    def run(self, seconds: float) -> None:
        """Let faults happen until the time is over and each kind has come up."""
        deadline = time.monotonic() + seconds
        self.until(lambda: self.step() > 0, "")
        while time.monotonic() < deadline or len(self.recoveries) < len(self.kinds):
            target = self.step() + self.draw.randint(1, MAX_STEPS)
            self.until(lambda target=target: self.step() >= target, "")  # type: ignore[misc]
            recovery = self.recover(self.next_kind())
            self.recoveries.append(recovery)
            print(f"step {self.step()}: {recovery}", file=sys.stderr, flush=True)

    def next_kind(self) -> str:
        """Every kind in a drawn order, then in another."""
        if not self._pending:
            self._pending = self.draw.sample(self.kinds, len(self.kinds))
        return self._pending.pop()

    def step(self) -> int:
        """The last step recorded."""
        return int(self.job.last()["step"])

    def events(self, name: str, since: float) -> list[dict[str, Any]]:
        """The events of this name since then."""
        return [event for event in read_events(self.job.out) if event["event"] == name and event["time"] >= since]

    def recover(self, kind: str) -> Recovery:
        """Let a fault happen; returns when there is a new step."""
        struck, reached = time.time(), self.step()
        ending = self.strike(kind)
        self.until(lambda: self.have_ended(ending, kind), kind)
        ended = time.time()
        if kind == "full-disk" and self.disk:
            (self.disk / BALLAST).unlink()
            struck = ended  # nobody knows when it was noticed
        if kind == "kill-starting":
            early = self.draw.random() < 0.5
            self.until(lambda: self.job.ranks() if early else self.events("start", ended), kind)
            for rank in self.job.ranks()[:1]:
                os.kill(rank, signal.SIGKILL)
            ended = time.time()
        self.until(lambda: self.events("resumed", ended), kind)
        resumed = self.events("resumed", ended)[-1]
        self.until(lambda: self.step() > reached, kind)
        return Recovery(kind, ended - struck, resumed["time"] - struck)

    def have_ended(self, ranks: Sequence[int], kind: str) -> bool:
        """Whether these ranks have ended; until then a full disk stays full, though the run removes a checkpoint."""
        if kind == "full-disk" and self.disk:
            fill(self.disk)
        return not set(ranks) & set(self.job.ranks())

    def strike(self, kind: str) -> list[int]:
        """Let a fault happen; returns the ranks that may end for it."""
        ranks, draw = self.job.ranks(), self.draw
        if kind == "change":
            self.job.change(draw)
        if kind in LAUNCHER_KINDS:
            is_killed = kind == "kill-launcher" or (kind == "change" and draw.random() < 0.5)
            self.job.launcher.send_signal(signal.SIGKILL if is_killed else signal.SIGTERM)
        elif kind != "full-disk":  # `have_ended` fills it
            number = {"stop-rank": signal.SIGSTOP, "signal-rank": signal.SIGTERM}.get(kind, signal.SIGKILL)
            count = draw.randint(2, len(ranks)) if kind == "kill-ranks" else 1
            for rank in draw.sample(ranks, count):
                os.kill(rank, number)
        return ranks

    def until(self, condition: Callable[[], object], kind: str) -> None:
        """Wait for the condition, and start again the launchers that a fault of this kind has ended."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            if self.job.has_ended:
                if kind not in LAUNCHER_KINDS:
                    raise Lost(f"the launcher ended at step {self.step()}, after {kind or 'no fault'}")
                self.job.start()
            if time.monotonic() > deadline:
                raise Lost(f"no recovery at step {self.step()} from {kind or 'no fault'}")
            time.sleep(POLL_SECONDS)

    def finish(self) -> None:
        """Run the command to an end three steps from here."""
        self.job.words = ("--set", f"train.samples={self.job.last()['samples'] + 3 * BATCH}")
        self.job.stop(signal.SIGTERM)
        self.until((self.job.out / "summary.json").exists, "signal-launcher")
        self.job.launcher.wait(LIMIT_SECONDS)


def check(out: Path, untouched: Path) -> dict[str, Any]:
    """Compare the two runs' steps. Raises ``Lost`` at the first difference."""
    samples = 0
    steps, expected = list(read_steps(out)), list(read_steps(untouched))
    if [step["step"] for step in steps] != list(range(1, len(expected) + 1)):
        raise Lost(f"{out}: metrics.jsonl holds {len(steps)} steps, not 1 to {len(expected)} once each")
    worst = 0.0
    for step, other in zip(steps, expected, strict=True):
        if step["samples"] - step["batch_size"] != samples:
            raise Lost(
                f"{out}: step {step['step']} begins at sample {step['samples'] - step['batch_size']}, not {samples}"
            )
        samples = step["samples"]
        for key in ("loss", "grad_norm"):
            ours, theirs = step[key] or 0.0, other[key] or 0.0
            worst = max(worst, difference := abs(ours - theirs) / abs(theirs))
            if not difference <= FP32:
                raise Lost(f"{out}: step {step['step']}: {key} {ours!r}, untouched {theirs!r}")
    return {"steps": len(steps), "samples_each_once": samples, "worst_relative_difference": worst}


def summarize(chaos: Chaos, found: dict[str, Any]) -> dict[str, Any]:
    """The result's figures."""
    recoveries = chaos.recoveries
    by_kind = {
        kind: {
            "count": len(those := [recovery for recovery in recoveries if recovery.kind == kind]),
            "ended_seconds": round(statistics.median(recovery.ended for recovery in those), 2),
            "resumed_seconds": round(statistics.median(recovery.resumed for recovery in those), 2),
        }
        for kind in sorted({recovery.kind for recovery in recoveries})
    }
    return {
        "goodput": round(goodput(chaos.job.out).share or 0.0, 4),
        "faults": len(recoveries),
        **found,
        "by_kind_medians": by_kind,
        "changes": len(load_recipe(chaos.job.folder / "train.toml").train.change),
    }


def measure(
    *,
    minutes: float = 2.0,
    seed: int = 1,
    layout: str = "dp=2",
    faults: tuple[str, ...] = (*RANK_KINDS, "kill-launcher", "signal-launcher"),
) -> dict[str, Any]:
    """Let faults happen for so many minutes, of these kinds if this machine can have them; then train untouched."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    chosen = Layout.model_validate(parse_layout(layout))
    recipe, out = make_recipe(chosen), folder / "chaos"
    for name in ("data", "other"):
        make_data(folder / name, recipe.model.vocabulary - (name == "other"), 1 << 20)
    (folder / "train.toml").write_text(dump(recipe), encoding="utf-8")
    os.environ["OMP_NUM_THREADS"] = "1"
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(out / "checkpoints"))
        job = Job(folder, out)
        stack.callback(job.stop, signal.SIGKILL)
        chaos = Chaos(job, disk, [kind for kind in faults if disk or kind != "full-disk"], seed)
        try:
            chaos.run(60 * minutes)
            chaos.finish()
            untouched = Job(folder, folder / "untouched", *job.words)
            stack.callback(untouched.stop, signal.SIGKILL)
            untouched.launcher.wait()
            found = check(out, untouched.out)
        except Lost as lost:
            log = (folder / LOG).read_text(errors="replace")[-3000:]
            sys.exit(f"{lost}; both runs are kept in {folder}\n{log}")
        about = {"patience": PATIENCE, "seed": seed, "minutes": minutes, "layout": str(chosen)}
        result = {**about, **summarize(chaos, found)}
    shutil.rmtree(folder)
    return result


if __name__ == "__main__":
    run(measure, __doc__)
