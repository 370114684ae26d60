"""What the planner expects of a run that is about to start: whether it fits the machine, and how long a step takes."""

from __future__ import annotations

import os
import statistics
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_model.console import UsageFailure
from mtnlg_parallel.planner.cluster import Cluster, Gpu, Measured, Node, load_cluster, load_software
from mtnlg_parallel.planner.memory import fullest, memory, misfit
from mtnlg_parallel.planner.run import Run
from mtnlg_parallel.planner.step import predict

from .metrics import read_steps

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_parallel.layout import Layout
    from mtnlg_parallel.recipe import Recipe

BOARDS: Final = {
    "A100-SXM4-80GB": "dgx-a100",
    "A100-SXM4-40GB": "dgx-a100-40gb",
    "H100": "dgx-h100",
    "H200": "hgx-h200",
}
"""Which cluster's figures a GPU has, by what its driver calls it."""

CORE_FLOPS: Final = 40.0e9
"""fp32 products of one core of a current server CPU, by torch."""


class Expected(NamedTuple):
    """The planner's word on a run: on what, seconds of a step of the whole batch, bytes of its fullest rank."""

    cluster: str
    seconds: float
    bytes: float

    def __str__(self) -> str:
        """In words."""
        where = f"on {self.cluster}"
        return f"the planner expects {self.seconds:.3g} s a step and {self.bytes / 1e9:.3g} GB a rank {where}"


def expect(recipe: Recipe, cluster: str | None, force: bool) -> Expected:
    """What to expect on this machine, or on the cluster of this name; ``UsageFailure`` where the run cannot fit."""
    train = recipe.train
    software = load_software("mtnlg-parallel").model_copy(update={"fused_kernels": train.kernels})
    place = load_cluster(cluster) if cluster else this_machine(recipe.layout)
    run = Run(
        model=recipe.model,
        layout=recipe.layout,
        batch=train.batch,
        micro_batch=train.micro_batch,
        recompute=train.recompute,
        sequence_parallel=train.sequence_parallel and recipe.layout.tp > 1,
        precision=train.precision,
    )
    held = memory(run, software)
    reason = misfit(held, place)
    if reason and not force:
        less = "a larger tp or pp, a smaller train.micro_batch"
        less += "" if train.recompute == "full" else ', train.recompute = "full"'
        raise UsageFailure(f"layout {recipe.layout} cannot fit: {reason}; use {less}, or --force to try all the same")
    return Expected(place.name, predict(run, place, software).seconds, held[fullest(held)].total)


def compared(out: Path, recipe: Recipe, expected: Expected) -> str | None:
    """The predicted step time beside the measured: the median of the steps of the whole batch, but for the first."""
    seconds = [step["seconds"] for step in read_steps(out) if step["batch_size"] == recipe.train.batch][1:]
    if not seconds:
        return None
    median = statistics.median(seconds)
    return f"a step of {recipe.train.batch} took {median:.3g} s, {expected.seconds:.3g} s predicted"


def this_machine(layout: Layout) -> Cluster:
    """The machine under this process: its GPUs where they are known ones, or its cores shared among the ranks."""
    import torch  # noqa: PLC0415  (slow to import, and only the driver knows the GPU's name)

    if not torch.cuda.is_available():
        return _processors(layout)
    name = torch.cuda.get_device_name()
    known = next((cluster for board, cluster in BOARDS.items() if board in name), "dgx-a100")
    place = load_cluster(known)
    total = float(torch.cuda.get_device_properties(0).total_memory)
    gpu = place.gpu.model_copy(update={"name": name, "memory_bytes": total})
    return place.model_copy(update={"gpu": gpu})


def _processors(layout: Layout) -> Cluster:
    """The cores and memory, an equal part to each rank; gloo copies what it sends."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    ranks = layout.world
    memory_bytes = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / ranks
    part = min(cores / ranks, 1.0 * cores)
    return Cluster(
        name=f"this machine's {cores} cores",
        nodes=1,
        gpu=Gpu(
            name=f"rank's share of {cores} cores",
            peak_flops=CORE_FLOPS * part,
            processors=1,
            memory_bytes=memory_bytes,
            memory_bandwidth=8.0e9 * part,
        ),
        node=Node(gpus=ranks, link_bandwidth=1.0e9, network_bandwidth=1.0e9, socket_gpus=ranks),
        measured=Measured(
            gemm=0.8,
            memory=0.6,
            kernel_seconds=10e-6,
            link=1.0,
            link_seconds=200e-6,
            network=1.0,
            network_seconds=200e-6,
            launch_seconds=40e-6 / min(part, 1.0),
            socket_skew=1.0,
            spread=0.0,
        ),
    )
