"""An evaluation's time: against lm-eval's hf backend, outside the model, and in a pipeline of 280 GPUs.

    python benchmarks/evaluation.py --data ROWS --gpt2 FOLDER [--documents 2] [--rounds 3] [--threads 1]
                                    [--part driver|whole|fixed_order …] [--shots 0|few …] [--family gpt2|llama]
                                    [--out FILE]

ROWS holds the tasks' published rows, FOLDER GPT-2's encoder.json and vocab.bpe. Prompts are the paper's, at no shots
and at GPT-3's K. Without ``--part`` and ``--shots`` all are measured; parts measured apart are added to FILE:

    driver       CPU seconds of a whole run with an engine that answers at once: prompts, tokens, batches, answers
                 stored, results and samples written. Seconds a row of ROWS times the rows of the published splits.
                 Examples are drawn from ROWS too: the texts of larger pools, each encoded once, are not counted.
                 ``pipeline`` has the share of the time in which a stage computes: 530B at tp 8 x pp 35 over those rows,
                 a stage taking 2 FLOPs a parameter and token at 40 % of an A100's 312 TFLOP/s. ``waves``: each task by
                 itself, 4 batches a stage, drained; ``rolling``: one line for all, with batches as large and as many
                 in flight as the sharded engine has them; ``rolling_with_driver``: none ready before the driver is.
    whole        The work of a command (rows, prompts, scores, results): lm-eval's own with its hf backend over ours, on
                 the same weights, tasks, rows and threads, with ``--documents`` rows of every task, in alternating
                 order. Every answer is compared. Loading modules and models does not count.
    fixed_order  On a GPU alone: time with sums in fixed order over the free order, and how many scores have other bits
                 in other batches, in both.

The model for `whole` and `fixed_order` is random, exported for transformers: 6 layers of 384 in fp32, or on a GPU the
1.3B model's 24 of 2,048 in bf16; with ``--family llama`` of a Llama's parts, three heads of queries to one of keys.
Ratios are medians over rounds: of CPU time, on a GPU of time.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-eval[parallel]", "torch==2.13.0", "transformers==5.23.0", "accelerate"]
# ///

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections import defaultdict, deque
from contextlib import nullcontext
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tokenizers
import torch
from lm_eval import evaluator
from lm_eval.models.huggingface import HFLM

from mtnlg_eval.evaluation import silence_lm_eval
from mtnlg_eval.results.folder import ResultFolder
from mtnlg_eval.scoring import decoder_lm
from mtnlg_eval.scoring.answer_store import AnswerStore
from mtnlg_eval.scoring.decoder_lm import TOKENS_PER_BATCH, DecoderLM
from mtnlg_eval.scoring.harness import FEW_SHOTS, Evaluation, load_task
from mtnlg_eval.scoring.packing import take_batch
from mtnlg_eval.sharded.coordinator import BATCHES_PER_STAGE, PIPELINE_SHARE
from mtnlg_eval.tasks.published import TASKS
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

    from mtnlg_eval.scoring.packing import Batch

VOCABULARY = 50_257
GPU = torch.cuda.is_available()
LAYERS, HIDDEN, HEADS = (24, 2048, 16) if GPU else (6, 384, 6)
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
CLOCK = time.perf_counter if GPU else time.process_time
PARTS = ("driver", "whole", "fixed_order")
SHOTS = ("0", "few")
STAGES, GPUS_A_STAGE, PARAMETERS, FLOPS = 35, 8, 530e9, 0.4 * 312e12
WAVE = 4 * STAGES


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


class PlannedRow(NamedTuple):
    """What `take_batch` needs to know of a row."""

    length: int


class Stub:
    """An engine that answers at once, and records the rows of its batches."""

    capacity, row_multiple, batch_share = 2, 32, 1

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self.rows: list[PlannedRow] = []

    def submit(self, batch: Batch) -> None:
        """Take a batch."""
        starts = [span.start for span in batch.spans if span.parent < 0]
        ends = [*starts[1:], batch.spans[-1].start + batch.spans[-1].length]
        self.rows += [PlannedRow(end - start) for start, end in zip(starts, ends, strict=True)]
        self._sizes.append(len(batch.scored))

    def collect(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Zeros."""
        n = self._sizes.popleft()
        return torch.zeros(n), torch.zeros(n, dtype=torch.bool)

    def finish(self) -> None:
        """Nothing is left to do."""

    def generate(self, batches: object) -> Iterator[list[list[int]]]:
        """Of no task here."""
        raise NotImplementedError


def drive(checkpoint: Checkpoint, data: Path, shots: str, rounds: int) -> dict[str, dict[str, Any]]:
    """Of each task its rows, the CPU seconds of a run in every round, and what was planned."""
    driven: defaultdict[str, dict[str, Any]] = defaultdict(lambda: {"seconds": []})
    for name in [task.name for task in TASKS] * rounds:
        with tempfile.TemporaryDirectory() as out:
            evaluation = Evaluation([name], [shots], data)
            lm = DecoderLM.open(checkpoint, Path(out) / "scores.sqlite")
            engine = lm.engine = Stub()
            started = time.process_time()
            evaluation.run(lm, checkpoint, Path(out), None)
            driven[name]["seconds"].append(time.process_time() - started)
            lm.store.close()
        driven[name] |= {"rows": len(evaluation.tasks[name].rows.scored), "planned": engine.rows}
    return driven


