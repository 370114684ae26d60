"""An evaluation's time against lm-eval's hf backend.

    python benchmarks/evaluation.py ROWS GPT2 [--documents 2] [--rounds 3] [--threads 1] [--shots 0 few] [--out FILE]

ROWS holds the tasks' published rows, GPT2 GPT-2's encoder.json and vocab.bpe. Prompts are the paper's, at no shots and
at GPT-3's K. Measured is the work of a command (rows, prompts, scores, results): lm-eval's own with its hf backend over
ours, on the same weights, tasks, rows and threads, with ``--documents`` rows of every task, in alternating order. Every
answer is compared, on a GPU also with ours in fp32. Loading modules and models does not count.

On a GPU alone, "fixed order": time with sums in fixed order over the free order, and how many scores have other bits in
other batches, in both; of those in fixed order, the largest differences.

The model is random, exported for transformers: 6 layers of 384 in fp32, or on a GPU the 1.3B model's 24 of 2,048 in
bf16. Ratios are medians over rounds: of CPU time, on a GPU of time.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-eval[parallel]", "torch==2.13.0", "transformers==5.23.0", "accelerate"]
# ///

from __future__ import annotations

import json
import tempfile
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
import torch
from lm_eval import evaluator
from lm_eval.models.huggingface import HFLM

from mtnlg_eval.evaluation import silence_lm_eval
from mtnlg_eval.results.folder import ResultFolder
from mtnlg_eval.scoring import decoder_lm
from mtnlg_eval.scoring.answer_store import AnswerStore
from mtnlg_eval.scoring.cells import TaskOptions
from mtnlg_eval.scoring.decoder_lm import TOKENS_PER_BATCH, LocalEngine
from mtnlg_eval.scoring.fixed_order import fixed_order as in_fixed_order
from mtnlg_eval.scoring.harness import Evaluation
from mtnlg_eval.scoring.open_model import open_lm, open_model
from mtnlg_eval.tasks.paper_task import paper_task
from mtnlg_eval.tasks.published import TASKS_BY_NAME
from mtnlg_eval.tasks.shots import sample_rows
from mtnlg_model.checkpoint.manifest import Layout, Progress
from mtnlg_model.checkpoint.reader import Checkpoint, save
from mtnlg_model.config import ModelConfig
from mtnlg_model.convert.huggingface import export_huggingface
from mtnlg_model.decoder import Decoder
from record import gpu, ratios, run, spread, time_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    Order = Callable[[torch.device], AbstractContextManager[None]]

    from lm_eval.api.model import TemplateLM

    from mtnlg_eval.scoring.packing import Request
    from mtnlg_eval.tasks.paper_task import PaperTask

VOCABULARY = 50_257
GPU = torch.cuda.is_available()
LAYERS, HIDDEN, HEADS = (24, 2048, 16) if GPU else (6, 384, 6)
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
CLOCK = time.perf_counter if GPU else time.process_time
SHOTS = ("0", "few")
MAX_REPORTED = 5
"""Scores in other batches that are reported."""


def write_checkpoint(gpt2: Path, folder: Path) -> Checkpoint:
    """Write a random model with GPT-2's tokenizer."""
    config = ModelConfig(layers=LAYERS, hidden=HIDDEN, heads=HEADS, sequence=2048, vocabulary=VOCABULARY)
    folder.mkdir(parents=True, exist_ok=True)
    bpe = tokenizers.models.BPE.from_file(str(gpt2 / "encoder.json"), str(gpt2 / "vocab.bpe"))
    tokenizer = tokenizers.Tokenizer(bpe)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    first_step = Progress(step=1, samples=0, tokens=0, loss=0.0, stream="none", layout=Layout())
    with torch.device("meta"):
        decoder = Decoder(config)
    decoder.to_empty(device=DEVICE).to(DTYPE)
    generator = torch.Generator(DEVICE).manual_seed(1)  # on the device: drawing 1.3 B numbers on a thread takes minutes
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1)
            else:
                parameter.normal_(std=config.std, generator=generator)
    decoder.to("cpu")
    return Checkpoint.open(save(decoder, folder, 1, first_step, folder / "tokenizer.json"))


def load(name: str, data: Path, documents: int, lm: TemplateLM, shots: str) -> tuple[PaperTask, list[int]]:
    """A task with its shots, and the numbers of the rows that a limit samples."""
    task = paper_task(name, data)
    rows = sample_rows([doc["id"] for doc in task.eval_docs], documents)
    return task.with_shots(lm, TASKS_BY_NAME[name].few if shots == "few" else 0), rows


