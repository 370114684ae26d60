"""Runs small distributed jobs on request: imports torch, DeepSpeed and megatron-core once, and forks each job's ranks.

What a rank would import only once it trains (torch._dynamo, megatron-core's layers) takes two to four seconds per rank.

A request is one line of JSON on stdin; the answer, one line on stdout, is each rank's result or traceback. A job may
train several recipes of one layout in turn, within one process group.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import traceback
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

warnings.simplefilter("ignore")

import deepspeed  # noqa: E402, F401  (imported here once, before the ranks are forked)
import torch  # noqa: E402
import torch._dynamo  # noqa: E402
import torch.utils.tensorboard  # noqa: E402
from torch import distributed  # noqa: E402
from torch.distributed import distributed_c10d  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from mtnlg_model.checkpoint.reader import Checkpoint  # noqa: E402
from mtnlg_model.console import Failure  # noqa: E402
from mtnlg_model.convert import huggingface  # noqa: E402
from mtnlg_model.functional import Rule  # noqa: E402
from mtnlg_model.settings import validate  # noqa: E402
from mtnlg_parallel.engine import process, zero  # noqa: E402
from mtnlg_parallel.engine.build import build_engine  # noqa: E402
from mtnlg_parallel.engine.offloading import HostActivations  # noqa: E402
from mtnlg_parallel.engine.sharded_optimizer import Bucket, ShardedOptimizer  # noqa: E402
from mtnlg_parallel.launch import health, worker  # noqa: E402
from mtnlg_parallel.model import head, megatron, slicing  # noqa: E402, F401
from mtnlg_parallel.model.slicing import Slicing  # noqa: E402
from mtnlg_parallel.recipe import Recipe, RunOptions  # noqa: E402
from mtnlg_parallel.record.run_dir import RunState, prepare_run_dir  # noqa: E402
from mtnlg_parallel.training import watchdog  # noqa: E402
from mtnlg_parallel.training.loop import Training  # noqa: E402
from mtnlg_parallel.training.resume import weights_of  # noqa: E402
from mtnlg_parallel.training.samples import open_data  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1]))

from mtnlg_parallel.shared_memory import SharedMemoryGroup  # noqa: E402
from training import resume_runs  # noqa: E402
from training.injected_faults import DamagedStream, inject_faults, raise_full  # noqa: E402

if TYPE_CHECKING:
    from types import CodeType

    from mtnlg_data.stream import TokenStream
    from mtnlg_model.config import ModelConfig
    from mtnlg_model.families.family import Family
    from mtnlg_parallel.record.metrics import Step
    from mtnlg_parallel.training.samples import Prefetch


def train(request: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    """Train each recipe to its end; return its steps and this rank's parameters."""
    recipes = [validate(recipe, Recipe, "request") for recipe in request["recipes"]]
    device = process.init_distributed(recipes[0].layout)
    results, moved, move_out = [], list[Any](), HostActivations.moved_out
    HostActivations.moved_out = lambda *words: moved.append(words) or move_out(*words)  # type: ignore[func-returns-value, method-assign]
    for recipe, out in zip(recipes, request["outs"], strict=True):
        moved.clear()
        data = open_data(Path(request["data"]), recipe)
        if rank == request.get("cannot_validate"):
            data = data._replace(validation=DamagedStream(cast("TokenStream", data.validation)))
        if rank == 0:
            prepare_run_dir(Path(out), recipe, data.fingerprint, resume=True)
        distributed.barrier()
        training = Training(recipe, data, Path(out), rank, device)
        inject_faults(request.get("faults", {}), training, rank)
        steps: list[Any] = []
        training.run(steps.append)
        distributed.barrier()
        local = list(training.engine.local_parameters())
        results.append(
            {
                "steps": steps,
                "parameters": sum(part.parameter.numel() for part in local),
                "passes_moved_out": len(moved),
                "judged": [list(window) for window in training.guard._window.values()],
                "sums": {part.name: float(part.parameter.double().sum()) for part in local if part.parameter.ndim == 1},
            }
        )
    return results


