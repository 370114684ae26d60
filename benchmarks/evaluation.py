"""Loglikelihoods of the nine tasks: mtnlg_eval against lm-eval's own hf backend on the same weights, rows and threads.

    python benchmarks/evaluation.py --data ROWS --gpt2 FOLDER [--documents 6] [--rounds 5] [--threads 1] [--out FILE]

ROWS holds the tasks' published rows, FOLDER GPT-2's encoder.json and vocab.bpe. A random decoder in GPT-2's shape with
the real vocabulary is exported for transformers: 6 layers of 384 in fp32, or on a GPU the 1.3B model's 24 of 2,048 in
bf16. The requests are those of the paper's prompts at no shots and at GPT-3's K, the first so many documents of every
task; each round answers all of them by both, in turn first, and nothing is kept between rounds. The ratio is the median
of the rounds' own; every answer is compared.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-eval", "torch==2.13.0", "transformers==5.23.0", "accelerate"]
# ///

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
import torch
from lm_eval.models.huggingface import HFLM

from mtnlg_eval.quiet import quiet
from mtnlg_eval.scoring.answer_store import Store
from mtnlg_eval.scoring.decoder_lm import DecoderLM
from mtnlg_eval.scoring.harness import FEW, task_manager
from mtnlg_model.checkpoint.manifest import Layout, Progress
from mtnlg_model.checkpoint.reader import Checkpoint, save
from mtnlg_model.config import ModelConfig
from mtnlg_model.console import progress
from mtnlg_model.convert.huggingface import export_gpt2
from mtnlg_model.decoder import Decoder
from record import conditions, gpu, keep

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

VOCABULARY = 50_257
GPU = torch.cuda.is_available()
LAYERS, HIDDEN, HEADS = (24, 2048, 16) if GPU else (6, 384, 6)
DTYPE = torch.bfloat16 if GPU else torch.float32


def both(gpt2: Path, folder: Path) -> tuple[DecoderLM, HFLM]:
    """Our model and theirs, on the same random weights."""
    bpe = tokenizers.models.BPE.from_file(str(gpt2 / "encoder.json"), str(gpt2 / "vocab.bpe"))
    tokenizer = tokenizers.Tokenizer(bpe)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = ModelConfig(layers=LAYERS, hidden=HIDDEN, heads=HEADS, sequence=2048, vocabulary=VOCABULARY)
    decoder = Decoder(config, seed=1).to(DTYPE)
    done = Progress(step=1, samples=0, tokens=0, loss=0.0, stream="none", layout=Layout())
    checkpoint = Checkpoint.open(save(decoder, folder, 1, done, folder / "tokenizer.json"))
    with progress("export", len(checkpoint.names), "tensors") as advance:
        export_gpt2(checkpoint, folder / "hf", advance)
    where, size = ("cuda", 32) if GPU else ("cpu", 8)
    theirs = HFLM(pretrained=str(folder / "hf"), device=where, dtype=str(DTYPE).removeprefix("torch."), batch_size=size)
    return DecoderLM.open(checkpoint), theirs


def requests(lm: DecoderLM, data: Path, shots: str, documents: int) -> list[list[Instance]]:
    """What the first documents of every task ask, task by task."""
    manager = task_manager(data)
    asked = []
    for name, few in FEW.items():
        task = manager.load([name])["tasks"][name]
        task.bind(lm)
        task.ask(few if shots == "few" else 0)
        task.build_all_requests(limit=documents)
        asked.append(task.instances)
    return asked


def measure(ours: DecoderLM, theirs: HFLM, asked: list[list[Instance]], rounds: int) -> dict[str, Any]:
    """Seconds of both over all tasks, and how far their answers are apart."""
    seconds: dict[str, list[float]] = {"mtnlg_eval": [], "hf": []}
    answers: dict[str, list[tuple[float, bool]]] = {}
    for number in range(rounds):
        for name in sorted(seconds, reverse=bool(number % 2)):
            ours.store = Store("benchmark")
            started = time.perf_counter()
            told = [(ours if name == "mtnlg_eval" else theirs).loglikelihood(part, disable_tqdm=True) for part in asked]
            seconds[name].append(time.perf_counter() - started)
            answers[name] = [answer for part in told for answer in part]
    pairs = list(zip(answers["mtnlg_eval"], answers["hf"], strict=True))
    ratios = [hf / own for own, hf in zip(seconds["mtnlg_eval"], seconds["hf"], strict=True)]
    return {
        "ratio": statistics.median(ratios),
        "ratio_least": min(ratios),
        "ratio_most": max(ratios),
        "requests": len(pairs),
        "largest_difference_nats": max(abs(own[0] - hf[0]) for own, hf in pairs),
        "same_greedy": all(own[1] == hf[1] for own, hf in pairs),
        "seconds": seconds,
    }


def main() -> None:
    """Run and print, and write to ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--gpt2", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    quiet()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = both(options.gpt2, Path(folder))
        result = {
            **conditions("mtnlg-eval", "lm-eval", "torch", "transformers"),
            "threads": options.threads,
            **({"gpu": gpu()} if GPU else {}),
            "model": f"random, {LAYERS} layers of {HIDDEN:,}, vocabulary {VOCABULARY:,}, {DTYPE}",
            "documents_a_task": options.documents,
            **{
                f"{shots} shots": measure(
                    ours, theirs, requests(ours, options.data, shots, options.documents), options.rounds
                )
                for shots in ("0", "few")
            },
        }
    keep(result, options.out)


if __name__ == "__main__":
    main()
