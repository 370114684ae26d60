"""One rank's training step: both engines at 1 x 1 x 1, a plain PyTorch loop of the same decoder, transformers' Trainer.

    python benchmarks/training_engine.py [--model cpu|dense-1.3b] [--rounds 5] [--steps 5] [--out FILE]

"ours" is the default engine, "deepspeed" that of train.engine = "deepspeed". All train the same shape on the same
tokens with AdamW and clipping, each in its own process. In every round each runs ``--steps`` steps, in varying order,
so that other load costs all alike; the result has medians, ratios first, by the clock and by the processor seconds of
the process, which other load changes less. On a GPU the compiled plain loop is one more. Precision is fp32 on a CPU; on
a GPU bf16, with fp32 accumulation and master weights in our engines, by autocast in the others.

Also measured on our engine: the share of a step that waits for samples; the time that a background checkpoint adds to
the steps it overlaps, as a share of the 100 steps between two; and the time from the command to the first step.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel", "torch==2.13.0", "transformers==5.23.0", "accelerate==1.15.0"]
# ///

from __future__ import annotations

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
from argparse import SUPPRESS
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mtnlg_data.tokens.store import TokenStore, writing_store
from mtnlg_model import functional
from mtnlg_model.config import ModelConfig
from mtnlg_model.decoder import Decoder
from mtnlg_model.families import PRESETS
from mtnlg_model.settings import dump
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.record.metrics import peak_flops
from mtnlg_parallel.training.samples import micro_batches, open_data
from record import exact_ratio, option_parser, ratios, today, write_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
BETWEEN = 100
"""Steps from one checkpoint to the next, as in recipes/mt-nlg-530b."""

ENGINES = ("ours", "deepspeed")

MODELS = {
    "cpu": ModelConfig(
        layers=4, hidden=256, heads=4, sequence=256, vocabulary=4096, dropout=0.0, attention_dropout=0.0
    ),
    "tiny": ModelConfig(layers=2, hidden=64, heads=2, sequence=64, vocabulary=512, dropout=0.0, attention_dropout=0.0),
    "dense-1.3b": PRESETS["dense-1.3b"].model_copy(update={"dropout": 0.0, "attention_dropout": 0.0}),
}


def make_recipe(name: str) -> Recipe:
    """Return the run of all sides."""
    batch, micro_batch = (16, 4) if name == "dense-1.3b" else (8, 8)
    train = {"samples": 1 << 20, "batch": batch, "micro_batch": micro_batch, "lr": 1e-4, "decay": 1 << 20}
    settings = {
        "precision": "bf16" if GPU else "fp32",
        "recompute": "none",
        "checkpoint_every": 0,
        "validation_samples": 64,
    }
    return Recipe.model_validate({"model": MODELS[name], "train": train | settings})


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


def engine_side(recipe: Recipe, data: Path, out: Path) -> Callable[[int], dict[str, float]]:
    """Our training, by the steps of the command itself."""
    from mtnlg_parallel.engine import process  # noqa: PLC0415  (each side in a process of its own)
    from mtnlg_parallel.training.loop import Training  # noqa: PLC0415

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    device = process.init_distributed(recipe.layout)
    training = Training(recipe, open_data(data, recipe), out, 0, device)
    batches = training._prefetch()  # noqa: SLF001  (what Training.run begins with)

    def go(steps: int) -> dict[str, float]:
        save, steps = steps < 0, abs(steps)
        steps_made = []
        began = time.perf_counter()
        for number in range(steps):
            if save and number == 0:
                training.checkpoint.begin(training.progress)
            steps_made.append(training.step(batches))
            training._agree()  # noqa: SLF001  (as above)
        seconds = time.perf_counter() - began
        training.checkpoint.finish()
        return {"seconds": seconds, "data_seconds": sum(step["data_seconds"] for step in steps_made)}

    return go


def plain_side(recipe: Recipe, data: Path, compiled: bool) -> Callable[[int], dict[str, float]]:
    """The decoder in a plain PyTorch loop."""
    train = recipe.train
    decoder = Decoder(recipe.model, seed=1).to(DEVICE)
    forward: Any = torch.compile(decoder) if compiled else decoder
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=train.lr, betas=train.betas, fused=True)
    loader = read_batches(recipe, data)

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


def read_batches(recipe: Recipe, data: Path) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield inputs and targets of the micro-batches of the training stream."""
    stream, train = open_data(data, recipe).train, recipe.train
    return (batch[:2] for batch in micro_batches(stream, range(train.samples), train.micro_batch, 1, 0))


def trainer_side(recipe: Recipe, data: Path, out: Path) -> Callable[[int], dict[str, float]]:
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
        """Records when each step ends."""

        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_step_end(self, *_: object, **__: object) -> None:
            """Record the time."""
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


