"""What a cluster is made of: typed, in TOML, every figure with its source in the file; one's own reads alike.

A data sheet promises peaks; ``Measured`` holds the few constants that say what of them a program gets, each with one
meaning. For DGX A100 `benchmarks/planner_fit.py` fits them on measured step times; elsewhere the file says whence.

    gemm            share of the peak that a full wave of 256 x 128 tiles sustains
    memory          share of the peak bandwidth that element-wise kernels reach
    kernel_seconds  what a kernel takes before any byte: its ramp, its tail and the gap to the next
    link            share of a GPU's link bandwidth that a collective's ring inside a node carries
    link_seconds    latency of a step of that ring, with the wait for whoever comes last
    network         share of a GPU's part of the node's network that messages between nodes carry
    network_seconds latency of such a message
    launch_seconds  host time of an operation of an eager framework: Python, autograd, launch
    socket_skew     how much longer hosts on both sockets of a node take to meet in each collective
    spread          standard deviation of GPUs' speeds: all wait for the slowest

What the training program does, as switches with a physical meaning, and the programs that we know by name.
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

GIB: Final = 1 << 30


class Gpu(Settings):
    """One GPU, by its data sheet."""

    name: str
    peak_flops: Positive = Field(description="dense 16-bit tensor-core operations a second")
    processors: Count = Field(description="streaming multiprocessors")
    memory_bytes: Positive
    memory_bandwidth: Positive = Field(description="bytes a second")


class Node(Settings):
    """A server: its GPUs, what joins them, and what leaves it."""

    gpus: Count
    link_bandwidth: Positive = Field(description="bytes a second and direction, of one GPU to the others")
    network_bandwidth: Positive = Field(description="bytes a second and direction, of the whole node")
    socket_gpus: Count = Field(description="GPUs whose hosts share a processor socket")


class Measured(Settings):
    """What of the data sheet a program gets; see the module's table."""

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
    """A cluster."""

    name: str
    nodes: Count = Field(description="how many there are to book")
    gpu: Gpu
    node: Node
    measured: Measured
    software: str = Field("megatron-deepspeed", description="what runs there unless told otherwise")

    @property
    def network_share(self) -> float:
        """Bytes a second and direction that leave the node for each of its GPUs, by the data sheet."""
        return self.node.network_bandwidth / self.node.gpus


@cache
def names() -> tuple[str, ...]:
    """The clusters that come with the package."""
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir()))


def load_cluster(name: str) -> Cluster:
    """The cluster of this name, or of a TOML file. Raises ``UsageFailure`` with the nearest name."""
    if name in names():
        return _shipped(name)
    if name.endswith(".toml") or Path(name).exists():
        return load(Path(name), "cluster.toml", Cluster)
    near = get_close_matches(name, names(), n=1, cutoff=0.3)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UsageFailure(f"--cluster {name}: unknown; {hint}there are {', '.join(names())}, or give a TOML file")


@cache
def _shipped(name: str) -> Cluster:
    return load(Path(str(_folder() / f"{name}.toml")), "cluster.toml", Cluster)


def _folder() -> Path:
    return Path(str(files(__package__) / "clusters"))


class Software(Settings):
    """A training program. Each switch removes or adds kernels, bytes or waits; none is a factor on the time."""

    fused_kernels: bool = Field(True, description="bias+GeLU, bias+dropout+add, scale+mask+softmax as one kernel each")
    flash_attention: bool = Field(False, description="scores stay on chip: no s x s tensor is written")
    fused_accumulation: bool = Field(False, description="weight gradients are added to fp32 inside the product")
    overlap_tensor: bool = Field(False, description="a backward all-reduce runs beside the weight gradient")
    overlap_forward: bool = Field(False, description="forward collectives run piece by piece beside their products")
    overlap_gradients: bool = Field(
        False,
        description="gradients are reduced beside the last backward pass, weights gathered beside the next forward",
    )
    overlap_pipeline: bool = Field(False, description="stages send and receive beside their computing")
    scatter_pipeline: bool = Field(True, description="tensor-parallel ranks send a slice each, then gather")
    reduce_scatter: bool = Field(True, description="ZeRO-1 reduces to each shard's owner, not to all")
    chunked_head: bool = Field(
        False, description="logits exist a chunk of tokens at a time, and are replaced by their gradient in place"
    )
    balanced_stages: bool = Field(False, description="layers are cut where the slowest stage is fastest, not evenly")


SOFTWARE: Final[dict[str, Software]] = {
    # This package: DeepSpeed's pipeline engine under stages of our own cut.
    "mtnlg-parallel": Software(flash_attention=True, reduce_scatter=False, chunked_head=True, balanced_stages=True),
    # DeepSpeed's pipeline engine as published: sends and receives block, and are sliced over tensor-parallel ranks.
    "megatron-deepspeed": Software(reduce_scatter=False),
    # The private branch that trained MT-NLG: every rank sends the whole activation (docs/decisions/0061).
    "megatron-deepspeed-2021": Software(reduce_scatter=False, scatter_pipeline=False),
    # Narayanan et al. 2021: interleaving, sends beside computing, scatter/gather.
    "megatron-lm-2021": Software(overlap_pipeline=True),
    # Korthikanti et al. 2022: weight gradients accumulated in the product, backward collectives beside it.
    "megatron-lm": Software(fused_accumulation=True, overlap_tensor=True, overlap_pipeline=True),
    # Megatron-Core from 2023 on: flash attention, gradients reduced beside the backward pass.
    "megatron-core": Software(
        flash_attention=True,
        fused_accumulation=True,
        overlap_tensor=True,
        overlap_forward=True,
        overlap_gradients=True,
        overlap_pipeline=True,
    ),
}


def load_software(name: str) -> Software:
    """The program of this name; ``UsageFailure`` with the names otherwise."""
    if name not in SOFTWARE:
        raise UsageFailure(f"--software {name}: unknown; use {', '.join(SOFTWARE)}")
    return SOFTWARE[name]
