# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel"]
# ///
"""Published runs as runs of the planner: a CSV of them is read, predicted, and compared with what was measured.

    python benchmarks/planner_rows.py FILE.csv > predicted.csv

A row is a run: hardware, model shape, layout, program, and what was measured, any of step_seconds, tokens_per_s_per_gpu
and tflops_per_gpu with its tflops_kind, and memory_gb. Hardware and network choose the cluster, the software the
program. A row that cannot be predicted says why in ``why_not``. Words are those of the files in tests/data and of
VIA-Research/vTrain, whose own columns are read too; planner_rows.toml has them.
"""

from __future__ import annotations

import csv
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from mtnlg_model.config import ModelConfig
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.planner.cluster import Cluster, cluster_with, load_cluster
from mtnlg_parallel.planner.interval import interval_of
from mtnlg_parallel.planner.memory import fullest_stage, memory, memory_error
from mtnlg_parallel.planner.programs import Software, load_software
from mtnlg_parallel.planner.run import Run, run_error
from mtnlg_parallel.planner.step import predict

WORDS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""What the words of a column mean."""

CUDNN_SINCE: Final = "24.09"
"""NeMo's release from which its published runs name cuDNN's attention (NVTE_FUSED_ATTN in their launch scripts).

Of those before, sequences of 4,096 to 1,048,576 took FlashAttention-2's time.
"""

COMPILED_LOSS: Final = "2025"
"""Year from which torchtitan compiles its loss too."""

UNPADDED: Final = ("torchtitan", "llm-foundry")
"""Programs that do not pad the vocabulary to a multiple of 128 tp, as Megatron does."""

GPT2_TOKENS: Final = 50257
RACKS: Final = ("gb200-nvl72",)
"""Clusters whose NVLink domain is a rack of servers: ``gpus_per_node`` is then a server's."""

GIGABIT: Final = 1e9 / 8
GIB: Final = 1 << 30
COLUMNS: Final = (
    "predicted_step_seconds",
    "low_step_seconds",
    "high_step_seconds",
    "predicted_tokens_per_s_per_gpu",
    "predicted_tflops_per_gpu",
    "predicted_memory_gb",
    "fits",
    "error",
    "why_not",
)
VTRAIN_SECONDS: Final = "iteration time (ms)"
"""A column of VIA-Research/vTrain's files."""


class Row(NamedTuple):
    """A row: its cells by column, and the run that it describes, or why that cannot be predicted."""

    cells: dict[str, str]
    published: Run | None
    why_not: str = ""

    def figure(self, column: str) -> float | None:
        """Return a measured figure; None where the source has none."""
        return float(self.cells.get(column) or 0) or None


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a CSV."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return [_row(record) for record in csv.DictReader(file)]


def _row(cells: dict[str, str]) -> Row:
    if VTRAIN_SECONDS in cells:
        columns, runs = WORDS["vtrain"]["columns"], WORDS["vtrain"]["runs"]
        seconds = f"{float(cells.pop(VTRAIN_SECONDS)) / 1e3:.7g}"
        cells = {columns.get(name, name): text for name, text in cells.items()} | runs | {"step_seconds": seconds}
    try:
        return Row(cells, _published(cells))
    except ValidationError as error:
        return Row(cells, None, error.errors()[0]["msg"])
    except ValueError as error:
        return Row(cells, None, str(error))


def _published(cells: dict[str, str]) -> Run:
    """Return what a row describes. Raises ``ValueError`` with the reason why it cannot be predicted."""
    software, cluster = _program(cells), _cluster(cells)
    run = _run(cells, software, cluster)
    if run.gpus != int(cells["gpus"]):
        raise ValueError(f"{run.layout} is {run.gpus} GPUs, not {cells['gpus']}")
    if reason := run_error(run):
        raise ValueError(reason)
    return run


def _find(cells: dict[str, str], column: str) -> Any:  # noqa: ANN401
    for pattern, value in WORDS[column].items():
        if re.search(pattern, cells[column]):
            return value
    raise ValueError(f"{column} {cells[column]!r} is not known to the planner")


def _count(cells: dict[str, str], column: str, default: int = 1) -> int:
    return int(cells.get(column) or default)


def _run(cells: dict[str, str], software: Software, cluster: Cluster) -> Run:
    tp, pp, cp, dp = (_count(cells, axis) for axis in ("tp", "pp", "cp", "dp"))
    sliced = _find(cells, "sequence_parallel") if cells.get("sequence_parallel") else software.slices_sequence
    zero, shards = _find(cells, "sharding"), re.search(r"x(\d+)", cells["sharding"])
    return Run(
        model=_model(cells, tp, pads_vocabulary=software.name not in UNPADDED),
        layout=Layout(tp=tp, cp=cp, pp=pp, dp=dp),
        batch=_count(cells, "global_batch"),
        micro_batch=_count(cells, "micro_batch"),
        recompute=_find(cells, "recompute"),
        sequence_parallel=tp > 1 and sliced,
        zero=zero,
        precision=_find(cells, "precision"),
        shards=int(shards[1]) * cp if shards else None,
        software=software,
        cluster=cluster,
    ).with_chunks(_count(cells, "vpp"))


