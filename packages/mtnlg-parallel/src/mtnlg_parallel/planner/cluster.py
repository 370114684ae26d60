"""Clusters (data sheets and measured constants, in TOML) and training programs (switches with a physical meaning).

Data sheets give peaks; ``Measured`` gives the share of each that a program reaches. Every figure's source is in the
cluster's file. `benchmarks/planner_fit.py` fits the constants of DGX A100 on measured step times.

    gemm            share of the peak that a full wave of 256 x 128 tiles sustains
    memory          share of the peak bandwidth that element-wise kernels reach
    kernel_seconds  fixed time of a kernel: ramp, tail, and gap to the next
    link            share of a GPU's link bandwidth that a ring collective inside a node reaches
    link_seconds    latency of one step of that ring, including the wait for the last rank
    network         share of a GPU's part of the node's network that messages between nodes reach
    network_seconds latency of such a message
    launch_seconds  host time of one eager operation: Python, autograd, launch
    socket_skew     factor on host time where a collective spans both sockets of a node
    spread          standard deviation of GPU speeds: all wait for the slowest
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from mtnlg_model.console import UsageFailure
from mtnlg_model.settings import Settings, load

Positive = Annotated[float, Field(gt=0.0)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]
Seconds = Annotated[float, Field(ge=0.0, lt=1.0)]
Count = Annotated[int, Field(gt=0)]


class Gpu(Settings):
    """One GPU, by its data sheet."""

    name: str
    peak_flops: Positive = Field(description="dense 16-bit tensor-core operations a second")
    processors: Count = Field(description="streaming multiprocessors")
    memory_bytes: Positive
    memory_bandwidth: Positive = Field(description="bytes a second")


class Node(Settings):
    """A server: its GPUs, their links, its network."""

    gpus: Count
    link_bandwidth: Positive = Field(description="bytes a second and direction, of one GPU to the others")
    network_bandwidth: Positive = Field(description="bytes a second and direction, of the whole node")
    socket_gpus: Count = Field(description="GPUs whose hosts share a processor socket")


class Measured(Settings):
    """Shares of the data sheet that a program reaches, and latencies; the module docstring defines each."""

    gemm: Share
    memory: Share
    kernel_seconds: Seconds
    link: Share
    link_seconds: Seconds
    network: Share
    network_seconds: Seconds
    launch_seconds: Seconds
    socket_skew: Annotated[float, Field(ge=1.0, lt=3.0)]
    spread: Annotated[float, Field(ge=0.0, lt=0.2)]


class Cluster(Settings):
    """A cluster of equal nodes."""

    name: str
    nodes: Count = Field(description="nodes that can be booked")
    gpu: Gpu
    node: Node
    measured: Measured
    software: str = Field("megatron-deepspeed", description="training program unless --software names one")

    @property
    def network_share(self) -> float:
        """Network bandwidth of a node divided by its GPUs, bytes a second and direction, by the data sheet."""
        return self.node.network_bandwidth / self.node.gpus


@cache
def cluster_names() -> tuple[str, ...]:
    """Names of the clusters shipped with the package."""
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir()))


def load_cluster(name: str) -> Cluster:
    """A shipped cluster by name, or one of a TOML file. Raises ``UsageFailure`` with the nearest name."""
    if name in cluster_names():
        return _load_shipped(name)
    if name.endswith(".toml") or Path(name).exists():
        return load(Path(name), "cluster.toml", Cluster)
    near = get_close_matches(name, cluster_names(), n=1, cutoff=0.3)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UsageFailure(f"--cluster {name}: unknown; {hint}there are {', '.join(cluster_names())}, or give a TOML file")


@cache
def _load_shipped(name: str) -> Cluster:
    return load(Path(str(_folder() / f"{name}.toml")), "cluster.toml", Cluster)


def _folder() -> Path:
    return Path(str(files(__package__) / "clusters"))


class Software(Settings):
    """A training program. Each switch adds or removes kernels, bytes or waits, or allows a layout.

    None scales the time.
    """

    name: str = "a program of its own"
    fused_kernels: bool = Field(True, description="bias+GeLU, bias+dropout+add, scale+mask+softmax as one kernel each")
    flash_attention: bool = Field(False, description="scores stay on chip: no s x s tensor is written")
    fused_accumulation: bool = Field(False, description="weight gradients are added to fp32 inside the product")
    fused_head: bool = Field(True, description="with fused_accumulation, that of the head's table too")
    overlap_tensor: bool = Field(False, description="backward all-reduces overlap with weight gradients")
    overlap_forward: bool = Field(False, description="forward collectives overlap with their products, piece by piece")
    overlap_gradients: bool = Field(
        False,
        description="gradient reduction overlaps with the last backward pass, weight gathering with the next forward",
    )
    overlap_chunks: bool = Field(
        False,
        description="with overlap_gradients, chunk by chunk: gradients from the chunk's own last backward pass on, "
        "weights until its own first forward pass",
    )
    overlap_pipeline: bool = Field(False, description="sends between stages overlap with computing")
    scatter_pipeline: bool = Field(True, description="tensor-parallel ranks send one slice each, then gather")
    reduce_scatter: bool = Field(True, description="ZeRO-1 reduces to each shard's owner, not to all")
    chunked_head: bool = Field(
        False, description="logits exist a chunk of tokens at a time, and are replaced by their gradient in place"
    )
    balanced_stages: bool = Field(False, description="layers are cut where the slowest stage is fastest, not evenly")
    interleaves: bool = Field(False, description="has an interleaved schedule")
    splits_backward: bool = Field(False, description="has a zero-bubble schedule")
    slices_sequence: bool = Field(False, description="has sequence parallelism")


# This package: stages balanced by cost, backward collectives beside products. 1F1B runs on DeepSpeed's engine, other
# schedules on its own (engine/pipeline_engine.py), where every rank sends what it has.
_OURS: Final = Software(
    flash_attention=True, overlap_tensor=True, chunked_head=True, balanced_stages=True, slices_sequence=True
)
_PIPELINE_ENGINE: Final = {
    "fused_accumulation": True,
    "fused_head": False,
    "overlap_gradients": True,
    "overlap_chunks": True,
    "overlap_pipeline": True,
    "scatter_pipeline": False,
    "interleaves": True,
    "splits_backward": True,
}

ENGINES: Final = ("mtnlg-parallel", "mtnlg-parallel-pipeline")
"""This package's programs: with ``train.schedule = "1f1b"``, and with any other."""

