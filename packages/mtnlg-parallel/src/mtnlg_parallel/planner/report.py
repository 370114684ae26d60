"""A plan in figures, the JSON of ``plan --json``, and the run on several numbers of nodes.

    tflops_per_gpu        operations run, recomputation included (HFU x peak), as the paper counts them
    model_tflops_per_gpu  operations of the model (MFU x peak)

The length of a whole run follows its batch ramp; step times are interpolated linearly between a few predicted batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mtnlg_model.console import UsageFailure
from mtnlg_model.families import PRESETS

from .interval import interval_of
from .memory import MARGIN, fullest_stage, memory, memory_error
from .run import nearest, run_error
from .step import predict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_parallel.training.schedule import BatchSize

    from .run import Run
    from .search import FittingRun

DAY: Final = 86_400
OF_THE_RUN: Final = (
    *("batch", "micro_batch", "micro_batches", "recompute", "schedule", "interleave", "sequence_parallel"),
    *("precision", "zero", "shards", "offload_activations", "document"),
)
"""Keys of a plan that are copied from the run's fields."""
KNOTS: Final = 6


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
