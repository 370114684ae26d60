"""Runs an engine on every rank of a case. Each rank is forked from one server process that has done the imports."""

from __future__ import annotations

import gc
import multiprocessing
import os
import traceback
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import distributed

from mtnlg_model.console import Failure
from mtnlg_parallel import kernels
from mtnlg_parallel.engine import process, zero
from mtnlg_parallel.engine.build import build_engine, engine_class
from mtnlg_parallel.engine.contract import Skip, StepSettings
from mtnlg_parallel.launch.agent import rank_environment
from mtnlg_parallel.model.head import EAGER
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.rendezvous import HostedStore
from mtnlg_parallel.training.samples import micro_batches

from .reference import State, Tokens

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray
    from torch import Tensor

    from mtnlg_model.checkpoint.manifest import SlotName
    from mtnlg_parallel.engine.contract import Engine, MicroBatch

    from .cases import Case

SECONDS = 120.0
"""Seconds after which ranks count as hung. A case takes one or two seconds on an idle machine."""


SERVER: Final = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
"""Environment variables that the modules imported by the server read."""


class Piece(NamedTuple):
    """Elements [start, stop) of a flattened box of a parameter's slot (master weight or moment), in fp32."""

    name: str
    slot: SlotName
    box: tuple[slice, ...]
    start: int
    stop: int
    values: Any  # a one-dimensional array


