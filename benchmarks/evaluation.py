"""An evaluation's time against lm-eval's hf backend.

    python benchmarks/evaluation.py --data ROWS --gpt2 FOLDER [--documents 2] [--rounds 3] [--threads 1]
                                    [--part whole|texts|fixed_order …] [--shots 0|few …] [--family gpt2|llama]
                                    [--out FILE]

ROWS holds the tasks' published rows, FOLDER GPT-2's encoder.json and vocab.bpe. Prompts are the paper's, at no shots
and at GPT-3's K. Without ``--part`` and ``--shots`` all are measured; parts measured apart are added to FILE:

    whole        The work of a command (rows, prompts, scores, results): lm-eval's own with its hf backend over ours, on
                 the same weights, tasks, rows and threads, with ``--documents`` rows of every task, in alternating
                 order. Every answer is compared. Loading modules and models does not count.
    texts        Greedy texts of 32 tokens after ``--documents`` prompts of every task: hf over ours.
    fixed_order  On a GPU alone: time with sums in fixed order over the free order, and how many scores have other bits
                 in other batches, in both.

The model is random, exported for transformers: 6 layers of 384 in fp32, or on a GPU the
1.3B model's 24 of 2,048 in bf16; with ``--family llama`` of a Llama's parts, three heads of queries to one of keys.
Ratios are medians over rounds: of CPU time, on a GPU of time.
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
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from mtnlg_eval.evaluation import silence_lm_eval
from mtnlg_eval.results.folder import ResultFolder
from mtnlg_eval.scoring import decoder_lm
from mtnlg_eval.scoring.answer_store import AnswerStore
from mtnlg_eval.scoring.cells import TaskOptions
from mtnlg_eval.scoring.decoder_lm import TOKENS_PER_BATCH, DecoderLM
from mtnlg_eval.scoring.harness import Evaluation
from mtnlg_eval.scoring.open_model import open_model
from mtnlg_eval.tasks.paper_task import paper_task
from mtnlg_eval.tasks.published import TASKS_BY_NAME
from mtnlg_eval.tasks.shots import sample_rows
from mtnlg_model.checkpoint.manifest import Layout, Progress
from mtnlg_model.checkpoint.reader import Checkpoint, save
from mtnlg_model.config import ModelConfig
from mtnlg_model.console import progress
from mtnlg_model.convert.huggingface import export_huggingface
from mtnlg_model.decoder import Decoder
from mtnlg_model.families import PRESETS
from record import conditions, exact_ratio, gpu, option_parser, ratios, time_rounds, write_result

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Sequence
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
PARTS = ("whole", "texts", "fixed_order")
SHOTS = ("0", "few")


def model_config(layers: int, hidden: int, heads: int) -> ModelConfig:
    """A GPT-2 of these sizes."""
    return ModelConfig(layers=layers, hidden=hidden, heads=heads, sequence=2048, vocabulary=VOCABULARY)


def as_llama(config: ModelConfig) -> ModelConfig:
    """A Llama of the sizes of a GPT-2."""
    kinds = ("layers", "hidden", "heads", "head_size", "sequence", "vocabulary")
    sizes = {name: getattr(config, name) for name in kinds} | {"kv_heads": config.heads // 3 or 1}
    return PRESETS["llama-3.2-1b"].model_copy(update={**sizes, "ffn": 8 * config.hidden // 3})


def write_checkpoint(gpt2: Path, folder: Path, config: ModelConfig) -> Checkpoint:
    """Write a random model with GPT-2's tokenizer."""
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


