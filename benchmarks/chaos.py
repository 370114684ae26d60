"""A run under random faults, restarted without a person: are its samples and losses those of an untouched run?

    python benchmarks/chaos.py --minutes 60 --seed 1 [--nodes 2] [--layout dp=2] [--faults KIND,…] [--out FILE]

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
    partition               with --nodes: a node is cut off until the ranks elsewhere have ended
    lose-node               with --nodes: a node crashes

On one machine the launcher is ``mtnlg-parallel train``. With --nodes (network namespaces, as root) it is torchrun on
each node, started again whenever it ends, as a cluster's scheduler does.

At the end every step must be in metrics.jsonl once, its samples beginning where those of the step before ended, and
every loss and gradient norm must equal that of an untouched run of the same recipe within 1e-5 (fp32). The result has
the goodput, the number of each fault, and the seconds from a fault until its ranks had ended, until rank 0 had started,
until all ranks held their state, and until there was a new step.
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
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mtnlg_model.files import write_text
from mtnlg_model.settings import dump
from mtnlg_parallel.layout import Layout, parse_layout
from mtnlg_parallel.recipe import Recipe, load_recipe
from mtnlg_parallel.record.history import goodput, read_events
from mtnlg_parallel.record.metrics import last_step, read_steps
from record import conditions, write_result
from training_engine import make_data

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from training.nodes import missing, nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from training.nodes import Node

FP32 = 1e-5
BATCH = 8
LIMIT_SECONDS = 180.0
"""Longest wait for anything, after which the run counts as lost."""

POLL_SECONDS = 0.02
RANK_KINDS = ("kill-rank", "kill-ranks", "kill-starting", "stop-rank", "signal-rank", "full-disk")
LAUNCHER_KINDS, NODE_KINDS = ("kill-launcher", "signal-launcher", "change"), ("partition", "lose-node")
ENDLESS = 1 << 24
"""Samples of the run until it is told where to end."""


class Lost(Exception):  # noqa: N818  (not an error of this program)
    """The run did not do what it must."""


class Recovery(NamedTuple):
    """One fault: seconds from it until its ranks had ended, rank 0 had started, all had a state, and a step was new."""

    kind: str
    ended: float
    started: float
    resumed: float
    stepped: float
    source: str
    lost_steps: int


def make_recipe(layout: Layout, patience: float) -> Recipe:
    """The run: a step takes some tens of milliseconds."""
    shape = {"layers": 4, "hidden": 64, "heads": 2, "sequence": 64, "vocabulary": 512}
    train: dict[str, Any] = {"samples": ENDLESS, "batch": BATCH, "micro_batch": 2, "lr": 1e-3, "warmup": 80}
    train |= {"decay": 1 << 16, "min_lr": 1e-4, "precision": "fp32", "recompute": "none"}
    train |= {"checkpoint_every": 5, "keep": 2}
    sections = {
        "model": {**shape, "dropout": 0.1, "attention_dropout": 0.1},
        "layout": layout.model_dump(),
        "train": train,
        "guard": {"patience": patience, "disk_patience": 10 * patience},
    }
    return Recipe.model_validate(sections, strict=False)


class Local:
    """The run by the launcher of this machine."""

    def __init__(self, folder: Path, out: Path) -> None:
        self.folder, self.out = folder, out
        self.kinds: tuple[str, ...] = LAUNCHER_KINDS
        self.launchers: dict[str, subprocess.Popen[bytes]] = {}
        self.commands_run = 0

    def command(self, *words: str) -> list[str]:
        """The words of the train command."""
        folders = ("--data", str(self.folder / "data"), "--out", str(self.out))
        recipe = str(self.folder / "train.toml")
        return ["-m", "mtnlg_parallel.cli", "train", recipe, *folders, "--device", "cpu", *words]

    def start(self, *words: str) -> None:
        """Start the launcher, or each that has ended."""
        for name in self.names():
            if name not in self.launchers or self.launchers[name].poll() is not None:
                self.launchers[name] = self.launch(name, words)
                self.commands_run += 1

    def names(self) -> list[str]:
        """One launcher here."""
        return ["launcher"]

    def launch(self, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start one launcher, whose output is appended to its log."""
        line = [sys.executable, *self.command("--max-restarts", str(1 << 20), *words)]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0)

    def ended(self) -> bool:
        """Whether a launcher has ended."""
        return any(launcher.poll() is not None for launcher in self.launchers.values())

    def may_end(self, kind: str) -> bool:
        """Whether a fault of this kind ends the launcher too."""
        return kind in LAUNCHER_KINDS

    def ranks(self) -> list[int]:
        """The process ids of the run's ranks."""
        return [int(entry.name) for entry in Path("/proc").iterdir() if is_rank_of(entry, self.out)]

    def strike(self, kind: str, draw: random.Random) -> list[int]:
        """Let a fault happen to launchers or nodes; returns the ranks that will end for it."""
        ranks = self.ranks()
        numbers = {"kill-launcher": signal.SIGKILL, "signal-launcher": signal.SIGTERM}
        number = numbers[draw.choice([*numbers]) if kind == "change" else kind]
        if kind == "change":
            self.change(draw)
        os.kill(draw.choice(list(self.launchers.values())).pid, number)
        return ranks

    def change(self, draw: random.Random) -> None:
        """Add a drawn change to the recipe that the next command reads."""
        path, last = self.folder / "train.toml", last_step(self.out)
        recipe = load_recipe(path)
        changes, batch = recipe.train.change, recipe.batch_size.multiple
        now = max([last["samples"] if last else 0, *(change.at for change in changes)])
        drawn: dict[str, Any] = {"at": now + draw.randint(120, 600)}
        ways: list[dict[str, Any]] = [
            {"lr": draw.uniform(2e-4, 2e-3)},
            {"batch": batch * draw.randint(1, 4)},
            {"clip": draw.uniform(0.1, 1.0), "weight_decay": draw.uniform(0.0, 0.3)},
            {"data": draw.choice(["", str(self.folder / "other")])},
        ]
        for way in draw.sample(ways, draw.randint(1, 2)):
            drawn |= way
        if "data" not in drawn and draw.random() < 0.5:
            first = recipe.train.stream_parts[-1].number(drawn["at"]) + draw.randint(0, 80)
            drawn["skip"] = [[first, first + draw.randint(1, 40)]]
        train = recipe.train.model_dump(mode="json") | {"change": [*(c.model_dump() for c in changes), drawn]}
        content = recipe.model_dump(mode="json") | {"train": train}
        write_text(path, dump(Recipe.model_validate(content, strict=False)))

    def repair(self) -> None:
        """Undo what `strike` did and does not pass by itself."""

    def stop(self, number: int) -> None:
        """Signal the launchers, and wait for their end."""
        for launcher in self.launchers.values():
            if launcher.poll() is None:
                launcher.send_signal(number)
        for launcher in self.launchers.values():
            launcher.wait(LIMIT_SECONDS)

    def logs(self) -> str:
        """The last lines of the launchers."""
        tails = {name: (self.folder / f"{name}.log").read_text(errors="replace")[-3000:] for name in self.names()}
        return "\n".join(f"--- {name}\n{tail}" for name, tail in tails.items())


