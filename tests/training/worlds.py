"""A process that runs small jobs on request: it imports the engines once, and forks the ranks of each job.

A request is one line of JSON on stdin, the answer one on stdout: what each rank returned, or its traceback. A job may
train several recipes of one layout in turn: its ranks meet once.
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
from typing import Any

warnings.simplefilter("ignore")

import deepspeed  # noqa: E402, F401  (importing them is what this process is for)
import torch  # noqa: E402
import torch.utils.tensorboard  # noqa: E402
from torch import distributed  # noqa: E402

from mtnlg_model.settings import validate  # noqa: E402
from mtnlg_parallel.engine import deepspeed_engine  # noqa: E402
from mtnlg_parallel.launch import watchdog  # noqa: E402
from mtnlg_parallel.model import head, tensor_parallel  # noqa: E402
from mtnlg_parallel.model.slicing import Slicing  # noqa: E402
from mtnlg_parallel.recipe import Recipe  # noqa: E402
from mtnlg_parallel.training.loop import Training  # noqa: E402
from mtnlg_parallel.training.run_dir import prepare  # noqa: E402
from mtnlg_parallel.training.samples import open_data  # noqa: E402


def train(request: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    """Run each recipe to its end, and tell what this rank holds of the model afterwards."""
    recipes = [validate(recipe, Recipe, "request") for recipe in request["recipes"]]
    device = deepspeed_engine.join(recipes[0].layout)
    if request.get("as_on_cuda"):
        compute_as_on_cuda()
    answers = []
    for recipe, out in zip(recipes, request["outs"], strict=True):
        data = open_data(Path(request["data"]), recipe)
        if rank == 0:
            prepare(Path(out), recipe, data.train.fingerprint, resume=True)
        distributed.barrier()
        training = Training(recipe, data, Path(out), rank, device)
        bring_about(request.get("faults", {}), training, rank)
        steps: list[Any] = []
        training.run(steps.append)
        distributed.barrier()
        held = list(training.engine.module.held())
        answers.append(
            {
                "steps": steps,
                "held": sum(part.parameter.numel() for part in held),
                "names": [part.name for part in held],
                "sums": {part.name: float(part.parameter.double().sum()) for part in held if part.parameter.ndim == 1},
            }
        )
    return answers


def bytes_held(request: dict[str, Any], rank: int) -> dict[str, Any]:
    """Train, and tell the bytes of parameters, gradients and moments that this rank holds when an update begins."""
    recipe, out = validate(request["recipes"][0], Recipe, "request"), Path(request["outs"][0])
    device = deepspeed_engine.join(recipe.layout)
    data = open_data(Path(request["data"]), recipe)
    if rank == 0:
        prepare(out, recipe, data.train.fingerprint, resume=True)
    distributed.barrier()
    training = Training(recipe, data, out, rank, device)
    parameters = list(training.engine.module.parameters())
    found = {"parameters": sum(parameter.nbytes for parameter in parameters)}
    written = [0] * len(parameters)

    def note(place: int, gradient: torch.Tensor) -> None:
        written[place] = gradient.nbytes

    for place, parameter in enumerate(parameters):
        parameter.register_hook(partial(note, place))
    training.run(lambda _: None)
    optimizer = training.engine.optimizer
    states = getattr(optimizer, "optimizer", optimizer).state.values()
    moments = [state[name].nbytes for state in states for name in ("exp_avg", "exp_avg_sq")]
    distributed.barrier()
    return {**found, "gradients": sum(written), "moments": sum(moments)}


def bring_about(faults: dict[str, Any], training: Training, rank: int) -> None:
    """Have happen, at a step, what a fault says: {"nan": [steps], "leap": [steps], "hang": step, "stop": step …}."""
    whole_step, factor = training.step, [1.0]

    def faulty_step(batches: Any) -> Any:  # noqa: ANN401  (of the step that is wrapped)
        number = training.progress.step + 1
        wrong = [float("nan")] * (number in faults.get("nan", ())) + [1e6] * (number in faults.get("leap", ()))
        factor[0] = next(iter(wrong), 1.0)
        if number == faults.get("hang") and rank == training.recipe.layout.world - 1:
            batches._found.get = threading.Event().wait
        if number == faults.get("stop") and rank == 1:
            (training.out / "stopped").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        if number == faults.get("truncate") and rank == 0:
            os.truncate(faults["file"], 100)
        return whole_step(batches)

    training.step = faulty_step  # type: ignore[method-assign]
    if rank == 0:
        next(training.engine.module.parameters()).register_hook(lambda gradient: gradient * factor[0])


def compute_as_on_cuda() -> None:
    """Take the fused AdamW, and megatron-core's own sequence-parallel path: CUDA is but where that allocates."""
    plain_adamw = deepspeed_engine.adamw
    deepspeed_engine.adamw = lambda module, train, **_: plain_adamw(module, train, fused=True)
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    here = Slicing.here.__func__  # type: ignore[attr-defined]

    def overlapped(cls: type[Slicing], sequence_parallel: bool, device: torch.device) -> Slicing:
        slicing: Slicing = here(cls, sequence_parallel, device)
        return Slicing(slicing.group, slicing.sequence_parallel, overlapped=slicing.sequence_parallel)

    Slicing.here = classmethod(overlapped)  # type: ignore[assignment]


