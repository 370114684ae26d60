"""A sharded model scores like the same model in one process, and generates the same texts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

from mtnlg_model.checkpoint.manifest import Layout, Progress
from mtnlg_model.checkpoint.reader import save
from mtnlg_model.config import ModelConfig
from mtnlg_model.decoder import Decoder
from mtnlg_parallel.conformance.cases import listed

ROWS = Path(__file__).parents[1] / "packages" / "mtnlg-eval" / "tests" / "rows"
EXACT = "tp=1,pp=2,dp=2"  # nothing is summed in another order
CLOSE = "tp=2,pp=2,dp=2"
NATS = 5e-5


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.train_from_iterator(
        [path.read_text(encoding="utf-8") for path in sorted(ROWS.rglob("*")) if path.is_file()],
        tokenizers.trainers.BpeTrainer(
            vocab_size=499, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        ),
    )
    made.add_special_tokens(["<|endoftext|>"])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def save_random(folder: Path, tokenizer: Path, **model: object) -> Path:
    """A checkpoint of random weights, large enough that its scores differ."""
    config = ModelConfig.model_validate({"hidden": 32, "heads": 4, "sequence": 192, "vocabulary": 512, **model})
    decoder = Decoder(config, seed=1)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(1.5)
    progress = Progress(step=1, samples=8, tokens=768, loss=6.0, stream="none", layout=Layout())
    return save(decoder, folder, 1, progress, tokenizer)


@pytest.fixture(scope="module")
def checkpoint(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random(tmp_path_factory.mktemp("model"), tokenizer, layers=3)


def command(
    *words: object, script: str = "from mtnlg_eval import cli; cli.main()", **variables: str
) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **variables}
    whole = [sys.executable, "-c", script, *map(str, words)]
    return subprocess.Popen(whole, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def path_with(folder: Path) -> str:
    return f"{folder}:{os.environ.get('PYTHONPATH', '')}"


def scored(checkpoint: Path, out: Path, *words: str) -> Path:
    run = ("run", checkpoint, "--data", ROWS, "--tasks", "hellaswag,lambada,hans", "--shots", "0,2", "--out", out)
    process = command(*run, *words)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    return out


@pytest.fixture(scope="module")
def whole(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scored(checkpoint, tmp_path_factory.mktemp("whole"))


def samples(out: Path) -> dict[str, list[dict[str, Any]]]:
    return {
        path.name: [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in sorted((out / "samples").iterdir())
    }


def results(out: Path) -> dict[str, Any]:
    """The content of results.json, without where the results come from."""
    content: dict[str, Any] = json.loads((out / "results.json").read_bytes())
    for score in content["scores"].values():
        assert score.pop("provenance")["layout"] in {EXACT, "one process"}
    return content


@pytest.mark.parametrize("layout", [EXACT, CLOSE])
def test_scores_are_those_of_one_process(layout: str, checkpoint: Path, whole: Path, tmp_path: Path) -> None:
    words = ("--layout", layout) + (("--batch-tokens", "300") if layout == EXACT else ())
    scores, expected = samples(scored(checkpoint, tmp_path, *words)), samples(whole)
    if layout == EXACT:
        assert scores == expected
        assert results(tmp_path) == results(whole)
        return
    assert list(scores) == list(expected)
    for name, lines in scores.items():
        for ours, theirs in zip(lines, expected[name], strict=True):
            assert ours["acc"] == theirs["acc"]
            for (logp, greedy), (expected_logp, expected_greedy) in zip(
                ours["filtered_resps"], theirs["filtered_resps"], strict=True
            ):
                assert logp == pytest.approx(expected_logp, abs=NATS)
                assert greedy == expected_greedy


WORK = """
import json, os
from lm_eval.api.instance import Instance
from mtnlg_eval.evaluation import model_on_ranks
from mtnlg_eval.scoring.open_model import ModelOptions, open_model

def kinds(temperature):
    drawn = {"do_sample": True, "temperature": temperature, "top_p": 0.9, "max_gen_toks": 4}
    return [{"until": ["a"], "max_gen_toks": 6}, drawn]

TEXTS = ["The mind is a vessel", "of water", " that is", " filled", " by a word", "\\n\\nQuestion: why"]

def work(checkpoints, layout, out, prompts, temperature=1.0, rounds=1, batch_tokens=8192):
    for n, checkpoint in enumerate(checkpoints):
        options = ModelOptions(layout=layout or None, batch_tokens=batch_tokens)
        arguments = dict(checkpoints=[checkpoint], layout=layout, out=f"{out}/{n}", prompts=prompts,
                         temperature=temperature, rounds=rounds, batch_tokens=batch_tokens)
        from pathlib import Path
        with model_on_ranks(open_model(checkpoint), options, Path(out) / str(n), "spmd:work", arguments) as lm:
            pairs = [Instance("loglikelihood", {}, (one, other), 0) for one in TEXTS for other in TEXTS]
            asked = [Instance("generate_until", {}, (f"{n} " + "word " * (n % 5), kinds(temperature)[n % 2]), n)
                     for n in range(prompts)]
            answers = []
            for _ in range(rounds):
                answers.append({"scores": lm.loglikelihood(pairs), "texts": lm.generate_until(asked)})
                pairs, asked = pairs[:5], asked[:40]
        if lm.rank == 0:
            print(json.dumps(answers[0]), flush=True)
