"""Measures a run beyond loss and gradient norm, every ``watch.every`` steps, with one all-gather per measurement.

sources      tokens and passes are functions of the sample number; the last stage keeps each sample's loss until the
             next measurement, so the mean of each source is exact and needs no collective in other steps
parameters   ‖w‖ over all master weights, and ‖Δw‖ / ‖w‖ of the update. With AdamW's d = m̂ / (√v̂ + ε), lr a and
             decay c: w' = (1 - a c) w - a d, so Δw = -a (c w' + d) / (1 - a c), without a copy of w
activations  the largest |x| of each layer's output
memory       GPU memory, the maximum over ranks
ranks        seconds that each rank works on the step, excluding waits for others (`waiting.Stopwatch`)
replicas     the sum of each rank's weights as integers, before the update: ranks that differ only in dp hold the same
             bits. If two differ, the run ends with a line that names the rank (`corrupt_ranks`)
"""

from __future__ import annotations

import math
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import torch

from mtnlg_model.console import say
from mtnlg_parallel.engine.contract import MOMENTS, matches
from mtnlg_parallel.engine.process import UnfitNode
from mtnlg_parallel.environment import this_rank
from mtnlg_parallel.statuses import Exit
from mtnlg_parallel.waiting import Stopwatch

from .collectives import all_gather_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from mtnlg_parallel.engine.contract import Engine, Judge, Skip, StepSettings
    from mtnlg_parallel.layout import Layout
    from mtnlg_parallel.recipe import Recipe
    from mtnlg_parallel.record.metrics import Step

    from .samples import RunStream

SLOW: Final = 1.2
"""Ratio to the median work of the others above which a rank is called slow, if in two consecutive measurements."""

PART: Final = 1 << 24
"""Elements of weights that are measured at once, so that temporary tensors take little memory."""

