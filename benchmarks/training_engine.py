"""One rank's training step: our engine at 1 x 1 x 1, a plain PyTorch loop of the same decoder, transformers' Trainer.

    python benchmarks/training_engine.py [--model cpu|dense-1.3b] [--rounds 5] [--steps 5] [--out FILE]

The three train the same shape on the same tokens with AdamW and clipping, each in a process of its own that is told
when to go: every round each makes ``--steps`` steps, in another order, so that a busy machine is busy for all. Medians
of the rounds are reported, ratios first. On a GPU the plain loop is compiled too, as a fourth. Precision is fp32 on a
CPU; on a GPU bf16, with fp32 accumulation and master weights on our side, by autocast on the others'.

Also of our side: the share of a step spent waiting for samples; what a checkpoint that is written meanwhile adds to the
steps that it overlaps, as a share of the 100 steps between two; and how long it takes from the command to a first step.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel", "torch==2.13.0", "transformers==5.23.0", "accelerate==1.15.0"]
# ///

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mtnlg_data.tokens.store import TokenStore, writing_store
from mtnlg_model import functional
from mtnlg_model.config import PRESETS, ModelConfig
from mtnlg_model.decoder import Decoder
from mtnlg_model.settings import dump
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.training.metrics import peak_of
from mtnlg_parallel.training.samples import micro_batches, open_data
from record import today

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
BETWEEN = 100
"""Steps from one checkpoint to the next, as in recipes/mt-nlg-530b."""

MODELS = {
    "cpu": ModelConfig(
        layers=4, hidden=256, heads=4, sequence=256, vocabulary=4096, dropout=0.0, attention_dropout=0.0
    ),
    "tiny": ModelConfig(layers=2, hidden=64, heads=2, sequence=64, vocabulary=512, dropout=0.0, attention_dropout=0.0),
    "dense-1.3b": PRESETS["dense-1.3b"].model_copy(update={"dropout": 0.0, "attention_dropout": 0.0}),
}


def recipe_of(name: str) -> Recipe:
    """The run that all sides make."""
    batch, micro_batch = (16, 4) if name == "dense-1.3b" else (8, 8)
    train = {"samples": 1 << 20, "batch": batch, "micro_batch": micro_batch, "lr": 1e-4, "decay": 1 << 20}
    more = {
        "precision": "bf16" if GPU else "fp32",
        "recompute": "none",
        "checkpoint_every": 0,
        "validation_samples": 64,
    }
    return Recipe.model_validate({"model": MODELS[name], "train": train | more})


def make_data(folder: Path, vocabulary: int, tokens: int) -> None:
    """A store of random tokens, which cost what any others do."""
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


def engine_side(recipe: Recipe, data: Path, out: Path) -> Callable[[int], dict[str, float]]:
    """Our training, by the very steps that the command makes."""
    from mtnlg_parallel.engine import deepspeed_engine  # noqa: PLC0415  (each side in a process of its own)
    from mtnlg_parallel.training.loop import Training  # noqa: PLC0415

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    device = deepspeed_engine.join(recipe.layout)
    training = Training(recipe, open_data(data, recipe), out, 0, device)
    batches = training._prefetch()  # noqa: SLF001  (what Training.run begins with)

    def go(steps: int) -> dict[str, float]:
        save, steps = steps < 0, abs(steps)
        made = []
        began = time.perf_counter()
        for number in range(steps):
            if save and number == 0:
                training.saving.begin(training.engine, training.progress)
            made.append(training.step(batches))
            training._agree()  # noqa: SLF001  (as above)
        seconds = time.perf_counter() - began
        training.saving.finish()
        return {"seconds": seconds, "data_seconds": sum(step["data_seconds"] for step in made)}

    return go


def plain_side(recipe: Recipe, data: Path, compiled: bool) -> Callable[[int], dict[str, float]]:
    """The decoder in a loop, as one writes it who needs no more."""
    train = recipe.train
    decoder = Decoder(recipe.model, seed=1).to(DEVICE)
    forward: Any = torch.compile(decoder) if compiled else decoder
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=train.lr, betas=train.betas, fused=GPU or None)
    loader = endless(recipe, data)

    def go(steps: int) -> dict[str, float]:
        began = time.perf_counter()
        for _ in range(steps):
            for _ in range(train.batch // train.micro_batch):
                inputs, targets = (tokens.to(DEVICE) for tokens in next(loader))
                with torch.autocast("cuda", torch.bfloat16) if GPU else nullcontext():
                    loss = functional.cross_entropy(forward(inputs), targets).mean()
                (loss * train.micro_batch / train.batch).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(decoder.parameters(), train.clip)
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
        return {"seconds": time.perf_counter() - began}

    return go


def endless(recipe: Recipe, data: Path) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Micro-batches of the training stream, one after another."""
    stream, train = open_data(data, recipe).train, recipe.train
    return micro_batches(stream, range(train.samples), train.micro_batch, 1, 0)


