"""Faults in a rank of `distributed_runs.py`: bad gradients, hanging and stopped ranks, clocks, disks and streams."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from mtnlg_data.console import Failure as DataFailure
from mtnlg_parallel import waiting
from mtnlg_parallel.training import loop

if TYPE_CHECKING:
    from mtnlg_data.stream import TokenStream
    from mtnlg_parallel.training.loop import Training


def raise_full(_descriptor: int) -> None:
    """As fsync on a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def inject_faults(faults: dict[str, Any], training: Training, rank: int) -> None:  # noqa: C901  (one branch per fault)
    """Inject faults at given steps: {"nan": [steps], "leap": [steps], "hang": step, "stop": step, "truncate": step}.

    {"ahead": seconds}: the clock of the last rank is so much ahead.
    {"own_bits": True}: the engine returns other last bits of loss and gradient norm on every rank.
    {"clock": seconds}: by the loop's clock, each validation and each beginning of a checkpoint takes so long.
    {"flip": [step, rank]}: `flip_bit`, before that step. {"slow": rank}: `slow_layers`.
    """
    step, factor = training.step, [1.0]

    def faulty_step(batches: Any) -> Any:  # noqa: ANN401  (as the step that it wraps)
        number = training.progress.step + 1
        wrong = [float("nan")] * (number in faults.get("nan", ())) + [1e6] * (number in faults.get("leap", ()))
        factor[0] = next(iter(wrong), 1.0)
        if number == faults.get("hang") and rank == training.recipe.layout.world - 1:
            batches._queue.get = threading.Event().wait
        if number == faults.get("stop") and rank == 1:
            (training.out / "stopped").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        if number == faults.get("truncate") and rank == 0:
            os.truncate(faults["file"], 100)
        if [number, rank] == faults.get("flip"):
            flip_bit(training)
        return step(batches)

    if rank == faults.get("slow"):
        slow_layers(training)
    training.step = faulty_step  # type: ignore[method-assign]
    if "ahead" in faults and rank == training.recipe.layout.world - 1:
        now = time.time
        time.time = lambda: now() + faults["ahead"]
    if "clock" in faults:
        slow_clock(training, faults["clock"])
    engine: Any = training.engine
    if faults.get("own_bits"):
        for name in ("train_batch", "get_global_grad_norm"):
            figure = getattr(engine._engine, name)
            setattr(engine._engine, name, lambda *words, figure=figure: float(figure(*words)) * (1 + 1e-6 * rank))
    first = next(engine.local_parameters()).parameter
    if rank == 0:
        first.register_hook(lambda gradient: gradient * factor[0])


def flip_bit(training: Training) -> None:
    """Flip a bit of this rank's copy of a norm or bias, once it has all of them."""
    engine: Any = training.engine
    parameter = next(each.local.parameter for each in engine.fragments() if each.local.parameter.ndim == 1)
    engine.optimizer.wait_for(parameter)
    weight = parameter.data.flatten()[-1:]
    weight.view({2: torch.int16, 4: torch.int32}[weight.element_size()]).bitwise_xor_(1)


def slow_layers(training: Training) -> None:
    """Let each layer of this rank take ten seconds by the clock that measures its work."""
    late, observe = [0.0], training.engine.observe
    vars(waiting)["time"] = SimpleNamespace(perf_counter=lambda: time.perf_counter() + late[0])

    def observe_late(what: str, tensor: torch.Tensor) -> None:
        late[0] += 10
        observe(what, tensor)

    training.engine.observe = observe_late


class DamagedStream:
    """A stream of which no sample can be read."""

    def __init__(self, stream: TokenStream) -> None:
        self._stream = stream
        self.seq_length, self.vocab_size, self.fingerprint = stream.seq_length, stream.vocab_size, stream.fingerprint

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._stream)

    def __getitem__(self, sample: int) -> NoReturn:
        """Raise what a damaged store raises."""
        raise DataFailure("prose.bin: damaged")


def slow_clock(training: Training, seconds: float) -> None:
    """Have the loop read a clock that goes a millisecond a look, and ``seconds`` a validation or begun checkpoint."""
    now = [0.0]

    def perf_counter() -> float:
        now[0] += 1e-3
        return now[0]

    vars(loop)["time"] = SimpleNamespace(perf_counter=perf_counter)

    def work(original: Any, *words: Any) -> Any:  # noqa: ANN401  (as the original)
        now[0] += seconds
        return original(*words)

    for owner, name in ((training, "validate"), (training.checkpoint, "begin")):
        setattr(owner, name, partial(work, getattr(owner, name)))
