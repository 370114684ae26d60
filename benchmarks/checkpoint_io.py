"""Saving and loading a model of 1.4 GB: mtnlg_model against torch.save, safetensors and torch.distributed.checkpoint.

    python benchmarks/checkpoint_io.py [--rounds 5] [--folder DIR] [--out FILE]

Every round runs every library once, in rotating order, so that other load costs all alike; the result has medians.
mtnlg_model computes checksums and waits for the disk, as a checkpoint must. The others do neither, so each of them is
timed as it is, and with an fsync of its files. Also timed: how long a background write blocks training.

Loading fills existing tensors: the whole state, and one tp-2 slice (one of two ranks' part of every weight;
torch.distributed.checkpoint cannot load a slice without a process group). For the slice, bytes by read calls (rchar of
/proc/self/io; a memory map has none) and from the disk (read_bytes, after dropping the file's pages from the cache; the
kernel reads whole pages and ahead) are counted. Peak memory is that of ``mtnlg-model export`` on a model far larger
than its largest tensor, and of ``import`` of the exported folder.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-model", "torch==2.13.0", "safetensors==0.8.0"]
# ///

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from mtnlg_model.checkpoint import reader
from mtnlg_model.checkpoint.manifest import Layout, Progress
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.checkpoint.writer import CheckpointWriter, publish
from mtnlg_model.decoder import Decoder
from mtnlg_model.families import PRESETS
from record import ratios, run, spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_model.config import ModelConfig

    Ways = dict[str, Callable[[Path], object]]

PRESET = "gpt2-medium"
EXPORTED = "gpt2-large"
COMMAND = "from mtnlg_model import cli; cli.main()"
PROGRESS = Progress(step=1, samples=1, tokens=1, loss=1.0, stream="", layout=Layout())
TOKENIZER = {"version": "1.0", "model": {"type": "BPE", "vocab": {"<|endoftext|>": 0}, "merges": []}}


def sync(folder: Path, *, drop: bool = False) -> None:
    """Wait until every file under ``folder`` is on disk; ``drop`` its pages from the cache."""
    for path in [folder, *folder.rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        if drop and path.is_file():
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def io_counters() -> dict[str, int]:
    """Return bytes by read calls, and from the disk, of this process."""
    lines = (line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return {key: int(value) for key, value in lines if key in {"rchar", "read_bytes"}}


def savers(decoder: Decoder, tokenizer: Path) -> Ways:
    """Return each library's function that saves into an empty folder."""
    state = dict(decoder.state_dict())
    return {
        "mtnlg_model": lambda folder: reader.save(decoder, folder, 1, PROGRESS, tokenizer),
        "torch.save": lambda folder: torch.save(state, folder / "model.pt"),
        "safetensors": lambda folder: safetensors.torch.save_file(state, folder / "model.safetensors"),
        "torch.distributed.checkpoint": lambda folder: save_distributed(state, checkpoint_id=folder, no_dist=True),
    }


def loaders(decoder: Decoder) -> Ways:
    """Return each library's function that loads the whole state into ``decoder``."""
    state, read = dict(decoder.state_dict()), safetensors.torch.load_file
    return {
        "mtnlg_model": lambda folder: reader.load(decoder, Checkpoint.open(folder)),
        "torch.save": lambda folder: decoder.load_state_dict(torch.load(folder / "model.pt")),
        "safetensors": lambda folder: decoder.load_state_dict(read(folder / "model.safetensors")),
        "torch.distributed.checkpoint": lambda folder: load_distributed(state, checkpoint_id=folder, no_dist=True),
    }


