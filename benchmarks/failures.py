"""What failures cost the 530B on 280 nodes: the published failure rate of 16,384 GPUs replayed against this launcher.

    python benchmarks/failures.py [--out docs/goodput.md]

A seeded simulation of `DAYS` days: failures arrive as a Poisson process and end the job; it is noticed, waited for,
started, loaded, and goes on from the newest checkpoint. Goodput is the share of wall time in steps that were
kept. What this machine can measure comes from the newest result of benchmarks/chaos.py; what it cannot is an
assumption, with its value, in the document that this writes.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel"]
# ///

from __future__ import annotations

import json
import math
import random
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mtnlg_parallel.recipe_file import load_recipe

if TYPE_CHECKING:
    from mtnlg_parallel.recipe import Recipe

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "goodput.md"
RECIPE = ROOT / "recipes" / "mt-nlg-530b"
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
DAYS, SEED = 10_000, 1
STEP_SECONDS = 60.1  # on 280 nodes (Smith et al. 2022, section 2.4)
GPUS = 2_240
INTERVALS = (100, 50, 20, 10, 5)
"""Steps between two checkpoints that are compared."""


class Cause(NamedTuple):
    """Why a job stops: how often, whether it hangs rather than ends, and whether the node must be replaced."""

    name: str
    stops: int
    hangs: bool = False
    node_lost: bool = True


CAUSES = (  # Grattafiori et al. 2024 (arXiv 2407.21783), table 5; which of them hang, or lose a node, is our reading
    Cause("faulty GPU", 148),
    Cause("HBM3 memory", 72),
    Cause("software bug", 54, node_lost=False),
    Cause("network switch or cable", 35, hangs=True),
    Cause("unplanned host maintenance", 32),
    Cause("GPU SRAM memory", 19),
    Cause("GPU system processor", 17),
    Cause("network interface", 7, hangs=True),
    Cause("NCCL watchdog timeout", 7, hangs=True, node_lost=False),
    Cause("silent data corruption", 6),
    Cause("GPU thermal interface or sensor", 6),
    Cause("SSD, power supply, chassis, board, processor, memory", 14),
    Cause("dependency", 2, node_lost=False),
)


class Rate(NamedTuple):
    """A published number of stops."""

    stops: int
    days: float
    gpus: int

    @property
    def per_second(self) -> float:
        """Failures a second of a job on ``GPUS``, each GPU failing as often as in the published run."""
        return self.stops / (self.days * DAY) * GPUS / self.gpus


LLAMA = Rate(419, 54.0, 16_384)
OPT = Rate(105, 60.0, 992)
"""Zhang et al. 2022 (arXiv 2205.01068), section 2.5: 35 manual and about 70 automatic restarts in two months."""


class Site(NamedTuple):
    """A cluster and this launcher on it, in seconds."""

    notice: float
    hang: float
    processes: float
    groups: float
    load: float
    stall: float
    write: float
    queue: float


class Policy(NamedTuple):
    """Steps between two checkpoints, and after how many seconds a person restarts the run (0: the launcher does)."""

    every: int
    person: float = 0.0


class Shares(NamedTuple):
    """Shares of wall time: in steps that were kept, and where the rest went."""

    goodput: float
    lost: float
    noticing: float
    waiting: float
    starting: float
    stalls: float


def simulate(policy: Policy, site: Site, rate: float, seed: int = SEED) -> Shares:
    """Replay ``DAYS`` days; policies of one seed meet the same failures in the same order."""
    draw, weights = random.Random(seed), [cause.stops for cause in CAUSES]
    cost = STEP_SECONDS + site.stall / policy.every
    every = max(policy.every, math.ceil(site.write / cost))  # the next write begins when the last has ended
    now = noticing = waiting = starting = training = 0.0
    step = taken = 0
    while now < DAYS * DAY:
        alive = draw.expovariate(rate)
        (cause,) = draw.choices(CAUSES, weights)
        start = site.processes + site.groups + site.load
        trained = max(0.0, alive - start)
        taken += int(trained / cost)
        # A checkpoint counts from when it is whole, which takes as long as writing it.
        reached = step + int(max(0.0, trained - site.write) / cost)
        step = max(step, reached // every * every)
        wait = _wait(policy, site, cause)
        notice = site.hang if cause.hangs else site.notice
        training += trained
        starting += min(alive, start)
        noticing += notice
        waiting += wait
        now += alive + notice + wait
    useful, stalls = step * STEP_SECONDS, taken * (cost - STEP_SECONDS)
    lost = training - stalls - useful
    return Shares(*(seconds / now for seconds in (useful, lost, noticing, waiting, starting, stalls)))


def _wait(policy: Policy, site: Site, cause: Cause) -> float:
    """Seconds until the ranks start again."""
    if cause.node_lost and not policy.person:  # it fails once more where it was, and is requeued without the node
        return site.processes + site.groups + site.notice + site.queue
    return policy.person


class Assumption(NamedTuple):
    """A figure of a `Site`, and where it is from."""

    seconds: float
    text: str
    source: str


def assumptions(recipe: Recipe, chaos: dict[str, Any], result: str) -> dict[str, Assumption]:
    """The figures of the site; those measured here are from a result of benchmarks/chaos.py."""
    killed, stopped = (chaos["by_kind_medians"][kind] for kind in ("kill-rank", "stop-rank"))
    saved, read = 14 * recipe.model.parameters, (12 + 2 * recipe.layout.dp) * recipe.model.parameters
    rank, patience = saved / GPUS, recipe.guard.patience
    return {
        "notice": Assumption(killed["ended_seconds"], "a rank ends: until all have ended", f"measured, {result}"),
        "hang": Assumption(
            patience + stopped["ended_seconds"] - chaos["patience"],
            f"a rank hangs: the recipe's patience of {patience:.0f} s, and until all have ended",
            f"measured, {result}",
        ),
        "processes": Assumption(
            killed["resumed_seconds"] - killed["ended_seconds"],
            "start of the processes, imports, engine, of a small model",
            f"measured, {result}",
        ),
        "groups": Assumption(
            2 * MINUTE,
            "NCCL's communicators at 2,240 ranks",
            "assumed; MegaScale reports 1,047 s at 2,048 GPUs, below 5 s after its work on it (arXiv 2402.15627, 3.5)",
        ),
        "load": Assumption(
            read / 100e9,
            f"reading {read / 1e12:.1f} TB from the shared disk",
            "assumed: 100 GB/s; Selene read at 1 TB/s (arXiv 2104.04473, 5.10)",
        ),
        "stall": Assumption(
            rank / 20e9, f"copying {rank / 1e9:.1f} GB a rank to the host, none of it hidden", "assumed: 20 GB/s"
        ),
        "write": Assumption(
            saved / 50e9,
            f"writing {saved / 1e12:.1f} TB while training goes on, until a checkpoint counts",
            "assumed: 50 GB/s; Selene wrote at 273 GB/s (as above)",
        ),
        "queue": Assumption(10 * MINUTE, "waiting for an allocation without the bad node", "assumed"),
    }


TEXT = """# Goodput of the 530B on 280 nodes

