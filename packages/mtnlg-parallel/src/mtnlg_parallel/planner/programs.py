"""Training programs, as switches with a physical meaning: kernels, bytes, waits, and the layouts they support.

``programs.toml`` sets the switches of each program.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from mtnlg_model.console import UsageFailure
from mtnlg_model.settings import Settings, setting

if TYPE_CHECKING:
    from collections.abc import Sequence


ENGINES: Final = {"pipeline": "mtnlg-parallel", "deepspeed": "mtnlg-parallel-deepspeed"}
"""This package's programs, by engine."""


class Software(Settings):
    """A training program. Each switch adds or removes kernels, bytes or waits, or allows a layout.

    None scales the time.
    """

    name: str = "a program of its own"
    fused_kernels: bool = setting(True, "bias+GeLU, bias+dropout+add, scale+mask+softmax as one kernel each")
    eager: bool = setting(
        False,
        "PyTorch's own operations, one after the other: norms and rotary positions unless fused, the loss "
        "of sliced logits, casts to 8 bits by a matrix's own maximum, blocks of a context-parallel ring in fp32",
    )
    flash_attention: bool = setting(False, "scores stay on chip: no s x s tensor is written")
    native_attention: bool = setting(False, "attention kernels made for the GPU's generation")
    fused_loss: bool = setting(False, "cross entropy in one pass over 16-bit logits")
    fused_accumulation: bool = setting(False, "weight gradients are added to fp32 inside the product")
    overlap_tensor: bool = setting(False, "backward all-reduces overlap with weight gradients")
    overlap_forward: bool = setting(
        False, "forward collectives overlap with their products, as copies in pieces; backward ones too"
    )
    overlap_gradients: bool = setting(
        False,
        "gradients are reduced from a chunk's last backward pass on, weights gathered until its first forward pass",
    )
    overlap_pipeline: bool = setting(False, "sends between stages overlap with computing")
    scatter_pipeline: bool = setting(True, "tensor-parallel ranks send one slice each, then gather")
    reduces_half: bool = setting(False, "gradients are reduced in 16 bits")
    reduce_scatter: bool = setting(True, "ZeRO-1 reduces to each shard's owner, not to all")
    uneven_stages: bool = setting(
        False, "stages may have unequal numbers of layers; interleaving, groups of micro-batches too"
    )
    interleaves: bool = setting(False, "has an interleaved schedule")
    any_schedule: bool = setting(False, "has every schedule of this package, and those of its users")
    slices_sequence: bool = setting(False, "has sequence parallelism")
    slices_context: bool = setting(False, "has context parallelism")
    shards_weights: bool = setting(False, "has FSDP, or ZeRO-2 and 3")
    multiplies_fp8: bool = setting(False, "has 8-bit products")
    attention_share: Annotated[float, Field(gt=0.0, le=1.0)] = setting(
        1.0, "rate of its flash attention's forward pass relative to the GPU's best of the kind"
    )
    attention_backward: Annotated[float, Field(ge=2.0, lt=10.0)] = setting(
        2.5, "time of its backward pass over that of its forward pass; five products over two"
    )
    attention_head: Annotated[float, Field(ge=0.0)] = setting(
        24.0, "width of heads at which it sustains half of its rate with wide heads"
    )
    blocks_launches: bool = setting(
        False, "the host waits for each operation (CUDA_LAUNCH_BLOCKING), and the GPU for the next launch"
    )
    master_bytes: Annotated[int, Field(ge=0)] = setting(4, "of a 16-bit weight beside it, in the optimizer")
    bucket_bytes: Annotated[float, Field(ge=0.0)] = setting(0.0, "buffers of its reductions and gathers")
    metric_bytes: Annotated[int, Field(ge=0)] = setting(0, "traffic per logit for metrics of every batch")
    prefetch_share: Annotated[float, Field(ge=0.0, le=1.0)] = setting(
        0.56, "share of FSDP's collectives that computing hides"
    )
    hop_seconds: Annotated[float, Field(ge=0.0, lt=1.0)] = setting(
        0.0, "overhead of a send between stages, in addition to latency and bandwidth"
    )

    @property
    def is_ours(self) -> bool:
        """Whether it is a program of this package, which cuts stages to minimise the slowest one, not evenly.

        Its logits exist for one chunk of tokens at a time, and are overwritten by their gradient; with fused kernels
        recomputation ends before a layer's last product; a 16-bit gradient is added to its fp32 sum as it arrives.
        """
        return self.name in ENGINES.values()


SOFTWARE: Final = {
    name: Software(name=name, **settings)
    for name, settings in tomllib.loads((files(__package__) / "programs.toml").read_text("utf-8")).items()
}


def load_software(name: str) -> Software:
    """The training program of this name. Raises ``UsageFailure`` with the valid names."""
    if name not in SOFTWARE:
        raise UsageFailure(f"--software {name}: unknown; use {', '.join(SOFTWARE)}")
    return SOFTWARE[name]


SWITCHES: Final = tuple(name for name, field in Software.model_fields.items() if field.annotation is bool)


def with_switches(software: Software, switches: Sequence[str] | None) -> Software:
    """The program with each ``NAME=on`` or ``NAME=off`` applied. Raises ``UsageFailure`` for any other text."""
    for switch in switches or ():
        key, _, value = switch.partition("=")
        if key not in SWITCHES or value not in {"on", "off"}:
            raise UsageFailure(f"--switch {switch}: write NAME=on or NAME=off; names are {', '.join(SWITCHES)}")
        software = software.model_copy(update={key: value == "on"})
    return software