def texts(checkpoint: Checkpoint, hf: HFLM, options: Namespace) -> dict[str, Any]:
    """Time of greedy texts, lm-eval's hf backend over ours, and how many are the same."""
    lm, requests = DecoderLM.open(checkpoint), list[Instance]()
    for name in TASKS_BY_NAME:
        task, rows = load(name, options.data, options.documents, lm, "0")
        task.build_all_requests(samples=rows)
        prompts = dict.fromkeys(instance.args[0][-2000:] for instance in task.instances)
        requests += [Instance("generate_until", {}, (text, {"max_gen_toks": 32}), 0) for text in prompts]
    given: dict[str, list[str]] = {}

    def run(side: str, model: TemplateLM) -> None:
        lm.store = AnswerStore("benchmark")
        given[side] = model.generate_until(requests)

    sides = {"mtnlg_eval": partial(run, "mtnlg_eval", lm), "hf": partial(run, "hf", hf)}
    seconds = time_rounds(sides, options.rounds, CLOCK)
    same = sum(own == their for own, their in zip(given["mtnlg_eval"], given["hf"], strict=True))
    about = {"texts": len(requests), "same": same, "seconds": seconds}
    return {**exact_ratio(ratios(seconds["hf"], seconds["mtnlg_eval"])), **about}


def whole(checkpoint: Checkpoint, hf: HFLM, options: Namespace, shots: str) -> dict[str, Any]:
    """Time of all tasks, lm-eval's own over ours, and the largest difference of their answers."""
    lm, data, documents = DecoderLM.open(checkpoint), options.data, options.documents
    model = open_model(checkpoint.directory)
    answers: dict[str, dict[tuple[str, str, int], tuple[float, bool]]] = {}

    def keep(side: str, task: str, samples: Iterable[dict[str, Any]]) -> None:
        answers.setdefault(side, {}).update(
            ((task, sample["doc"]["id"], n), (answer[0], bool(answer[1])))
            for sample in samples
            for n, answer in enumerate(sample["filtered_resps"])
        )

    def ours() -> None:
        lm.store = AnswerStore("benchmark")
        with tempfile.TemporaryDirectory() as out:
            Evaluation(list(TASKS_BY_NAME), [shots], TaskOptions(data, documents)).run(lm, model, Path(out), None)
            folder = ResultFolder(Path(out))
            for result in folder.results():
                lines = folder.samples(result).read_text(encoding="utf-8").splitlines()
                keep("mtnlg_eval", result.task, map(json.loads, lines))

    def theirs() -> None:
        for name in TASKS_BY_NAME:
            task, rows = load(name, data, documents, hf, shots)
            evaluated = evaluator.evaluate(hf, {"tasks": {name: task}}, samples={name: rows}, bootstrap_iters=0)
            keep("hf", name, evaluated["samples"][name])

    seconds = time_rounds({"mtnlg_eval": ours, "hf": theirs}, options.rounds, CLOCK)
    pairs = [(answers["mtnlg_eval"][key], answer) for key, answer in answers["hf"].items()]
    return {
        **exact_ratio(ratios(seconds["hf"], seconds["mtnlg_eval"])),
        "documents_a_task": documents,
        "requests": len(pairs),
        "largest_difference_nats": max(abs(own[0] - their[0]) for own, their in pairs),
        "same_greedy": all(own[1] == their[1] for own, their in pairs),
        "seconds": seconds,
    }


