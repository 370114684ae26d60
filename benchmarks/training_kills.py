"""Kill a training at random moments while its disk and clock misbehave, until it completes, and compare all bytes.

    python benchmarks/training_kills.py [--kills 300] [--seed 0] [--out FILE]

A run is a tiny decoder at the recipe's defaults (bf16, 1f1b, our engine, dropout 0.1), over pp 2, tp 2 and dp 2 in
turn. Its ranks are forked, and die in each attempt in a drawn way; then the same ranks start again:

    operation   SIGKILL to one rank before or after a drawn operation on a file of the run
    all         SIGKILL to all ranks at a drawn moment
    one         SIGKILL to one rank at a drawn moment
    stop        SIGTERM to one rank, or to all, at a drawn moment: they write a checkpoint and end, or die before

Below them a library that every call passes through makes one kind of trouble for files of the run:

    short       reads and writes of fewer bytes than asked for, and EINTR
    full        from a drawn operation on, every write and sync fails with ENOSPC until the attempt is over
    error       one drawn operation fails with EIO
    clock       from a drawn operation on, the clock is eleven days ahead or behind

At the end every step's loss and gradient norm, and every byte of the last checkpoint's tensors, must be those of a run
that nothing disturbed, and no attempt may end with a status that asks for a person. A seed repeats its draws.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel", "torch==2.13.0"]
# ///

from __future__ import annotations

import gc
import importlib
import os
import random
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import torch

from mtnlg_model.checkpoint.manifest import latest, read_manifest
from mtnlg_model.console import Failure, error_status
from mtnlg_parallel.launch.run import TrainingRun, join
from mtnlg_parallel.recipe import Recipe, RunOptions
from mtnlg_parallel.record.metrics import read_steps
from mtnlg_parallel.record.run_dir import CHECKPOINTS, SUMMARY
from mtnlg_parallel.statuses import Exit, cause_of
from record import run as benchmark
from training_engine import make_data
from trouble import NEVER, TROUBLES, begin, preload

if TYPE_CHECKING:
    from collections.abc import Sequence

LAYOUTS = ({"pp": 2}, {"tp": 2}, {"dp": 2})
STEPS, BATCH = 40, 8
PRELOADED = (
    "mtnlg_parallel.engine.pipeline_engine",
    "mtnlg_parallel.model.slicing",
    "mtnlg_parallel.model.stage_modules",
    "mtnlg_parallel.training.loop",
    "torch._dynamo",
    "torch.profiler",
    "torch.utils.tensorboard",
)
"""What ranks import late, imported once."""

MAX_ATTEMPTS, MAX_FAILURES = 100, 5
END_SECONDS = 5.0
"""Until ranks whose peer has died have ended by themselves."""

Way = Literal["operation", "all", "one", "stop", "none"]
WAYS: tuple[Way, ...] = ("operation", "operation", "all", "one", "stop")


class Attempt(NamedTuple):
    """How an attempt dies, and the trouble until then."""

    way: Way = "none"
    trouble: str = "none"
    victims: tuple[int, ...] = ()
    seconds: float = 0.0
    operation: int = NEVER
    trouble_from: int = NEVER
    seed: int = 1


def make_recipe(layout: dict[str, int]) -> Recipe:
    """The run: all that it does not say is a default."""
    model = {"layers": 4, "hidden": 32, "heads": 2, "sequence": 16, "vocabulary": 64}
    train = {"samples": STEPS * BATCH, "batch": BATCH, "micro_batch": 2, "lr": 1e-3, "warmup": 16, "decay": 1 << 10}
    more = {"min_lr": 1e-4, "checkpoint_every": 3, "keep": 2, "validation_every": 8, "validation_samples": 8}
    return Recipe.model_validate({"model": model, "layout": layout, "train": train | more}, strict=False)


def be_rank(  # noqa: PLR0917  (a rank of a run, and what happens to it)
    recipe: Recipe, data: Path, out: Path, rank: int, port: int, attempt: Attempt, log: Path, operations: Path
) -> NoReturn:
    """Be a rank as a launcher's, until the attempt ends."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    number, world = str(rank), str(recipe.layout.world)
    os.environ |= {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    death = attempt.operation if attempt.way == "operation" and rank in attempt.victims else NEVER
    library = begin(out, attempt.trouble, death, attempt.trouble_from, attempt.seed + rank)
    options, status = RunOptions(device="cpu"), int(Exit.FAILED)
    try:
        stopped = join(TrainingRun(recipe, data, out, options))
        status = Exit.STOPPED if stopped else Exit.COMPLETE
    except Exception as error:  # noqa: BLE001  (any, as the command does)
        status = error_status(error)
        traceback.print_exc()
    finally:
        operations.write_text(str(library.counted()))
        os._exit(status)


def attempt_run(recipe: Recipe, data: Path, out: Path, attempt: Attempt) -> list[int]:
    """Fork the ranks, let happen what the attempt says, and wait for their end; returns -signal or status of each."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = []
    for rank in range(recipe.layout.world):
        if (process := os.fork()) == 0:
            log, operations = out.with_name(f"{out.name}.log"), out.with_name(f"{out.name}-{rank}.operations")
            be_rank(recipe, data, out, rank, port, attempt, log, operations)
        ranks.append(process)
    statuses, moment = dict[int, int](), time.monotonic() + attempt.seconds
    number, deadline = signal.SIGTERM if attempt.way == "stop" else signal.SIGKILL, moment + 20 * END_SECONDS
    victims = [ranks[victim] for victim in attempt.victims if attempt.way != "operation"]
    while len(statuses) < len(ranks):
        for process in {*ranks} - {*statuses}:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                statuses[process] = os.waitstatus_to_exitcode(status)
                deadline = min(deadline, time.monotonic() + END_SECONDS)
        if victims and time.monotonic() >= moment:
            send(number, {*victims} - {*statuses})
            victims = []
        if time.monotonic() >= deadline:
            send(signal.SIGKILL, {*ranks} - {*statuses})
        time.sleep(0.01)
    return [statuses[process] for process in ranks]


def send(number: int, processes: set[int]) -> None:
    """Signal children that have not been waited for."""
    for process in processes:
        os.kill(process, number)


def left_by(out: Path) -> dict[str, Any]:
    """What must not differ: losses and norms of all steps, and the last checkpoint's manifest and tensors."""
    folder = latest(out / CHECKPOINTS) or out
    steps = [(step["step"], step["samples"], step["loss"], step["grad_norm"]) for step in read_steps(out)]
    manifest = read_manifest(folder)
    return {"steps": steps, "checkpoint": folder.name, "manifest": manifest.model_dump_json()}


def draw_attempt(draw: random.Random, world: int, operations: Sequence[int], seconds: float) -> Attempt:
    """Draw how an attempt dies: somewhere in the first half of what an undisturbed run does."""
    way, everyone = draw.choice(WAYS), tuple(range(world))
    one = (draw.randrange(world),)
    victims = everyone if way == "all" or (way == "stop" and draw.random() < 0.5) else one
    most = max(2, operations[one[0]] // 2)
    return Attempt(
        way,
        draw.choice(TROUBLES),
        victims,
        draw.uniform(0, seconds / 2),
        draw.randint(1, most),
        draw.randint(1, most),
        draw.randrange(1, 1 << 31),
    )


def disturbed_run(  # noqa: PLR0917  (as `draw_attempt`)
    recipe: Recipe, data: Path, out: Path, seed: int, operations: Sequence[int], seconds: float
) -> Counter[str]:
    """Run the recipe to its end through its deaths; returns their number by way."""
    draw, deaths = random.Random(seed), Counter[str]()
    for number in range(MAX_ATTEMPTS):
        attempt = draw_attempt(draw, recipe.layout.world, operations, seconds)
        statuses = attempt_run(recipe, data, out, attempt)
        if "person" in map(cause_of, statuses):
            raise RuntimeError(f"attempt {number}: {attempt} ended with {statuses}")
        if {-signal.SIGKILL, -signal.SIGTERM, int(Exit.STOPPED)} & {statuses[victim] for victim in attempt.victims}:
            deaths[attempt.way] += 1
        if not any(statuses) and (out / SUMMARY).exists():
            return deaths
    raise RuntimeError(f"no end after {MAX_ATTEMPTS} attempts")


def undisturbed(recipe: Recipe, folder: Path, number: int) -> tuple[dict[str, Any], list[int], float]:
    """What a run leaves that nothing disturbs, each rank's number of operations, and its seconds."""
    out, began = folder / f"untouched-{number}", time.monotonic()
    statuses = attempt_run(recipe, folder / "data", out, Attempt())
    seconds = time.monotonic() - began
    counts = [int(folder.joinpath(f"{out.name}-{rank}.operations").read_text()) for rank in range(len(statuses))]
    return left_by(out), counts, seconds


def measure(kills: int = 300, seed: int = 0) -> dict[str, Any]:
    """Run seed after seed from this one until there were as many kills."""
    for name in PRELOADED:
        importlib.import_module(name)
    torch.set_num_threads(1)
    gc.freeze()
    with tempfile.TemporaryDirectory(prefix="training-kills-") as folder:
        return kill(Path(folder), kills, seed)


def kill(folder: Path, kills: int, first: int) -> dict[str, Any]:
    """Compare the runs of the seeds."""
    make_data(folder / "data", 64, 1 << 18)
    recipes = list(map(make_recipe, LAYOUTS))
    untouched = [undisturbed(recipe, folder, number) for number, recipe in enumerate(recipes)]
    deaths, failures = Counter[str](), list[dict[str, Any]]()
    for seed in count(first):
        recipe, (expected, operations, seconds) = recipes[seed % len(LAYOUTS)], untouched[seed % len(LAYOUTS)]
        place = folder / str(seed)
        try:
            deaths += disturbed_run(recipe, folder / "data", place, seed, operations, seconds)
            differing = [key for key, value in left_by(place).items() if value != expected[key]]
            why = f"other {', '.join(differing)}" if differing else ""
        except (RuntimeError, Failure) as error:
            why = f"{error}\n{place.with_name(f'{place.name}.log').read_text()[-4000:]}"
        failures += [{"seed": seed, "said": why}] if why else []
        runs = seed + 1 - first
        print(f"seed {seed}: {deaths.total()} kills in all, {len(failures)} of {runs} runs differ", file=sys.stderr)
        if deaths.total() >= kills or len(failures) > MAX_FAILURES:
            break
    about = {"kills": deaths.total(), "runs": runs, "differ": len(failures), "steps": STEPS, "layouts": LAYOUTS}
    return {**about, "deaths": dict(deaths), "failures": failures}


if __name__ == "__main__":
    if "LD_PRELOAD" not in os.environ:
        sys.exit(preload())
    benchmark(measure, __doc__)