Written by `python benchmarks/failures.py`; a test compares.

Goodput is the share of wall time in steps that were kept. The largest run with published figures, Llama 3's on
{llama.gpus:,} GPUs, stopped {llama.stops} times unexpectedly in {llama.days:.0f} days (arXiv 2407.21783, 3.3.4).
At that rate per GPU, {gpus:,} GPUs stop {llama_a_day:.2f} times a day; at that of OPT-175B, on older GPUs,
{opt_a_day:.2f} times (arXiv 2205.01068, 2.5). The script draws {days:,} days of such failures, with the published
causes, and replays them against this launcher.

| restarted by | steps between checkpoints | goodput | lost steps | waiting | starting | noticing | stalls \
| goodput at OPT-175B's rate |
|---|---|---|---|---|---|---|---|---|
{policies}

*The launcher* is `--launcher slurm`: where a node is lost, the job fails there once more, then waits for an allocation
without it. Copies of the state in other nodes' memory would bring little more
([0003](decisions/0003-checkpoint-format-pieces-checksums-async-writes.md)).

## How often to write a checkpoint

The interval of Young and Daly is the root of 2 x {stall:.2f} s of stall x {between:.1f} h between failures:
{best:.0f} s, or {best_steps:.0f} steps, since a checkpoint that is written while training goes on costs so little.
But it takes {write:.0f} s to write, so there are at least {least} steps between two, and the disk would never rest. By
the launcher:

