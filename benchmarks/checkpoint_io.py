"""Saving and loading a model of 1.4 GB: mtnlg_model against torch.save, safetensors and torch.distributed.checkpoint.

    python benchmarks/checkpoint_io.py [--rounds 5] [--folder DIR] [--out FILE]

Every round runs every library once, so that other load costs all alike; the result has medians. mtnlg_model computes
checksums and waits for the disk, as a checkpoint must. The others do neither. Also timed: how long a background write
blocks training.

Loading fills existing tensors, from files that are in memory.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-model", "torch==2.13.0", "safetensors==0.8.0"]
# ///

from __future__ import annotations

import tempfile
import time
from functools import partial
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
from record import ratios, run, spread, time_rounds

if TYPE_CHECKING:
    from collections.abc import Callable

    Ways = dict[str, Callable[[Path], object]]

PRESET = "gpt2-medium"
CLOCK = time.perf_counter
PROGRESS = Progress(step=1, samples=1, tokens=1, loss=1.0, stream="", layout=Layout())


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


def compare(scratch: Path, rounds: int) -> dict[str, Any]:
    """Time saving and loading in rounds; return all figures."""
    config = PRESETS[PRESET]
    decoder, tokenizer, out = Decoder(config), scratch / "tokenizer.json", scratch / "out"
    tokenizer.write_text("{}")

    def save_by(save: Callable[[Path], object], folder: Path) -> None:
        folder.mkdir()
        save(folder)

    ways = savers(decoder, tokenizer)
    seconds = {
        "save": time_rounds({name: partial(save_by, save, out) for name, save in ways.items()}, rounds, CLOCK, out)
    }
    for name, save in ways.items():
        save_by(save, scratch / name)
    loads = {name: partial(load, scratch / name) for name, load in loaders(decoder).items()}
    seconds["load"] = time_rounds(loads, rounds, CLOCK)
    in_background = [blocking_seconds(decoder, scratch / f"background-{number}") for number in range(rounds)]
    return {
        **{
            f"{kind}_against_safetensors": spread(ratios(each["safetensors"], each["mtnlg_model"]))
            for kind, each in seconds.items()
        },
        "training_stands_still_seconds": spread(in_background),
        "threads": torch.get_num_threads(),
        "model": {"preset": PRESET, "bytes": 4 * config.parameters},
        "seconds": seconds,
    }


def measure(folder: Path | None = None, rounds: int = 5) -> dict[str, Any]:
    """Compare in ``folder``, which needs 7 GB and 1.4 for each round."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        return compare(Path(name), rounds)


if __name__ == "__main__":
    run(measure, __doc__)
