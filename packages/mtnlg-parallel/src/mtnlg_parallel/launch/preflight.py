"""Forecasts a run with the planner before it starts: whether it fits this machine, and seconds per step on GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from mtnlg_data.engine.machine import cores, memory_bytes
from mtnlg_model.console import UsageFailure
from mtnlg_parallel.planner.cluster import cluster_with, load_cluster
from mtnlg_parallel.planner.memory import fullest_stage, memory, memory_error
from mtnlg_parallel.planner.run import folder_document_length, train_run
from mtnlg_parallel.planner.step import predict

if TYPE_CHECKING:
    from mtnlg_parallel.layout import Layout
    from mtnlg_parallel.planner.cluster import Cluster
    from mtnlg_parallel.recipe import Recipe

UNKNOWN_GPU: Final = "dgx-a100"
"""Cluster whose figures are used for a GPU that no cluster has."""


class Forecast(NamedTuple):
    """The planner's forecast: cluster, bytes on the fullest rank, and seconds per step at full batch; None on a CPU."""

    cluster: str
    bytes: float
    seconds: float | None

    def __str__(self) -> str:
        """The forecast as a log line."""
        step = "" if self.seconds is None else f"{self.seconds:.3g} s per step and "
        return f"the planner expects {step}{self.bytes / 1e9:.3g} GB per rank on {self.cluster}"


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
    on_gpus, target = (True, load_cluster(cluster)) if cluster else this_machine(recipe.layout, device)
    run = train_run(recipe, document)._replace(cluster=target)
    stage_memory = memory(run)
    reason = memory_error(stage_memory, target)
    if reason and not force:
        remedy = "a larger tp or pp, a smaller train.micro_batch"
        shards_no_more = train.shard == "parameters" or train.engine == "deepspeed"
        remedy += "" if shards_no_more else ', at pp = 1 train.shard = "parameters"'
        remedy += "" if train.recompute == "full" else ', train.recompute = "full"'
        raise UsageFailure(f"layout {recipe.layout} cannot fit: {reason}; use {remedy}, or --force to try anyway")
    is_unknown = on_gpus and not (cluster or cluster_with(target.gpu.name))
    name = f"{target.gpu.name}, which it does not know and treats as {UNKNOWN_GPU}" if is_unknown else target.name
    seconds = predict(run).seconds if on_gpus else None
    return Forecast(name, stage_memory[fullest_stage(stage_memory)].total, seconds)


def this_machine(layout: Layout, device: Literal["auto", "cpu"] = "auto") -> tuple[bool, Cluster]:
    """Whether this machine trains on GPUs, and a planner cluster with its memory: a GPU's, or a rank's share on a CPU.

    Other figures are those of the GPU, or of `UNKNOWN_GPU`'s if the planner does not know it.
    """
    import torch  # noqa: PLC0415  (slow to import, and only the driver knows the GPU's name)

    on_gpus = device == "auto" and torch.cuda.is_available()
    if on_gpus:
        name, size = torch.cuda.get_device_name(), float(torch.cuda.get_device_properties(0).total_memory)
    else:
        name, size = f"rank's share of {cores()} cores", memory_bytes() / layout.world
    cluster = load_cluster(cluster_with(name) or UNKNOWN_GPU)
    gpu = cluster.gpu.model_copy(update={"name": name, "memory_bytes": size})
    machine = cluster.name if on_gpus else f"this machine's {cores()} cores"
    return on_gpus, cluster.model_copy(update={"name": machine, "gpu": gpu})