SOFTWARE: Final[dict[str, Software]] = {
    name: software.model_copy(update={"name": name})
    for name, software in {
        ENGINES[0]: _OURS.model_copy(update={"reduce_scatter": False}),
        ENGINES[1]: _OURS.model_copy(update=_PIPELINE_ENGINE),
        # DeepSpeed's pipeline engine as published: sends and receives block, and are sliced over tensor-parallel ranks.
        "megatron-deepspeed": Software(reduce_scatter=False),
        # The private branch that trained MT-NLG: every rank sends the whole activation (docs/decisions/0061).
        "megatron-deepspeed-2021": Software(reduce_scatter=False, scatter_pipeline=False),
        # Narayanan et al. 2021: interleaving, sends beside computing, scatter/gather.
        "megatron-lm-2021": Software(overlap_pipeline=True, interleaves=True),
        # Korthikanti et al. 2022: weight gradients accumulated in the product, backward collectives beside it.
        "megatron-lm": Software(
            fused_accumulation=True,
            overlap_tensor=True,
            overlap_pipeline=True,
            interleaves=True,
            slices_sequence=True,
        ),
        # Megatron-Core from 2023 on: flash attention, gradients reduced beside the backward pass.
        "megatron-core": Software(
            flash_attention=True,
            fused_accumulation=True,
            overlap_tensor=True,
            overlap_forward=True,
            overlap_gradients=True,
            overlap_pipeline=True,
            interleaves=True,
            slices_sequence=True,
        ),
    }.items()
}


def load_software(name: str) -> Software:
    """The training program of this name. Raises ``UsageFailure`` with the valid names."""
    if name not in SOFTWARE:
        raise UsageFailure(f"--software {name}: unknown; use {', '.join(SOFTWARE)}")
    return SOFTWARE[name]