def _model(cells: dict[str, str], tp: int, *, pads_vocabulary: bool) -> ModelConfig:
    """Return the decoder of a row."""
    arch = cells["arch"]
    gated = arch == "llama"
    modern = gated or "nemotron" in arch
    plain = modern or arch == "mpt"
    vocabulary = _count(cells, "vocab", padded(GPT2_TOKENS, tp))
    heads, hidden = _count(cells, "heads"), _count(cells, "hidden")
    return ModelConfig(
        layers=_count(cells, "layers"),
        hidden=hidden,
        heads=heads,
        sequence=_count(cells, "seq"),
        vocabulary=padded(vocabulary, tp) if pads_vocabulary else vocabulary,
        kv_heads=_count(cells, "kv_groups", heads),
        ffn=_count(cells, "ffn", 4 * hidden),
        dropout=0.0 if plain else 0.1,
        attention_dropout=0.0 if plain else 0.1,
        norm="rms" if gated else "layer",
        mlp="swiglu" if gated else "gelu-tanh",
        positions="learned" if arch == "gpt" else "rotary",
        rotary_fraction=1.0,
        bias=not plain,
        qkv_bias=not plain,
        tied=not modern,
    )


def padded(tokens: int, tp: int) -> int:
    """Return a vocabulary size as Megatron pads it: a multiple of 128 tp."""
    multiple = 128 * tp
    return -(-tokens // multiple) * multiple


def _program(cells: dict[str, str]) -> Software:
    name, precision, software = _find(cells, "software"), cells["precision"], cells["software"]
    if name == "megatron-deepspeed" and "MT-NLG" in (cells.get("model") or ""):
        name = "megatron-deepspeed-2021"
    changes: dict[str, bool | int] = {}
    if name == "megatron-core":
        release = max(re.findall(r"\b2\d\.\d\d\b", software), default=CUDNN_SINCE)
        changes = {"master_bytes": 2, "native_attention": release >= CUDNN_SINCE}
    if name == "torchtitan":
        compiled, pieces = "compile" in precision or "float8" in precision, "async" in precision
        changes = {
            "fused_kernels": compiled,
            "fused_loss": compiled and (cells.get("date") or "") >= COMPILED_LOSS,
            "overlap_forward": pieces,
            "overlap_tensor": pieces,
        }
    if "PURE" in precision:
        changes = {"reduces_half": True}
    return load_software(name).model_copy(update=changes)


def _cluster(cells: dict[str, str]) -> Cluster:
    name, network = cluster_with(cells["hardware"]), cells.get("network") or ""
    if name is None:
        raise ValueError(f"hardware {cells['hardware']!r} is not known to the planner")
    sites = WORDS["network"].get(name, {}).items()
    cluster = load_cluster(next((site for words, site in sites if re.search(words, network)), name))
    gpus = _count(cells, "gpus_per_node", cluster.node.gpus)
    share = (network_bandwidth(network, gpus) or cluster.network_share * gpus) / gpus
    domain = cluster.node.gpus if cluster.name in RACKS else gpus
    node = cluster.node.model_copy(update={"gpus": domain, "network_bandwidth": share * domain})
    return cluster.model_copy(update={"node": node})


def network_bandwidth(text: str, gpus: int) -> float | None:
    """Return bytes per second and direction of a node, from words such as ``8x NDR400 a node``; None without any."""
    found = re.search(r"(?:(\d+)x )?(?:[A-Za-z -]*)(\d{3,4})\b.* a (node|GPU)", text)
    if not found:
        return None
    return int(found[1] or 1) * int(found[2]) * GIGABIT * (gpus if found[3] == "GPU" else 1)


def predict_row(row: Row) -> dict[str, Any]:
    """Return the added columns of a row: numbers, ``fits`` as a boolean, None where there is nothing to say.

    ``error`` is predicted over measured, less 1. Memory is in GB; of torchtitan, which publishes what PyTorch's
    allocator has reserved, in GiB.
    """
    result: dict[str, Any] = dict.fromkeys(COLUMNS) | {"why_not": row.why_not}
    run = row.published
    if run is None:
        return result
    seconds, interval = predict(run).seconds, interval_of(run)
    stages, measured = memory(run), measured_seconds(row)
    return result | {
        "predicted_step_seconds": seconds,
        "low_step_seconds": seconds * interval.low,
        "high_step_seconds": seconds * interval.high,
        "predicted_tokens_per_s_per_gpu": run.batch * run.model.sequence / run.gpus / seconds,
        "predicted_tflops_per_gpu": counted_flops(row, run) / run.gpus / seconds / 1e12,
        "predicted_memory_gb": stages[fullest_stage(stages)].total
        / (GIB if run.software.name == "torchtitan" else 1e9),
        "fits": memory_error(stages, run.cluster) is None,
        "error": seconds / measured - 1 if measured else None,
    }


def counted_flops(row: Row, run: Run) -> float:
    """Return operations of a step as the row's source counts them: with what is recomputed, or of the model alone."""
    kind = row.cells.get("tflops_kind") or ""
    return run.hardware_flops if kind.startswith("hardware") else run.model_flops


def measured_seconds(row: Row) -> float | None:
    """Return measured seconds of a step, also where the source has a rate; None where nothing was measured."""
    run = row.published
    if run is None:
        return None
    if seconds := row.figure("step_seconds"):
        return seconds
    if rate := row.figure("tokens_per_s_per_gpu"):
        return run.batch * run.model.sequence / run.gpus / rate
    if rate := row.figure("tflops_per_gpu"):
        return counted_flops(row, run) / run.gpus / rate / 1e12
    return None


if __name__ == "__main__":
    published = read_rows(Path(sys.argv[1]))
    writer = csv.DictWriter(sys.stdout, [*published[0].cells, *COLUMNS], lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.cells | predict_row(row) for row in published)