def driver(driven: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """CPU seconds of the published suite."""
    scale = {task.name: task.rows / driven[task.name]["rows"] for task in TASKS}
    totals = [
        sum(seconds * scale[name] for name, seconds in zip(driven, each, strict=True))
        for each in zip(*(about["seconds"] for about in driven.values()), strict=True)
    ]
    by_task = {name: round(statistics.median(about["seconds"]) * scale[name], 1) for name, about in driven.items()}
    return {
        "seconds": round(statistics.median(totals), 1),
        "seconds_least_most": [round(min(totals), 1), round(max(totals), 1)],
        "seconds_by_task": by_task,
        "rows_measured": sum(about["rows"] for about in driven.values()),
        "rows_published": sum(task.rows for task in TASKS),
    }


def pipeline(driven: dict[str, dict[str, Any]], driver_seconds: dict[str, float]) -> dict[str, Any]:
    """Efficiency of a pipeline with the published suite's rows."""
    second = 2 * PARAMETERS / STAGES / (GPUS_A_STAGE * FLOPS)  # of a stage, for a token
    suite: dict[str, list[PlannedRow]] = {}
    for task in TASKS:
        planned, scale = driven[task.name]["planned"], task.rows / driven[task.name]["rows"]
        suite[task.name] = [planned[n % len(planned)] for n in range(round(len(planned) * scale))]
    batches = batch_seconds(chain.from_iterable(suite.values()), TOKENS_PER_BATCH // PIPELINE_SHARE, second)
    waves = []
    for rows in suite.values():
        alone = batch_seconds(rows, TOKENS_PER_BATCH, second)
        waves += [alone[start : start + WAVE] for start in range(0, len(alone), WAVE)]
    work, window = sum(batches), BATCHES_PER_STAGE * STAGES
    # Each batch is ready when the driver has done the same share of its work.
    ready = [done / work * sum(driver_seconds.values()) for done in accumulate(batches)]
    return {
        "batches": len(batches),
        "forward_seconds": round(work),
        "waves": round(work / sum(makespan(wave, [0.0] * len(wave), WAVE) for wave in waves), 4),
        "rolling": round(work / makespan(batches, [0.0] * len(batches), window), 4),
        "rolling_with_driver": round(work / makespan(batches, ready, window), 4),
    }


def batch_seconds(rows: Iterable[PlannedRow], budget: int, second: float) -> list[float]:
    """Seconds that a stage takes for each batch of these rows."""
    line = deque(rows)
    batches = iter(partial(take_batch, line, budget), [])  # type: ignore[arg-type]  # rows of which only lengths matter
    return [second * sum(row.length for row in batch) for batch in batches]


def makespan(seconds: Sequence[float], ready: Sequence[float], window: int) -> float:
    """When the last stage ends, if each stage takes ``seconds[n]`` for batch n and ``window`` batches are in flight.

    Batch n starts once it is ``ready``, its stage is free, and batch n - window has left the last stage.
    """
    free, left = [0.0] * STAGES, list[float]()
    for n, (own, start) in enumerate(zip(seconds, ready, strict=True)):
        now = max(start, left[n - window] if n >= window else 0.0)
        for stage in range(STAGES):
            now = free[stage] = max(now, free[stage]) + own
        left.append(now)
    return left[-1]


def whole(checkpoint: Checkpoint, hf: HFLM, options: Namespace, shots: str) -> dict[str, Any]:
    """Time of all tasks, lm-eval's own over ours, and the largest difference of their answers."""
    lm, data, documents = DecoderLM.open(checkpoint), options.data, options.documents
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
            Evaluation(list(FEW_SHOTS), [shots], data, documents).run(lm, checkpoint, Path(out), None)
            folder = ResultFolder(Path(out))
            for result in folder.results():
                lines = folder.samples(result).read_text(encoding="utf-8").splitlines()
                keep("mtnlg_eval", result.task, map(json.loads, lines))

    def theirs() -> None:
        for name, few in FEW_SHOTS.items():
            task = load_task(name, data)
            task.take(documents)
            task.lm = hf
            task.set_shots(few if shots == "few" else 0)
            keep("hf", name, evaluator.evaluate(hf, {"tasks": {name: task}}, bootstrap_iters=0)["samples"][name])

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
    requests = []
    for name, few in FEW_SHOTS.items():
        task = load_task(name, data)
        task.take(documents)
        task.lm = lm
        task.set_shots(few)
        task.build_all_requests()
        requests += list(dict.fromkeys(lm.requests_of(task.instances)))

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
        if "driver" in parts:
            tiny = write_checkpoint(options.gpt2, folder / "tiny", model_config(1, 16, 1))
            for shots in options.shots or SHOTS:
                driven = drive(tiny, options.data, shots, options.rounds)
                seconds = driver(driven)
                result[f"driver, {shots} shots"] = seconds
                result[f"pipeline, {shots} shots"] = pipeline(driven, seconds["seconds_by_task"])
        if {"whole", "fixed_order"} & set(parts):
            config = model_config(LAYERS, HIDDEN, HEADS)
            family, of_family = options.family, "" if options.family == "gpt2" else f", {options.family}"
            sizes = f"{LAYERS} layers of {HIDDEN:,}, vocabulary {VOCABULARY:,}, {DTYPE}"
            result[f"model{of_family}"] = f"random {family}, {sizes}"
            checkpoint = write_checkpoint(
                options.gpt2, folder / "model", as_llama(config) if family == "llama" else config
            )
        if "whole" in parts:
            hf = open_hf(checkpoint, folder / "hf")
            result["clock"] = CLOCK.__name__
            for shots in options.shots or SHOTS:
                result[f"{shots} shots{of_family}"] = whole(checkpoint, hf, options, shots)
        if "fixed_order" in parts and GPU:
            result["fixed order"] = fixed_order(checkpoint, options.data, options.documents, options.rounds)
    earlier = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    write_result(earlier | result, options.out)


if __name__ == "__main__":
    main()
