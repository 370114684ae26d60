"""Layout search: tries every legal layout of a run on a number of GPUs, and ranks those that fit by step time.

Candidates are simulated in the order of a lower bound on their step time, until no remaining one can be among the best.
"""

from __future__ import annotations

from itertools import product
from math import inf, isfinite
from typing import TYPE_CHECKING, NamedTuple

from mtnlg_parallel.layout import Layout, layout_error
from mtnlg_parallel.schedules import load_schedule, schedule_names, schedule_of

from .memory import fullest_stage, memory, memory_error
from .run import RECOMPUTE, STAGES, Run, run_error
from .step import lower_bound, predict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from .step import Prediction

LONG_SEQUENCE = 32_768
"""Fewest tokens per sequence for which context parallelism is tried: with less, no search of Llama 3.1 8B or 70B took
it (4,096 to 16,384 tokens, 8 to 128 A100s and H100s), and searches take up to 3.5 times as long."""

MOST_MICRO_BATCH = 16
MOST_CHUNKS = 6
MOST_LAYERS_UNEVEN = 48
"""Most layers for which pipeline degrees that do not divide them are tried: balancing time is cubic in the layers."""


class FittingRun(NamedTuple):
    """A run that fits: its prediction, and the bytes of its fullest stage."""

    run: Run
    prediction: Prediction
    bytes: float


class RejectedRun(NamedTuple):
    """A rejected run, the reason, and the bytes of its fullest stage; infinite if the layout is impossible."""

    run: Run
    reason: str
    bytes: float


class SearchResult(NamedTuple):
    """The fastest runs that fit, best first; all rejected runs; the number that fit."""

    best: tuple[FittingRun, ...]
    rejected: tuple[RejectedRun, ...]
    fitting: int

    @property
    def rejected_for(self) -> dict[str, list[RejectedRun]]:
        """Runs rejected for memory and as impossible layouts, most first, each with the nearest to fitting first."""
        kinds: dict[str, list[RejectedRun]] = {"memory": [], "layout": []}
        for rejected in sorted(self.rejected, key=lambda rejected: rejected.bytes):
            kinds["memory" if isfinite(rejected.bytes) else "layout"].append(rejected)
        return {kind: kinds[kind] for kind in sorted(kinds, key=lambda kind: -len(kinds[kind])) if kinds[kind]}


def search(template: Run, gpus: int, count: int = 10, *, fixed: Collection[str] = ()) -> SearchResult:
    """The ``count`` fastest layouts of the template's model, batch and precision on ``gpus`` GPUs.

    Recomputation, micro-batch, schedule and sequence parallelism vary too, as far as the program supports them, except
    fields of the template that are ``fixed``. Layouts that leave GPUs idle are tried if no data-parallel degree divides
    both GPUs and batch.
    """
    fitting: list[tuple[float, Run, float]] = []
    rejected: list[RejectedRun] = []
    for run in candidates(template, gpus, fixed):
        if reason := run_error(run):
            rejected.append(RejectedRun(run, reason, inf))
            continue
        stages = memory(run)
        size = stages[fullest_stage(stages)].total
        if reason := memory_error(stages, run.cluster):
            rejected.append(RejectedRun(run, reason, size))
        else:
            fitting.append((lower_bound(run), run, size))
    fitting.sort(key=lambda entry: entry[0])
    best: list[FittingRun] = []
    for bound, run, size in fitting:
        if len(best) == count and bound > best[-1].prediction.seconds:
            break
        best.append(FittingRun(run, predict(run), size))
        best.sort(key=lambda fitting_run: fitting_run.prediction.seconds)
        del best[count:]
    return SearchResult(tuple(best), tuple(rejected), len(fitting))


def reason_against(run: Run, fastest: FittingRun, gpus: int | None = None) -> str:
    """Why this run is not the fastest on ``gpus`` GPUs: it is impossible, does not fit, or loses time, and where.

    Of a step's parts it names the two that take longest beyond the fastest run's, and the one that saves most.
    """
    if reason := run_error(run, gpus) or memory_error(memory(run), run.cluster):
        return reason
    own, best = predict(run), fastest.prediction
    longer = {
        kind.replace("_", " "): seconds - getattr(best.breakdown, kind)
        for kind, seconds in own.breakdown._asdict().items()
    }
    ranked = sorted(longer, key=longer.__getitem__, reverse=True)
    causes = [kind for kind in (*ranked[:2], ranked[-1]) if not -0.005 <= longer[kind] <= 0]  # less is shown as 0.00
    ratio = own.seconds / best.seconds
    if ratio <= 1 or not causes:
        return f"{own.seconds:.3f} s, as fast as the fastest"
    more = ", ".join(f"{kind} {longer[kind]:+.2f} s" for kind in causes)
    return f"{own.seconds:.3f} s, {ratio - 1:.1%} more: {more}"