class OverNodes(Local):
    """The run over several nodes, by torchrun on each."""

    def __init__(self, folder: Path, out: Path, machines: Sequence[Node], world: int) -> None:
        super().__init__(folder, out)
        self.kinds = NODE_KINDS
        self._nodes = {node.name: node for node in machines}
        self._ranks_a_node = world // len(machines)
        self._cut: Node | None = None

    def names(self) -> list[str]:
        """A launcher a node."""
        return list(self._nodes)

    def launch(self, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a node's torchrun."""
        torchrun = ["-m", "torch.distributed.run", f"--nnodes={len(self._nodes)}", "--rdzv-backend=c10d"]
        torchrun += ["--rdzv-endpoint=node-1:29400", "--rdzv-id=chaos", f"--max-restarts={1 << 20}"]
        torchrun += ["--rdzv-conf=join_timeout=60", f"--nproc-per-node={self._ranks_a_node}", *self.command(*words)]
        variables = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return self._nodes[name].start([sys.executable, *torchrun], self.folder / f"{name}.log", variables)

    def may_end(self, kind: str) -> bool:
        """A scheduler starts again whatever has ended."""
        return bool(kind)

    def strike(self, kind: str, draw: random.Random) -> list[int]:
        """Cut a node off, or crash it."""
        node, ranks = draw.choice(list(self._nodes.values())), self.ranks()
        if kind == "lose-node":
            node.fail()
            return ranks
        self._cut = node
        there = set(node.processes())
        node.cut_off()
        return [rank for rank in ranks if rank not in there]

    def repair(self) -> None:
        """Connect the node again."""
        if self._cut:
            self._cut.reconnect()
            self._cut = None


def is_rank_of(process: Path, out: Path) -> bool:
    """Whether this folder of /proc is that of a rank that trains into ``out``."""
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        return os.fsencode(out) in words and b"\0RANK=" in b"\0" + (process / "environ").read_bytes()
    except OSError:  # no process, or one that has ended meanwhile
        return False


class Disk:
    """A small file system that can be full."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Leave no room."""
        with self._ballast.open("ab", buffering=0) as file, suppress(OSError):
            while file.write(bytes(64 << 10)):
                pass

    def make_room(self) -> None:
        """Undo `fill`."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk | None]:
    """Mount a tmpfs of a few checkpoints at ``folder``; None where this process may not mount."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=True)  # noqa: S607


class Chaos:
    """Lets faults happen to a run, one at a time, and waits until it has recovered."""

    def __init__(self, job: Local, disk: Disk | None, kinds: Sequence[str], seed: int, most_steps: int) -> None:
        self.job, self.disk, self.most_steps = job, disk, most_steps
        self.draw, self.kinds = random.Random(seed), list(kinds)
        self._pending: list[str] = []
        self.recoveries: list[Recovery] = []

    def run(self, seconds: float) -> None:
        """Let faults happen until the time is over and each kind has come up."""
        deadline = time.monotonic() + seconds
        self.job.start()
        self.until(lambda: self.step() > 0, "")
        while time.monotonic() < deadline or len(self.recoveries) < len(self.kinds):
            target = self.step() + self.draw.randint(1, self.most_steps)
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
        return last["step"] if (last := last_step(self.job.out)) else 0

    def events(self, name: str, since: float) -> list[dict[str, Any]]:
        """The events of this name since then."""
        return [event for event in read_events(self.job.out) if event["event"] == name and event["time"] >= since]

    def recover(self, kind: str) -> Recovery:
        """Let a fault happen; returns when there is a new step."""
        struck, reached = time.time(), self.step()
        ending = self.strike(kind)
        self.until(lambda: self.have_ended(ending, kind), kind)
        ended = time.time()
        self.job.repair()
        if kind == "full-disk" and self.disk:
            self.disk.make_room()
            struck = ended  # nobody knows when it was noticed
        if kind == "kill-starting":
            early = self.draw.random() < 0.5
            self.until(lambda: self.job.ranks() if early else self.events("start", ended), kind)
            for rank in self.job.ranks()[:1]:
                os.kill(rank, signal.SIGKILL)
            ended = time.time()
        self.until(lambda: self.events("resumed", ended), kind)
        resumed = self.events("resumed", ended)[-1]
        self.until(lambda: self.step() > resumed["step"], kind)
        stepped = time.time()
        started = self.events("start", ended)[-1]["time"]
        self.until(lambda: self.step() > reached, kind)
        ended, started, held, stepped = (round(at - struck, 3) for at in (ended, started, resumed["time"], stepped))
        return Recovery(kind, ended, started, held, stepped, resumed["source"], resumed["lost_steps"])

    def have_ended(self, ranks: Sequence[int], kind: str) -> bool:
        """Whether these ranks have ended; until then a full disk stays full, though the run removes a checkpoint."""
        if kind == "full-disk" and self.disk:
            self.disk.fill()
        return not set(ranks) & set(self.job.ranks())

    def strike(self, kind: str) -> list[int]:
        """Let a fault happen; returns the ranks that will end for it."""
        if kind in {*LAUNCHER_KINDS, *NODE_KINDS}:
            return self.job.strike(kind, self.draw)
        ranks = self.job.ranks()
        if kind == "full-disk":  # `have_ended` fills it
            return ranks
        number = {"stop-rank": signal.SIGSTOP, "signal-rank": signal.SIGTERM}.get(kind, signal.SIGKILL)
        count = self.draw.randint(2, len(ranks)) if kind == "kill-ranks" else 1
        for rank in self.draw.sample(ranks, count):
            os.kill(rank, number)
        return ranks

    def until(self, condition: Callable[[], object], kind: str) -> None:
        """Wait for the condition, and start again the launchers that a fault of this kind has ended."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            if self.job.ended():
                if not self.job.may_end(kind):
                    raise Lost(
                        f"the launcher ended at step {self.step()}, after {kind or 'no fault'}\n{self.job.logs()}"
                    )
                self.job.start()
            if time.monotonic() > deadline:
                raise Lost(f"no recovery at step {self.step()} from {kind or 'no fault'}\n{self.job.logs()}")
            time.sleep(POLL_SECONDS)


def finish(job: Local, samples: int) -> None:
    """Run the command to its end at ``samples``."""
    job.stop(signal.SIGTERM)
    words = ("--set", f"train.samples={samples}")
    deadline = time.monotonic() + LIMIT_SECONDS + samples / BATCH
    while not (job.out / "summary.json").exists():
        if time.monotonic() > deadline:
            raise Lost(f"the last run did not end\n{job.logs()}")
        job.start(*words)
        time.sleep(POLL_SECONDS)
    for launcher in job.launchers.values():
        launcher.wait(LIMIT_SECONDS)


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


def typical_step(out: Path) -> float:
    """The median step of a run, in milliseconds."""
    return round(1e3 * statistics.median(step["seconds"] for step in read_steps(out)), 1)


def summarize(chaos: Chaos, found: dict[str, Any]) -> dict[str, Any]:
    """The result's figures."""
    out, recoveries = chaos.job.out, chaos.recoveries
    account = goodput(out)
    facts = {key: value for key, value in account.facts().items() if key != "restarts"}
    fields = ("ended", "started", "resumed", "stepped")
    by_kind = {
        kind: {
            "count": len(those := [recovery for recovery in recoveries if recovery.kind == kind]),
            **{f"{field}_seconds": round(statistics.median(getattr(r, field) for r in those), 2) for field in fields},
        }
        for kind in sorted({recovery.kind for recovery in recoveries})
    }
    return {
        "goodput": round(account.share or 0.0, 4),
        "mean_seconds_to_recover": round(statistics.fmean(recovery.stepped for recovery in recoveries), 2),
        "longest_seconds_to_recover": max(recovery.stepped for recovery in recoveries),
        "faults": len(recoveries),
        "lost_steps": sum(recovery.lost_steps for recovery in recoveries),
        "resumed_from": dict(Counter(recovery.source for recovery in recoveries)),
        **found,
        "by_kind_medians": by_kind,
        "wall_time": {key: round(value, 2) if isinstance(value, float) else value for key, value in facts.items()},
        "commands_run": chaos.job.commands_run,
        "changes": len(load_recipe(chaos.job.folder / "train.toml").train.change),
    }


def options() -> Namespace:
    """The command line."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="of faults; the untouched run comes after")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-steps", type=int, default=30, help="new steps between two faults, drawn from 1 to this")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--layout", default="dp=2")
    parser.add_argument("--patience", type=float, default=3.0, help="seconds of a step, after which a rank hangs")
    parser.add_argument("--faults", help="comma-separated; default all that this machine can have, but change")
    parser.add_argument("--out", type=Path, help="file for the result")
    return parser.parse_args()


def main() -> int:
    """Run it; returns the exit status."""
    chosen = options()
    if chosen.nodes > 1 and (why := missing()):
        print(why, file=sys.stderr)
        return 1
    result = conditions("mtnlg-parallel", "torch")
    layout = Layout.model_validate(parse_layout(chosen.layout))
    recipe = make_recipe(layout, chosen.patience)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        out = folder / "chaos"
        for name in ("data", "other"):
            make_data(folder / name, recipe.model.vocabulary - (name == "other"), 1 << 20)
        (folder / "train.toml").write_text(dump(recipe), encoding="utf-8")
        disk = stack.enter_context(small_disk(out / "checkpoints"))
        os.environ["OMP_NUM_THREADS"] = "1"
        if chosen.nodes > 1:
            job: Local = OverNodes(folder, out, stack.enter_context(nodes(chosen.nodes, folder)), layout.world)
        else:
            job = Local(folder, out)
        stack.callback(job.stop, signal.SIGKILL)
        left_out = {"change", *([] if disk else ["full-disk"])}  # changes of the recipe are asked for by --faults
        kinds = [kind for kind in (*RANK_KINDS, *job.kinds) if kind not in left_out]
        if chosen.faults:
            kinds = chosen.faults.split(",")
        chaos = Chaos(job, disk, kinds, chosen.seed, chosen.most_steps)
        try:
            chaos.run(60 * chosen.minutes)
            last = last_step(out)
            samples = (last["samples"] if last else 0) + 3 * BATCH
            finish(job, samples)
            untouched = Local(folder, folder / "untouched")
            stack.callback(untouched.stop, signal.SIGKILL)
            untouched.start("--set", f"train.samples={samples}")
            untouched.launchers["launcher"].wait()
            found = check(out, untouched.out)
        except Lost as lost:
            print(f"{lost}; both runs are kept in {folder}", file=sys.stderr)
            return 1
        about = {
            "patience": recipe.guard.patience,
            "seed": chosen.seed,
            "minutes": chosen.minutes,
            "nodes": chosen.nodes,
            "layout": str(layout),
        }
        write_result({**result, **about, **summarize(chaos, found)}, chosen.out)
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
