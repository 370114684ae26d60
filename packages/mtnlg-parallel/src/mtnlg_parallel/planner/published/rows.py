"""Rows of a CSV of published runs, one a run: hardware, model shape, layout, program, and what was measured.

Hardware and network choose the cluster, the software the program. A row that cannot be predicted says why in
``why_not``. Columns (others are kept; `columns` has other names of these): hardware, gpus, gpus_per_node, network,
model, arch, layers, hidden, ffn, heads, kv_groups, vocab, seq, tp, pp, vpp, cp, dp, sharding, micro_batch,
global_batch, precision, recompute, sequence_parallel, schedule, software, date; then what was measured, any of
step_seconds, tokens_per_s_per_gpu and tflops_per_gpu with its tflops_kind, and memory_gb.
"""

from __future__ import annotations

import csv
import re
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from pydantic import ValidationError

from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure, UsageFailure
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.planner.cluster import cluster_with, load_cluster
from mtnlg_parallel.planner.programs import load_software
from mtnlg_parallel.planner.run import Run, padded_vocabulary, run_error
from mtnlg_parallel.schedules import DEFAULT

from .columns import from_vtrain, is_vtrain, standard_names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from mtnlg_parallel.planner.cluster import Cluster
    from mtnlg_parallel.planner.programs import Software
    from mtnlg_parallel.planner.run import Precision, Recomputed

REQUIRED: Final = ("hardware", "gpus", "layers", "hidden", "heads", "seq", "micro_batch", "global_batch")

PROGRAMS: Final = (  # the first pattern that the row's software has, and its program
    (r"NeMo|(Megatron|-LM)[ _-]?(Core|Bridge)", "megatron-core"),
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
    (r"selective|core", "selective"),
    (r"full|uniform|^(yes|true|1)$", "full"),
    (r"^(none|no|false|0|-|)$", "none"),
)

PRECISIONS: Final[tuple[tuple[str, Precision | None], ...]] = (
    (r"fp4|int8|int4|tf32", None),
    (r"fp8|float8", "fp8"),
    (r"fp16|(?<!b)float16|\bhalf|^16", "fp16"),
    (r"^(fp32|float32)", "fp32"),
    (r"bf16|bfloat16|mixed|^(-|)$", "bf16"),
)

SLICED: Final[tuple[tuple[str, bool | None], ...]] = (
    (r"^(yes|true|1|on)$", True),
    (r"^(no|false|0|off|-)$", False),
)

SHARDED: Final = (  # the ZeRO stage of a row's sharding
    (r"NO_SHARD|ZeRO[- ]?(stage[- ]?)?0", 0),
    (r"SHARD_GRAD_OP|ZeRO[- ]?(stage[- ]?)?2", 2),
    (r"SHARD|FSDP|HSDP|ZeRO[- ]?(stage[- ]?)?3", 3),
    (r"ZeRO|distributed(?! ?data)", 1),
    (r"", 0),
)

FSDP_ALONE: Final = ("torchtitan", "llm-foundry")
"""Programs that shard weights where a row does not say; NeMo's recipes share the optimizer's state."""

SCHEDULES: Final = (
    (r"zero.?bubble|\bZB", "zero-bubble"),
    (r"1F1B|interleaved|^(-|)$", DEFAULT),  # or by the number of chunks
)

SHAPED: Final = r"^$|gpt|opt|bloom|llama|mistral|qwen|gemma|mpt|nemotron|falcon|phi|neox|pythia|olmo|alibi|swiglu|dense"
"""Families of dense decoders, by the words of a row's ``arch``."""

SPARSE: Final = r"moe|mixtral|experts|deepseek|dbrx|grok|switch|\d+x\d+(\.\d+)?b|mamba|ssm|\bbert|\bt5"
"""Words of ``arch`` or ``model`` of what is no dense decoder."""

NEMO: Final = r"NeMo|Megatron[ _-]?Bridge"
"""Software whose optimizers keep the 16 bits that a bf16 weight lacks of its master (``store_param_remainders``)."""