class RankTrace(NamedTuple):
    """Results of one rank's engine: loss, norm and pieces after every step, and its weights at the end."""

    losses: list[float]
    norms: list[float]
    pieces: list[list[Piece]]
    weights: list[tuple[str, tuple[slice, ...], Any]]
    dtype: str
    optimizer_steps: int
    validation: float

    def rounded(self, master: NDArray[np.float64]) -> NDArray[np.float64]:
        """Master weights rounded to the dtype of the weights, as fp64."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return torch.from_numpy(master).float().to(dtype).double().numpy()


class RankError(Failure):
    """A rank raised an error, or the ranks hung."""


def run_ranks(case: Case, engine: str, start: State, device: Literal["auto", "cpu"] = "cpu") -> list[RankTrace]:
    """Train ``case`` from ``start`` on all its ranks. Raises ``RankError`` if one fails or all hang."""
    context = multiprocessing.get_context("forkserver")
    on_cpu = device == "cpu"  # DeepSpeed chooses its accelerator when it is imported
    context.set_forkserver_preload(
        ["__main__", __name__, *(["deepspeed.pipe", "mtnlg_parallel.model.megatron"] if on_cpu else [])]
    )
    for name, value in {**SERVER, **({"DS_ACCELERATOR": "cpu"} if on_cpu else {})}.items():
        os.environ.setdefault(name, value)
    store, world = HostedStore(), case.recipe.layout.world
    job = (case.recipe.model_dump(mode="json"), case._replace(recipe=None), engine, start, device)  # type: ignore[arg-type]
    pipes, processes = [], []
    try:
        for rank in range(world):
            reading, writing = context.Pipe(duplex=False)
            environment = rank_environment(rank, case.recipe.layout, store)
            processes.append(context.Process(target=_be_rank, args=(writing, environment, job), daemon=True))
            processes[-1].start()
            writing.close()
            pipes.append(reading)
        return _answers(pipes)
    finally:
        for child in processes:
            child.kill()
            child.join()
        store.close()


def _answers(pipes: list[Connection]) -> list[RankTrace]:
    answers: dict[int, RankTrace] = {}
    while len(answers) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in answers]
        ready = wait(waiting, SECONDS)
        if not ready:
            raise RankError(f"ranks {[r for r in range(len(pipes)) if r not in answers]} hung for {SECONDS:.0f} s")
        for pipe in ready:
            rank = pipes.index(pipe)  # type: ignore[arg-type]
            try:
                answer = pipes[rank].recv()
            except EOFError:
                raise RankError(f"rank {rank} ended without a result") from None
            if isinstance(answer, str):
                raise RankError(f"rank {rank}: {answer}")
            answers[rank] = answer
    return [answers[rank] for rank in range(len(pipes))]


def _be_rank(answer: Connection, environment: dict[str, str], job: tuple[Any, ...]) -> None:
    os.environ.update(environment)
    for stream in (1, 2):  # what libraries print; an error goes through the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    torch.set_num_threads(1)
    gc.freeze()  # collections while engines are built would touch, and so copy, the imported modules' pages
    try:
        answer.send(_train(*job))
    except BaseException:  # noqa: BLE001  (the comparison reports any error)
        answer.send(traceback.format_exc())


def _train(content: dict[str, Any], case: Case, engine: str, start: State, device: Literal["auto", "cpu"]) -> RankTrace:
    case = case._replace(recipe=Recipe.model_validate(content, strict=False))
    place = process.init_distributed(case.recipe.layout, device=device)
    ops = kernels.best_ops(place) if case.recipe.train.kernels else EAGER

    def build(state: State | OwnState) -> Engine:
        built = build_engine(case.recipe, place, ops, engine_class(engine))
        zero.restore(built, state)
        return built

    first, last = case.steps_before, len(case.steps)
    whole = _steps(case, build(start), first, last)
    if case.recipe.model.dropout:  # no plain loop draws these masks: two halves must give what the whole has given
        middle, half = (first + last) // 2, build(start)
        _steps(case, half, first, middle)
        again = _steps(case, build(OwnState.of(half)), middle, last)
        _check_bits(whole, again, middle - first)
    return whole


def _steps(case: Case, engine: Engine, first: int, last: int) -> RankTrace:
    """Train steps [first, last) and validate."""
    recipe, layout = case.recipe, case.recipe.layout
    train, stream = recipe.train, Tokens(recipe.model.sequence, recipe.train.seed, case.masked)
    place = layout.coordinates(distributed.get_rank())
    multiple = recipe.batch_size.multiple
    losses, norms, pieces = list[float](), list[float](), list[list[Piece]]()

    def batches(samples: range) -> Iterator[MicroBatch]:
        return micro_batches(stream, samples, train.micro_batch, layout.dp, place.dp, recipe.data.isolated)

    for number, (before, batch) in list(enumerate(case.steps))[first:last]:
        masters = [fragment.master for fragment in engine.fragments()]
        seen = [_sums(masters)]
        engine.before_update = lambda masters=masters, seen=seen: seen.append(_sums(masters))  # type: ignore[misc]
        replica = layout.copy_number(distributed.get_rank())
        torch.manual_seed(hash((before, place.pp, replica, place.tp * train.sequence_parallel)))
        outcome = engine.train_batch(
            batches(range(before, before + batch)) if recipe.reads_samples(place.pp) else None,
            batch // multiple,
            StepSettings(train.learning_rate.at(before + batch), train.weight_decay, train.clip, train.frozen),
            lambda _loss, _norm, number=number: Skip("forbidden", "by the case") if number == case.skipped else None,  # type: ignore[misc]
        )
        skipped = number == case.skipped
        if (outcome.skip is not None) != skipped:
            raise RankError(f"step {number}: skip is {outcome.skip!r}, and judge forbade it: {skipped}")
        if (len(seen) == 1) != skipped or seen[1:2] not in ([], seen[:1]):
            raise RankError(f"step {number}: before_update must be called before an update, and only then")
        losses.append(outcome.loss)
        norms.append(outcome.grad_norm)
        pieces.append(list(_pieces(engine)))
    count = train.validation_samples
    validation = engine.evaluate(batches(range(count)), count // multiple)
    local = [(part, part.parameter.detach().double().cpu().numpy()) for part in engine.local_parameters()]
    weights = [(part.name, part.box, weight) for part, weight in local]
    dtype = str(local[0][0].parameter.dtype).removeprefix("torch.")
    return RankTrace(losses, norms, pieces, weights, dtype, engine.optimizer_steps, validation)


def _sums(tensors: list[Tensor]) -> list[float]:
    return [float(tensor.double().sum()) for tensor in tensors]


def _pieces(engine: Engine) -> Iterator[Piece]:
    for fragment in engine.fragments():
        if fragment.local.is_primary:
            for slot, tensor in fragment.slots(with_moments=True).items():
                values = tensor.detach().float().cpu().numpy().copy()
                yield Piece(fragment.local.name, slot, fragment.local.box, fragment.start, fragment.stop, values)


@dataclass(frozen=True)
class OwnState:
    """State of one rank's engine, to restore into another engine of the same rank."""

    optimizer_steps: int
    weights: dict[str, Tensor]
    fragments: dict[tuple[str, SlotName], Tensor]

    @classmethod
    def of(cls, engine: Engine) -> Self:
        """Copy an engine's state."""
        weights = {local.name: local.parameter.detach().clone() for local in engine.local_parameters()}
        fragments = {
            (fragment.local.name, slot): tensor.clone()
            for fragment in engine.fragments()
            for slot, tensor in fragment.slots(with_moments=True).items()
        }
        return cls(engine.optimizer_steps, weights, fragments)

    def weight(self, name: str, _box: tuple[slice, ...], _dtype: torch.dtype) -> Tensor:
        """The copied weight, without slicing or rounding."""
        return self.weights[name]

    def elements(self, name: str, slot: SlotName, _box: tuple[slice, ...], _start: int, _stop: int) -> Tensor:
        """The copied fragment, without slicing."""
        return self.fragments[name, slot]


def _check_bits(whole: RankTrace, again: RankTrace, steps: int) -> None:
    if (whole.losses[steps:], whole.norms[steps:]) != (again.losses, again.norms):
        raise RankError(f"resumed, losses {again.losses} where an undisturbed run had {whole.losses[steps:]}")
    for before, now in zip(whole.pieces[-1], again.pieces[-1], strict=True):
        if not np.array_equal(before.values, now.values):
            raise RankError(f"{now.name}: {now.slot}: resumed, other bits than in an undisturbed run")
