"""Layout search: every legal layout of a run over a number of GPUs; those that fit ranked by step time.

Candidates are simulated in the order of a lower bound on their step time, until no remaining one can be among the best.
"""

from __future__ import annotations

from collections import Counter
from math import inf, isfinite
from typing import TYPE_CHECKING, NamedTuple

from mtnlg_parallel.layout import Layout, layout_error

from .memory import fullest_stage, memory, memory_error
from .run import RECOMPUTE, Run, run_error
from .step import lower_bound, predict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mtnlg_model.config import ModelConfig

    from .cluster import Cluster, Software
    from .step import Prediction

MOST_MICRO_BATCH = 16


class FittingRun(NamedTuple):
    """A run that fits: its prediction and the bytes of its fullest stage."""

    run: Run
    prediction: Prediction
    bytes: float


class RejectedRun(NamedTuple):
    """A run that does not fit, why, and the bytes of its fullest stage; infinite where the layout is impossible."""

    run: Run
    reason: str
    bytes: float


class SearchResult(NamedTuple):
    """The fastest runs that fit, best first; all rejected runs; the number that fit."""

    best: tuple[FittingRun, ...]
    rejected: tuple[RejectedRun, ...]
    fitting: int

    @property
    def reasons(self) -> Counter[str]:
        """Number of runs rejected for memory and as impossible layouts."""
        return Counter("memory" if isfinite(rejected.bytes) else "layout" for rejected in self.rejected)


def search(template: Run, cluster: Cluster, software: Software, gpus: int, count: int = 10) -> SearchResult:
    """The ``count`` fastest layouts of the template's model, batch and precision on ``gpus`` GPUs.

    Recomputation, micro-batch, interleaving and sequence parallelism vary too. Layouts that leave GPUs idle are tried
    where no degree of data parallelism divides both GPUs and batch.
    """
    fitting: list[tuple[float, Run, float]] = []
    rejected: list[RejectedRun] = []
    for run in candidates(template, cluster, software, gpus):
        if reason := run_error(run):
            rejected.append(RejectedRun(run, reason, inf))
            continue
        stages = memory(run, software)
        size = stages[fullest_stage(stages)].total
        if reason := memory_error(stages, cluster):
            rejected.append(RejectedRun(run, reason, size))
        else:
            fitting.append((lower_bound(run, cluster, software), run, size))
    fitting.sort(key=lambda entry: entry[0])
    best: list[FittingRun] = []
    for bound, run, size in fitting:
        if len(best) == count and bound > best[-1].prediction.seconds:
            break
        best.append(FittingRun(run, predict(run, cluster, software), size))
        best.sort(key=lambda fitting_run: fitting_run.prediction.seconds)
        del best[count:]
    return SearchResult(tuple(best), tuple(rejected), len(fitting))


def smallest_cluster(template: Run, cluster: Cluster, software: Software, gpus: int) -> int | None:
    """Number of nodes, by doubling, at which some layout fits; None if the whole cluster is too small."""
    nodes = -(-gpus // cluster.node.gpus)
    while (nodes := 2 * nodes) <= 2 * cluster.nodes:
        runs = candidates(template, cluster, software, nodes * cluster.node.gpus)
        if any(not run_error(run) and not memory_error(memory(run, software), cluster) for run in runs):
            return nodes
    return None


def candidates(template: Run, cluster: Cluster, software: Software, gpus: int) -> Iterator[Run]:
    """Every combination: tp within a node, pp up to the number of layers, dp over the other GPUs."""
    model, batch = template.model, template.batch
    for tp in (t for t in range(1, cluster.node.gpus + 1) if cluster.node.gpus % t == 0):
        for pp in _stage_counts(model, gpus // tp, software):
            dp = _replicas(gpus // (tp * pp), batch)
            layout = Layout(tp=tp, pp=pp, dp=dp)
            if layout_error(layout, model):
                yield template._replace(layout=layout)
                continue
            for micro_batch in (b for b in _powers_of_two(MOST_MICRO_BATCH) if batch % (dp * b) == 0):
                for interleave in _interleavings(model, pp, batch // (dp * micro_batch), software):
                    for recompute in RECOMPUTE:
                        for sequence_parallel in (False, True) if tp > 1 and software.overlap_pipeline else (False,):
                            yield template._replace(
                                layout=layout,
                                micro_batch=micro_batch,
                                recompute=recompute,
                                interleave=interleave,
                                sequence_parallel=sequence_parallel,
                            )


def _stage_counts(model: ModelConfig, most: int, software: Software) -> list[int]:
    """Pipeline degrees: all if stages are balanced by cost, else those that divide the layers, as Megatron requires."""
    return [pp for pp in range(1, min(most, model.layers) + 1) if software.balanced_stages or model.layers % pp == 0]


def _replicas(most: int, batch: int) -> int:
    """The largest data parallel degree that divides the batch."""
    return next(dp for dp in range(most, 0, -1) if batch % dp == 0)


def _powers_of_two(most: int) -> list[int]:
    return [1 << n for n in range(most.bit_length()) if 1 << n <= most]


def _interleavings(model: ModelConfig, pp: int, micro_batches: int, software: Software) -> list[int]:
    """Chunks a stage to try; only 1 under an engine with blocking sends, which has no interleaved schedule."""
    if pp == 1 or not software.overlap_pipeline or micro_batches % pp:
        return [1]
    return [v for v in range(1, model.layers // pp + 1) if model.layers % (pp * v) == 0]
