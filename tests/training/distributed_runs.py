"""Runs small distributed jobs on request: imports torch, DeepSpeed and megatron-core once, and forks each job's ranks.

A request is one line of JSON on stdin; the answer, one line on stdout, is each rank's result or traceback. A job may
train several recipes of one layout in turn, within one process group.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import traceback
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

warnings.simplefilter("ignore")

import deepspeed  # noqa: E402  (imported here once, before the ranks are forked)
import torch  # noqa: E402
import torch.utils.tensorboard  # noqa: E402
from torch import distributed  # noqa: E402

from mtnlg_model.settings import validate  # noqa: E402
from mtnlg_parallel.engine import deepspeed_engine  # noqa: E402
from mtnlg_parallel.model import head, tensor_parallel  # noqa: E402
from mtnlg_parallel.model.slicing import Slicing  # noqa: E402
from mtnlg_parallel.recipe import Recipe  # noqa: E402
from mtnlg_parallel.record.run_dir import prepare_run_dir  # noqa: E402
from mtnlg_parallel.training import watchdog  # noqa: E402
from mtnlg_parallel.training.loop import Training  # noqa: E402
from mtnlg_parallel.training.samples import open_data  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable


def train(request: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    """Train each recipe to its end; return its steps and this rank's parameters."""
    recipes = [validate(recipe, Recipe, "request") for recipe in request["recipes"]]
    device = deepspeed_engine.init_distributed(recipes[0].layout)
    if request.get("as_on_cuda"):
        compute_as_on_cuda()
    results = []
    for recipe, out in zip(recipes, request["outs"], strict=True):
        data = open_data(Path(request["data"]), recipe)
        if rank == 0:
            prepare_run_dir(Path(out), recipe, data.train.fingerprint, resume=True)
        distributed.barrier()
        training = Training(recipe, data, Path(out), rank, device)
        inject_faults(request.get("faults", {}), training, rank)
        steps: list[Any] = []
        training.run(steps.append)
        distributed.barrier()
        local = list(training.engine.module.local_parameters())
        results.append(
            {
                "steps": steps,
                "parameters": sum(part.parameter.numel() for part in local),
                "sums": {part.name: float(part.parameter.double().sum()) for part in local if part.parameter.ndim == 1},
            }
        )
    return results


def state_bytes(request: dict[str, Any], rank: int) -> dict[str, Any]:
    """Train; return the bytes of this rank's parameters, gradients and moments when an update begins."""
    recipe, out = validate(request["recipes"][0], Recipe, "request"), Path(request["outs"][0])
    device = deepspeed_engine.init_distributed(recipe.layout)
    data = open_data(Path(request["data"]), recipe)
    if rank == 0:
        prepare_run_dir(out, recipe, data.train.fingerprint, resume=True)
    distributed.barrier()
    training = Training(recipe, data, out, rank, device)
    parameters = list(training.engine.module.parameters())
    gradient_bytes = [0] * len(parameters)

    def record(number: int, gradient: torch.Tensor) -> None:
        gradient_bytes[number] = gradient.nbytes

    for number, parameter in enumerate(parameters):
        parameter.register_hook(partial(record, number))
    training.run(lambda _: None)
    optimizer = training.engine.optimizer
    states = getattr(optimizer, "optimizer", optimizer).state.values()
    moments = [state[name].nbytes for state in states for name in ("exp_avg", "exp_avg_sq")]
    distributed.barrier()
    weights = sum(parameter.nbytes for parameter in parameters)
    return {"parameters": weights, "gradients": sum(gradient_bytes), "moments": sum(moments)}


