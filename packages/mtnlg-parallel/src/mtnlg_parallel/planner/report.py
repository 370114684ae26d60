"""A plan in figures: the JSON of ``plan --json`` and its tables, and the run on several numbers of nodes.

    tflops_per_gpu        operations run, recomputation included (HFU x peak), as the paper counts them
    model_tflops_per_gpu  operations of the model (MFU x peak)

The length of a whole run follows its batch ramp; step times are interpolated linearly between a few predicted batches.
"""

from __future__ import annotations

from math import floor, log10
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.table import Table

from mtnlg_data.report.numbers import NARROW, duration
from mtnlg_model.console import UsageFailure
from mtnlg_model.families import PRESETS
from mtnlg_parallel.layout_report import console

from .interval import interval_of
from .memory import MARGIN, fullest_stage, memory, memory_error
from .run import PRODUCT_BYTES, nearest, run_error
from .step import predict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_parallel.training.schedule import BatchSize

    from .run import Run
    from .search import FittingRun, SearchResult

DAY: Final = 86_400
OF_THE_RUN: Final = (
    *("batch", "micro_batch", "micro_batches", "recompute", "schedule", "interleave", "sequence_parallel"),
    *("precision", "zero", "shards", "offload_activations", "document"),
)
"""Keys of a plan that are copied from the run's fields."""
KNOTS: Final = 6
CLOSE: Final = 0.03
CLOSELY: Final = f"within {CLOSE:.0%} of the memory that a run may use, which is less than such predictions err"