CORE_SINCE: Final = 2023
"""Year from which Megatron-LM trains by Megatron-Core; no earlier one knew an H100."""

CUDNN_SINCE: Final = "24.09"
"""NeMo's release from which its published runs name cuDNN's attention (NVTE_FUSED_ATTN in their launch scripts).

Of those before, sequences of 4,096 to 1,048,576 took FlashAttention-2's time.
"""

COMPILED_LOSS: Final = 2025
"""Year from which torchtitan compiles its loss too."""

GPT2_TOKENS: Final = 50257

GATED_MULTIPLE: Final = 256
"""Llama's gated MLPs are two thirds of 4 h wide, in multiples of this."""

A100_SITES: Final = ((r"Selene", "selene"), (r"Omni-?Path|Jean[ -]?Zay", "jean-zay"))
"""Words of a network, and the cluster whose network it is."""

RACKS: Final = ("gb200-nvl72",)
"""Clusters whose NVLink domain is a rack of servers: ``gpus_per_node`` is then a server's."""

HYBRID: Final = 8
"""Ranks that share weights under HSDP where a row does not say: a server's."""

GIGABIT: Final = 1e9 / 8

UNITS: Final = {"Gb": 1.0, "GB": 8.0, "Tb": 1e3, "TB": 8e3}
"""Units of a rate, in gigabits."""

ADAPTERS: Final = {"FDR": 56.0, "EDR": 100.0, "HDR": 200.0, "NDR": 400.0, "XDR": 800.0}
"""Gigabits a second of InfiniBand's generations."""


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
            number = float(text.replace(",", ""))
        except ValueError:
            return None
        return number if 0 < number < inf else None


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV. Raises ``Failure`` if it is missing, ``UsageFailure`` if it is no such CSV."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            reader = csv.DictReader(file, restval="", delimiter=max(",;\t", key=first.count))
            header = reader.fieldnames = standard_names(reader.fieldnames or ())
            records = list(reader)  # a line too short ends in empty cells
    except FileNotFoundError:
        raise Failure(f"{path}: no such file") from None
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise UsageFailure(f"{path}: no CSV with a header; its columns are {', '.join(REQUIRED)}, …") from None
    if is_vtrain(header):
        return [_row(from_vtrain(record)) for record in records]
    if missing := [name for name in REQUIRED[:2] if name not in header]:  # nothing is known without the GPUs
        raise UsageFailure(f"{path}: column {missing[0]!r} is missing; there are {', '.join(header)}")
    return [_row(record) if None not in record else _ragged(record, header) for record in records]


def _ragged(record: dict[str, str], header: Sequence[str]) -> Row:
    cells = {name: record[name] for name in header}
    return Row(cells, None, f"the line has more than the {len(header)} fields of the header")


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
    if missing := [name for name in REQUIRED if not (cells.get(name) or "").strip()]:
        raise ValueError(f"{missing[0]} is not stated")
    software = _program(cells)
    run, gpus = _run(cells, software), _count(cells, "gpus")
    if run.gpus != gpus:
        raise ValueError(f"{run.layout}, cp={run.cp} is {run.gpus} GPUs, not {gpus}")
    cluster = _cluster(cells)
    if not (cluster.gpu.bf16 or (cells.get("precision") or "").strip()):
        run = run._replace(precision="fp16")
    if reason := run_error(run, software, cluster):
        raise ValueError(reason)
    return PublishedRun(run, cluster, software)


def _count(cells: dict[str, str], column: str, default: int | None = None) -> int:
    text = (cells.get(column) or "").strip()
    if not text and default is not None:
        return default
    plain = re.sub(r"\.0+$", "", text.replace(",", ""))  # as spreadsheets write 4 and 1024
    if not plain.isdecimal() or not int(plain):
        raise ValueError(f"{column} = {text!r} is no whole number")
    return int(plain)


