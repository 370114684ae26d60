"""Runs steps of one rank on a GPU that is not there: ``python stub_gpu.py LIBRARY CASES``, both files; prints JSON.

Tensors are torch's fake ones: on device "cuda", with shapes, dtypes and lifetimes, without memory or numbers. The other
ranks are torch's fake process group. LIBRARY is compiled from `SOURCE` and registers a GPU that does nothing, since
torch built for CPUs refuses to index or differentiate on a device of which it has no guard.

Not tried: kernels, streams and their order, memory that cuBLAS, NCCL and the allocator take, and PyTorch's choice of an
attention kernel, which is flash attention here, as on any GPU since the A100.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

SOURCE = """
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
using namespace c10;
struct Guard final : impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return getDevice(); }
  Device getDevice() const override { return Device(DeviceType::CUDA, 0); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return Stream(Stream::DEFAULT, getDevice()); }
  Stream exchangeStream(Stream stream) const override { return stream; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);
namespace at {
struct StubGenerator final : CPUGeneratorImpl {
  StubGenerator() { device_ = Device(DeviceType::CUDA, 0); }
};
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  Generator getNewGenerator(DeviceIndex) const override { return make_generator<StubGenerator>(); }
};
REGISTER_CUDA_HOOKS(CUDAHooks);
}
"""


COMPILER = shutil.which("g++") or ""
"""Without it, or on another system than Linux, nothing of this runs."""

CAN_RUN = bool(COMPILER) and sys.platform == "linux"


class Case(NamedTuple):
    """A rank of a recipe, and how many micro-batches its step has."""

    recipe: str
    overrides: list[str]
    rank: int
    micro_batches: int


class Answer(NamedTuple):
    """Bytes on the GPU when built, at the peak of a step and after it, as planned; operations whose result is not."""

    built: int
    peak: int
    after: int
    planned: float
    on_host: list[str]


def main(library: str, cases: str) -> None:
    """Answer every case."""
    load(library)
    pretend()
    answers = [step(Case(*case)) for case in json.loads(Path(cases).read_text(encoding="utf-8"))]
    sys.stdout.write(json.dumps(answers))


def load(library: str) -> None:
    """Load the library of `SOURCE`, and torch, in this process; before torch looks for a GPU."""
    torch = importlib.util.find_spec("torch")
    assert torch
    libraries = Path(str(torch.origin)).parent / "lib"
    for path in (libraries / "libc10.so", libraries / "libtorch_cpu.so", Path(library)):
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    warnings.simplefilter("ignore")


def install(library: str) -> None:
    """Load the library, and have torch find a GPU with `stub_streams`'s streams."""
    load(library)
    import torch

    from training import stub_streams

    pretend()
    find_gpu()
    stub_streams.install()
    torch.UntypedStorage.data_ptr = lambda storage: storage._cdata  # type: ignore[method-assign, assignment]


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
        _lazy_init=lambda: None,
        get_rng_state=lambda _device=None: torch.empty(16, dtype=torch.uint8),
        set_rng_state=lambda _state, _device=None: None,
    )


def ask(module: str, *words: object) -> Any:  # noqa: ANN401  (JSON)
    """Run a module of this folder in a process of its own; return what it prints at last."""
    command = [sys.executable, "-m", f"training.{module}", *map(str, words)]
    ended = subprocess.run(command, cwd=Path(__file__).parents[1], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1]) if ended.stdout else None


def ask_cases(module: str, library: Path, cases: dict[str, Case]) -> dict[str, list[Any]]:
    """Answers of a module for cases of the recipes of the repository."""
    recipes = Path(__file__).parents[2] / "recipes"
    asked = [case._replace(recipe=str(recipes / case.recipe / "train.toml")) for case in cases.values()]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "cases.json")
        file.write_text(json.dumps(asked), encoding="utf-8")
        return dict(zip(cases, ask(module, library, file), strict=True))


def build(folder: Path) -> Path:
    """Compile `SOURCE` into a library in ``folder``."""
    torch = importlib.util.find_spec("torch")
    assert torch
    installed = Path(str(torch.origin)).parent
    source, library = folder / "stub.cpp", folder / "stub.so"
    source.write_text(SOURCE, encoding="utf-8")
    paths = [f"-I{installed / 'include'}", f"-L{installed / 'lib'}", "-lc10", "-ltorch_cpu"]
    subprocess.run([COMPILER, "-std=c++20", "-shared", "-fPIC", source, "-o", library, *paths], check=True)
    return library


