"""A plan in figures: what ``plan --json`` prints, and the table of it for a person.

    tflops_per_gpu        operations that ran, recomputed ones included (HFU times the peak), as the paper counts them
    model_tflops_per_gpu  operations that the model needs (MFU times the peak)

A run of N tokens is walked through its batch ramp; step times between a few predicted batches are read off the line
through them, as a pipeline's are.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from .memory import MARGIN, fullest, memory, misfit
from .step import predict

if TYPE_CHECKING:
    from mtnlg_parallel.training.schedule import BatchSize

    from .cluster import Cluster, Software
    from .run import Run
    from .search import Search

DAY: Final = 86_400
KNOTS: Final = 6
WIDTH: Final = 120


def facts(run: Run, cluster: Cluster, software: Software) -> dict[str, Any]:
    """Everything that is predicted of one run, plain enough for JSON."""
    prediction = predict(run, cluster, software)
    seconds, gpus, peak = prediction.seconds, run.layout.world, cluster.gpu.peak_flops
    model = run.model.model_flops(run.batch)
    hardware = hardware_flops(run)
    held = memory(run, software)
    most = fullest(held)
    return {
        "cluster": cluster.name,
        "gpus": gpus,
        "nodes": -(-gpus // cluster.node.gpus),
        "layout": run.layout.model_dump(),
        "batch": run.batch,
        "micro_batch": run.micro_batch,
        "micro_batches": run.micro_batches,
        "recompute": run.recompute,
        "interleave": run.interleave,
        "sequence_parallel": run.sequence_parallel,
        "precision": run.precision,
        "zero": run.zero,
        "software": software.model_dump(),
        "step_seconds": seconds,
        "step_seconds_by": prediction.breakdown._asdict(),
        "tflops_per_gpu": hardware / gpus / seconds / 1e12,
        "model_tflops_per_gpu": model / gpus / seconds / 1e12,
        "mfu": model / gpus / seconds / peak,
        "hfu": hardware / gpus / seconds / peak,
        "tokens_per_second": run.batch * run.model.sequence / seconds,
        "memory_bytes": held[most].total,
        "memory_bytes_by": held[most]._asdict(),
        "memory_bytes_of_stages": [stage.total for stage in held],
        "state_bytes_of_stages": [stage.state for stage in held],
        "fullest_stage": most,
        "gpu_memory_bytes": cluster.gpu.memory_bytes,
        "margin": MARGIN,
        "fits": misfit(held, cluster) is None,
    }


def hardware_flops(run: Run) -> float:
    """Operations that a step runs: the model's, and those that are done again."""
    model = run.model
    if run.recompute == "full":
        return model.hardware_flops(run.batch)
    core = 4.0 * run.batch * model.layers * model.sequence**2 * model.hidden
    return model.model_flops(run.batch) + (core if run.recompute == "selective" else 0.0)


