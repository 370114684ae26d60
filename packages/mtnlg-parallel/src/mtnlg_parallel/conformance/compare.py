"""Compares an engine with the plain loop, and names the first parameter that differs.

Error of the engine's result a relative to the plain loop's result b in the same precision:

    loss, grad_norm, validation    |a - b| / |b|
    exp_avg, exp_avg_sq            |a - b|₂ / |b|₂             of each parameter
    master                         |a - b|₂ / |b - start|₂     of each parameter, relative to how far it has moved, over
                                                               the half of its elements that differ least: where a
                                                               gradient is only rounding error (key biases, which
                                                               softmax ignores), Adam moves by its sign
    typical                        median over the parameters of the error of exp_avg

``rounding`` is the same distance between the plain loop and itself in the next wider precision, and of a parameter at
least its median over the parameters: where one element dominates a parameter's norm, its rounding is |x| for one draw x
of a normal distribution, and its error |x - y| for two, so that one error in 16 exceeds ten times a rounding that is
small by chance. Ten times the median is 4.8 standard deviations of such an error.

An error may reach the larger of `FLOORS` and ten times the rounding, but not exceed `CAPS` unless twice the rounding
does: if a gradient is lost, halved or doubled, the first moment's error is 0.5 or 1, the second's 0.75 or more.
``typical`` may be three times the rounding in bf16 and fp8: two computations that round as often, but at other places,
differ by about 1.4 times the rounding; summing the gradients of 256 micro-batches in bf16 makes it 4 times.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from mtnlg_model.console import Failure

from .ranks import RankError, run_ranks
from .reference import EXACT, SLOTS, State, Trace, plain_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from .cases import Case
    from .ranks import Piece, RankTrace
    from .reference import Arrays

FLOORS: Final[Mapping[str, Mapping[str, float]]] = {
    "fp32": dict.fromkeys(("loss", "grad_norm", "validation", "exp_avg", "exp_avg_sq", "master", "typical"), 1e-5),
    "bf16": {"loss": 2e-3, "grad_norm": 4e-2, "validation": 5e-3, "exp_avg": 2e-2, "exp_avg_sq": 4e-2, "master": 0.1}
    | {"typical": 4e-3},
    "fp8": {"loss": 1e-2, "grad_norm": 0.15, "validation": 1e-2, "exp_avg": 0.1, "exp_avg_sq": 0.2, "master": 0.3}
    | {"typical": 2e-2},
}
"""Errors that are always allowed. In fp32 this is the goal; else it comes from the spread of the plain loop over drawn
cases (`benchmarks/conformance.py`): for losses and norms two to four times its 99th percentile."""

CAPS: Final[Mapping[str, Mapping[str, float]]] = {
    "fp32": {"exp_avg": 0.4, "exp_avg_sq": 0.6},
    "bf16": {"exp_avg": 0.4, "exp_avg_sq": 0.6},
    "fp8": {"exp_avg": 0.9, "exp_avg_sq": 0.95},
}
"""Errors that only rounding may exceed. In 8 bits, where each rank's slice has its own scale, small gradients of norms
are off by up to 0.7."""


COPIES: Final[Mapping[str, float]] = {"float32": 1e-6, "bfloat16": 1e-3}
"""Largest relative error of a copy of a master weight: two stages may sum a tied table's gradients in other orders."""


class Figure(NamedTuple):
    """One compared quantity: step (from 1), kind, parameter name, its error, and the error of rounding alone."""

    step: int
    what: str
    name: str
    error: float
    rounding: float

    def allowed(self, precision: str) -> float:
        """The largest allowed error; anything beyond it is a difference."""
        times = 3 if self.what == "typical" and precision != "fp32" else 10
        cap = max(CAPS[precision].get(self.what, np.inf), 2 * self.rounding)
        return max(FLOORS[precision][self.what], min(times * self.rounding, cap))

    def __str__(self) -> str:
        """Text such as ``step 1: exp_avg of head.weight``."""
        return f"step {self.step}: {self.what}{self.name and f' of {self.name}'}"


class Result(NamedTuple):
    """Outcome of a case: its figures, the first that differs, or the error that ended it."""

    case: Case
    seconds: float
    figures: list[Figure]
    difference: Figure | None = None
    error: str = ""

    @property
    def status(self) -> Literal["held", "differs", "failed"]:
        """The outcome in one word."""
        return "failed" if self.error else "differs" if self.difference else "held"

    @property
    def worst(self) -> float:
        """The largest error, as a fraction of what is allowed."""
        return max((f.error / f.allowed(self.case.recipe.train.precision) for f in self.figures), default=0.0)

    def __str__(self) -> str:
        """The outcome in one line."""
        if found := self.difference:
            return f"{found} is {found.error:.1e} off, allowed {found.allowed(self.case.recipe.train.precision):.1e}"
        return self.error or "held"


def check(case: Case, engine: str, device: Literal["auto", "cpu"] = "cpu") -> Result:
    """Train a case with an engine and with the plain loop, and compare. ``engine`` is a name or a reference."""
    began = time.perf_counter()
    precision, figures, error = case.recipe.train.precision, list[Figure](), ""
    plain, difference = plain_run(case, precision), None
    try:
        ranks = run_ranks(case, engine, plain.start, device)
        trace = _global_trace(case, plain.start, ranks)
        if not case.recipe.model.dropout:  # else no two draw the same masks
            figures = list(_figures(trace, plain, plain_run(case, EXACT[precision], plain.start)))
            difference = _first_difference(figures, precision)
        if not difference:
            _check_copies(trace, ranks)
    except Failure as failure:
        error = str(failure)
    return Result(case, time.perf_counter() - began, figures, difference, error)