def pretend() -> None:
    """Replace what only a real GPU or real numbers could answer."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    def flash(q: Tensor, k: Tensor, v: Tensor, *, dropout_p: float, is_causal: bool, scale: float, **_: object) -> Any:  # noqa: ANN401
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]

    def convert(module: torch.nn.Module, function: Any, recurse: bool = True) -> torch.nn.Module:  # noqa: ANN401
        """As torch for real tensors: other numbers of the same parameter, or on another device another parameter.

        Of fake ones it would swap the contents, which it cannot where anything refers to them.
        """
        for part in module.modules() if recurse else [module]:
            for name, old in part._parameters.items():
                if old is None:
                    continue
                data = function(old.data)
                if data.device == old.device:
                    old.data = data
                    continue
                new = part._parameters[name] = torch.nn.Parameter(data, old.requires_grad)
                vars(new).update({key: value for key, value in vars(old).items() if key not in vars(new)})
        return module

    # Even where torch says that it finds a GPU: there is none to make tensors of lists on.
    FakeTensorMode.avoid_device_init = property(lambda _mode: True)  # type: ignore[method-assign, assignment]
    vars(torch.cuda)["get_device_capability"] = lambda _device=None: (9, 0)
    vars(torch.backends.cuda)["is_flash_attention_available"] = lambda: True
    vars(torch.nn.functional)["scaled_dot_product_attention"] = flash
    torch.nn.Module._apply = convert  # type: ignore[method-assign]
    FakeTensor.tolist = lambda self: [1.0] * self.numel()  # type: ignore[method-assign]  # loss and norm


def step(case: Case) -> Answer:
    """Build the engine and run one step."""
    import torch
    from torch import distributed
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from mtnlg_model import rotary
    from mtnlg_parallel.engine.contract import MicroBatch, StepSettings
    from mtnlg_parallel.engine.pipeline_engine import PipelineEngine
    from mtnlg_parallel.kernels import best_ops
    from mtnlg_parallel.planner.memory import memory
    from mtnlg_parallel.planner.run import train_run
    from mtnlg_parallel.recipe_file import load_recipe

    recipe = load_recipe(Path(case.recipe), case.overrides)
    layout, train, device = recipe.layout, recipe.train, torch.device("cuda", 0)

    def batches() -> Iterator[MicroBatch]:
        while True:
            tokens_BS = torch.empty(train.micro_batch, recipe.model.sequence + 1, dtype=torch.long)
            yield MicroBatch(tokens_BS[:, :-1], tokens_BS[:, 1:])

    distributed.init_process_group("fake", store=FakeStore(), rank=case.rank, world_size=layout.world)
    gpu = storages()
    for kept in (rotary._kept_from_start, rotary._kept_on_device):
        kept.cache_clear()  # of the case before, whose tensors are of another mode
    with FakeTensorMode(), gpu:
        engine = PipelineEngine(recipe, device, best_ops(device))
        built = gpu.bytes
        gpu.on_host.clear()  # AdamW's and rotary positions' constants are made there
        engine.train_batch(batches(), case.micro_batches, StepSettings(1e-4, 0.1, 1.0), lambda _loss, _norm: None)
    distributed.destroy_process_group()
    run = train_run(recipe)._replace(batch=case.micro_batches * layout.dp * train.micro_batch)
    planned = memory(run)[layout.coordinates(case.rank).pp]
    return Answer(built, gpu.peak, gpu.bytes, planned.total - planned.buffers - planned.slack, sorted(gpu.on_host))


def storages() -> Any:  # noqa: ANN401  (a class that needs torch)
    """A mode that counts bytes of tensors on the GPU, and notes operations that make them elsewhere."""
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.bytes = self.peak = 0
            self.on_host = set[str]()
            self._sizes: dict[int, int] = {}

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
            made = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(made):
                if isinstance(tensor, Tensor):
                    self._note(func, tensor)
            return made

        def _note(self, func: Any, tensor: Tensor) -> None:  # noqa: ANN401  (an operation)
            storage = tensor.untyped_storage()
            if tensor.device.type != "cuda":
                self.on_host.add(f"{func} {caller()}")
            elif storage._cdata not in self._sizes:
                self._sizes[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self._free, storage._cdata)
                self.bytes += storage.nbytes()
                self.peak = max(self.peak, self.bytes)

        def _free(self, key: int) -> None:
            self.bytes -= self._sizes.pop(key)

    return Storages()


def caller() -> str:
    """The innermost function of this project or of DeepSpeed, by file and name."""
    frame = sys._getframe(1)
    while not re.search("mtnlg_|/deepspeed/", frame.f_code.co_filename) and frame.f_code.co_name != "batches":
        if frame.f_back is None:
            return "torch"
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"


if __name__ == "__main__":
    main(*sys.argv[1:])