def plan(run: Run) -> dict[str, Any]:
    """Predict one run: step seconds, rates, memory and their breakdowns, as ``plan --json`` prints them.

    Raises ``UsageFailure`` for an impossible run; a run that does not fit in memory has ``fits`` false.
    """
    if reason := run_error(run):
        raise UsageFailure(f"plan: {reason}")
    prediction, cluster = predict(run), run.cluster
    seconds, gpus, peak = prediction.seconds, run.gpus, cluster.gpu.peak_flops
    model, hardware = (flops / gpus / seconds for flops in (run.model_flops, run.hardware_flops))
    stages = memory(run)
    fullest = fullest_stage(stages)
    interval = interval_of(run)
    return {
        "cluster": cluster.name,
        "gpus": gpus,
        "nodes": -(-gpus // cluster.node.gpus),
        "program": run.software.name,
        "sequence": run.model.sequence,
        "layout": run.layout.model_dump(),
        **{name: getattr(run, name) for name in OF_THE_RUN},
        "software": run.software.model_dump(),
        "step_seconds": seconds,
        "low_step_seconds": seconds * interval.low,
        "high_step_seconds": seconds * interval.high,
        "interval": interval.kind,
        "step_seconds_by": prediction.breakdown._asdict(),
        "tflops_per_gpu": hardware / 1e12,
        "model_tflops_per_gpu": model / 1e12,
        "mfu": model / peak,
        "hfu": hardware / peak,
        "tokens_per_second": run.batch * run.model.sequence / seconds,
        "memory_bytes": stages[fullest].total,
        "memory_bytes_by": stages[fullest]._asdict(),
        "memory_bytes_of_stages": [stage.total for stage in stages],
        "state_bytes_of_stages": [stage.state for stage in stages],
        "fullest_stage": fullest,
        "gpu_memory_bytes": cluster.gpu.memory_bytes,
        "margin": MARGIN,
        "spare": 1 - MARGIN - stages[fullest].total / cluster.gpu.memory_bytes,
        "fits": memory_error(stages, cluster) is None,
    }


def whole_run(run: Run, tokens: int, batches: BatchSize) -> dict[str, float]:
    """Days and GPU-hours to train on ``tokens`` tokens, following the batch ramp."""
    multiple, sequence = batches.multiple, run.model.sequence
    lowest = batches.at(0)
    sizes = sorted({max(round(b / multiple), 1) * multiple for b in np.linspace(lowest, batches.size, KNOTS)})
    knots = [predict(_with_batch(run, size)).seconds for size in sizes]
    samples = -(-tokens // sequence)
    ramp = min(batches.ramp.samples if batches.ramp else 0, samples)
    ramped = [batch for _, batch in batches.steps(ramp)]
    rest = max(0, -(-(samples - sum(ramped)) // batches.size))
    ramping = float(np.interp(ramped, sizes, knots).sum())
    seconds = ramping + rest * knots[-1]
    return {
        "tokens": float(tokens),
        "steps": float(len(ramped) + rest),
        "days": seconds / DAY,
        "gpu_hours": seconds / 3600 * run.gpus,
        "ramp_days": ramping / DAY,
    }


def _with_batch(run: Run, batch: int) -> Run:
    """The run with another batch size, without interleaving if the batch does not allow it."""
    resized = run._replace(batch=batch)
    return resized.with_chunks(1) if run_error(resized) else resized


def days_at_full_batch(fitting: FittingRun, tokens: int) -> float:
    """Days to train on ``tokens`` tokens in steps of the full batch."""
    run, prediction, _ = fitting
    return -(-tokens // (run.batch * run.model.sequence)) * prediction.seconds / DAY


def three_digits(value: float, like: float | None = None) -> str:
    """Format a number to three digits, or to as many decimals as ``like`` gets; no decimals from 100, no exponent."""
    decimals = 2 - floor(log10(like or value)) if value > 0 else 2
    return f"{value:,.{max(decimals, 0)}f}"


def _heading(run: Run, gpus: int) -> str:
    model = run.model
    size = f"{in_words(model.parameters)} parameters, sequence {model.sequence:,}, batch {run.batch:,}"
    return f"{size}, on {gpus_of(gpus, run.cluster.name)}"


def in_words(number: float) -> str:
    """Format a number with one decimal and its magnitude: 529.6 billion, 270 billion, 124.4 million."""
    for size, word in ((1e12, " trillion"), (1e9, " billion"), (1e6, " million"), (1.0, "")):
        if number >= size:
            return f"{number / size:,.1f}".removesuffix(".0") + word
    return f"{number:g}"


def gpus_of(gpus: int, cluster: str) -> str:
    """The number of GPUs and their cluster, in words."""
    return f"{gpus:,} GPUs of {cluster}" if gpus > 1 else f"one GPU of {cluster}"


def _table(left: Sequence[str], *right: str) -> Table:
    """A table without a frame, with columns to the left and columns of figures."""
    table = Table(*left, box=None, padding=(0, 2, 0, 0))
    for name in right:
        table.add_column(name, justify="right")
    return table


def print_plan(run: Run, planned: dict[str, Any]) -> None:
    """Print a plan as tables."""
    out = console()
    out.print(f"{_heading(run, run.gpus)}: {run}; program {planned['program']}")
    seconds = planned["step_seconds"]
    table = _table(["a step"], "seconds", "share")
    for name, part in planned["step_seconds_by"].items():
        shown = max(part, 0.0)  # sums of floats may end a little below it
        table.add_row(name.replace("_", " "), f"{shown:.3f}", f"{shown / seconds:.1%}")
    table.add_row("together", f"{seconds:.3f}", "")
    low, high = planned["low_step_seconds"], planned["high_step_seconds"]
    between = f"90 % of such steps take {three_digits(low, high)} to {three_digits(high)} s"
    out.print(table)
    rates = f"{planned['tflops_per_gpu']:.1f} TFLOP/s per GPU including recomputation (HFU {planned['hfu']:.1%}), "
    peak = " of the 16-bit peak" if planned["precision"] in PRODUCT_BYTES else ""
    rates += f"{planned['model_tflops_per_gpu']:.1f} without (MFU {planned['mfu']:.1%}{peak})"
    out.print(f"{between}, by the errors on {planned['interval']}")
    out.print(f"{rates}; {planned['tokens_per_second']:,.0f} tokens/s")
    if "run" in planned:
        whole = planned["run"]
        time = (
            f"{whole['days']:.1f} days" if whole["days"] >= 0.1 else duration(whole["days"] * DAY).replace(NARROW, " ")
        )
        length = f"{time} and {three_digits(whole['gpu_hours'])} GPU-hours in {whole['steps']:,.0f} steps"
        ramp = f", {whole['ramp_days']:.1f} days of them for the ramp" if whole["ramp_days"] else ""
        out.print(f"{in_words(whole['tokens'])} tokens: {length}{ramp}")
    table = _table([f"stage {planned['fullest_stage']}, the fullest"], "GB")
    for name, size in planned["memory_bytes_by"].items():
        table.add_row(name, f"{size / 1e9:.2f}")
    table.add_row("together", f"{planned['memory_bytes'] / 1e9:.2f}")
    out.print(table)
    verdict = "fits" if planned["fits"] else "does NOT fit"
    margin = f"{planned['gpu_memory_bytes'] / 1e9:.1f} GB, {planned['margin']:.1%} of them kept free"
    out.print(f"{verdict} into {margin}; emptiest stage {min(planned['memory_bytes_of_stages']) / 1e9:.1f} GB")
    if planned["fits"] and planned["spare"] < CLOSE:
        out.print(f"this is {CLOSELY}")


def print_search(result: SearchResult, plans: list[dict[str, Any]], gpus: int, tokens: int | None) -> None:
    """Print the plans of the fastest, with days to train on ``tokens`` tokens, and why others were rejected."""
    out = console()
    choices = ("tp", "cp", "pp", "dp", "micro-batch", "recompute", "schedule", "chunks", "zero", "sequence parallel")
    table = _table(choices, "seconds", "MFU", "GB", *(["days"] if tokens else []))
    for planned in plans:
        degrees = (planned["layout"].get(axis, 1) for axis in choices[:4])
        chosen = (*degrees, *(planned[name] for name in ("micro_batch", "recompute", "schedule", "interleave", "zero")))
        row = ["yes" if planned["sequence_parallel"] else "no", f"{planned['step_seconds']:.3f}"]
        row += [f"{planned['mfu']:.1%}", f"{planned['memory_bytes'] / 1e9:.1f}{'*' * (planned['spare'] < CLOSE)}"]
        row += [f"{planned['days_at_full_batch']:.1f}"] if tokens else []
        table.add_row(*map(str, chosen), *row)
    fastest = result.best[0].run
    out.print(f"{_heading(fastest, gpus)}; program {fastest.software.name}")
    if tokens:
        out.print(f"days: {in_words(tokens)} tokens in steps of the full batch")
    out.print(
        f"{result.fitting:,} of {result.fitting + len(result.rejected):,} layouts of {gpus:,} GPUs fit; the fastest:"
    )
    out.print(table)
    if any(planned["spare"] < CLOSE for planned in plans):
        out.print(f"* {CLOSELY}")
    if (used := fastest.gpus) < gpus:
        out.print(f"the fastest takes {used:,} of the {gpus:,} GPUs; no layout of all of them is faster")
    low, high, kind = interval_of(fastest)
    out.print(f"90 % of steps take {low:.2f} to {high:.2f} times the seconds here, by the errors on {kind}")
    for kind, (closest, *others) in sorted(result.rejected_for.items(), key=lambda item: -len(item[1])):
        out.print(f"rejected for {kind}: {1 + len(others):,}, such as {closest.run}: {closest.reason}")


PUBLISHED: Final = {280: (60.1, 126), 350: (50.2, 121), 420: (44.4, 113)}
"""MT-NLG's (seconds per step, TFLOP/s per GPU) by number of DGX A100 nodes (Smith et al. 2022, section 2.4)."""


def _on_nodes(run: Run, nodes: int) -> Run | None:
    """The run on this many nodes, by its number of replicas; None if no whole number divides the batch."""
    scaled = run.on(gpus := nodes * run.cluster.node.gpus)
    return scaled if scaled and scaled.gpus == gpus else None


def plan_scaling(run: Run, nodes: Sequence[int]) -> list[dict[str, Any]]:
    """Plan the run on each number of nodes by scaling dp. Raises ``UsageFailure`` if replicas do not fit."""
    plans, layout = [], run.layout
    measured = run.software.name == "megatron-deepspeed-2021" and run.model == PRESETS["mt-nlg-530b"]
    measured &= (run.batch, layout.tp, layout.pp) == (1920, 8, 35)
    for number in nodes:
        if (scaled := _on_nodes(run, number)) is None:
            choices = nearest(number, (n for n in range(1, 4 * number) if _on_nodes(run, n)), 3, ", ")
            replica = layout.world // layout.dp
            place = f"--scaling {number}: {number} nodes are not a whole number of replicas of {replica} GPUs"
            raise UsageFailure(f"{place} that divides the batch {run.batch}; use {choices or 'another layout'}")
        published = PUBLISHED.get(number, (None, None)) if measured else (None, None)
        planned = plan(scaled)
        plans.append(planned | {"published_seconds": published[0], "published_tflops_per_gpu": published[1]})
    return plans


def print_scaling(plans: list[dict[str, Any]]) -> None:
    """Print one row per number of nodes, with published figures if there are any."""
    compared = any(planned["published_seconds"] for planned in plans)
    names = ["seconds", *(["published", "error"] if compared else []), "TFLOP/s per GPU (HFU)"]
    table = _table(["nodes", "GPUs", "dp"], *names, *(["published"] if compared else []), "tokens/s", "GB", "")
    for planned in plans:
        seconds, published = planned["step_seconds"], planned["published_seconds"]
        row = [str(planned["nodes"]), f"{planned['gpus']:,}", str(planned["layout"]["dp"]), three_digits(seconds)]
        row += [f"{published:.1f}", f"{seconds / published - 1:+.1%}"] if published else ["", ""] if compared else []
        row += [f"{planned['tflops_per_gpu']:.0f}"]
        row += [str(planned["published_tflops_per_gpu"] or "")] if compared else []
        row += [f"{planned['tokens_per_second']:,.0f}", f"{planned['memory_bytes'] / 1e9:.1f}"]
        table.add_row(*row, "" if planned["fits"] else "does NOT fit")
    console().print(f"program {plans[0]['program']}, on {plans[0]['cluster']}")
    console().print(table)
    low, high = (plans[0][f"{side}_step_seconds"] / plans[0]["step_seconds"] for side in ("low", "high"))
    console().print(
        f"90 % of steps take {low:.2f} to {high:.2f} times the seconds, by errors on {plans[0]['interval']}"
    )