def reduced_dtypes(request: dict[str, Any], rank: int) -> list[str]:
    """Train; return the dtypes of what DeepSpeed sums over ranks: gradients, their norm, the loss."""
    dtypes: set[str] = set()

    def recording(collective: Callable[..., Any]) -> Callable[..., Any]:
        def record(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401  (as the collective)
            if tensor.is_floating_point():
                dtypes.add(str(tensor.dtype))
            return collective(tensor, *arguments, **options)

        return record

    for name in ("all_reduce", "reduce"):
        setattr(deepspeed.comm, name, recording(getattr(deepspeed.comm, name)))
    train(request, rank)
    return sorted(dtypes)


def inject_faults(faults: dict[str, Any], training: Training, rank: int) -> None:
    """Inject faults at given steps: {"nan": [steps], "leap": [steps], "hang": step, "stop": step, "truncate": step}."""
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
        return step(batches)

    training.step = faulty_step  # type: ignore[method-assign]
    if rank == 0:
        next(training.engine.module.parameters()).register_hook(lambda gradient: gradient * factor[0])


def compute_as_on_cuda() -> None:
    """Use the fused AdamW and megatron-core's own sequence parallelism, which needs CUDA only to allocate."""
    build_optimizer = deepspeed_engine.build_optimizer
    deepspeed_engine.build_optimizer = lambda module, train, **_: build_optimizer(module, train, fused=True)
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    here = Slicing.of_this_rank.__func__  # type: ignore[attr-defined]

    def overlapped(cls: type[Slicing], sequence_parallel: bool, device: torch.device) -> Slicing:
        slicing: Slicing = here(cls, sequence_parallel, device)
        return Slicing(slicing.group, slicing.sequence_parallel, overlapped=slicing.sequence_parallel)

    Slicing.of_this_rank = classmethod(overlapped)  # type: ignore[assignment]


def attention_masks(request: dict[str, Any], rank: int) -> dict[str, Any]:
    """Draw hidden, attention and hidden dropout in turn, as a layer does; return the three masks."""
    recipe = validate(request["recipes"][0], Recipe, "request")
    device = deepspeed_engine.init_distributed(recipe.layout)
    attention = tensor_parallel.parallel_ops(
        Slicing.of_this_rank(sequence_parallel=False, device=device), "none", head.EAGER
    ).attention
    torch.manual_seed(5)
    ones = torch.ones(1, 2, 16, 8)
    masks = [
        torch.nn.functional.dropout(ones, 0.5),
        attention(ones, ones, ones, None, 1.0, 0.5),
        torch.nn.functional.dropout(ones, 0.5),
    ]
    return {"rank": rank, "masks": [mask.flatten().tolist() for mask in masks]}


def head_losses(request: dict[str, Any], rank: int) -> list[list[Any]]:
    """The head's loss for each x, with the gradients of this rank's part of x and of its rows of the weight."""
    recipe = validate(request["recipes"][0], Recipe, "request")
    slicing = Slicing.of_this_rank(recipe.train.sequence_parallel, deepspeed_engine.init_distributed(recipe.layout))
    weight_VH, targets_BS = torch.tensor(request["weight"]), torch.tensor(request["targets"])
    results = []
    for x_SBH in torch.tensor(request["xs"]):
        part = x_SBH.chunk(slicing.degree)[rank] if slicing.sequence_parallel else x_SBH
        rows = weight_VH.chunk(slicing.degree)[rank]
        part, rows = part.clone().requires_grad_(), rows.clone().requires_grad_()
        loss = head.mean_loss(part, rows, targets_BS, slicing, head.EAGER)
        gradients = torch.autograd.grad(loss, (part, rows))
        results.append([loss.tolist(), *(gradient.tolist() for gradient in gradients)])
    return results


SCENARIOS = {
    "train": train,
    "attention_masks": attention_masks,
    "state_bytes": state_bytes,
    "head_losses": head_losses,
    "reduced_dtypes": reduced_dtypes,
}


def exit_with_line(line: str) -> None:
    """Return the watchdog's line as this rank's error, and kill a rank that was stopped."""
    stopped = Path(REQUEST["outs"][0]) / "stopped"
    with os.fdopen(REQUEST["answer"], "w") as pipe:
        json.dump({"error": line}, pipe)
    if stopped.exists():
        os.kill(int(stopped.read_text()), signal.SIGKILL)
    os._exit(0)


watchdog._exit_hung = exit_with_line
REQUEST: dict[str, Any] = {}


def be_rank(request: dict[str, Any], rank: int, answer: int) -> None:
    """Run the scenario as one rank, write its result to the pipe ``answer``, and exit."""
    REQUEST.update(request, answer=answer)
    world = request["world"]
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(request["port"]),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    torch.set_num_threads(1)
    try:
        result: Any = SCENARIOS[request["scenario"]](request, rank)
    except BaseException:  # noqa: BLE001  (the test gets any error)
        result = {"error": traceback.format_exc()}
    with os.fdopen(answer, "w") as pipe:
        json.dump(result, pipe)
    os._exit(0)


def run_job(request: dict[str, Any]) -> list[Any]:
    """Fork the ranks and collect their results."""
    pipes = []
    for rank in range(request["world"]):
        reading, writing = os.pipe()
        if os.fork() == 0:
            be_rank(request, rank, writing)
        os.close(writing)
        pipes.append(reading)
    results = []
    for reading in pipes:
        with os.fdopen(reading) as pipe:
            results.append(json.loads(pipe.read() or '{"error": "died"}'))
    for _ in pipes:
        os.wait()
    return results


if __name__ == "__main__":
    gc.freeze()  # a collection in a rank would touch, and so copy, the imported modules' pages
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run_job(json.loads(line))) + "\n")
        sys.stdout.flush()
    os._exit(0)  # torch and DeepSpeed would take seconds to clean up
