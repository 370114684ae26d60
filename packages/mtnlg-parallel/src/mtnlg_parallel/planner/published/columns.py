"""Names of columns: those of published rows, what other tables call them, and vTrain's own files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

SPELLINGS: Final = {  # other names, lower case, any run of other characters as one underscore
    "hardware": ("gpu", "gpu_type", "gpu_model", "accelerator", "system"),
    "gpus": ("num_gpus", "number_of_gpus", "n_gpus", "gpu_count", "world_size"),
    "gpus_per_node": ("gpus_node",),
    "layers": ("num_layers", "n_layers", "number_of_layers", "num_hidden_layers"),
    "hidden": ("hidden_size", "d_model", "hidden_dim"),
    "ffn": ("ffn_hidden_size", "intermediate_size", "ffn_size", "d_ff"),
    "heads": ("num_heads", "n_heads", "attention_heads", "num_attention_heads"),
    "kv_groups": ("kv_heads", "num_kv_heads", "n_kv_heads", "num_query_groups", "num_key_value_heads"),
    "vocab": ("vocab_size", "vocabulary", "vocabulary_size"),
    "seq": ("seq_len", "seq_length", "sequence", "sequence_length", "context_length"),
    "tp": ("tensor_parallel", "tensor_parallelism", "tp_size"),
    "pp": ("pipeline_parallel", "pipeline_parallelism", "pp_size"),
    "dp": ("data_parallel", "data_parallelism", "dp_size"),
    "cp": ("context_parallel", "context_parallelism", "cp_size"),
    "vpp": ("vp", "virtual_pipeline", "interleave"),
    "micro_batch": ("mbs", "micro_batch_size", "microbatch", "microbatch_size"),
    "global_batch": ("gbs", "global_batch_size", "batch_size", "batch"),
    "precision": ("dtype", "data_type"),
    "recompute": ("recomputation", "activation_recompute", "activation_checkpointing"),
    "sequence_parallel": ("sp", "sequence_parallelism"),
    "software": ("framework", "program"),
    "step_seconds": ("step_time", "step_time_s", "seconds_per_step", "s_step", "iteration_time_s"),
    "tokens_per_s_per_gpu": (
        "tokens_s_gpu",
        "tokens_sec_gpu",
        "tokens_per_second_per_gpu",
        "tokens_per_sec_per_gpu",
        "tokens_per_gpu_per_second",
    ),
    "tflops_per_gpu": ("tflops_gpu", "tflop_s_gpu", "tflop_sec_gpu", "tflops_s_gpu", "model_tflop_sec_gpu"),
    "memory_gb": ("peak_memory_gb", "gpu_memory_gb", "memory_gb_gpu"),
}

STANDARD: Final = {other: name for name, others in SPELLINGS.items() for other in others}

VTRAIN: Final = {  # columns of VIA-Research/vTrain's files, and what they are here
    "# GPUs": "gpus",
    "global batch": "global_batch",
    "micro batch": "micro_batch",
    "hidden size": "hidden",
    "attention heads": "heads",
    "# layers": "layers",
    "sequence length": "seq",
    "tensor parallelism": "tp",
    "data parallelism": "dp",
    "pipeline parallelism": "pp",
}
VTRAIN_SECONDS: Final = "iteration time (ms)"
VTRAIN_RUNS: Final = {  # what its files do not say
    "hardware": "A100-80GB",
    "software": "Megatron-DeepSpeed",
    "precision": "fp16",
    "recompute": "full",
    "sharding": "none",
}


def standard_names(header: Sequence[str]) -> list[str]:
    """The header with columns under the names that `rows` reads; a second one of a name keeps its own.

    vTrain's header stays as it is.
    """
    if is_vtrain(header):
        return list(header)
    names: list[str] = []
    for text in header:
        plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
        name = STANDARD.get(plain, plain)
        taken = name in names or (name in header and name != text)
        names.append(text if taken or name not in {*SPELLINGS, *OTHERS} else name)
    return names


OTHERS: Final = ("model", "arch", "network", "sharding", "schedule", "date", "tflops_kind")
"""Columns that are read and have one name."""


def is_vtrain(header: Sequence[str]) -> bool:
    """Whether these are the columns of a file of vTrain's."""
    return set(VTRAIN) <= set(header)


def from_vtrain(record: dict[str, str]) -> dict[str, str]:
    """A row of vTrain's under the names that `rows` reads."""
    others = {name: text for name, text in record.items() if name not in {*VTRAIN, VTRAIN_SECONDS}}
    cells = others | {own: record[name] for name, own in VTRAIN.items()} | VTRAIN_RUNS
    try:
        return cells | {"step_seconds": f"{float(record[VTRAIN_SECONDS]) / 1e3:.7g}"}
    except (KeyError, ValueError):
        return cells