def tp2_index(name: str, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return rank 0's slice at tp 2: columns of row-parallel weights, rows of column-parallel ones, else all."""
    if name.endswith(("out.weight", "down.weight")):
        return (slice(None), slice(0, shape[1] // 2))
    if any(part in name for part in ("qkv", "up.", "token")):
        return (slice(0, shape[0] // 2),)
    return ()


def slicers(config: ModelConfig, targets: dict[str, torch.Tensor]) -> Ways:
    """Return the functions that load a tp-2 slice into ``targets``, of the libraries that can."""
    indices = {name: tp2_index(name, shape) for name, shape in config.parameter_shapes().items()}

    def ours(folder: Path) -> None:
        checkpoint = Checkpoint.open(folder)
        for name, index in indices.items():
            checkpoint.tensor(name, index, out=targets[name])

    def by_torch(folder: Path) -> None:
        state = torch.load(folder / "model.pt", mmap=True)
        for name, index in indices.items():
            targets[name].copy_(state[name][index])

    def by_safetensors(folder: Path) -> None:
        with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
            for name, index in indices.items():
                targets[name].copy_(file.get_slice(name)[index or (slice(None),)])

    return {"mtnlg_model": ours, "torch.save": by_torch, "safetensors": by_safetensors}


def blocking_seconds(decoder: Decoder, folder: Path) -> float:
    """Return the seconds that training waits for a writer that finishes in the background."""
    started = time.perf_counter()
    writer = CheckpointWriter(folder, 1, "a")
    for name, parameter in decoder.named_parameters():
        writer.add(name, parameter.shape, "weight", None, parameter)
    writer.finish()
    seconds = time.perf_counter() - started
    writer.close()
    return seconds


def header_bytes(folder: Path) -> int:
    """Return the bytes of manifest and weight headers, which a reader needs besides the data."""
    step = folder / "step-1"
    sizes = [8 + int.from_bytes(file.read_bytes()[:8], "little") for file in step.glob("*.weights-*.safetensors")]
    return (step / "manifest.json").stat().st_size + sum(sizes)


def rotated(ways: Ways, number: int) -> list[tuple[str, Callable[[Path], object]]]:
    """Return the items, starting with the ``number``-th."""
    listed, first = list(ways.items()), number % len(ways)
    return listed[first:] + listed[:first]


def compare(scratch: Path, rounds: int) -> dict[str, object]:
    """Time saving and loading in rounds; return all figures."""
    config = PRESETS[PRESET]
    decoder, tokenizer = Decoder(config), scratch / "tokenizer.json"
    tokenizer.write_text("{}")
    kinds = ("save", "save_and_sync", "load", "load_tp2_slice", "training_stands_still")
    seconds: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
    reads: dict[str, dict[str, int]] = {}
    shapes = config.parameter_shapes()
    targets = {name: torch.empty(shape)[tp2_index(name, shape)].clone() for name, shape in shapes.items()}

    def note(kind: str, name: str, started: float) -> None:
        seconds[kind].setdefault(name, []).append(round(time.perf_counter() - started, 4))

    for number in range(rounds):
        for name, save in rotated(savers(decoder, tokenizer), number):
            shutil.rmtree(scratch / name, ignore_errors=True)
            (scratch / name).mkdir()
            started = time.perf_counter()
            save(scratch / name)
            note("save", name, started)
            sync(scratch / name)
            note("save_and_sync", name, started)
        shutil.rmtree(scratch / "background", ignore_errors=True)
        name = "mtnlg_model, in the background"
        seconds["training_stands_still"].setdefault(name, []).append(blocking_seconds(decoder, scratch / "background"))
        for name, load in rotated(loaders(decoder), number):
            started = time.perf_counter()
            load(scratch / name)
            note("load", name, started)
        for name, read in rotated(slicers(config, targets), number):
            read(scratch / name)
            started = time.perf_counter()
            read(scratch / name)
            note("load_tp2_slice", name, started)
            sync(scratch / name, drop=True)
            before = io_counters()
            read(scratch / name)
            reads[name] = {key: value - before[key] for key, value in io_counters().items()}
    return {
        **{
            f"{kind}_against_safetensors": spread(ratios(seconds[kind]["safetensors"], seconds[kind]["mtnlg_model"]))
            for kind in ("save", "save_and_sync", "load")
        },
        "threads": torch.get_num_threads(),
        "model": {"preset": PRESET, "bytes": 4 * config.parameters},
        **{
            f"{kind}_seconds": {name: {**spread(each), "rounds": each} for name, each in of_kind.items()}
            for kind, of_kind in seconds.items()
        },
        "bytes_of_the_slice": sum(target.nbytes for target in targets.values()),
        "bytes_read_for_the_slice": reads,
        "bytes_of_manifest_and_headers": header_bytes(scratch / "mtnlg_model"),
        "rounds": rounds,
    }


def export_peaks(scratch: Path) -> dict[str, int | str]:
    """Return the peak bytes of ``mtnlg-model export``, and of ``import`` of the exported folder."""
    config = PRESETS[EXPORTED]
    shapes = config.parameter_shapes()
    writer = CheckpointWriter(scratch / "large", 1, "a", backlog=0)
    for name, shape in shapes.items():
        writer.add(name, shape, "weight", None, torch.zeros(shape))
    writer.close()
    tokenizer = scratch / "tokenizer.json"
    tokenizer.write_text(json.dumps(TOKENIZER))
    path = publish(scratch / "large", 1, ["a"], config, PROGRESS, tokenizer)
    return {
        "preset": EXPORTED,
        "model": 4 * config.parameters,
        "largest_tensor": 4 * max(math.prod(shape) for shape in shapes.values()),
        "peak_of_imports_alone": peak_bytes("import mtnlg_model.convert.huggingface"),
        "peak_of_export": peak_bytes(COMMAND, "export", str(path), str(scratch / "gpt2")),
        "peak_of_import": peak_bytes(COMMAND, "import", str(scratch / "gpt2"), str(scratch / "back")),
    }


def peak_bytes(code: str, *arguments: str) -> int:
    """Return the peak resident bytes of a Python process that runs ``code``."""
    # Not ru_maxrss, which starts at that of the forking process.
    code = f"import atexit\natexit.register(lambda: print(open('/proc/self/status').read()))\n{code}"
    child = subprocess.run([sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return int(child.stdout.partition("VmHWM:")[2].split()[0]) * 1024


def measure(folder: Path | None = None, rounds: int = 5) -> dict[str, Any]:
    """Compare in ``folder``, which needs 12 GB."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        scratch = Path(name)
        result = compare(scratch, rounds)
        for each in scratch.iterdir():
            shutil.rmtree(each, ignore_errors=True)
        return {**result, "peak_bytes": export_peaks(scratch)}


if __name__ == "__main__":
    run(measure, __doc__)