def state_bytes(request: dict[str, Any], rank: int) -> dict[str, Any]:
    """Train; return the bytes of this rank's parameters, gradients and moments when an update begins."""
    found, run = dict[str, int](), Training.run

    def record(number: int, gradient: torch.Tensor) -> None:
        found[f"gradient {number}"] = gradient.nbytes

    def recording(training: Training, *words: Any) -> None:  # noqa: ANN401  (as the method that it wraps)
        engine: Any = training.engine
        for number, local in enumerate(engine.local_parameters()):
            found[f"parameter {number}"] = local.parameter.nbytes
            local.parameter.register_hook(partial(record, number))
        run(training, *words)
        optimizer = engine._engine.optimizer
        for number, state in enumerate(getattr(optimizer, "optimizer", optimizer).state.values()):
            found[f"moment {number}"] = state["exp_avg"].nbytes + state["exp_avg_sq"].nbytes

    Training.run = recording  # type: ignore[assignment, method-assign]
    train(request, rank)
    kinds = ("parameter", "gradient", "moment")
    return {f"{kind}s": sum(size for name, size in found.items() if name.startswith(kind)) for kind in kinds}


def sharded_bytes(request: dict[str, Any], rank: int) -> dict[str, int]:
    """Train; return the bytes of all tensors at the last update, and most full buffers of modules at any time."""
    update, arrived, wait_for = ShardedOptimizer.update, Bucket.arrived, ShardedOptimizer.wait_for
    found = {"bytes": 0, "weights": 0, "gradients": 0}
    vars(gc)["freeze"] = lambda: None  # else the engine's tensors would not be among the objects

    def measure(optimizer: ShardedOptimizer) -> None:
        for what in ("weights", "gradients"):
            buffers = [getattr(each, what).untyped_storage() for each in optimizer.buckets if each.kind.module]
            found[what] = max(found[what], sum(buffer.nbytes() > 0 for buffer in buffers))

    def arrived_measured(bucket: Bucket) -> None:
        measure(bucket._optimizer)
        arrived(bucket)

    def wait_measured(optimizer: ShardedOptimizer, *weights: Any) -> None:  # noqa: ANN401  (as the method)
        wait_for(optimizer, *weights)
        measure(optimizer)

    def update_measured(optimizer: ShardedOptimizer, *words: Any) -> None:  # noqa: ANN401  (as above)
        gc.collect()
        tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
        found["bytes"] = sum(storages.values())
        update(optimizer, *words)

    Bucket.arrived = arrived_measured  # type: ignore[assignment, method-assign]
    ShardedOptimizer.wait_for = wait_measured  # type: ignore[assignment, method-assign]
    ShardedOptimizer.update = update_measured  # type: ignore[assignment, method-assign]
    train(request, rank)
    return found