def attention_masks(request: dict[str, Any], rank: int) -> dict[str, Any]:
    """Draw hidden dropout, attention dropout, hidden dropout, as a layer does; the three masks' fingerprints."""
    recipe = validate(request["recipes"][0], Recipe, "request")
    device = deepspeed_engine.join(recipe.layout)
    attention = tensor_parallel.operations(
        Slicing.here(sequence_parallel=False, device=device), "none", head.EAGER
    ).attention
    torch.manual_seed(5)
    ones = torch.ones(1, 2, 16, 8)
    drawn = [
        torch.nn.functional.dropout(ones, 0.5),
        attention(ones, ones, ones, None, 1.0, 0.5),
        torch.nn.functional.dropout(ones, 0.5),
    ]
    return {"rank": rank, "masks": [mask.flatten().tolist() for mask in drawn]}


def head_losses(request: dict[str, Any], rank: int) -> list[list[Any]]:
    """The head's loss of each x, and its gradients: of this rank's part of x, of this rank's rows of the weight."""
    recipe = validate(request["recipes"][0], Recipe, "request")
    slicing = Slicing.here(recipe.train.sequence_parallel, deepspeed_engine.join(recipe.layout))
    weight_VH, targets_BS = torch.tensor(request["weight"]), torch.tensor(request["targets"])
    answers = []
    for x_SBH in torch.tensor(request["xs"]):
        part = x_SBH.chunk(slicing.degree)[rank] if slicing.sequence_parallel else x_SBH
        rows = weight_VH.chunk(slicing.degree)[rank]
        part, rows = part.clone().requires_grad_(), rows.clone().requires_grad_()
        loss = head.mean_loss(part, rows, targets_BS, slicing, head.EAGER)
        found = torch.autograd.grad(loss, (part, rows))
        answers.append([loss.tolist(), *(gradient.tolist() for gradient in found)])
    return answers


SCENARIOS = {
    "train": train,
    "attention_masks": attention_masks,
    "bytes_held": bytes_held,
    "head_losses": head_losses,
}


def leave(line: str) -> None:
    """Answer with what the watchdog says, instead of ending without an answer; free what was stopped."""
    stopped = Path(REQUEST["outs"][0]) / "stopped"
    with os.fdopen(REQUEST["answer"], "w") as pipe:
        json.dump({"error": line}, pipe)
    if stopped.exists():
        os.kill(int(stopped.read_text()), signal.SIGKILL)
    os._exit(0)


watchdog._leave = leave
REQUEST: dict[str, Any] = {}


def rank_of(request: dict[str, Any], rank: int, answer: int) -> None:
    """Be one rank; never returns."""
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
    except BaseException:  # noqa: BLE001  (whatever it is, the test shall see it)
        result = {"error": traceback.format_exc()}
    with os.fdopen(answer, "w") as pipe:
        json.dump(result, pipe)
    os._exit(0)


def answer_of(request: dict[str, Any]) -> list[Any]:
    """Fork the ranks and collect what they return."""
    pipes = []
    for rank in range(request["world"]):
        reading, writing = os.pipe()
        if os.fork() == 0:
            rank_of(request, rank, writing)
        os.close(writing)
        pipes.append(reading)
    answers = []
    for reading in pipes:
        with os.fdopen(reading) as pipe:
            answers.append(json.loads(pipe.read() or '{"error": "died"}'))
    for _ in pipes:
        os.wait()
    return answers


if __name__ == "__main__":
    gc.freeze()  # what is imported is shared by all ranks: no collection shall walk, and so copy, it
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer_of(json.loads(line))) + "\n")
        sys.stdout.flush()
    os._exit(0)  # at once: the engines take seconds to clean up
