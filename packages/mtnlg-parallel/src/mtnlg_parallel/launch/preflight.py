"""Forecasts a run that is about to start with the planner: whether it fits this machine, and seconds per step."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from mtnlg_data.engine.machine import cores, memory_bytes
from mtnlg_model.console import UsageFailure
from mtnlg_parallel.planner.cluster import Cluster, Gpu, Measured, Node, cluster_with, load_cluster
from mtnlg_parallel.planner.memory import fullest_stage, memory, memory_error
from mtnlg_parallel.planner.run import folder_document_length, train_run
from mtnlg_parallel.planner.step import predict
from mtnlg_parallel.record.history import number, read_events
from mtnlg_parallel.record.metrics import read_steps, training_seconds

if TYPE_CHECKING:
    from mtnlg_parallel.layout import Layout
    from mtnlg_parallel.recipe import Recipe

CPU_SHARE: Final = "rank's share of"
UNKNOWN_GPU: Final = "dgx-a100"
"""Cluster whose figures are used for a GPU that no cluster has."""
CORE_FLOPS: Final = 40.0e9
"""fp32 FLOP/s of torch's matrix products on one core of a current server CPU."""


class Forecast(NamedTuple):
    """The planner's forecast: cluster, seconds per step at full batch, bytes on the fullest rank, whether rough."""

    cluster: str
    seconds: float
    bytes: float
    rough: bool

    def __str__(self) -> str:
        """The forecast as a log line."""
        memory = f"{self.bytes / 1e9:.3g} GB a rank"
        return f"the planner expects {self.step_time} per step and {memory} on {self.cluster}"

    @property
    def step_time(self) -> str:
        """Seconds per step as text; marked rough on CPUs, since the planner was fitted to GPUs."""
        return f"{self.seconds:.3g} s{' (rough on CPUs)' if self.rough else ''}"


def forecast(
    recipe: Recipe,
    cluster: str | None,
    force: bool,
    device: Literal["auto", "cpu"] = "auto",
    data: object = None,
) -> Forecast:
    """Forecast the run on the named cluster; if ``cluster`` is None, on this machine's GPUs or CPU.

    ``data``: a folder of tokens, for the lengths of isolated documents; anything else tells nothing of them.

    Raises ``UsageFailure`` if the run cannot fit, unless ``force``.
    """
    train = recipe.train
    document = None
    if recipe.data.isolated and isinstance(data, str | Path):
        document = folder_document_length(Path(data), recipe.model.sequence)
    target = load_cluster(cluster) if cluster else this_machine(recipe.layout, device)
    run = train_run(recipe, document)._replace(cluster=target)
    stage_memory = memory(run)
    reason = memory_error(stage_memory, target)
    if reason and not force:
        remedy = "a larger tp or pp, a smaller train.micro_batch"
        remedy += "" if train.recompute == "full" else ', train.recompute = "full"'
        raise UsageFailure(f"layout {recipe.layout} cannot fit: {reason}; use {remedy}, or --force to try anyway")
    fullest = stage_memory[fullest_stage(stage_memory)]
    on_cpu = target.gpu.name.startswith(CPU_SHARE)
    unknown = not (cluster or on_cpu or cluster_with(target.gpu.name))
    name = f"{target.gpu.name}, which it does not know and treats as {UNKNOWN_GPU}" if unknown else target.name
    return Forecast(name, predict(run).seconds, fullest.total, rough=on_cpu)


def compare_step_time(out: Path, recipe: Recipe, expected: Forecast) -> str | None:
    """A line with measured and predicted step time; None if there is no measurement.

    Measured is the median of the full batches since the last start, without the first; earlier steps may have had
    another layout.
    """
    begins = [number(event, "step") for event in read_events(out) if event["event"] == "resumed"]
    steps = [step for step in read_steps(out) if step["step"] > (begins or [0])[-1]]
    seconds = [training_seconds(step) for step in steps if step["batch_size"] == recipe.train.batch][1:]
    if not seconds:
        return None
    median = statistics.median(seconds)
    return f"a step of {recipe.train.batch} took {median:.3g} s, predicted {expected.step_time}"


def this_machine(layout: Layout, device: Literal["auto", "cpu"] = "auto") -> Cluster:
    """A planner cluster for this machine: its GPUs, or its cores divided among the ranks.

    A GPU unknown to the planner gets the figures of `UNKNOWN_GPU`'s GPU, but its own memory size.
    """
    import torch  # noqa: PLC0415  (slow to import, and only the driver knows the GPU's name)

    if device == "cpu" or not torch.cuda.is_available():
        return _cpu_cluster(layout)
    name = torch.cuda.get_device_name()
    cluster = load_cluster(cluster_with(name) or UNKNOWN_GPU)
    total_memory = float(torch.cuda.get_device_properties(0).total_memory)
    gpu = cluster.gpu.model_copy(update={"name": name, "memory_bytes": total_memory})
    return cluster.model_copy(update={"gpu": gpu})


def _cpu_cluster(layout: Layout) -> Cluster:
    """A one-node cluster with one "GPU" per rank, its share of the cores; ranks beyond the cores take turns.

    Links have the rate at which gloo copies what it sends.
    """
    processors, ranks = cores(), layout.world
    share = max(processors // ranks, 1)
    return Cluster(
        name=f"this machine's {processors} cores",
        nodes=1,
        gpu=Gpu(
            name=f"{CPU_SHARE} {processors} cores",
            peak_flops=CORE_FLOPS * share,
            processors=1,
            memory_bytes=memory_bytes() / ranks,
            memory_bandwidth=8.0e9 * share,
        ),
        node=Node(
            gpus=ranks,
            link_bandwidth=1.0e9,
            network_bandwidth=1.0e9,
            socket_gpus=ranks,
            processors=min(processors, ranks),
        ),
        measured=Measured(
            gemm=0.8,
            memory=0.6,
            kernel_seconds=10e-6,
            link=1.0,
            link_seconds=200e-6,
            network=1.0,
            network_seconds=200e-6,
            launch_seconds=40e-6,
            socket_skew=1.0,
            spread=0.0,
        ),
    )