def fixed_order(checkpoint: Checkpoint, data: Path, documents: int, rounds: int) -> dict[str, Any]:
    """Cost of the fixed order of sums, and how many scores differ when order and size of the batches do."""
    lm = DecoderLM.open(checkpoint)
    requests: list[Request] = []
    for name in TASKS_BY_NAME:
        task, rows = load(name, data, documents, lm, "few")
        task.build_all_requests(samples=rows)
        requests += [request for instance in task.instances for request in lm._encode_request(instance)]  # noqa: SLF001
    requests = list(dict.fromkeys(requests))

    module, fixed = vars(decoder_lm), decoder_lm.__dict__["fixed_order"]

    def score(order: Order) -> None:
        module["fixed_order"], lm.store = order, AnswerStore("benchmark")
        lm.score(requests)

    def differing(order: Order) -> int:
        module["fixed_order"], scores = order, []
        for budget, part in ((TOKENS_PER_BATCH, requests), (TOKENS_PER_BATCH // 3, requests[::-1])):
            lm.store, lm.batch_tokens = AnswerStore("benchmark"), budget
            scores.append(dict(zip(part, lm.score(part), strict=True)))
        lm.batch_tokens = TOKENS_PER_BATCH
        return sum(scores[0][request] != scores[1][request] for request in requests)

    def free(_: torch.device) -> AbstractContextManager[None]:
        return nullcontext()

    seconds = time_rounds({"fixed": partial(score, fixed), "free": partial(score, free)}, rounds, time.perf_counter)
    differ = {"requests": len(requests), "differ_fixed": differing(fixed), "differ_free": differing(free)}
    module["fixed_order"] = fixed
    return {**exact_ratio(ratios(seconds["fixed"], seconds["free"])), **differ, "seconds": seconds}


def rounds(words: Sequence[str], count: int) -> Iterator[dict[str, Any]]:
    """Compare ``count`` times with lm-eval's hf backend, as `whole`, on one model: a result after each."""
    options = parse_options(words)
    with tempfile.TemporaryDirectory() as name:
        checkpoint = write_checkpoint(options.gpt2, Path(name) / "model", model_config(LAYERS, HIDDEN, HEADS))
        hf = open_hf(checkpoint, Path(name) / "hf")
        for _ in range(count):
            yield from (whole(checkpoint, hf, options, shots) for shots in options.shots or SHOTS)


def open_hf(checkpoint: Checkpoint, folder: Path) -> HFLM:
    """Export the model, and open it with lm-eval's hf backend."""
    with progress("export", len(checkpoint.names), "tensors") as advance:
        export_huggingface(checkpoint, folder, advance)
    dtype = str(DTYPE).removeprefix("torch.")
    return HFLM(pretrained=str(folder), device=DEVICE, dtype=dtype, batch_size=32 if GPU else 8)


def parse_options(words: Sequence[str] | None = None) -> Namespace:
    """Read the command line, and set lm-eval and torch up."""
    parser = option_parser(__doc__, rounds=3)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--gpt2", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--shots", choices=SHOTS, action="append")
    parser.add_argument("--family", choices=["gpt2", "llama"], default="gpt2", help="of the model that is compared")
    options = parser.parse_args(words)
    silence_lm_eval()
    torch.set_num_threads(options.threads)
    return options


def main() -> None:
    """Measure; print the result and write it to ``--out``."""
    options = parse_options()
    parts = options.part or PARTS
    result: dict[str, Any] = {
        **conditions("mtnlg-eval", "lm-eval", "torch", "transformers"),
        "threads": options.threads,
        **({"gpu": gpu()} if GPU else {}),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if parts:
            config = model_config(LAYERS, HIDDEN, HEADS)
            family, of_family = options.family, "" if options.family == "gpt2" else f", {options.family}"
            sizes = f"{LAYERS} layers of {HIDDEN:,}, vocabulary {VOCABULARY:,}, {DTYPE}"
            result[f"model{of_family}"] = f"random {family}, {sizes}"
            checkpoint = write_checkpoint(
                options.gpt2, folder / "model", as_llama(config) if family == "llama" else config
            )
        hf = open_hf(checkpoint, folder / "hf")
        result["clock"] = CLOCK.__name__
        if "texts" in parts:
            result[f"texts{of_family}"] = texts(checkpoint, hf, options)
        if "whole" in parts:
            for shots in options.shots or SHOTS:
                result[f"{shots} shots{of_family}"] = whole(checkpoint, hf, options, shots)
        if "fixed_order" in parts and GPU:
            result["fixed order"] = fixed_order(checkpoint, options.data, options.documents, options.rounds)
    earlier = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    write_result(earlier | result, options.out)


if __name__ == "__main__":
    main()