| `checkpoint_every` | goodput | at OPT-175B's rate | written on average |
|---|---|---|---|
{intervals}

The recipe has {every}. {advice}

## Figures

| | | from |
|---|---|---|
{figures}

| cause of a stop | of {llama.stops} | the job | the node |
|---|---|---|---|
{causes}

The counts are table 5 of arXiv 2407.21783; the last two columns are our reading of the causes.
"""


def render() -> str:
    """The document."""
    path = max((ROOT / "benchmarks" / "results").glob("*-chaos.json"))
    recipe = load_recipe(RECIPE)
    table = assumptions(recipe, json.loads(path.read_text(encoding="utf-8")), path.name)
    site = Site(**{name: assumption.seconds for name, assumption in table.items()})
    best = math.sqrt(2 * site.stall / LLAMA.per_second)
    return TEXT.format(
        llama=LLAMA,
        gpus=GPUS,
        llama_a_day=LLAMA.per_second * DAY,
        opt_a_day=OPT.per_second * DAY,
        days=DAYS,
        policies="\n".join(_row(name, policy, site) for name, policy in policies()),
        stall=site.stall,
        between=1 / LLAMA.per_second / HOUR,
        best=best,
        best_steps=best / STEP_SECONDS,
        write=site.write,
        least=math.ceil(site.write / STEP_SECONDS),
        intervals="\n".join(_interval_row(every, recipe, site) for every in INTERVALS),
        every=recipe.train.checkpoint_every,
        advice=advice(recipe, site),
        figures="\n".join(f"| {a.text} | {a.seconds:.3g} s | {a.source} |" for a in table.values()),
        causes="\n".join(_cause_row(cause) for cause in CAUSES),
    )


def policies() -> list[tuple[str, Policy]]:
    """The rows of the table."""
    people = (("30 minutes", 30 * MINUTE), ("2 hours", 2 * HOUR), ("8 hours", 8 * HOUR))
    return [
        *((f"a person after {text}", Policy(100, seconds)) for text, seconds in people),
        ("the launcher", Policy(100)),
        ("the launcher", Policy(10)),
    ]


def _row(name: str, policy: Policy, site: Site) -> str:
    shares, at_opt = simulate(policy, site, LLAMA.per_second), simulate(policy, site, OPT.per_second)
    parts = (shares.lost, shares.waiting, shares.starting, shares.noticing, shares.stalls)
    percents = " | ".join(f"{share:.2%}" for share in parts)
    return f"| {name} | {policy.every} | **{shares.goodput:.1%}** | {percents} | {at_opt.goodput:.1%} |"


def _interval_row(every: int, recipe: Recipe, site: Site) -> str:
    llama, opt = (simulate(Policy(every), site, rate.per_second).goodput for rate in (LLAMA, OPT))
    written = 14 * recipe.model.parameters / (every * STEP_SECONDS)
    return f"| {every} | {llama:.1%} | {opt:.1%} | {written / 1e9:.1f} GB/s |"


def advice(recipe: Recipe, site: Site) -> str:
    """Which interval the recipe should have: the longest within 0.2 percentage points of the shortest."""
    goodputs = {every: simulate(Policy(every), site, LLAMA.per_second).goodput for every in INTERVALS}
    good = max(every for every in INTERVALS if goodputs[every] > goodputs[INTERVALS[-1]] - 0.002)
    now = simulate(Policy(recipe.train.checkpoint_every), site, LLAMA.per_second).goodput
    if recipe.train.checkpoint_every <= good:
        return f"Up to {good}, an interval costs less than 0.2 points against one of {INTERVALS[-1]}."
    return f"With {good} it would gain {100 * (goodputs[good] - now):.1f} points."


def _cause_row(cause: Cause) -> str:
    job, node = "hangs" if cause.hangs else "ends", "is replaced" if cause.node_lost else "stays"
    return f"| {cause.name} | {cause.stops} | {job} | {node} |"


def main() -> None:
    """Write the document."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DOCUMENT)
    parser.parse_args().out.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
