"""Every legal way to lay a run over a number of GPUs, what memory rules out and why, and the rest ranked by time.

A step can be no quicker than its slowest stage's work and the way of one micro-batch through all stages; candidates are
simulated in the order of that bound, until none that is left can be among the best.
"""

from __future__ import annotations

from collections import Counter
from math import inf, isfinite
from typing import TYPE_CHECKING, NamedTuple

from mtnlg_parallel.layout import Layout, refusal

from .memory import fullest, memory, misfit
from .run import RECOMPUTE, Run, objection
from .step import floor, predict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mtnlg_model.config import ModelConfig

    from .cluster import Cluster, Software
    from .step import Prediction

MOST_MICRO_BATCH = 16


class Found(NamedTuple):
    """A run that fits, and what it takes."""

    run: Run
    prediction: Prediction
    bytes: float


class Rejected(NamedTuple):
    """A run that does not, why, and how many bytes its fullest stage needs where it could be laid out at all."""

    run: Run
    reason: str
    bytes: float


class Search(NamedTuple):
    """The quickest that fit, best first; everything rejected; how many fit in all."""

    best: tuple[Found, ...]
    rejected: tuple[Rejected, ...]
    fitting: int

    @property
    def reasons(self) -> Counter[str]:
        """How many were rejected for memory, and how many as no layout at all."""
        return Counter("memory" if isfinite(rejected.bytes) else "layout" for rejected in self.rejected)


def search(template: Run, cluster: Cluster, software: Software, gpus: int, wanted: int = 10) -> Search:
    """The best ``wanted`` layouts of the template's model, batch and precision on so many GPUs.

    Recomputation, micro-batch, interleaving and sequence parallelism vary too. Layouts that leave GPUs idle are tried
    where no data parallelism divides both GPUs and batch.
    """
    fitting: list[tuple[float, Run, float]] = []
    rejected: list[Rejected] = []
    for run in candidates(template, cluster, software, gpus):
        if reason := objection(run):
            rejected.append(Rejected(run, reason, inf))
            continue
        held = memory(run, software)
        size = held[fullest(held)].total
        if reason := misfit(held, cluster):
            rejected.append(Rejected(run, reason, size))
        else:
            fitting.append((floor(run, cluster, software), run, size))
    fitting.sort(key=lambda entry: entry[0])
    best: list[Found] = []
    for bound, run, size in fitting:
        if len(best) == wanted and bound > best[-1].prediction.seconds:
            break
        best.append(Found(run, predict(run, cluster, software), size))
        best.sort(key=lambda found: found.prediction.seconds)
        del best[wanted:]
    return Search(tuple(best), tuple(rejected), len(fitting))


def smallest(template: Run, cluster: Cluster, software: Software, gpus: int) -> int | None:
    """Nodes, doubled until some layout fits; None where not even the whole cluster holds one."""
    nodes = -(-gpus // cluster.node.gpus)
    while (nodes := 2 * nodes) <= 2 * cluster.nodes:
        tried = candidates(template, cluster, software, nodes * cluster.node.gpus)
        if any(not objection(run) and not misfit(memory(run, software), cluster) for run in tried):
            return nodes
    return None


def candidates(template: Run, cluster: Cluster, software: Software, gpus: int) -> Iterator[Run]:
    """Every combination worth a look: tp within a node, pp up to the layers, dp the rest of the GPUs."""
    model, batch = template.model, template.batch
    for tp in (t for t in range(1, cluster.node.gpus + 1) if cluster.node.gpus % t == 0):
        for pp in _stages(model, gpus // tp, software):
            dp = _replicas(gpus // (tp * pp), batch)
            layout = Layout(tp=tp, pp=pp, dp=dp)
            if refusal(layout, model):
                yield template._replace(layout=layout)
                continue
            for micro_batch in (b for b in _powers(MOST_MICRO_BATCH) if batch % (dp * b) == 0):
                for interleave in _chunks(model, pp, batch // (dp * micro_batch), software):
                    for recompute in RECOMPUTE:
                        for sequence_parallel in (False, True) if tp > 1 and software.overlap_pipeline else (False,):
                            yield template._replace(
                                layout=layout,
                                micro_batch=micro_batch,
                                recompute=recompute,
                                interleave=interleave,
                                sequence_parallel=sequence_parallel,
                            )


def _stages(model: ModelConfig, most: int, software: Software) -> list[int]:
    """Numbers of stages: all where they are balanced, else those that cut the layers evenly, as Megatron asserts."""
    return [pp for pp in range(1, min(most, model.layers) + 1) if software.balanced_stages or model.layers % pp == 0]


def _replicas(most: int, batch: int) -> int:
    """The largest number of replicas that divides the batch."""
    return next(dp for dp in range(most, 0, -1) if batch % dp == 0)


def _powers(most: int) -> list[int]:
    return [1 << n for n in range(most.bit_length()) if 1 << n <= most]


def _chunks(model: ModelConfig, pp: int, micro_batches: int, software: Software) -> list[int]:
    """Interleavings: none under an engine whose sends block, as it has no such schedule."""
    if pp == 1 or not software.overlap_pipeline or micro_batches % pp:
        return [1]
    return [v for v in range(1, model.layers // pp + 1) if model.layers % (pp * v) == 0]