def candidates(template: Run, gpus: int, fixed: Collection[str] = ()) -> Iterator[Run]:
    """Yield every combination: tp within a node, cp, pp up to the number of layers, dp over the remaining GPUs.

    Fields that are ``fixed`` stay as the template has them.
    """
    model, batch, node = template.model, template.batch, template.cluster.node
    micro_batches = (template.micro_batch,) if "micro_batch" in fixed else range(1, MOST_MICRO_BATCH + 1)
    degrees = [t for t in range(1, node.gpus + 1) if node.gpus % t == 0]
    for tp, cp in product(degrees, _context_degrees(template, gpus)):
        for pp in _stage_counts(template, gpus // (tp * cp)):
            dp = next(n for n in range(gpus // (tp * cp * pp), 0, -1) if batch % n == 0)
            layout = Layout(tp=tp, cp=cp, pp=pp, dp=dp)
            if layout_error(layout, model):
                yield template._replace(layout=layout)
                continue
            for micro_batch in (b for b in micro_batches if batch % (dp * b) == 0):
                schedules = _schedules(template, pp, batch // (dp * micro_batch))
                slicings = (False, True) if tp > 1 and template.software.slices_sequence else (False,)
                every = product(schedules, RECOMPUTE, slicings, _stages(template, layout))
                for (interleave, schedule), recompute, sliced, zero in every:
                    run = template._replace(
                        layout=layout,
                        zero=zero,
                        micro_batch=micro_batch,
                        recompute=recompute,
                        schedule=schedule,
                        interleave=interleave,
                        sequence_parallel=sliced,
                    )
                    if all(getattr(run, name) == getattr(template, name) for name in fixed):
                        yield run


def _stages(template: Run, layout: Layout) -> Collection[int]:
    """ZeRO stages to try: the template's; in our engine those that `train` takes in this layout."""
    if not (template.is_ours and template.software.shards_weights):
        return (template.zero,)
    least = min(template.zero, STAGES["state"])
    return {least, *STAGES.values()} if layout.pp == 1 < layout.copies else (least,)


def _context_degrees(template: Run, gpus: int) -> list[int]:
    """Context-parallel degrees to try: 1, the template's, and for long sequences powers of two."""
    degrees = {1, template.layout.cp}
    if template.model.sequence >= LONG_SEQUENCE and template.software.slices_context:
        degrees |= {1 << n for n in range(gpus.bit_length())}
    return sorted(degrees)


def _stage_counts(template: Run, most: int) -> list[int]:
    """Pipeline degrees to try: those that cut the layers evenly; all, if stages are balanced by cost and layers few."""
    layers = template.model.layers
    every = template.is_ours and layers <= MOST_LAYERS_UNEVEN
    return [pp for pp in range(1, min(most, layers) + 1) if every or _cuts_well(template, pp)]


def _cuts_well(template: Run, chunks: int) -> bool:
    """Whether all chunks have equally many layers, or would if embedding and head counted as layers."""
    layers = template.model.layers
    return layers % chunks == 0 or (template.software.uneven_stages and (layers + 2) % chunks == 0)


def _schedules(template: Run, pp: int, micro_batches: int) -> list[tuple[int, str]]:
    """(chunks per stage, schedule) pairs to try: all named schedules, and the template's."""
    layers, software = template.model.layers, template.software
    if software.any_schedule:
        even = [v for v in range(2, MOST_CHUNKS + 1) if layers % (pp * v) == 0] if pp > 1 else []
        others = {name: load_schedule(name) for name in (*schedule_names(), template.schedule)}
        return [(v, name) for v in (1, *even) for name, schedule in others.items() if schedule.takes(v)]
    chunks = [1]
    if pp > 1 and software.interleaves and not micro_batches % pp:
        chunks += [v for v in range(2, layers // pp + 1) if _cuts_well(template, pp * v)]
    return [(v, schedule_of(v)) for v in chunks]