def _first_difference(figures: Sequence[Figure], precision: str) -> Figure | None:
    """The worst figure of the first step with a difference, relative to its bound; parameters before loss and norm."""
    beyond = [(figure.error / figure.allowed(precision), figure) for figure in figures]
    differing = [(excess, figure) for excess, figure in beyond if not excess <= 1]
    if not differing:
        return None
    first = min(figure.step for _, figure in differing)
    return max((bool(figure.name), excess, figure) for excess, figure in differing if figure.step == first)[-1]


def _global_trace(case: Case, start: State, traces: Sequence[RankTrace]) -> Trace:
    """Merge all ranks' traces into one of global tensors. Raises ``RankError`` if they contradict one another."""
    first, shapes = traces[0], case.recipe.model.parameter_shapes()
    steps = start.optimizer_steps + len(first.losses) - (case.skipped >= case.steps_before)
    states = [
        _assemble(shapes, [piece for trace in traces for piece in trace.pieces[n]]) for n in range(len(first.losses))
    ]
    for rank, trace in enumerate(traces):
        if (trace.losses, trace.norms, trace.validation) != (first.losses, first.norms, first.validation):
            raise RankError(f"rank {rank}: losses {trace.losses} and norms {trace.norms} differ from rank 0's")
        if trace.optimizer_steps != steps:
            raise RankError(f"rank {rank}: optimizer_steps is {trace.optimizer_steps} where {steps} updates were made")
    return Trace(start, first.losses, first.norms, [State(0, arrays) for arrays in states], first.validation)


def _check_copies(trace: Trace, ranks: Sequence[RankTrace]) -> None:
    """Raise ``RankError`` if a rank's weights are not the rounded master weights."""
    for rank, own in enumerate(ranks):
        for name, box, weight in own.weights:
            expected = own.rounded(trace.states[-1].arrays[name]["master"][box])
            if (error := _distance(weight, expected, expected, 1.0)) > COPIES[own.dtype]:
                raise RankError(f"rank {rank}: {name}: the weight is {error:.1e} off its master weight, rounded")


def _assemble(shapes: Mapping[str, tuple[int, ...]], pieces: Sequence[Piece]) -> Arrays:
    """Assemble global tensors from the ranks' pieces. Raises ``RankError`` unless each element is in exactly one."""
    arrays = {name: {slot: np.full(shape, np.nan) for slot in SLOTS} for name, shape in shapes.items()}
    for piece in pieces:
        box = arrays[piece.name][piece.slot][piece.box]
        flat = box.flatten()
        if not np.isnan(flat[piece.start : piece.stop]).all():
            raise RankError(
                f"{piece.name}: {piece.slot}: two ranks hold elements {piece.start}:{piece.stop} of {piece.box}"
            )
        flat[piece.start : piece.stop] = piece.values
        box[...] = flat.reshape(box.shape)
    for name, slots in arrays.items():
        for slot, array in slots.items():
            if np.isnan(array).any():
                raise RankError(f"{name}: {slot}: no rank holds some of its elements, or they are no numbers")
    return arrays


def _figures(found: Trace, plain: Trace, exact: Trace) -> Iterator[Figure]:
    """Every figure of every step."""
    start = plain.start.arrays
    for n in range(len(plain.losses)):
        step = n + 1
        for what, values in (("loss", "losses"), ("grad_norm", "norms")):
            a, b, e = (getattr(trace, values)[n] for trace in (found, plain, exact))
            yield Figure(step, what, "", _relative(a, b), _relative(b, e))
        for slot in SLOTS:
            distances = {}
            for name in start:
                a, b, e = (trace.states[n].arrays[name][slot] for trace in (found, plain, exact))
                base = b - start[name][slot] if slot == "master" else b
                keep = 0.5 if slot == "master" else 1.0
                distances[name] = (_distance(a, b, base, keep), _distance(b, e, base, keep))
            typical = Figure(step, "typical", "", *map(float, np.median(list(distances.values()), axis=0)))
            if slot == "exp_avg":
                yield typical
            for name, (error, rounding) in distances.items():
                yield Figure(step, slot, name, error, max(rounding, typical.rounding))
    a, b, e = (trace.validation for trace in (found, plain, exact))
    yield Figure(len(plain.losses), "validation", "", _relative(a, b), _relative(b, e))


def _relative(a: float, b: float) -> float:
    return abs(a - b) / abs(b) if b else abs(a)


def _distance(a: NDArray[np.float64], b: NDArray[np.float64], base: NDArray[np.float64], keep: float) -> float:
    """|a - b|₂ / |base|₂, where the numerator takes only the fraction ``keep`` of elements that differ least."""
    squares = np.sort(np.square(a - b), axis=None)[: max(int(keep * a.size), 1)]
    return float(np.sqrt(squares.sum())) / (float(np.linalg.norm(base)) or 1.0)