def serve(side: str, name: str, folder: Path) -> None:
    """Run one side: each line on stdin is a number of steps; answer with their times as a line of JSON."""
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr
    recipe, data, out = make_recipe(name), folder / "data", folder / side
    out.mkdir(exist_ok=True)
    go = {
        "ours": lambda: engine_side(recipe, data, out),
        "deepspeed": lambda: engine_side(
            recipe.model_copy(update={"train": recipe.train.model_copy(update={"engine": "deepspeed"})}), data, out
        ),
        "plain": lambda: plain_side(recipe, data, compiled=False),
        "compiled": lambda: plain_side(recipe, data, compiled=True),
        "trainer": lambda: trainer_side(recipe, data, out),
    }[side]()
    for line in sys.stdin:
        used = time.process_time()
        times = go(int(line))
        times["cpu_seconds"] = time.process_time() - used
        if GPU:
            times["peak_bytes"] = float(torch.cuda.max_memory_allocated())
        answers.write(json.dumps(times) + "\n")
        answers.flush()
    os._exit(0)


class Side:
    """The process of one side."""

    def __init__(self, side: str, name: str, folder: Path) -> None:
        command = [sys.executable, __file__, "--serve", side, "--model", name, "--folder", str(folder)]
        log = (folder / f"{side}.log").open("wb")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    def go(self, steps: int) -> dict[str, float]:
        """Run ``abs(steps)`` steps and return their times; negative: with a background checkpoint."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("no pipes")
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        times: dict[str, float] = json.loads(self._process.stdout.readline())
        return times

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def first_step(recipe: Recipe, folder: Path) -> float:
    """Return the seconds from the command to the first line of metrics.jsonl, of a run of one step."""
    path, out = folder / "train.toml", folder / "first"
    one_step = recipe.train.model_copy(update={"samples": recipe.train.batch})
    path.write_text(dump(recipe.model_copy(update={"train": one_step})))
    arguments = ["train", str(path), "--data", str(folder / "data"), "--out", str(out), "--no-resume", "--quiet"]
    began = time.time()
    subprocess.run([sys.executable, "-m", "mtnlg_parallel.cli", *arguments], check=True)
    return (out / "metrics.jsonl").stat().st_mtime - began


def measure(name: str, rounds: int, steps: int, folder: Path) -> dict[str, Any]:
    """Run all sides in rounds; return all figures."""
    recipe = make_recipe(name)
    make_data(folder / "data", recipe.model.vocabulary, 1 << 22)
    others = ["plain", "trainer", *(["compiled"] if GPU else [])]
    sides = {side: Side(side, name, folder) for side in (*ENGINES, *others)}
    for process in sides.values():
        process.go(2)  # warm
    seconds: dict[str, list[float]] = {side: [] for side in (*sides, "with a checkpoint")}
    used: dict[str, list[float]] = {side: [] for side in sides}
    waits, peaks = [], dict.fromkeys(sides, 0.0)
    for number in range(rounds):
        for side in sorted(sides, key=lambda side: hash((number, side))):
            times = sides[side].go(steps)
            seconds[side].append(times["seconds"] / steps)
            used[side].append(times["cpu_seconds"] / steps)
            peaks[side] = max(peaks[side], times.get("peak_bytes", 0.0))
            if side == "ours":
                waits.append(times["data_seconds"] / times["seconds"])
        seconds["with a checkpoint"].append(sides["ours"].go(-steps)["seconds"] / steps)
    for process in sides.values():
        process.close()
    step = {side: statistics.median(each) for side, each in seconds.items()}
    saving = [(w - o) * steps for w, o in zip(seconds["with a checkpoint"], seconds["ours"], strict=True)]
    tokens = recipe.train.batch * recipe.model.sequence
    peak = peak_flops(torch.cuda.get_device_name()) if GPU else None
    return {
        "ratios of tokens/s": {f"{e} / {s}": step[s] / step[e] for e in ENGINES for s in others},
        "ratios of processor seconds": {
            f"{e} / {s}": exact_ratio(ratios(used[s], used[e])) for e in ENGINES for s in others
        },
        "share of a step waiting for samples": statistics.median(waits),
        f"share of {BETWEEN} steps that a checkpoint takes": statistics.median(saving) / (BETWEEN * step["ours"]),
        "seconds to the first step": [first_step(recipe, folder) for _ in range(3)],
        "tokens/s": {side: tokens / each for side, each in step.items()},
        "seconds a step": seconds,
        "processor seconds a step": used,
        "spread": {side: [min(each), max(each)] for side, each in seconds.items()},
        "mfu": {s: recipe.model.model_flops(recipe.train.batch) / x / peak for s, x in step.items()} if peak else None,
        "peak_bytes": peaks if GPU else None,
        "parameters": recipe.model.parameters,
        "recipe": recipe.model_dump(mode="json"),
    }


def main() -> None:
    """Measure; print the result and write it to ``--out``."""
    parser = option_parser(__doc__)
    parser.add_argument("--model", choices=list(MODELS), default="dense-1.3b" if GPU else "cpu")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--serve", help=SUPPRESS)
    parser.add_argument("--folder", type=Path, help=SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.model, options.folder)
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(options.model, options.rounds, options.steps, Path(folder))
    names = ("torch", "deepspeed", "megatron-core", "transformers", "accelerate", "mtnlg-parallel")
    cores = len(os.sched_getaffinity(0))
    result = {
        "date": today(),
        **measured,
        "machine": {"processor": platform.processor() or platform.machine(), "cores": cores, "load": load},
        "device": torch.cuda.get_device_name() if GPU else "cpu",
        "versions": {name: version(name) for name in names},
    }
    write_result(result, options.out)


if __name__ == "__main__":
    main()
