"""Saving and loading a model of 1.4 GB: mtnlg_model against torch.save, safetensors and torch.distributed.checkpoint.

    python benchmarks/checkpoint_io.py [--rounds 5] [--folder DIR] [--out FILE]

Every round runs every library once, in rotating order, so that other load costs all alike; the result has medians.
mtnlg_model computes checksums and waits for the disk, as a checkpoint must. The others do neither, so each of them is
timed as it is, and with an fsync of its files. Also timed: how long a background write blocks training.

Loading fills existing tensors, from files that are in memory.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-model", "torch==2.13.0", "safetensors==0.8.0"]
# ///

from __future__ import annotations

import os
import shutil
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
from mtnlg_model.checkpoint.writer import CheckpointWriter
from mtnlg_model.decoder import Decoder
from mtnlg_model.families import PRESETS
from record import ratios, run, spread

if TYPE_CHECKING:
    from collections.abc import Callable

    Ways = dict[str, Callable[[Path], object]]

PRESET = "gpt2-medium"
PROGRESS = Progress(step=1, samples=1, tokens=1, loss=1.0, stream="", layout=Layout())


def sync(folder: Path) -> None:
    """Wait until every file under ``folder`` is on disk."""
    for path in [folder, *folder.rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


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


def rotated(ways: Ways, number: int) -> list[tuple[str, Callable[[Path], object]]]:
    """Return the items, starting with the ``number``-th."""
    listed, first = list(ways.items()), number % len(ways)
    return listed[first:] + listed[:first]


def compare(scratch: Path, rounds: int) -> dict[str, object]:
    """Time saving and loading in rounds; return all figures."""
    config = PRESETS[PRESET]
    decoder, tokenizer = Decoder(config), scratch / "tokenizer.json"
    tokenizer.write_text("{}")
    kinds = ("save", "save_and_sync", "load", "training_stands_still")
    seconds: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}

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
        "rounds": rounds,
    }


def measure(folder: Path | None = None, rounds: int = 5) -> dict[str, Any]:
    """Compare in ``folder``, which needs 8 GB."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        return compare(Path(name), rounds)


if __name__ == "__main__":
    run(measure, __doc__)
