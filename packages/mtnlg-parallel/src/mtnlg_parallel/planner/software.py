"""What the training program does, as switches with a physical meaning, and the programs that we know by name."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from mtnlg_model.console import UsageFailure
from mtnlg_model.settings import Settings


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
