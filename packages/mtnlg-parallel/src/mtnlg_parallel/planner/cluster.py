"""Clusters: data sheets and measured constants, in TOML. ``like`` in a file names a shipped cluster for its defaults.

A new GPU is one more file in ``clusters``, whose ``gpus`` tells its names.

Data sheets give peaks; ``Measured`` gives the share of each that a program reaches. The evidence for every figure (data
sheet, published measurement, fitted, set) is in the cluster's file; `benchmarks/planner_published.py` fits the figures.

    gemm            share of the peak that a full wave of 256 x 128 tiles sustains
    clock           share of its clock that a GPU at its power limit keeps through a step; scales products
    fp8             share of the 8-bit peak relative to that of the 16-bit peak; above 1 if less power allows more clock
    flash           share of the peak that flash attention approaches on long rows of large heads
    native_flash    the same for kernels written for the GPU's generation (cuDNN 9, FlashAttention-3)
    memory          share of the peak bandwidth that element-wise kernels reach
    kernel_seconds  fixed time per kernel: ramp, tail, and gap to the next
    link            share of a GPU's link bandwidth that a ring collective inside a node reaches
    link_seconds    latency of one step of that ring
    network         share of a GPU's part of the node's network that messages between nodes reach
    network_seconds latency of such a message
    launch_seconds  host time per eager operation: Python, autograd, launch
    socket_skew     factor on host time if a collective spans both sockets of a node
    spread          standard deviation of GPU speeds; all GPUs wait for the slowest
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from mtnlg_model.console import UsageFailure
from mtnlg_model.settings import Settings, did_you_mean, setting, toml_content, validate

from .programs import SOFTWARE

Positive = Annotated[float, Field(gt=0.0)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]
Seconds = Annotated[float, Field(ge=0.0, lt=1.0)]
Count = Annotated[int, Field(gt=0)]


OTHER_BOARDS: Final = r"^(?!.*GH200).*(PCI-?e|\bNVL\b|V100.*16 ?GB)"
"""GPUs of the same names, but on boards of which no cluster is shipped."""


class Gpu(Settings):
    """One GPU, by its data sheet."""

    name: str
    peak_flops: Positive = Field(description="dense 16-bit tensor-core operations per second; CPU: fp32 operations")
    fp32_flops: Positive | None = setting(None, "fp32 operations per second without tensor cores")
    fp8_flops: Positive | None = setting(None, "dense 8-bit tensor-core operations per second, if it has them")
    nvfp4_flops: Positive | None = setting(None, "dense NVFP4 tensor-core operations per second, if it has them")
    bf16: bool = setting(True, "has products of bfloat16")
    processors: Count = Field(description="streaming multiprocessors")
    memory_bytes: Positive
    memory_bandwidth: Positive = Field(description="bytes per second")

    def narrow_flops(self, width: float) -> float | None:
        """Peak operations per second for factors of 1 or 1/2 byte; None if it has no such products."""
        return {1: self.fp8_flops, 0.5: self.nvfp4_flops}.get(width)

    def flops(self, width: float) -> float:
        """Peak operations per second for factors of ``width`` bytes. TF32 is off, as is PyTorch's default."""
        return self.narrow_flops(width) or (width == 4 and self.fp32_flops) or self.peak_flops


class Node(Settings):
    """A server: its GPUs, their links, its network."""

    gpus: Count
    link_bandwidth: Positive = Field(description="bytes per second and direction, of one GPU to the others")
    network_bandwidth: Positive = Field(description="bytes per second and direction, of the whole node")
    host_bandwidth: Positive = setting(
        12.0e9,  # 16 lanes of PCIe 4.0, shared by two GPUs, as on a DGX A100
        "bytes per second and direction, of one GPU to its host's memory while all copy",
    )
    socket_gpus: Count = Field(description="GPUs whose hosts share a processor socket")


class Measured(Settings):
    """Shares of the data sheet that a program reaches, and latencies; the module docstring defines each."""

    gemm: Share
    clock: Share = 1.0
    fp8: Annotated[float, Field(gt=0.0, lt=1.5)] = 1.0
    flash: Share = 0.8
    native_flash: Share = 0.8
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
    gpus: str = setting("", "regular expression of GPUs' names in CUDA and publications that this cluster stands for")
    nodes: Count = Field(description="nodes that can be booked")
    gpu: Gpu
    node: Node
    measured: Measured
    software: str = setting("megatron-deepspeed", "training program unless --software names one")

    @property
    def network_share(self) -> float:
        """A node's network bandwidth divided by its GPUs, in bytes per second and direction, by the data sheet."""
        return self.node.network_bandwidth / self.node.gpus


@cache
def cluster_names() -> tuple[str, ...]:
    """Names of the clusters shipped with the package."""
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir()))


def load_cluster(name: str) -> Cluster:
    """A shipped cluster by name, or a cluster from a TOML file. Raises ``UsageFailure`` with the nearest name."""
    if name in cluster_names():
        return _load_shipped(name)
    if name.endswith(".toml") or Path(name).exists():
        return _load(Path(name))
    hint = did_you_mean(name, cluster_names(), cutoff=0.3)
    raise UsageFailure(f"cluster {name}: unknown; {hint}there are {', '.join(cluster_names())}, or give a TOML file")


@cache
def cluster_with(gpu: str) -> str | None:
    """The name of the shipped cluster with this GPU, named as CUDA or a publication names it; None if there is none."""
    if re.search(OTHER_BOARDS, gpu, re.IGNORECASE):
        return None
    patterns = {name: rf"({own})(?!\d)" for name in cluster_names() if (own := load_cluster(name).gpus)}  # not A1000
    return next((name for name, own in patterns.items() if re.search(own, gpu, re.IGNORECASE)), None)


@cache
def _load_shipped(name: str) -> Cluster:
    return _load(Path(str(_folder() / f"{name}.toml")))


def _load(path: Path) -> Cluster:
    """A cluster from a TOML file; keys that the file omits come from the shipped cluster that its ``like`` names."""
    cluster = validate(_content(path), Cluster, str(path))
    if cluster.software not in SOFTWARE:
        raise UsageFailure(f"{path}: software = {cluster.software!r}: unknown; use {', '.join(SOFTWARE)}")
    return cluster


def _content(path: Path) -> dict[str, Any]:
    content = toml_content(path, "cluster")
    like = content.pop("like", None)
    if like is None:
        return content
    if like not in cluster_names():
        raise UsageFailure(f"{path}: like = {like!r}: unknown; there are {', '.join(cluster_names())}")
    base = _content(Path(str(_folder() / f"{like}.toml")))
    base.pop("gpus", None)
    tables = {key: value for key, value in base.items() if isinstance(value, dict)}
    return base | {
        key: tables[key] | value if isinstance(value, dict) and key in tables else value
        for key, value in content.items()
    }


def _folder() -> Path:
    return Path(str(files(__package__) / "clusters"))
