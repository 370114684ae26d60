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
import tomllib
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import NamedTuple

from jinja2 import StrictUndefined, Template

from mtnlg_parallel.recipe_file import load_recipe

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


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CAUSES = [Cause(name, **fields) for name, fields in TABLE.items()]


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


POLICIES = (
    ("a person after 30 minutes", Policy(100, 30 * MINUTE)),
    ("a person after 2 hours", Policy(100, 2 * HOUR)),
    ("a person after 8 hours", Policy(100, 8 * HOUR)),
    ("the launcher", Policy(100)),
    ("the launcher", Policy(10)),
)
"""The rows of the document's first table."""


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
        # A job whose node is lost fails once more where it was, and is requeued without the node.
        again = site.processes + site.groups + site.notice + site.queue
        wait = policy.person or (again if cause.node_lost else 0.0)
        notice = site.hang if cause.hangs else site.notice
        training += trained
        starting += min(alive, start)
        noticing += notice
        waiting += wait
        now += alive + notice + wait
    useful, stalls = step * STEP_SECONDS, taken * (cost - STEP_SECONDS)
    lost = training - stalls - useful
    return Shares(*(seconds / now for seconds in (useful, lost, noticing, waiting, starting, stalls)))


def render() -> str:
    """The document: figures of the site that are neither measured nor the recipe's are assumed, as it says."""
    path = max((ROOT / "benchmarks" / "results").glob("*-chaos.json"))
    chaos, recipe = json.loads(path.read_text(encoding="utf-8")), load_recipe(RECIPE)
    killed, stopped = (chaos["by_kind_medians"][kind] for kind in ("kill-rank", "stop-rank"))
    saved, read = 14 * recipe.model.parameters, (12 + 2 * recipe.layout.dp) * recipe.model.parameters
    site = Site(
        notice=killed["ended_seconds"],
        hang=recipe.guard.patience + stopped["ended_seconds"] - chaos["patience"],
        processes=killed["resumed_seconds"] - killed["ended_seconds"],
        groups=2 * MINUTE,
        load=read / 100e9,
        stall=saved / GPUS / 20e9,
        write=saved / 50e9,
        queue=10 * MINUTE,
    )

    def at_both_rates(policy: Policy) -> tuple[Shares, Shares]:
        return simulate(policy, site, LLAMA.per_second), simulate(policy, site, OPT.per_second)

    intervals = [(every, *at_both_rates(Policy(every))) for every in INTERVALS]
    good = intervals[-1][1].goodput - 0.002
    text = Path(__file__).with_name("goodput.md.jinja").read_text(encoding="utf-8")
    template = Template(text, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    document: str = template.render(
        llama=LLAMA,
        opt=OPT,
        gpus=GPUS,
        days=DAYS,
        step_seconds=STEP_SECONDS,
        policies=[(name, policy, *at_both_rates(policy)) for name, policy in POLICIES],
        site=site,
        best=math.sqrt(2 * site.stall / LLAMA.per_second),
        least=math.ceil(site.write / STEP_SECONDS),
        intervals=intervals,
        longest=max(every for every, shares, _ in intervals if shares.goodput > good),
        saved=saved,
        read=read,
        recipe=recipe,
        result=path.name,
        causes=CAUSES,
    )
    return document


def main() -> None:
    """Write the document."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DOCUMENT)
    parser.parse_args().out.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