def _find(patterns: tuple[tuple[str, Any], ...], cells: dict[str, str], column: str) -> Any:  # noqa: ANN401
    text = (cells.get(column) or "").strip()
    for pattern, value in patterns:
        if re.search(pattern, text, re.IGNORECASE) and value is not None:
            return value
        if re.search(pattern, text, re.IGNORECASE):
            break
    raise ValueError(f"{column} {text!r} is not known to the planner")


def _run(cells: dict[str, str], software: Software) -> Run:
    tp, pp, vpp, cp = (_count(cells, axis, 1) for axis in ("tp", "pp", "vpp", "cp"))
    gpus = _count(cells, "gpus")
    dp = _count(cells, "dp", max(gpus // (tp * pp * cp), 1))
    zero, shards = _sharding(cells, software, dp * cp, cp)
    stated = (cells.get("sequence_parallel") or "").strip()
    sliced = _find(SLICED, cells, "sequence_parallel") if stated else software.slices_sequence
    return Run(
        model=_model(cells, tp, pads_vocabulary=software.pads_vocabulary),
        layout=Layout(tp=tp, pp=pp, dp=dp),
        batch=_count(cells, "global_batch"),
        micro_batch=_count(cells, "micro_batch"),
        recompute=_find(RECOMPUTED, cells, "recompute"),
        sequence_parallel=tp > 1 and sliced,
        zero=zero,
        precision=_find(PRECISIONS, cells, "precision"),
        schedule=_find(SCHEDULES, cells, "schedule"),
        cp=cp,
        shards=shards,
    ).with_chunks(vpp)


def _sharding(cells: dict[str, str], software: Software, ranks: int, cp: int) -> tuple[int, int | None]:
    """The ZeRO stage, and the ranks that share weights where not all do; FSDP where a program has nothing else."""
    text = (cells.get("sharding") or "").strip()
    zero = _find(SHARDED, cells, "sharding")
    if not text:
        zero = 3 if software.name in FSDP_ALONE else 1 if re.search(NEMO, cells["software"], re.IGNORECASE) else 0
    shards = min(HYBRID, ranks) if re.search("HYBRID|HSDP", text, re.IGNORECASE) else None
    if found := re.search(r"(?:x ?|shards? ?=? ?)(\d+)", text):
        shards = int(found[1]) * cp
    if zero < 2 or shards is None:  # every rank keeps its weights
        return zero, None
    if not shards or ranks % shards:
        raise ValueError(f"sharding {text!r}: {ranks} ranks are no whole number of such groups")
    return zero, shards


def _model(cells: dict[str, str], tp: int, *, pads_vocabulary: bool) -> ModelConfig:
    """The decoder of a row: a GPT unless ``arch``, or ``model``, says otherwise; padded if it has no vocabulary."""
    arch, name = ((cells.get(column) or "").strip().lower() for column in ("arch", "model"))
    if re.search(SPARSE, f"{arch} {name}") or not re.search(SHAPED, arch):
        raise ValueError(f"arch {arch!r}, model {cells.get('model') or ''!r}: no dense decoder known to the planner")
    arch = arch or name
    heads, hidden = _count(cells, "heads"), _count(cells, "hidden")
    gated = bool(re.search(r"llama|mistral|qwen|swiglu|gemma|olmo", arch))
    modern = gated or "nemotron" in arch
    plain = modern or "mpt" in arch
    vocabulary = _count(cells, "vocab", padded_vocabulary(GPT2_TOKENS, tp))
    width = -(-8 * hidden // (3 * GATED_MULTIPLE)) * GATED_MULTIPLE if gated else 4 * hidden
    return ModelConfig(
        layers=_count(cells, "layers"),
        hidden=hidden,
        heads=heads,
        sequence=_count(cells, "seq"),
        vocabulary=padded_vocabulary(vocabulary, tp) if pads_vocabulary else vocabulary,
        kv_heads=_count(cells, "kv_groups", heads),
        ffn=_count(cells, "ffn", width),
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
    name, year = _find(PROGRAMS, cells, "software"), re.search(r"(?:20|v)(\d\d)", cells.get("date") or "")
    since = 2000 + int(year[1]) if year else 0
    recent = since >= CORE_SINCE or re.search(r"H[128]00|B[23]00", cells["hardware"], re.IGNORECASE)
    if name.startswith("megatron-lm") and recent:
        name = "megatron-core"
    if name == "megatron-deepspeed" and "MT-NLG" in (cells.get("model") or ""):
        name = "megatron-deepspeed-2021"
    software: Software = load_software(name)
    precision = cells.get("precision") or ""
    changes: dict[str, bool | int] = {}
    if re.search(NEMO, cells.get("software") or "", re.IGNORECASE):
        releases = re.findall(r"\b(2\d\.\d\d)\b", cells["software"])
        changes = {"master_bytes": 2, "native_attention": max(releases, default=CUDNN_SINCE) >= CUDNN_SINCE}
    if software.name == "torchtitan":
        changes = {
            "fused_kernels": "compile" in precision or "float8" in precision,
            "overlap_forward": "async" in precision.lower(),
        }
        changes["overlap_tensor"] = changes["copies_overlap"] = changes["overlap_forward"]
        changes["fused_loss"] = changes["fused_kernels"] and since >= COMPILED_LOSS
    if "PURE" in precision:
        changes = {"reduces_half": True}
    return software.model_copy(update=changes) if changes else software


def _cluster(cells: dict[str, str]) -> Cluster:
    network = cells.get("network") or ""
    name = cluster_with(cells["hardware"])
    if name is None:
        raise ValueError(f"hardware {cells['hardware']!r} is not known to the planner")
    site = next((site for words, site in A100_SITES if re.search(words, network)), name)
    cluster = load_cluster(site if name == "dgx-a100" else name)
    gpus = _count(cells, "gpus_per_node", cluster.node.gpus)
    share = (network_bandwidth(network, gpus) or cluster.network_share * gpus) / gpus
    domain = cluster.node.gpus if cluster.name in RACKS else gpus
    node = cluster.node.model_copy(update={"gpus": domain, "network_bandwidth": share * domain})
    return cluster.model_copy(update={"node": node})


def network_bandwidth(text: str, gpus: int) -> float | None:
    """Bytes a second and direction of a node, from words such as ``8x NDR400 a node``; None if they name none.

    Of several rates, as of a node and of an adapter, the least is an adapter's; NVLink's are left out.
    """
    parts = re.split(r"[,;]", re.sub(r"(?<=\d),(?=\d{3}\b)", "", text))
    words = " ".join(part for part in parts if not re.search("NVLink|NVSwitch", part, re.IGNORECASE))
    words = words.replace("\u00d7", "x")  # the multiplication sign
    rates = [
        float(rate) * UNITS[f"{unit.upper()}{'B' if byte == 'B' else 'b'}"]
        for rate, unit, byte in re.findall(r"(\d+(?:\.\d+)?) ?([GgTt])(B|b)(?:/s|ps|it|E)", words)
    ]
    rates += [float(rate) for rate in re.findall(r"\d ?x ?(\d{2,4})(?:G?\b)", words)]
    for name, rate in re.findall(r"(?:\b|x)([FEHNX]DR) ?(\d{2,3})?\b", words):
        rates.append(float(rate) if rate else ADAPTERS[name])
    if not rates:
        rates = [float(rate) for rate in re.findall(r"\b(\d{2,4})\b", words)]
    if not rates or not min(rates):
        return None
    count = re.search(r"(\d+) ?x(?=\b|\d|[FEHNX]DR)|\bx ?(\d+)|(\d+) (?:NICs|adapters|ports)", words)
    number = int(count[count.lastindex or 0]) if count else 1
    if re.search(r"(?:\ba|per|each|/) ?GPU", words) and number != gpus:
        number *= gpus
    return max(number, 1) * min(rates) * GIGABIT