INTEGERS: Final = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Watch:
    """One rank's measurements. All ranks call `begin`, `judging` and `end` of every step."""

    def __init__(self, recipe: Recipe, stream: RunStream, engine: Engine, rank: int, device: torch.device) -> None:
        self._recipe, self._stream, self._engine, self._rank, self._device = recipe, stream, engine, rank, device
        self._is_due = False
        self._stopwatch: Stopwatch | None = None
        self._losses: list[Tensor] = []  # of this step's samples
        self._targets: list[Tensor] = []  # that count in these, where not all do
        self._lost: list[tuple[range, Tensor]] = []  # sums and numbers of losses since the last measurement
        self._extremes: dict[str, list[Tensor]] = {}
        self._sums: list[Any] = []  # of the bits of master weights, then of weights
        self._slowest = -1
        if recipe.watch.every:
            engine.observe = self._observe

    def begin(self, step: int) -> None:
        """Prepare to measure step ``step``; called before it."""
        every = self._recipe.watch.every
        self._is_due = bool(every) and step % every == 0
        for kept in (self._losses, self._targets, self._extremes, self._sums):
            kept.clear()
        if self._is_due and len(self._recipe.layout.replicas(0, 0)) > 1:
            shares = (_bits(each.master.to(each.local.parameter.dtype)) for each in self._engine.fragments())
            self._sums.append(sum(shares))
        self._stopwatch = Stopwatch(self._device) if self._is_due else None

    def _observe(self, what: str, tensor: Tensor) -> None:
        if what == "loss":
            self._losses.append(tensor)
        elif what == "targets":
            self._targets.append(tensor)
        elif self._is_due:
            self._extremes.setdefault(what, []).append(torch.linalg.vector_norm(tensor, math.inf))

    def judging(self, judge: Judge) -> Judge:
        """Wrap ``judge`` to sum the weights first: at that time all ranks have gathered them, and none has updated."""

        def judge_after_sum(loss: float, norm: float) -> Skip | None:
            if self._sums:
                self._sums.append(sum(_bits(local.parameter) for local in self._engine.local_parameters()))
            return judge(loss, norm)

        return judge_after_sum

    def end(self, step: Step, settings: StepSettings) -> None:
        """Add the figures to a step that is due. Raises ``Failure`` on all ranks if replicas' weights differ."""
        number, batch = step["samples"], step["batch_size"]
        if self._losses and "skipped" not in step:
            losses = torch.cat(self._losses)
            pairs = losses, torch.ones_like(losses)
            if self._targets:
                tokens = self._recipe.model.sequence // self._recipe.layout.cp
                pairs = losses * tokens, torch.cat(self._targets)
            self._lost.append((range(number - batch, number), torch.stack(pairs)))
        if not self._stopwatch:
            return
        mine = {
            "seconds": self._stopwatch.stop(),
            "node": this_rank().node,
            "losses": self._losses_by_source(),
            "squares": [] if "skipped" in step else [self._squares(settings)],
            "extremes": [(float(torch.stack(found).max()), layer) for layer, found in self._extremes.items()],
            "memory": self._memory(),
            "sums": [int(each) for each in self._sums],
        }
        ranks = all_gather_json(mine, self._device)
        self._check_replicas(ranks)
        step["sources"] = self._sources(number, [rank["losses"] for rank in ranks])
        figures: Any = {}
        if squares := [each for rank in ranks for each in rank["squares"]]:
            weights, updates = (math.sqrt(math.fsum(each)) for each in zip(*squares, strict=True))
            figures |= {"parameter_norm": weights, "update_ratio": updates / weights if weights else 0.0}
        if found := [each for rank in ranks for each in rank["extremes"]]:
            figures["activation_max"], step["activation_layer"] = max(
                found, key=lambda each: (each[0] != each[0], each[0])
            )
        memory = (max(each) for each in zip(*(rank["memory"] for rank in ranks), strict=True))
        figures |= zip(("memory_allocated", "memory_reserved", "memory_peak"), memory, strict=False)
        step.update(_finite(figures))
        self._find_slowest(step, ranks)

    def _sources(
        self, samples: int, losses: Sequence[Mapping[str, tuple[float, float]]]
    ) -> dict[str, dict[str, float]]:
        """For each source: tokens read, passes over it, and the mean of its losses on all ranks."""
        sources = {}
        for source, (count, passes) in self._stream.read(samples).items():
            totals, counts = zip((0.0, 0), *(rank[source] for rank in losses if source in rank), strict=True)
            sources[source] = {"tokens": count * self._recipe.model.sequence, "passes": passes}
            if sum(counts):
                sources[source] |= _finite({"loss": math.fsum(totals) / sum(counts)})
        return sources

    def _losses_by_source(self) -> dict[str, tuple[float, float]]:
        """(sum, number) of each source's losses since the last measurement; empty except on one rank per dp and cp.

        Losses are per sample, or per target that counts if not all do.
        """
        taken, self._lost = self._lost, []
        place, train = self._recipe.layout.coordinates(self._rank), self._recipe.train
        sums: dict[str, tuple[float, float]] = {}
        if place.tp or not taken:
            return sums
        losses = zip(*torch.cat([pairs for _, pairs in taken], 1).tolist(), strict=True)
        dp = self._recipe.layout.dp
        for samples, _ in taken:
            for first in samples[place.dp * train.micro_batch :: dp * train.micro_batch]:
                for sample in range(first, first + train.micro_batch):
                    source = self._stream.source(sample)
                    total, count = sums.get(source, (0.0, 0.0))
                    loss, targets = next(losses)
                    sums[source] = total + loss, count + targets
        return sums

    def _squares(self, settings: StepSettings) -> tuple[float, float]:
        """Sums of squares of this rank's master weights, and of the last update."""
        train, steps = self._recipe.train, self._engine.optimizer_steps
        corrections = [1 - beta**steps for beta in train.betas]
        sums = []
        for fragment in self._engine.fragments():
            if fragment.local.is_primary:
                lr = 0.0 if matches(fragment.local.name, settings.frozen) else settings.lr
                decay = settings.weight_decay if fragment.local.parameter.ndim > 1 else 0.0
                tensors = (fragment.master, *(fragment.moments[slot] for slot in MOMENTS))
                for w, m, v in zip(*(tensor.split(PART) for tensor in tensors), strict=True):  # type: ignore[no-untyped-call]
                    direction = (v / corrections[1]).sqrt_().add_(train.eps).reciprocal_().mul_(m).div_(corrections[0])
                    update = direction.add_(w, alpha=decay).mul_(lr / (1 - lr * decay))
                    sums.append(torch.stack([_square(w), _square(update)]))
        weights, updates = torch.stack(sums).sum(0).tolist() if sums else (0.0, 0.0)
        return weights, updates

    def _memory(self) -> tuple[int, ...]:
        if self._device.type != "cuda":
            return ()
        peak = torch.cuda.max_memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return torch.cuda.memory_allocated(self._device), torch.cuda.memory_reserved(self._device), peak

    def _check_replicas(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        exact = self._recipe.train.storage == "fp32"  # where the share of the weights is itself the master weight
        if corrupt := corrupt_ranks(self._recipe.layout, [rank["sums"] for rank in ranks], exact):
            names = ", or ".join(self._name(rank, ranks) for rank in corrupt)
            failure = UnfitNode(
                f"{names}: its weights differ from those of the other dp ranks; its memory or links corrupt data"
            )
            failure.exit_status = failure.exit_status if self._rank in corrupt else Exit.PEER_LOST
            raise failure

    def _find_slowest(self, step: Step, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Compare each rank with the others of its stage, which do the same work, or with all if there are none."""
        layout, seconds = self._recipe.layout, [rank["seconds"] for rank in ranks]
        if layout.world == 1:
            return
        excess = []
        for rank, rank_seconds in enumerate(seconds):
            others = [other for other in range(layout.world) if other != rank]
            peers = [other for other in others if layout.coordinates(other).pp == layout.coordinates(rank).pp]
            usual = median(seconds[other] for other in peers or others)
            excess.append((rank_seconds / usual, rank_seconds - usual, rank))
        ratio, step["slowest_by"], rank = max(excess)
        before, self._slowest = self._slowest, rank if ratio > SLOW else -1
        step["slowest_rank"] = rank
        if before == rank == self._slowest:
            step["slow_rank"] = f"{self._name(rank, ranks)} works {ratio:.2f} times as long as the others"
            if self._rank == 0:
                say(f"WARNING: step {step['step']}: {step['slow_rank']}; all ranks wait for it")

    def _name(self, rank: int, ranks: Sequence[Mapping[str, Any]]) -> str:
        return f"rank {rank} ({self._recipe.layout.coordinates(rank)}) on {ranks[rank]['node']}"


def corrupt_ranks(layout: Layout, sums: Sequence[Sequence[int]], exact: bool) -> list[int]:
    """Ranks whose weights differ from those of the other ranks with the same tp and pp.

    ``sums`` has, for each rank, the sum over its share of the master weights, rounded to the weights' dtype, and the
    sum over all its weights; it is empty if nothing was measured. If most ranks agree, the others are corrupt. Else
    those are that differ from the sum of all ranks' master weights. With ``exact``, where a share of the weights is
    itself the master weight, that decides nothing, and all ranks are returned.
    """
    corrupt: list[int] = []
    for tp in range(layout.tp):
        for pp in range(layout.pp):
            ranks = layout.replicas(tp, pp)
            values = {rank: sums[rank][1] for rank in ranks if sums[rank]}
            if len({*values.values()}) < 2:
                continue
            common, votes = Counter(values.values()).most_common(1)[0]
            masters = None if exact else sum(sums[rank][0] for rank in ranks)
            right = common if 2 * votes > len(ranks) else masters if masters in values.values() else None
            corrupt += [rank for rank, found in values.items() if found != right]
    return corrupt


def _bits(tensor: Tensor) -> Tensor:
    """The sum of the elements' bits as integers, which any flipped bit changes."""
    return tensor.detach().contiguous().view(INTEGERS[tensor.element_size()]).sum(dtype=torch.int64)


def _square(tensor: Tensor) -> Tensor:
    square: Tensor = torch.linalg.vector_norm(tensor).double().square()
    return square


def _finite(figures: dict[str, float]) -> Any:  # noqa: ANN401  (part of a step)
    return {name: figure for name, figure in figures.items() if math.isfinite(figure)}
