"""Training programs, as switches with a physical meaning: kernels, bytes, waits, and the layouts they support."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

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


def _programs(*rows: tuple[str, str, dict[str, Any]]) -> dict[str, Software]:
    """Programs by name, from (name, blank-separated switches to turn on, other settings)."""
    return {name: Software(name=name, **dict.fromkeys(on.split(), True), **others) for name, on, others in rows}


_OURS: Final = "flash_attention overlap_tensor slices_sequence multiplies_fp8 "

SOFTWARE: Final = _programs(
    # This package: stages balanced by cost, backward collectives overlapped with products. In our own engine every rank
    # sends its whole activation, and any schedule runs; DeepSpeed's engine runs the default schedule.
    (
        ENGINES["pipeline"],
        _OURS + "native_attention fused_accumulation overlap_gradients overlap_pipeline interleaves any_schedule "
        "slices_context shards_weights",
        {"scatter_pipeline": False},
    ),
    (ENGINES["deepspeed"], _OURS, {"reduce_scatter": False}),
    # DeepSpeed's pipeline engine as published: sends and receives are blocking, and sliced over tensor-parallel ranks.
    ("megatron-deepspeed", "uneven_stages", {"reduce_scatter": False, "bucket_bytes": 4e9}),
    # BigScience's fork of it, run with CUDA_LAUNCH_BLOCKING; 2 GB of its buffers are fitted.
    ("megatron-deepspeed-bloom", "uneven_stages blocks_launches", {"reduce_scatter": False, "bucket_bytes": 6e9}),
    # The private branch that trained MT-NLG: every rank sends the whole activation. The additional time per send is
    # fitted only to the step of 60.1 s on 280 nodes (docs/decisions/0061, 0060).
    (
        "megatron-deepspeed-2021",
        "uneven_stages",
        {"reduce_scatter": False, "scatter_pipeline": False, "bucket_bytes": 4e9, "hop_seconds": 4.75e-3},
    ),
    # Narayanan et al. 2021: interleaving, sends overlapped with computing, scatter/gather.
    ("megatron-lm-2021", "overlap_pipeline interleaves", {}),
    # Korthikanti et al. 2022: weight gradients accumulated in the product, backward collectives overlapped with it.
    ("megatron-lm", "fused_accumulation overlap_tensor overlap_pipeline interleaves slices_sequence", {}),
    # Megatron-Core from 2023 on: flash attention, gradient reduction overlapped with backward. Embedding and head may
    # count as layers when the decoder is cut.
    (
        "megatron-core",
        """uneven_stages flash_attention fused_accumulation overlap_tensor overlap_forward overlap_gradients
        overlap_pipeline interleaves slices_sequence reduces_half slices_context shards_weights multiplies_fp8
        native_attention""",
        {},
    ),
    # FSDP2 and TorchAO's 8 bits, eager or compiled as a row says; stages finish a send before they continue.
    (
        "torchtitan",
        "uneven_stages eager interleaves flash_attention slices_sequence slices_context shards_weights multiplies_fp8",
        {"prefetch_share": 0.79},
    ),
    # FSDP of PyTorch 2.0, Triton's flash attention with ALiBi's biases, slow in its backward pass. Composer computes
    # cross entropy and perplexity of every batch, each by a cast of the logits to fp32 (6 bytes) and log-softmax (8).
    # Attention's three figures and the hidden share are fitted.
    (
        "llm-foundry",
        "flash_attention fused_loss shards_weights multiplies_fp8",
        {"metric_bytes": 28, "attention_share": 0.66, "attention_backward": 4.0, "attention_head": 8.0}
        | {"prefetch_share": 0.0},
    ),
)


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
