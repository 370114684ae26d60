"""Rows of a CSV of published runs, one a run: hardware, model shape, layout, program, and what was measured.

Hardware and network choose the cluster, the software the program. A row that cannot be predicted says why in
``why_not``. Columns (others are kept): hardware, gpus, gpus_per_node, network, arch, layers, hidden, ffn, heads,
kv_groups, vocab, seq, tp, pp, vpp, cp, dp, sharding, micro_batch, global_batch, precision, recompute,
sequence_parallel, software; then what was measured, any of step_seconds, tokens_per_s_per_gpu and tflops_per_gpu with
its tflops_kind, and memory_gb.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from pydantic import ValidationError

from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure, UsageFailure
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.planner.cluster import load_cluster
from mtnlg_parallel.planner.programs import load_software
from mtnlg_parallel.planner.run import Run, run_error

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from mtnlg_parallel.planner.cluster import Cluster
    from mtnlg_parallel.planner.programs import Software
    from mtnlg_parallel.planner.run import Precision, Recomputed

REQUIRED: Final = ("hardware", "gpus", "layers", "hidden", "heads", "seq", "micro_batch", "global_batch")

HARDWARE: Final = (  # the first pattern that the row's hardware has, and its cluster
    (r"GB200", "gb200-nvl72"),
    (r"B200", "dgx-b200"),
    (r"H200", "hgx-h200"),
    (r"H100.*(96 ?GB|500 ?W|HBM2e)", "hgx-h100-96gb"),
    (r"H100", "dgx-h100"),
    (r"A100.*40 ?GB", "dgx-a100-40gb"),
    (r"A100", "dgx-a100"),
    (r"V100", "dgx1-v100"),
)

PROGRAMS: Final = (  # the first pattern that the row's software has, and its program
    (r"NeMo|Megatron-?Core", "megatron-core"),
    (r"torchtitan", "torchtitan"),
    (r"llm-foundry|Composer", "llm-foundry"),
    (r"bigscience", "megatron-deepspeed-bloom"),
    (r"Megatron-DeepSpeed|DeepSpeed", "megatron-deepspeed"),
    (r"Megatron-LM.*2022", "megatron-lm"),
    (r"Megatron-LM", "megatron-lm-2021"),
)

RECOMPUTED: Final[tuple[tuple[str, Recomputed], ...]] = (
    (r"selective.op", "operators"),
    (r"selective.layer", "alternate"),
    (r"selective", "selective"),
    (r"full", "full"),
    (r"none|no|^$", "none"),
)

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

COMPILED_LOSS: Final = "2025"
"""Year from which torchtitan compiles its loss too."""

GPT2_TOKENS: Final = 50257

GIGABIT: Final = 1e9 / 8


class PublishedRun(NamedTuple):
    """A row that can be predicted."""

    run: Run
    cluster: Cluster
    software: Software


class Row(NamedTuple):
    """A row: its cells by column, and what it describes, or why that cannot be predicted."""

    cells: dict[str, str]
    published: PublishedRun | None
    why_not: str = ""

    def figure(self, column: str) -> float | None:
        """A measured figure; None where the source has none."""
        text = self.cells.get(column) or ""
        try:
            return float(text)
        except ValueError:
            return None


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV. Raises ``Failure`` if it is missing, ``UsageFailure`` if it is no such CSV."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            records = list(reader)
            header = reader.fieldnames or ()
    except FileNotFoundError:
        raise Failure(f"{path}: no such file") from None
    except (UnicodeDecodeError, csv.Error):
        raise UsageFailure(f"{path}: no CSV with a header; its columns are {', '.join(REQUIRED)}, …") from None
    if set(VTRAIN) <= set(header):
        return [_row(_from_vtrain(record)) for record in records]
    if missing := [name for name in REQUIRED if name not in header]:
        raise UsageFailure(f"{path}: column {missing[0]!r} is missing; there are {', '.join(header)}")
    if any(None in record or None in record.values() for record in records):
        line = next(n for n, record in enumerate(records, 2) if None in record or None in record.values())
        raise UsageFailure(f"{path}, line {line}: not as many fields as the {len(header)} columns")
    return [_row(record) for record in records]


def _from_vtrain(record: dict[str, str]) -> dict[str, str]:
    others = {name: text for name, text in record.items() if name not in {*VTRAIN, VTRAIN_SECONDS}}
    cells = others | {own: record[name] for name, own in VTRAIN.items()} | VTRAIN_RUNS
    try:
        return cells | {"step_seconds": f"{float(record[VTRAIN_SECONDS]) / 1e3:.7g}"}
    except (KeyError, ValueError):
        return cells


def _row(cells: dict[str, str]) -> Row:
    try:
        return Row(cells, _published(cells))
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        place = ".".join(map(str, wrong["loc"]))
        return Row(cells, None, f"{place + ': ' if place else ''}{wrong['msg'].removeprefix('Value error, ')}")
    except ValueError as error:
        return Row(cells, None, str(error))


def _published(cells: dict[str, str]) -> PublishedRun:
    """What a row describes. Raises ``ValueError`` with the reason why it cannot be predicted."""
    if missing := [name for name in REQUIRED if not cells[name].strip()]:
        raise ValueError(f"{missing[0]} is not stated")
    software = _program(cells)
    run, gpus = _run(cells, software), _count(cells, "gpus")
    if run.gpus != gpus:
        raise ValueError(f"{run.layout}, cp={run.cp} is {run.gpus} GPUs, not {gpus}")
    if reason := run_error(run, software):
        raise ValueError(reason)
    return PublishedRun(run, _cluster(cells), software)


def _count(cells: dict[str, str], column: str, default: int | None = None) -> int:
    text = (cells.get(column) or "").strip()
    if not text and default is not None:
        return default
    if not text.isdecimal() or not int(text):
        raise ValueError(f"{column} = {text!r} is no whole number")
    return int(text)


def _find(patterns: tuple[tuple[str, Any], ...], text: str, column: str) -> Any:  # noqa: ANN401
    for pattern, value in patterns:
        if re.search(pattern, text, re.IGNORECASE):
            return value
    raise ValueError(f"{column} {text!r} is not known to the planner")


def _run(cells: dict[str, str], software: Software) -> Run:
    tp, pp, vpp, cp = (_count(cells, axis, 1) for axis in ("tp", "pp", "vpp", "cp"))
    gpus = _count(cells, "gpus")
    dp = _count(cells, "dp", max(gpus // (tp * pp * cp), 1))
    sharding, precision = cells.get("sharding") or "", cells.get("precision") or ""
    if re.search(r"FULL_SHARD|HYBRID_SHARD|FSDP ?2|ZeRO-?3", sharding, re.IGNORECASE):
        zero = 3
    elif re.search(r"SHARD_GRAD_OP|ZeRO-?2", sharding, re.IGNORECASE):
        zero = 2
    else:
        zero = int(bool(re.search(r"ZeRO|distributed|FSDP", sharding, re.IGNORECASE)))
    shards = 8 if "HYBRID" in sharding.upper() else None
    if found := re.search(r"(?:x|shards? ?=? ?)(\d+)", sharding):
        shards = int(found[1]) * cp if zero > 1 else None
    sliced = (cells.get("sequence_parallel") or "").lower()
    sequence_parallel = tp > 1 and (sliced == "yes" or (not sliced and software.slices_sequence))
    return Run(
        model=_model(cells, 128 * tp if software.pads_vocabulary else 1),
        layout=Layout(tp=tp, pp=pp, dp=dp),
        batch=_count(cells, "global_batch"),
        micro_batch=_count(cells, "micro_batch"),
        recompute=_find(RECOMPUTED, cells.get("recompute") or "", "recompute"),
        interleave=vpp,
        sequence_parallel=sequence_parallel,
        zero=zero,
        precision=_precision(precision),
        splits_backward="zero bubble" in (cells.get("schedule") or "").replace("-", " ").lower(),
        cp=cp,
        shards=shards,
    )


def _precision(text: str) -> Precision:
    if re.search(r"fp8|float8", text, re.IGNORECASE):
        return "fp8"
    if re.search(r"fp16", text, re.IGNORECASE):
        return "fp16"
    return "fp32" if re.match(r"(fp32|tf32)", text, re.IGNORECASE) else "bf16"


def _model(cells: dict[str, str], multiple: int) -> ModelConfig:
    """The decoder of a row: a GPT unless ``arch`` says otherwise; the vocabulary padded to a multiple."""
    arch = (cells.get("arch") or "gpt").lower()
    heads, hidden = _count(cells, "heads"), _count(cells, "hidden")
    gated = bool(re.search(r"llama|mistral|qwen|swiglu|gemma", arch))
    modern = gated or "nemotron" in arch
    plain = modern or "mpt" in arch
    return ModelConfig(
        layers=_count(cells, "layers"),
        hidden=hidden,
        heads=heads,
        sequence=_count(cells, "seq"),
        vocabulary=-(-_count(cells, "vocab", GPT2_TOKENS) // multiple) * multiple,
        kv_heads=_count(cells, "kv_groups", heads),
        ffn=_count(cells, "ffn", 4 * hidden),
        dropout=0.0 if plain else 0.1,
        attention_dropout=0.0 if plain else 0.1,
        norm="rms" if gated else "layer",
        mlp="swiglu" if gated else "gelu-tanh",
        positions="rotary" if modern or "alibi" in arch or "mpt" in arch else "learned",
        rotary_fraction=1.0,
        bias=not plain,
        qkv_bias=not plain,
        tied=not modern,
    )


def _program(cells: dict[str, str]) -> Software:
    name = _find(PROGRAMS, cells.get("software") or "", "software")
    if name == "megatron-deepspeed" and "MT-NLG" in (cells.get("model") or ""):
        name = "megatron-deepspeed-2021"
    software: Software = load_software(name)
    precision = cells.get("precision") or ""
    changes: dict[str, bool] = {}
    if software.name == "torchtitan":
        changes = {
            "fused_kernels": "compile" in precision or "float8" in precision,
            "overlap_forward": "async" in precision.lower(),
        }
        changes["overlap_tensor"] = changes["copies_overlap"] = changes["overlap_forward"]
        changes["fused_loss"] = changes["fused_kernels"] and (cells.get("date") or "") >= COMPILED_LOSS
    if "PURE" in precision:
        changes = {"reduces_half": True}
    return software.model_copy(update=changes) if changes else software


def _cluster(cells: dict[str, str]) -> Cluster:
    network = cells.get("network") or ""
    name = _find(HARDWARE, cells["hardware"], "hardware")
    cluster = load_cluster("selene" if name == "dgx-a100" and "Selene" in network else name)
    gpus = _count(cells, "gpus_per_node", cluster.node.gpus)
    bandwidth = network_bandwidth(network, gpus)
    node = cluster.node.model_copy(update={"gpus": gpus} | ({"network_bandwidth": bandwidth} if bandwidth else {}))
    return cluster.model_copy(update={"node": node})


def network_bandwidth(text: str, gpus: int) -> float | None:
    """Bytes a second and direction of a node, from words such as ``8x NDR400 a node``; None if they name none."""
    if found := re.search(r"(?:(\d+) ?x ?)?[^\d]*?(\d{2,4})(?: ?Gb/s)?", text):
        number = int(found[1] or 1) * (gpus if re.search(r"(a|per) GPU", text) else 1)
        return number * int(found[2]) * GIGABIT
    return None
