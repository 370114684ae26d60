"""One rank's training step: both engines at 1 x 1 x 1, a plain PyTorch loop of the same decoder, transformers' Trainer.

    python benchmarks/training_engine.py [--rounds 5] [--steps 5] [--out FILE]

"ours" is the default engine, "deepspeed" that of train.engine = "deepspeed". All train the same small shape in fp32 on
the same tokens with AdamW and clipping, each in its own process on the CPU. In every round each runs ``--steps`` steps,
in alternating order, so that other load costs all alike; the result has medians, ratios first, by the clock and by the
processor seconds of the process, which other load changes less. ``benchmarks/gpu.py`` measures steps on a GPU.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel", "torch==2.13.0", "transformers==5.23.0", "accelerate==1.15.0"]
# ///

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mtnlg_data.tokens.store import TokenStore, writing_store
from mtnlg_model import functional
from mtnlg_model.decoder import Decoder
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.training.samples import micro_batches, open_data
from record import ratios, run, spread

Times = NDArray[np.float64]
"""Seconds and CPU seconds."""
Go = Callable[[int], Times]
"""Runs so many steps."""

ENGINES = {"ours": "pipeline", "deepspeed": "deepspeed"}


def now() -> Times:
    """The time, and the CPU seconds of this process."""
    return np.array((time.perf_counter(), time.process_time()))


def make_recipe(engine: str = "pipeline") -> Recipe:
    """Return the run of all sides."""
    model = {"layers": 4, "hidden": 256, "heads": 4, "sequence": 256, "vocabulary": 4096}
    train = {"samples": 1 << 20, "batch": 8, "micro_batch": 8, "lr": 1e-4, "decay": 1 << 20, "engine": engine}
    train |= {"precision": "fp32", "recompute": "none", "checkpoint_every": 0, "validation_samples": 64}
    return Recipe.model_validate({"model": model | {"dropout": 0.0, "attention_dropout": 0.0}, "train": train})


def make_data(folder: Path, vocabulary: int, tokens: int) -> None:
    """Write a store of random tokens."""
    (folder / "tokens").mkdir(parents=True)
    prefix, draw = folder / "tokens" / "random", np.random.default_rng(1)
    with writing_store(prefix, vocabulary) as writer:
        for _ in range(tokens >> 16):
            writer.add(draw.integers(0, vocabulary, 1 << 16))
    store = TokenStore(prefix)
    source = {"name": "random", "prefix": "random", "weight": 1.0, "documents": store.documents, "tokens": store.tokens}
    blend = {"seed": 1, "vocabulary": vocabulary, "eod": 0, "validation": 0.1}
    sources = [source | {"sha256": store.checksum()}]
    (folder / "tokens" / "blend.json").write_text(json.dumps(blend | {"sources": sources}))
    (folder / "tokens" / "tokenizer.json").write_text("{}")


def engine_side(recipe: Recipe, data: Path, out: Path) -> Go:
    """Our training, by the steps of the command itself."""
    from mtnlg_parallel.engine import process  # noqa: PLC0415  (each side in a process of its own)
    from mtnlg_parallel.training.loop import Training  # noqa: PLC0415

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    device = process.init_distributed(recipe.layout)
    training = Training(recipe, open_data(data, recipe), out, 0, device)
    batches = training._prefetch()  # noqa: SLF001  (what Training.run begins with)

    def go(steps: int) -> Times:
        began = now()
        for _ in range(steps):
            training.step(batches)
            training._agree()  # noqa: SLF001  (as above)
        return now() - began

    return go


def plain_side(recipe: Recipe, data: Path, _out: Path) -> Go:
    """The decoder in a plain PyTorch loop."""
    train = recipe.train
    decoder = Decoder(recipe.model, seed=1)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=train.lr, betas=train.betas, fused=True)
    stream = open_data(data, recipe).train
    loader = micro_batches(stream, range(train.samples), train.micro_batch, 1, 0)

    def go(steps: int) -> Times:
        began = now()
        for _ in range(steps):
            inputs, targets = next(loader)[:2]
            functional.cross_entropy(decoder(inputs), targets).mean().backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(decoder.parameters(), train.clip)
            optimizer.step()
            optimizer.zero_grad()
        return now() - began

    return go


def trainer_side(recipe: Recipe, data: Path, out: Path) -> Go:
    """GPT-2 of the same shape under transformers' Trainer; each round's first step is extra and not timed."""
    from transformers import (  # noqa: PLC0415  (each side in a process of its own)
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    model, train = recipe.model, recipe.train
    shape = {"n_layer": model.layers, "n_embd": model.hidden, "n_head": model.heads, "n_positions": model.sequence}
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    decoder = GPT2LMHeadModel(GPT2Config(vocab_size=model.vocabulary, **shape, **none))
    samples = Samples(recipe, data)
    arguments: dict[str, Any] = {
        "output_dir": str(out),
        "per_device_train_batch_size": train.micro_batch,
        "learning_rate": train.lr,
        "adam_beta2": train.betas[1],
        "weight_decay": train.weight_decay,
        "max_grad_norm": train.clip,
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "logging_strategy": "no",
    }

    class Clock(TrainerCallback):  # type: ignore[misc] # transformers is not followed
        """Records when each step ends."""

        def __init__(self) -> None:
            self.ends: list[Times] = []

        def on_step_end(self, *_: object, **__: object) -> None:
            """Record the time."""
            self.ends.append(now())

    def go(steps: int) -> Times:
        clock = Clock()
        limits = TrainingArguments(**arguments, max_steps=steps + 1)
        Trainer(model=decoder, args=limits, train_dataset=samples, callbacks=[clock]).train()
        return clock.ends[-1] - clock.ends[0]

    return go


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The training stream as a dataset for transformers."""

    def __init__(self, recipe: Recipe, data: Path) -> None:
        self.stream = open_data(data, recipe).train

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.stream)

    def __getitem__(self, sample: int) -> dict[str, torch.Tensor]:
        """Return one sample; transformers shifts the labels itself."""
        tokens = torch.from_numpy(self.stream[sample][:-1]).long()
        return {"input_ids": tokens, "labels": tokens}