def whole(checkpoint: Checkpoint, hf: HFLM, data: Path, documents: int, rounds: int, shots: str) -> dict[str, Any]:  # noqa: PLR0917
    """Time of all tasks, lm-eval's own over ours, and the largest differences of answers: mutual, and from fp32."""
    lm = open_lm(open_model(checkpoint.directory))
    answers: dict[str, dict[tuple[str, str, int], tuple[float, bool]]] = {}

    def keep(side: str, task: str, samples: Iterable[dict[str, Any]]) -> None:
        answers.setdefault(side, {}).update(
            ((task, sample["doc"]["id"], n), (answer[0], bool(answer[1])))
            for sample in samples
            for n, answer in enumerate(sample["filtered_resps"])
        )

    def ours(side: str = "mtnlg_eval") -> None:
        lm.store = AnswerStore("benchmark")
        with tempfile.TemporaryDirectory() as out:
            Evaluation(list(TASKS_BY_NAME), [shots], TaskOptions(data, documents)).run(lm, Path(out), None)
            folder = ResultFolder(Path(out))
            for result in folder.results():
                lines = folder.samples(result).read_text(encoding="utf-8").splitlines()
                keep(side, result.task, map(json.loads, lines))

    def theirs() -> None:
        for name in TASKS_BY_NAME:
            task, rows = load(name, data, documents, hf, shots)
            evaluated = evaluator.evaluate(hf, {"tasks": {name: task}}, samples={name: rows}, bootstrap_iters=0)
            keep("hf", name, evaluated["samples"][name])

    seconds = time_rounds({"mtnlg_eval": ours, "hf": theirs}, rounds, CLOCK)
    pairs = [(answers["mtnlg_eval"][key], answer) for key, answer in answers["hf"].items()]
    from_fp32 = {}
    if GPU:
        lm.engine = LocalEngine(checkpoint.decoder(torch.float32, DEVICE), lm.engine.tokenizer)  # type: ignore[attr-defined]
        ours("fp32")
        exact = answers.pop("fp32")
        from_fp32 = {side: max(abs(each[key][0] - exact[key][0]) for key in exact) for side, each in answers.items()}
    return {
        "ratio": spread(ratios(seconds["hf"], seconds["mtnlg_eval"])),
        "documents_a_task": documents,
        "requests": len(pairs),
        "largest_difference_nats": max(abs(own[0] - their[0]) for own, their in pairs),
        **({"largest_difference_from_fp32": from_fp32} if GPU else {}),
        "same_greedy": all(own[1] == their[1] for own, their in pairs),
        "seconds": seconds,
    }


def fixed_order(checkpoint: Checkpoint, data: Path, documents: int, rounds: int) -> dict[str, Any]:
    """Cost of the fixed order of sums, and how many scores differ when order and size of the batches do."""
    lm = open_lm(open_model(checkpoint.directory))
    tasks: dict[Request, str] = {}
    for name in TASKS_BY_NAME:
        task, rows = load(name, data, documents, lm, "few")
        task.build_all_requests(samples=rows)
        for instance in task.instances:
            tasks.update(dict.fromkeys(lm._encode_request(instance), name))  # noqa: SLF001
    requests = list(tasks)

    module = vars(decoder_lm)

    def score(order: Order) -> None:
        module["fixed_order"], lm.store = order, AnswerStore("benchmark")
        lm.score(requests)

    def differing(order: Order) -> list[dict[str, Any]]:
        module["fixed_order"], scores = order, []
        for budget, part in ((TOKENS_PER_BATCH, requests), (TOKENS_PER_BATCH // 3, requests[::-1])):
            lm.store, lm.batch_tokens = AnswerStore("benchmark"), budget
            scores.append(dict(zip(part, lm.score(part), strict=True)))
        lm.batch_tokens = TOKENS_PER_BATCH
        differ = [
            {"task": tasks[each], "tokens": [*map(len, each)], "nats": abs(scores[0][each][0] - scores[1][each][0])}
            for each in requests
            if scores[0][each] != scores[1][each]
        ]
        return sorted(differ, key=lambda each: -each["nats"])

    def free(_: torch.device) -> AbstractContextManager[None]:
        return nullcontext()

    sides = {"fixed": partial(score, in_fixed_order), "free": partial(score, free)}
    seconds = time_rounds(sides, rounds, time.perf_counter)
    differ, differ_free = differing(in_fixed_order), differing(free)
    module["fixed_order"] = in_fixed_order
    return {
        "ratio": spread(ratios(seconds["fixed"], seconds["free"])),
        "requests": len(requests),
        "differ_fixed": len(differ),
        "differ_free": len(differ_free),
        "largest": differ[:MAX_REPORTED],
        "seconds": seconds,
    }


def open_models(gpt2: Path, folder: Path, threads: int) -> tuple[Checkpoint, HFLM]:
    """Set lm-eval and torch up, write a model, export it, and open that with lm-eval's hf backend."""
    silence_lm_eval()
    torch.set_num_threads(threads)
    checkpoint = write_checkpoint(gpt2, folder / "model")
    export_huggingface(checkpoint, folder / "hf")
    dtype = str(DTYPE).removeprefix("torch.")
    return checkpoint, HFLM(pretrained=str(folder / "hf"), device=DEVICE, dtype=dtype, batch_size=32 if GPU else 8)


def measure(  # noqa: PLR0917  (the command line)
    data: Path, gpt2: Path, documents: int = 2, threads: int = 1, shots: tuple[str, ...] = SHOTS, rounds: int = 3
) -> dict[str, Any]:
    """Compare at each of ``shots``."""
    result: dict[str, Any] = {"threads": threads, "clock": CLOCK.__name__, **({"gpu": gpu()} if GPU else {})}
    result["model"] = f"random, {LAYERS} layers of {HIDDEN:,}, vocabulary {VOCABULARY:,}, {DTYPE}"
    with tempfile.TemporaryDirectory() as name:
        checkpoint, hf = open_models(gpt2, Path(name), threads)
        result |= {f"{each} shots": whole(checkpoint, hf, data, documents, rounds, each) for each in shots}
        if GPU:
            result["fixed order"] = fixed_order(checkpoint, data, documents, rounds)
    return result


if __name__ == "__main__":
    run(measure, __doc__)