"""


def answers(
    folder: Path, checkpoints: list[Path], layout: str, before: str = "", **options: object
) -> list[dict[str, Any]]:
    """What the leading rank has of each checkpoint; the function that all ranks call lies in ``folder``."""
    (folder / "spmd.py").write_text(before + WORK)
    arguments = {"checkpoints": [str(each) for each in checkpoints], "layout": layout, "out": str(folder / "out")}
    script = f"import sys; sys.path.insert(0, {str(folder)!r}); import spmd; spmd.work(**{arguments | options!r})"
    process = command(script=script, PYTHONPATH=path_with(folder))
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    return [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]


def test_texts_are_those_of_one_process(checkpoint: Path, tmp_path: Path) -> None:
    texts = {}
    for layout in ("", EXACT, "tp=2,pp=2,dp=1"):
        folder = tmp_path / (layout or "whole")
        folder.mkdir()
        texts[layout] = answers(folder, [checkpoint], layout, prompts=128)[0]["texts"]
    assert len(set(texts[""])) > 40
    assert texts[EXACT] == texts[""]
    assert texts["tp=2,pp=2,dp=1"][::2] == texts[""][::2]  # greedy


FILLED = """
import json, sys
from datetime import timedelta
from torch import distributed
from mtnlg_eval.evaluation import model_on_ranks
from mtnlg_eval.scoring.open_model import ModelOptions, open_model
from mtnlg_eval.scoring.packing import Request, plan_rows
from mtnlg_parallel.inference import DecoderShard

forward, begun, BATCHES = DecoderShard.forward, [], 60

def one_in_each_stage(self, *arguments):
    store, number, stages = distributed.distributed_c10d._get_default_store(), len(begun), self.layout.pp
    begun.append(number)
    if self.place.pp == 0:
        store.set(f"begun {self.place.tp} {number}", "")
    elif self.is_last:
        newest = min(number + stages, BATCHES) - 1
        store.wait([f"begun {self.place.tp} {newest}"], timedelta(seconds=30))
    return forward(self, *arguments)

def work(checkpoint, layout, out):
    DecoderShard.forward = one_in_each_stage
    arguments = dict(checkpoint=checkpoint, layout=layout, out=out)
    options = ModelOptions(layout=layout or None)
    from pathlib import Path
    with model_on_ranks(open_model(checkpoint), options, Path(out), "filled:work", arguments) as lm:
        batches = [plan_rows([Request((n, n % 7, 3), (4, n))], 192) for n in range(BATCHES)]
        scores = [logp for new in lm.engine.score(batches) for logp, _ in new.values()]
        if lm.rank == 0:
            print(json.dumps(scores))
"""
"""The last stage takes a batch once the first stage has begun as many as there are stages, or all that are left."""


@pytest.mark.parametrize("layout", ["tp=1,pp=4,dp=1", "tp=2,pp=2,dp=1"])
def test_every_stage_has_a_batch(layout: str, tokenizer: Path, tmp_path: Path) -> None:
    checkpoint, scores = save_random(tmp_path / "model", tokenizer, layers=4), []
    (tmp_path / "filled.py").write_text(FILLED)
    for each in ("", layout):
        words = (checkpoint, each, tmp_path / "out")
        process = command(
            *words, script="import filled, sys; filled.work(*sys.argv[1:])", PYTHONPATH=path_with(tmp_path)
        )
        stdout, stderr = process.communicate(timeout=300)
        assert process.returncode == 0, stderr
        scores.append(json.loads(stdout))
    whole, sharded = scores
    assert len(whole) == 60
    assert sharded == (whole if "tp=1" in layout else pytest.approx(whole, abs=NATS))


SIZES = {"layers": 2, "sequence": 192, "vocabulary": 640, "vocabulary_padding": 128}
CASES = "joined tp=2,pp=2,dp=1 {'recompute': 'selective'}"
FAMILIES = [case.recipe.model for case in listed() if CASES in case.name]


def test_other_families_match_one_process(tokenizer: Path, tmp_path: Path) -> None:
    """Those that an engine's conformance is checked with."""
    checkpoints = [
        save_random(tmp_path / f"model-{number}", tokenizer, **(model.model_dump(mode="json") | SIZES))
        for number, model in enumerate(FAMILIES)
    ]
    by_layout = []
    for layout in ("", "tp=2,pp=1,dp=1"):
        folder = tmp_path / (layout or "whole")
        folder.mkdir()
        by_layout.append(answers(folder, checkpoints, layout, prompts=8, temperature=9.0))
    for whole, sharded in zip(*by_layout, strict=True):
        assert len({logp for logp, _ in whole["scores"]}) == 36
        for ours, expected in zip(sharded["scores"], whole["scores"], strict=True):
            assert ours == [pytest.approx(expected[0], abs=NATS), expected[1]]
        assert sharded["texts"][::2] == whole["texts"][::2]  # greedy