SIDES = dict.fromkeys(ENGINES, engine_side) | {"plain": plain_side, "trainer": trainer_side}
_go: dict[str, Go] = {}
"""The side of this process."""


def open_side(side: str, folder: Path) -> None:
    """Make this process that of a side."""
    warnings.simplefilter("ignore")
    (out := folder / side).mkdir()
    _go[""] = SIDES[side](make_recipe(ENGINES.get(side, "pipeline")), folder / "data", out)


def go(steps: int) -> Times:
    """Run so many steps of this process's side; return seconds and CPU seconds per step."""
    return _go[""](steps) / steps


def measure(rounds: int = 5, steps: int = 5) -> dict[str, Any]:
    """Run all sides in rounds."""
    recipe = make_recipe()
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    used: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        make_data(folder / "data", recipe.model.vocabulary, 1 << 22)
        sides = {
            side: stack.enter_context(ProcessPoolExecutor(1, get_context("spawn"), open_side, (side, folder)))
            for side in SIDES
        }
        for process in sides.values():
            process.submit(go, 2).result()  # warm
        for number in range(rounds):
            for side in sorted(sides, reverse=bool(number % 2)):
                for clock, value in zip((seconds, used), sides[side].submit(go, steps).result().tolist(), strict=True):
                    clock[side].append(value)
    pairs = {f"{engine} / {peer}": (engine, peer) for engine in ENGINES for peer in ("plain", "trainer")}
    return {
        **{
            f"ratios of {what}": {pair: spread(ratios(each[peer], each[ours])) for pair, (ours, peer) in pairs.items()}
            for what, each in (("tokens/s", seconds), ("processor seconds", used))
        },
        "seconds a step": seconds,
        "processor seconds a step": used,
    }


if __name__ == "__main__":
    run(measure, __doc__, "deepspeed", "transformers")
