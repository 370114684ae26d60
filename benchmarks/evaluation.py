"""Loglikelihoods of the nine tasks: mtnlg_eval against lm-eval's own hf backend on the same weights, rows and threads.

    python benchmarks/evaluation.py --data ROWS --gpt2 FOLDER [--documents 6] [--rounds 5] [--threads 1] [--out FILE]

ROWS holds the tasks' published rows, FOLDER GPT-2's encoder.json and vocab.bpe. A random decoder in GPT-2's shape with
the real vocabulary is exported for transformers: 6 layers of 384 in fp32, or on a GPU the 1.3B model's 24 of 2,048 in
bf16. The requests are the paper's prompts at zero shots and at GPT-3's K, for the first ``--documents`` documents of
every task. In each round both answer all requests, in alternating order; no answer is kept between rounds. The ratio is
the median over rounds; every answer is compared.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-eval", "torch==2.13.0", "transformers==5.23.0", "accelerate"]
# ///

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
import torch
from lm_eval.models.huggingface import HFLM

from mtnlg_eval.evaluation import silence_lm_eval
from mtnlg_eval.scoring.answer_store import AnswerStore
from mtnlg_eval.scoring.decoder_lm import DecoderLM
from mtnlg_eval.scoring.harness import FEW_SHOTS, task_manager
from mtnlg_model.checkpoint.manifest import Layout, Progress
from mtnlg_model.checkpoint.reader import Checkpoint, save
from mtnlg_model.config import ModelConfig
from mtnlg_model.console import progress
from mtnlg_model.convert.huggingface import export_gpt2
from mtnlg_model.decoder import Decoder
from record import conditions, exact_ratio, gpu, option_parser, ratios, time_rounds, write_result

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

VOCABULARY = 50_257
GPU = torch.cuda.is_available()
LAYERS, HIDDEN, HEADS = (24, 2048, 16) if GPU else (6, 384, 6)
DTYPE = torch.bfloat16 if GPU else torch.float32


def make_models(gpt2: Path, folder: Path) -> tuple[DecoderLM, HFLM]:
    """Return our model and lm-eval's hf model, with the same random weights."""
    bpe = tokenizers.models.BPE.from_file(str(gpt2 / "encoder.json"), str(gpt2 / "vocab.bpe"))
    tokenizer = tokenizers.Tokenizer(bpe)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = ModelConfig(layers=LAYERS, hidden=HIDDEN, heads=HEADS, sequence=2048, vocabulary=VOCABULARY)
    decoder = Decoder(config, seed=1).to(DTYPE)
    first_step = Progress(step=1, samples=0, tokens=0, loss=0.0, stream="none", layout=Layout())
    checkpoint = Checkpoint.open(save(decoder, folder, 1, first_step, folder / "tokenizer.json"))
    with progress("export", len(checkpoint.names), "tensors") as advance:
        export_gpt2(checkpoint, folder / "hf", advance)
    device, size = ("cuda", 32) if GPU else ("cpu", 8)
    theirs = HFLM(
        pretrained=str(folder / "hf"), device=device, dtype=str(DTYPE).removeprefix("torch."), batch_size=size
    )
    return DecoderLM.open(checkpoint), theirs


def build_requests(lm: DecoderLM, data: Path, shots: str, documents: int) -> list[list[Instance]]:
    """Return the requests of the first documents of every task, task by task."""
    manager = task_manager(data)
    requests = []
    for name, few in FEW_SHOTS.items():
        task = manager.load([name])["tasks"][name]
        task.lm = lm
        task.set_shots(few if shots == "few" else 0)
        task.build_all_requests(limit=documents)
        requests.append(task.instances)
    return requests


def measure(ours: DecoderLM, theirs: HFLM, requests: list[list[Instance]], rounds: int) -> dict[str, Any]:
    """Return the seconds of both over all tasks, and the largest difference of their answers."""
    answers: dict[str, list[tuple[float, bool]]] = {}

    def answer(name: str, model: DecoderLM | HFLM) -> None:
        ours.store = AnswerStore("benchmark")
        answers[name] = [each for part in requests for each in model.loglikelihood(part, disable_tqdm=True)]

    sides = {"mtnlg_eval": partial(answer, "mtnlg_eval", ours), "hf": partial(answer, "hf", theirs)}
    seconds = time_rounds(sides, rounds, time.perf_counter)
    pairs = list(zip(answers["mtnlg_eval"], answers["hf"], strict=True))
    return {
        **exact_ratio(ratios(seconds["hf"], seconds["mtnlg_eval"])),
        "requests": len(pairs),
        "largest_difference_nats": max(abs(own[0] - hf[0]) for own, hf in pairs),
        "same_greedy": all(own[1] == hf[1] for own, hf in pairs),
        "seconds": seconds,
    }


def main() -> None:
    """Measure; print the result and write it to ``--out``."""
    parser = option_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--gpt2", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    silence_lm_eval()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = make_models(options.gpt2, Path(folder))
        result = {
            **conditions("mtnlg-eval", "lm-eval", "torch", "transformers"),
            "threads": options.threads,
            **({"gpu": gpu()} if GPU else {}),
            "model": f"random, {LAYERS} layers of {HIDDEN:,}, vocabulary {VOCABULARY:,}, {DTYPE}",
            "documents_a_task": options.documents,
            **{
                f"{shots} shots": measure(
                    ours, theirs, build_requests(ours, options.data, shots, options.documents), options.rounds
                )
                for shots in ("0", "few")
            },
        }
    write_result(result, options.out)


if __name__ == "__main__":
    main()