def trainer_side(recipe: Recipe, data: Path, out: Path) -> Callable[[int], dict[str, float]]:
    """GPT-2 of the same shape under transformers' Trainer; of a round's steps the first is not counted."""
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
        "gradient_accumulation_steps": train.batch // train.micro_batch,
        "learning_rate": train.lr,
        "adam_beta2": train.betas[1],
        "weight_decay": train.weight_decay,
        "max_grad_norm": train.clip,
        "bf16": GPU,
        "use_cpu": not GPU,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "logging_strategy": "no",
    }

    class Clock(TrainerCallback):  # type: ignore[misc] # transformers is not followed
        """When each step ended."""

        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_step_end(self, *_: object, **__: object) -> None:
            """Note the time."""
            if GPU:
                torch.cuda.synchronize()
            self.ends.append(time.perf_counter())

    def go(steps: int) -> dict[str, float]:
        clock = Clock()
        limits = TrainingArguments(**arguments, max_steps=steps + 1)
        Trainer(model=decoder, args=limits, train_dataset=samples, callbacks=[clock]).train()
        return {"seconds": clock.ends[-1] - clock.ends[0]}

    return go


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The training stream as transformers takes it."""

    def __init__(self, recipe: Recipe, data: Path) -> None:
        self.stream = open_data(data, recipe).train

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.stream)

    def __getitem__(self, sample: int) -> dict[str, torch.Tensor]:
        """One; transformers shifts the labels itself."""
        tokens = torch.from_numpy(self.stream[sample][:-1]).long()
        return {"input_ids": tokens, "labels": tokens}


def serve(side: str, name: str, folder: Path) -> None:
    """Be one side: make as many steps as each line on stdin says, and answer with what they took."""
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr
    recipe, data, out = recipe_of(name), folder / "data", folder / side
    out.mkdir(exist_ok=True)
    go = {
        "engine": lambda: engine_side(recipe, data, out),
        "plain": lambda: plain_side(recipe, data, compiled=False),
        "compiled": lambda: plain_side(recipe, data, compiled=True),
        "trainer": lambda: trainer_side(recipe, data, out),
    }[side]()
    for line in sys.stdin:
        found = go(int(line))
        if GPU:
            found["peak_bytes"] = float(torch.cuda.max_memory_allocated())
        answers.write(json.dumps(found) + "\n")
        answers.flush()
    os._exit(0)


class Side:
    """A side's process."""

    def __init__(self, side: str, name: str, folder: Path) -> None:
        command = [sys.executable, __file__, "--serve", side, "--model", name, "--folder", str(folder)]
        log = (folder / f"{side}.log").open("wb")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    def go(self, steps: int) -> dict[str, float]:
        """Have it make so many steps; negative, with a checkpoint written meanwhile."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("no pipes")
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def first_step(recipe: Recipe, folder: Path) -> float:
    """Seconds from the command to the first line of metrics.jsonl, of a run of one step."""
    path, out = folder / "train.toml", folder / "first"
    one = recipe.train.model_copy(update={"samples": recipe.train.batch})
    path.write_text(dump(recipe.model_copy(update={"train": one})))
    words = ["train", str(path), "--data", str(folder / "data"), "--out", str(out), "--no-resume", "--quiet"]
    began = time.time()
    subprocess.run([sys.executable, "-m", "mtnlg_parallel.cli", *words], check=True)
    return (out / "metrics.jsonl").stat().st_mtime - began


def measure(name: str, rounds: int, steps: int, folder: Path) -> dict[str, Any]:
    """All of it."""
    recipe = recipe_of(name)
    make_data(folder / "data", recipe.model.vocabulary, 1 << 22)
    sides = {side: Side(side, name, folder) for side in ("engine", "plain", "trainer", *(["compiled"] if GPU else []))}
    for process in sides.values():
        process.go(2)  # warm
    taken: dict[str, list[float]] = {side: [] for side in (*sides, "engine with a checkpoint")}
    waits, peaks = [], dict.fromkeys(sides, 0.0)
    for number in range(rounds):
        for side in sorted(sides, key=lambda side: hash((number, side))):
            found = sides[side].go(steps)
            taken[side].append(found["seconds"] / steps)
            peaks[side] = max(peaks[side], found.get("peak_bytes", 0.0))
            if side == "engine":
                waits.append(found["data_seconds"] / found["seconds"])
        taken["engine with a checkpoint"].append(sides["engine"].go(-steps)["seconds"] / steps)
    for process in sides.values():
        process.close()
    step = {side: statistics.median(seconds) for side, seconds in taken.items()}
    saving = [(w - o) * steps for w, o in zip(taken["engine with a checkpoint"], taken["engine"], strict=True)]
    tokens = recipe.train.batch * recipe.model.sequence
    peak = peak_of(torch.cuda.get_device_name()) if GPU else None
    ratios = {f"engine / {side}": step[side] / step["engine"] for side in sides if side != "engine"}
    return {
        "ratios of tokens/s": ratios,
        "share of a step waiting for samples": statistics.median(waits),
        f"share of {BETWEEN} steps that a checkpoint takes": statistics.median(saving) / (BETWEEN * step["engine"]),
        "seconds to the first step": [first_step(recipe, folder) for _ in range(3)],
        "tokens/s": {side: tokens / seconds for side, seconds in step.items()},
        "seconds a step": taken,
        "spread": {side: [min(seconds), max(seconds)] for side, seconds in taken.items()},
        "mfu": {s: recipe.model.model_flops(recipe.train.batch) / x / peak for s, x in step.items()} if peak else None,
        "peak_bytes": peaks if GPU else None,
        "parameters": recipe.model.parameters,
        "recipe": recipe.model_dump(mode="json"),
    }


def main() -> None:
    """Measure, print, and write the result where ``--out`` says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--model", choices=list(MODELS), default="dense-1.3b" if GPU else "cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve(chosen.serve, chosen.model, chosen.folder)
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(chosen.model, chosen.rounds, chosen.steps, Path(folder))
    names = ("torch", "deepspeed", "megatron-core", "transformers", "accelerate", "mtnlg-parallel")
    cores = len(os.sched_getaffinity(0))
    result = {
        "date": today(),
        **measured,
        "machine": {"processor": platform.processor() or platform.machine(), "cores": cores, "load": load},
        "device": torch.cuda.get_device_name() if GPU else "cpu",
        "versions": {name: version(name) for name in names},
    }
    text = json.dumps(result, indent=2)
    print(text)
    if chosen.out:
        chosen.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