RECORDER = """
import json, os, threading
from pathlib import Path
from torch import distributed
events, lock = [], threading.Lock()
def record(name):
    call = getattr(distributed, name)
    def recorded(tensor, *arguments, **options):
        group = options.get("group") or distributed.group.WORLD
        sent = arguments[0] if name == "all_gather" else tensor
        peer = arguments[0] if name in ("isend", "irecv", "recv") else None
        with lock:
            events.append((group.group_name, name, peer, str(sent.dtype), list(sent.shape)))
        return call(tensor, *arguments, **options)
    setattr(distributed, name, recorded)
for name in ("isend", "irecv", "recv", "broadcast", "all_reduce", "all_gather"):
    record(name)
leave = distributed.destroy_process_group
def write():
    (Path({folder!r}) / os.environ["RANK"]).write_text(json.dumps(events))
    leave()
distributed.destroy_process_group = write
"""
"""Records what a rank sends and receives, by process group."""

Event = tuple[str, str, int | None, str, list[int]]


@pytest.fixture(params=["tp=2,pp=2,dp=1", EXACT])
def events(request: pytest.FixtureRequest, checkpoint: Path, tmp_path: Path) -> dict[int, list[Event]]:
    """What each rank has sent and received, in order."""
    recorder = RECORDER.replace("{folder!r}", repr(str(tmp_path)))
    answers(tmp_path, [checkpoint], request.param, before=recorder, prompts=64, rounds=2, batch_tokens=60)
    return {int(path.name): json.loads(path.read_text()) for path in tmp_path.glob("[0-9]")}


def test_ranks_communicate_in_one_order(events: dict[int, list[Event]]) -> None:
    """NCCL runs what a rank does with a peer, or in a group, in the order of its calls: two orders would hang."""
    assert sorted(events) == [0, 1, 2, 3]
    messages_of: dict[tuple[str, int, int], dict[str, list[Any]]] = defaultdict(lambda: {"sent": [], "received": []})
    collectives: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for rank, of_rank in events.items():
        for group, name, peer, dtype, shape in of_rank:
            if peer is None:
                collectives[group, rank].append((name, shape))
            elif name == "isend":
                messages_of[group, rank, peer]["sent"].append((dtype, shape))
            else:
                messages_of[group, peer, rank]["received"].append((dtype, shape))
    assert messages_of
    for (group, sender, receiver), messages_between in messages_of.items():
        assert messages_between["sent"] == messages_between["received"]
        assert (group, receiver, sender) not in messages_of
    for group in {group for group, _ in collectives}:
        orders = [order for (of, _), order in collectives.items() if of == group]
        assert all(order == orders[0] for order in orders)


def test_more_ranks_than_a_machine_holds_are_not_started(checkpoint: Path, tmp_path: Path) -> None:
    script = "from mtnlg_eval.sharded import ranks; ranks.start_rank = None; from mtnlg_eval import cli; cli.main()"
    words = ("run", checkpoint, "--data", ROWS, "--tasks", "wic", "--out", tmp_path, "--layout", "dp=1000000")
    process = command(*words, script=script)
    _, stderr = process.communicate()
    assert process.returncode == 2
    assert "layout tp=1,pp=1,dp=1000000 needs 1,000,000 ranks and this machine" in stderr


def test_impossible_layout_is_refused_with_choices(checkpoint: Path, tmp_path: Path) -> None:
    process = command("run", checkpoint, "--data", ROWS, "--out", tmp_path, "--layout", "tp=3")
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 2
    assert "layout.tp = 3 does not divide model.heads = 4; use 1, 2 or 4" in stderr


HANGING = """
import torch
from mtnlg_eval import cli
from mtnlg_eval.sharded.engine import ShardedEngine
def wait(self, batches):
    print("asked", flush=True)
    torch.distributed.recv(torch.empty(1), 1)
ShardedEngine.score = wait
cli.main()
"""


@pytest.mark.parametrize("victim", ["other", "first"])
def test_ranks_end_together(victim: str, checkpoint: Path, tmp_path: Path) -> None:
    process = command(
        "run", checkpoint, "--data", ROWS, "--out", tmp_path, "--layout", "tp=2,pp=1,dp=1", script=HANGING
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"
    other = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
    os.kill(other if victim == "other" else process.pid, signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == (1 if victim == "other" else -signal.SIGKILL)
    if victim == "other":
        assert "rank 1 (tp 1, pp 0, dp 0) ended: killed by SIGKILL" in stderr
    deadline = time.monotonic() + 60
    while Path(f"/proc/{other}/stat").exists() and " Z " not in Path(f"/proc/{other}/stat").read_text():
        assert time.monotonic() < deadline