class ReducedDtypes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the dtypes of what process groups sum: by the layers (activations), and by each other function."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layers: set[str] = set()
        self.others: dict[str, set[str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401  (torch's)
        if func.namespace == "c10d" and "reduce" in func.__name__:
            self.record(*(tensor for tensor in tree_leaves(args) if isinstance(tensor, torch.Tensor)))
        return func(*args, **(kwargs or {}))

    def record(self, *tensors: torch.Tensor) -> None:
        if dtypes := {str(tensor.dtype) for tensor in tensors if tensor.is_floating_point()}:
            code = self._caller()
            of_layers = any(part in code.co_filename for part in ("megatron/core/", "mtnlg_parallel/model/"))
            (self.layers if of_layers else self.others.setdefault(code.co_name, set())).update(dtypes)

    @staticmethod
    def _caller() -> CodeType:
        """The innermost function that is not of torch's, DeepSpeed's or typing's wrappers of a collective."""
        between = ("/torch/", "deepspeed/comm/", "typing_extensions", "shared_memory.py", __file__)
        frame = sys._getframe(2)
        while any(part in frame.f_code.co_filename for part in between):
            assert frame.f_back
            frame = frame.f_back
        return frame.f_code


def reduced_dtypes(request: dict[str, Any], rank: int) -> dict[str, Any]:
    """Train; return the dtypes that ranks summed."""
    reduce = SharedMemoryGroup._reduce

    def recording(group: SharedMemoryGroup, operation: str, source: torch.Tensor, *rest: Any) -> Any:  # noqa: ANN401
        dtypes.record(source)
        return reduce(group, operation, source, *rest)

    SharedMemoryGroup._reduce = recording  # type: ignore[assignment, method-assign]
    with ReducedDtypes() as dtypes:
        train(request, rank)
    return {"layers": sorted(dtypes.layers), "others": {name: sorted(found) for name, found in dtypes.others.items()}}


def dropout_seeds(request: dict[str, Any], rank: int) -> list[int]:
    """Train; return the seed of every step."""
    seeds, step = [], Training.step

    def recording(training: Training, batches: Prefetch | None) -> Step:
        done = step(training, batches)
        seeds.append(torch.initial_seed())
        return done

    Training.step = recording  # type: ignore[assignment, method-assign]
    train(request, rank)
    return seeds


def group_timeouts(request: dict[str, Any], rank: int) -> list[float]:
    """Train; return the timeout in seconds of every process group that this rank is in."""
    train(request, rank)
    backends = [group._get_backend(torch.device("cpu")) for group in distributed_c10d._world.pg_map]
    return [backend.options._timeout.total_seconds() for backend in backends]


def groups_made(request: dict[str, Any], _rank: int) -> dict[str, int]:
    """Build the engine of a rank of a job that is not running; return the groups all ranks make, and those it joins."""
    recipe = validate(request["recipes"][0], Recipe, "request")
    distributed.init_process_group("fake", store=FakeStore(), rank=request["rank"], world_size=recipe.layout.world)
    vars(slicing)["init_process_group"] = lambda *_: None
    build_engine(recipe, process.init_distributed(recipe.layout))
    return {"together": distributed_c10d._world.group_count, "joined": len(distributed_c10d._world.pg_map)}


def started(request: dict[str, Any], _rank: int) -> dict[str, Any]:
    """Be a rank as a launcher starts it; return what PyTorch was asked for when the first step began."""
    recipe, out = validate(request["recipes"][0], Recipe, "request"), Path(request["outs"][0])
    data = Path(request["data"])
    asked, train_step = dict[str, Any](), Training.step

    def recording(training: Training, batches: Prefetch | None) -> Step:
        asked.update(
            workspace=os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
            algorithms=torch.are_deterministic_algorithms_enabled(),
            warns=torch.is_deterministic_algorithms_warn_only_enabled(),
            cudnn=[torch.backends.cudnn.deterministic, not torch.backends.cudnn.benchmark],
            cudnn_attention=torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
        )
        return train_step(training, batches)

    def prepare() -> RunState:
        return prepare_run_dir(out, recipe, open_data(data, recipe).fingerprint, resume=True)

    Training.step = recording  # type: ignore[assignment, method-assign]
    worker.run_rank(recipe, data, out, RunOptions(device="cpu"), prepare)
    return asked


def add_to_one_element(product: torch.Tensor) -> torch.Tensor:
    """A product that is wrong in one element."""
    product[17, 42] += 1
    return product


def checked_health(request: dict[str, Any], rank: int) -> dict[str, Any]:
    """Check each rank as a node of its own, rank 1 with a fault; return what it says, or the failure."""
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", SLURMD_NODENAME=f"node-{rank}")
    recipe, out = validate(request["recipes"][0], Recipe, "request"), Path(request["out"])
    device = process.init_distributed(recipe.layout, device="cpu")
    lines: list[str] = []
    vars(health).update(say=lines.append, VISIBLE_SECONDS=0.2)
    if rank == 1:
        match request["fault"]:
            case "product":
                mm = torch.mm
                vars(torch)["mm"] = lambda *factors: add_to_one_element(mm(*factors))
            case "full":
                vars(os)["fsync"] = raise_full
            case "unshared":
                out /= "elsewhere"
    try:
        health.check(recipe, out, device)
    except Failure as failure:
        return {"status": failure.exit_status, "line": str(failure)}
    return {"lines": lines}


def restored_bytes(request: dict[str, Any], _rank: int) -> dict[str, Any]:
    """Restore the newest checkpoint; return the bytes read of tensors and the elements held."""
    recipe = validate(request["recipes"][0], Recipe, "request")
    engine = build_engine(recipe, process.init_distributed(recipe.layout))
    state = zero.CheckpointState(Checkpoint.open(Path(request["out"]) / "checkpoints"))
    preadv, read = os.preadv, []

    def counting(*arguments: Any) -> int:  # noqa: ANN401  (as the function that it wraps)
        read.append(preadv(*arguments))
        return read[-1]

    os.preadv = counting
    zero.restore(engine, state)
    return {
        "bytes": sum(read),
        "weights": sum(local.parameter.numel() for local in engine.local_parameters()),
        "fragments": sum(fragment.stop - fragment.start for fragment in engine.fragments()),
    }


def conversions(request: dict[str, Any], _rank: int) -> dict[str, Any]:
    """Start from a Hugging Face folder; return how often each of its tensors was converted."""
    recipe = validate(request["recipes"][0], Recipe, "request")
    engine = build_engine(recipe, process.init_distributed(recipe.layout))
    module: Any = huggingface
    names, convert = list[str](), module.from_theirs

    def counting(family: Family, config: ModelConfig, name: str, tensors: list[torch.Tensor]) -> Any:  # noqa: ANN401
        names.append(name)
        return convert(family, config, name, tensors)

    module.from_theirs = counting
    weights = huggingface.HuggingFaceWeights(Path(request["out"]), recipe.model.vocabulary)
    zero.restore(engine, weights_of(recipe, weights.config.tokens, weights.tensor))
    return {"times": {name: names.count(name) for name in names}}


def attention_masks(request: dict[str, Any], rank: int) -> dict[str, Any]:
    """Draw hidden, attention and hidden dropout in turn, as a layer does; return the three masks."""
    recipe = validate(request["recipes"][0], Recipe, "request")
    process.init_distributed(recipe.layout)
    slicing = Slicing.of_this_rank(recipe.layout, recipe.model, sequence_parallel=False)
    attention = partial(head.EAGER.attention_of_rank, slicing.rank)
    torch.manual_seed(5)
    ones = torch.ones(1, 2, 16, 8)
    masks = [
        torch.nn.functional.dropout(ones, 0.5),
        attention(ones, ones, ones, None, Rule(1.0, 0.5)),
        torch.nn.functional.dropout(ones, 0.5),
    ]
    return {"rank": rank, "masks": [mask.flatten().tolist() for mask in masks]}


def head_losses(request: dict[str, Any], rank: int) -> list[list[Any]]:
    """The head's loss for each x, with the gradients of this rank's part of x and of its rows of the weight."""
    recipe = validate(request["recipes"][0], Recipe, "request")
    process.init_distributed(recipe.layout)
    slicing = Slicing.of_this_rank(recipe.layout, recipe.model, recipe.train.sequence_parallel)
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
    "sharded_bytes": sharded_bytes,
    "head_losses": head_losses,
    "reduced_dtypes": reduced_dtypes,
    "dropout_seeds": dropout_seeds,
    "group_timeouts": group_timeouts,
    "groups_made": groups_made,
    "started": started,
    "checked_health": checked_health,
    "restored_bytes": restored_bytes,
    "conversions": conversions,
    **resume_runs.SCENARIOS,
}


def exit_with_line(line: str) -> NoReturn:
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
    signal.alarm(request.get("limit_seconds", 0))  # ends a rank that hangs
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
