"""Runs parts of the GPU benchmark on `stub_gpu`'s GPU: ``python -m training.stub_parts LIBRARY OUT PART ...``.

They take a real GPU's branches and sizes, once; their times mean nothing. torch.compile is tried of a rank's layers, up
to its graphs. Not tried: what `stub_gpu` does not try, and Inductor. What kernels they would launch, as Triton's cache
knows them, is in OUT/launches.json.
"""

from __future__ import annotations

import importlib
import json
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from training import stub_gpu

if TYPE_CHECKING:
    import torch

    from mtnlg_parallel.layout import Layout
    from mtnlg_parallel.recipe import Recipe

NUMBERS = {"checks": 0.0, "engine": 0.0}
"""What the host reads of every tensor: no error in checks. Elsewhere 1."""


class Event:
    """A CUDA event; every call takes a second, and the GPU is always behind the host."""

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing

    def record(self) -> None:
        """As `torch.cuda.Event.record`."""

    def query(self) -> bool:
        """As `torch.cuda.Event.query`."""
        return False

    def elapsed_time(self, _end: Event) -> float:
        """As `torch.cuda.Event.elapsed_time`."""
        return 1e3


def main(library: str, out: str, *parts: str) -> None:
    """Run the parts; their rows are in OUT/results.jsonl."""
    launches: set[str] = set()
    stub_gpu.load(library)
    from torch._subclasses.fake_tensor import FakeTensorMode

    stub_gpu.pretend()
    find_gpu()
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    for part in parts:
        module = importlib.import_module(f"gpu_parts.{part}")
        simplify(module)
        record_launches(launches)
        results = importlib.import_module("gpu_parts.results").Results(Path(out), part)
        with FakeTensorMode(allow_non_fake_inputs=True), reading(NUMBERS.get(part, 1.0)):
            module.main(False, results)
    (Path(out) / "launches.json").write_text(json.dumps(sorted(launches)), encoding="utf-8")


def record_launches(launches: set[str]) -> None:
    """Have kernels not run, but add to ``launches`` what Triton's cache distinguishes."""
    import torch

    from mtnlg_parallel.kernels import dropout, gelu, loss, norm, rotary, rounding, swiglu

    def kind(value: object, specialized: bool) -> str:
        if isinstance(value, torch.Tensor):
            return str(value.dtype)
        if isinstance(value, int) and specialized:
            return "1" if value == 1 else f"{'i64' if value >= 1 << 31 else 'i32'}{' 16n' * (value % 16 == 0)}"
        return type(value).__name__

    def launch(kernel: Any, grid: tuple[int, ...], *arguments: object, **constants: object) -> None:  # noqa: ANN401
        if 0 not in grid:
            words = [kind(*each) for each in zip(arguments, [not p.do_not_specialize for p in kernel.params])]  # noqa: B905
            launches.add(f"{kernel.__name__} {' '.join(words)} {sorted(constants.items())}")

    for module in (dropout, gelu, loss, norm, rotary, rounding, swiglu):
        vars(module)["launch"] = launch


def find_gpu() -> None:
    """Have torch find the GPU of a machine."""
    import torch

    properties = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, total_memory=150 << 30, multi_processor_count=132
    )
    vars(torch.cuda).update(
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        get_device_properties=lambda _device=None: properties,
        get_device_name=lambda _device=None: properties.name,
        synchronize=lambda _device=None: None,
        empty_cache=lambda: None,
        reset_peak_memory_stats=lambda _device=None: None,
        max_memory_allocated=lambda _device=None: 1 << 30,
        Event=Event,
        Stream=lambda _device=None: None,
        _lazy_init=lambda: None,
        get_rng_state=lambda _device=None: torch.empty(16, dtype=torch.uint8),
        set_rng_state=lambda _state, _device=None: None,
    )


def simplify(module: Any) -> None:  # noqa: ANN401  (a part)
    """Have a part run everything once, at another clock, and compile into graphs alone."""
    import torch

    from gpu_parts import clock
    from mtnlg_parallel.recipe import RunOptions
    from mtnlg_parallel.recipe_file import load_recipe

    seconds = count()
    replaced = {
        "compile_fresh": one_graph if module.__name__.endswith("rank") else lambda function: function,
        "Clock": lambda tiny, rounds, repeats, flush=True: clock.Clock(tiny, min(rounds, 1), min(repeats, 1), flush),
        "time": SimpleNamespace(perf_counter=lambda: next(seconds)),
        "REPEATS": 2,
        "init_distributed": join_alone,
        "initial_value": lambda config, name, _seed: torch.empty(config.parameter_shape(name)),
        "mtnlg_parallel": SimpleNamespace(load_recipe=load_recipe, RunOptions=RunOptions, train=trained),
    }
    vars(module).update({name: value for name, value in replaced.items() if name in vars(module)})


def join_alone(layout: Layout) -> torch.device:
    """As `mtnlg_parallel.engine.process.init_distributed`, with torch's fake process group."""
    import torch
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.world)
    return torch.device("cuda", 0)


def one_graph(function: Any) -> Any:  # noqa: ANN401  (a module)
    """Under torch.compile up to its compiler: forward and backward are traced, each into one graph or not at all."""
    import torch
    from torch.utils._python_dispatch import _pop_mode_temporarily

    compiled: Any = torch.compile(function, fullgraph=True, dynamic=False, backend="aot_eager")

    def call(*inputs: Any) -> Any:  # noqa: ANN401  (tensors)
        # That of `reading`: torch compiles nothing within one.
        with _pop_mode_temporarily():
            return compiled(*inputs)

    return call


def trained(recipe: Recipe, data: Path, folder: Path, **_options: object) -> None:
    """As `mtnlg_parallel.train`: what it would refuse is refused, and every step takes a second and has the loss 1."""
    from mtnlg_parallel.launch.preflight import forecast
    from mtnlg_parallel.record.metrics import FILE, throughput
    from mtnlg_parallel.training.samples import open_data

    open_data(data, recipe)
    forecast(recipe, None, force=False)
    steps = enumerate(recipe.batch_size.steps(recipe.train.samples, 0), start=1)
    lines = [{"step": number, "loss": 1.0, **throughput(recipe, batch, 1.0, None)} for number, (_, batch) in steps]
    folder.mkdir()
    (folder / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def reading(number: float) -> Any:  # noqa: ANN401  (a class that needs torch)
    """A mode in which the host reads this number of every tensor."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Reading(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
            if func is torch.ops.aten._local_scalar_dense.default:
                return number if args[0].is_floating_point() else int(number)
            return func(*args, **(kwargs or {}))

    return Reading()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(*sys.argv[1:])