def whole_run(run: Run, cluster: Cluster, software: Software, tokens: int, batches: BatchSize) -> dict[str, float]:
    """Days and GPU-hours of ``tokens`` tokens, the batch ramp walked step by step."""
    multiple, sequence = batches.multiple, run.model.sequence
    lowest = batches.at(0)
    sizes = sorted({max(round(b / multiple), 1) * multiple for b in np.linspace(lowest, batches.size, KNOTS)})
    knots = [predict(_with_batch(run, size), cluster, software).seconds for size in sizes]
    samples = -(-tokens // sequence)
    ramp = min(batches.ramp.samples if batches.ramp else 0, samples)
    ramped = [batch for _, batch in batches.steps(ramp)]
    rest = max(0, -(-(samples - sum(ramped)) // batches.size))
    seconds = float(np.interp(ramped, sizes, knots).sum()) + rest * knots[-1]
    return {
        "tokens": float(tokens),
        "steps": float(len(ramped) + rest),
        "days": seconds / DAY,
        "gpu_hours": seconds / 3600 * run.layout.world,
        "ramp_days": float(np.interp(ramped, sizes, knots).sum()) / DAY,
    }


def _with_batch(run: Run, batch: int) -> Run:
    """The run with another batch; without interleaving where the batch no longer allows it."""
    other = run._replace(batch=batch)
    return other if other.micro_batches % run.layout.pp == 0 else other._replace(interleave=1)


def console() -> Console:
    """Standard output, as wide as a table needs where it is no terminal."""
    out = Console(highlight=False, soft_wrap=True)
    if not out.is_terminal:
        out.width = WIDTH
    return out


def draw(run: Run, told: dict[str, Any]) -> None:
    """Print a plan for a person."""
    out = console()
    out.print(
        f"{run.model.parameters / 1e9:,.1f} billion parameters on {told['cluster']}: {told['gpus']:,} GPUs, {run}"
    )
    seconds = told["step_seconds"]
    table = Table("a step", box=None, padding=(0, 2, 0, 0))
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    for name, part in told["step_seconds_by"].items():
        table.add_row(name.replace("_", " "), f"{part:.3f}", f"{part / seconds:.1%}")
    table.add_row("together", f"{seconds:.3f}", "")
    out.print(table)
    rates = f"{told['tflops_per_gpu']:.1f} TFLOP/s a GPU with what is recomputed (HFU {told['hfu']:.1%}), "
    rates += f"{told['model_tflops_per_gpu']:.1f} without (MFU {told['mfu']:.1%})"
    out.print(f"{rates}; {told['tokens_per_second']:,.0f} tokens/s")
    if "run" in told:
        whole = told["run"]
        length = f"{whole['days']:.1f} days and {whole['gpu_hours']:,.0f} GPU-hours in {whole['steps']:,.0f} steps"
        out.print(
            f"{whole['tokens'] / 1e9:,.0f} billion tokens: {length}, {whole['ramp_days']:.1f} days of it the ramp"
        )
    table = Table(f"stage {told['fullest_stage']}, the fullest", box=None, padding=(0, 2, 0, 0))
    table.add_column("GB", justify="right")
    for name, size in told["memory_bytes_by"].items():
        table.add_row(name, f"{size / 1e9:.2f}")
    table.add_row("together", f"{told['memory_bytes'] / 1e9:.2f}")
    out.print(table)
    verdict = "fits" if told["fits"] else "does NOT fit"
    margin = f"{told['gpu_memory_bytes'] / 1e9:.1f} GB, {told['margin']:.0%} of them kept free"
    out.print(f"{verdict} into {margin}; emptiest stage {min(told['memory_bytes_of_stages']) / 1e9:.1f} GB")


def draw_search(found: Search, gpus: int) -> None:
    """Print what a search found, and why the rest was rejected."""
    out = console()
    table = Table("tp", "pp", "dp", "micro-batch", "recompute", "interleave", "sequence parallel", box=None)
    for name in ("seconds", "TFLOP/s", "GB"):
        table.add_column(name, justify="right")
    for run, prediction, size in found.best:
        layout, rate = run.layout, hardware_flops(run) / run.layout.world / prediction.seconds / 1e12
        choices = (layout.tp, layout.pp, layout.dp, run.micro_batch, run.recompute, run.interleave)
        chosen = [str(choice) for choice in choices] + ["yes" if run.sequence_parallel else "no"]
        table.add_row(*chosen, f"{prediction.seconds:.3f}", f"{rate:.1f}", f"{size / 1e9:.1f}")
    out.print(
        f"{found.fitting:,} of {found.fitting + len(found.rejected):,} layouts of {gpus:,} GPUs fit; the quickest"
    )
    out.print(table)
    for kind, number in found.reasons.most_common():
        closest = min(
            (one for one in found.rejected if isfinite(one.bytes) == (kind == "memory")), key=lambda one: one.bytes
        )
        out.print(f"rejected for {kind}: {number:,}, such as {closest.run}: {closest.reason}")
