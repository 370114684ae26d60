"""A sharded model scores like the same model in one process, and generates the same texts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
import torch
from torch import distributed

from mtnlg_eval.scoring.packing import Branch, Row, pack_rows
from mtnlg_eval.sharded import messages
from mtnlg_eval.sharded.coordinator import Coordinator
from mtnlg_model.checkpoint.manifest import Layout, Progress
from mtnlg_model.checkpoint.reader import save
from mtnlg_model.config import ModelConfig
from mtnlg_model.decoder import Decoder
from mtnlg_parallel import layout as layouts

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


def command(*words: object, script: str = "from mtnlg_eval import cli; cli.main()") -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    whole = [sys.executable, "-c", script, *map(str, words)]
    return subprocess.Popen(whole, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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


GENERATED = """
import json, sys
from pathlib import Path
from lm_eval.api.instance import Instance
from mtnlg_eval.scoring.open_model import open_checkpoint, open_lm
checkpoint, layout = Path(sys.argv[1]), sys.argv[2] or None
led, at_once, most = 0, 0, 0
if layout:
    from mtnlg_eval.sharded.replica import Replica
    lead = Replica.lead
    def counted(*arguments):
        global led, at_once, most
        led, at_once = led + 1, at_once + 1
        most = max(most, at_once)
        new = lead(*arguments)
        at_once -= 1
        return new
    Replica.lead = counted
kinds = [{"until": ["a"], "max_gen_toks": 6}, {"do_sample": True, "temperature": 1.0, "top_p": 0.9, "max_gen_toks": 4}]
requests = [Instance("generate_until", {}, ("word " * (n % 5 + 1), kinds[n % 2]), n) for n in range(128)]
with open_lm(open_checkpoint(checkpoint, Path("nowhere")), Path(sys.argv[3]), layout) as lm:
    print(json.dumps({"texts": lm.generate_until(requests), "led": led, "at_once": most}))
"""


def generated(checkpoint: Path, out: Path, layout: str) -> dict[str, Any]:
    process = command(checkpoint, layout, out, script=GENERATED)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    answer: dict[str, Any] = json.loads(stdout)
    return answer


def test_texts_are_those_of_one_process_and_replicas_share_the_work(checkpoint: Path, tmp_path: Path) -> None:
    whole = generated(checkpoint, tmp_path / "whole", "")["texts"]
    assert len(set(whole)) > 40
    exact = generated(checkpoint, tmp_path / "exact", EXACT)
    assert exact["texts"] == whole
    assert exact["led"] == 128 / 16 / 2  # rank 0's replica has every other portion
    assert exact["at_once"] == 2  # one a stage
    close = generated(checkpoint, tmp_path / "close", "tp=2,pp=2,dp=1")
    assert close["texts"][::2] == whole[::2]  # greedy
    assert close["led"] == 128 / 16


ROTARY: dict[str, object] = {"positions": "rotary", "layers": 2, "dropout": 0.0, "attention_dropout": 0.0}
LLAMA = {**ROTARY, "norm": "rms", "mlp": "swiglu", "bias": False, "qkv_bias": False, "ffn": 48, "kv_heads": 2}
FAMILIES: dict[str, dict[str, object]] = {
    "llama": LLAMA,
    "qwen2-of-one-kv-head-and-padded": {
        **LLAMA,
        "qkv_bias": True,
        "kv_heads": 1,
        "tied": False,
        "vocabulary": 640,
        "vocabulary_padding": 128,
    },
    "pythia": {**ROTARY, "rotary_fraction": 0.25, "mlp": "gelu", "parallel_residual": True, "tied": False},
}
SCORED = """
import json, sys
from pathlib import Path
from lm_eval.api.instance import Instance
from mtnlg_eval.scoring.open_model import open_checkpoint, open_lm
texts = ["The mind is a vessel", "of water", " that is", " filled", " by a word", "\\n\\nQuestion: why"]
pairs = [(context, text) for context in texts for text in texts]
requests = [Instance("loglikelihood", {}, pair, n) for n, pair in enumerate(pairs)]
kinds = [{"until": ["a"], "max_gen_toks": 6}, {"do_sample": True, "temperature": 9.0, "max_gen_toks": 6}]
prompts = [Instance("generate_until", {}, ("word " * (n % 5 + 1), kinds[n % 2]), n) for n in range(8)]
out, *checkpoints = map(Path, sys.argv[1:])
for checkpoint in checkpoints:
    answers = []
    for layout in (None, "tp=2,pp=1,dp=1"):
        store = out / checkpoint.parent.name / str(layout)
        with open_lm(open_checkpoint(checkpoint, Path("nowhere")), store, layout) as lm:
            answers.append({"scores": lm.loglikelihood(requests), "texts": lm.generate_until(prompts)})
    print(json.dumps(answers))
"""


def test_other_families_score_and_generate_over_ranks_as_in_one_process(tokenizer: Path, tmp_path: Path) -> None:
    checkpoints = [save_random(tmp_path / name, tokenizer, **model) for name, model in FAMILIES.items()]
    process = command(tmp_path / "out", *checkpoints, script=SCORED)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    for line in stdout.splitlines()[-len(FAMILIES) :]:
        whole, sharded = json.loads(line)
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
for name in ("isend", "irecv", "recv", "broadcast", "all_reduce", "all_gather", "reduce"):
    record(name)
leave = distributed.destroy_process_group
def write():
    (Path({folder!r}) / os.environ["RANK"]).write_text(json.dumps(events))
    leave()
distributed.destroy_process_group = write
"""
"""Records what a rank sends and receives, by process group."""

TRAFFIC = """
import sys
from lm_eval.api.instance import Instance
from mtnlg_eval.scoring.open_model import open_checkpoint, open_lm
from mtnlg_eval.sharded import ranks
ranks.SERVE = sys.argv[4] + ranks.SERVE
texts = ["The mind is a vessel", "of water", " that is", " filled", " by a word", "\\n\\nQuestion: why"]
requests = [Instance("loglikelihood", {}, (one, other), 0) for one in texts for other in texts]
prompts = [Instance("generate_until", {}, ("word " * (n % 5 + 1), {"max_gen_toks": 4}), n) for n in range(64)]
with open_lm(open_checkpoint(Path(sys.argv[1]), Path("nowhere")), Path(sys.argv[2]), sys.argv[3]) as lm:
    lm.batch_tokens = 60
    for _ in range(2):
        lm.loglikelihood(requests)
        lm.generate_until(prompts)
        requests, prompts = requests[:5], prompts[:40]
"""

Event = tuple[str, str, int | None, str, list[int]]


@pytest.fixture(params=["tp=2,pp=2,dp=1", EXACT])
def events(request: pytest.FixtureRequest, checkpoint: Path, tmp_path: Path) -> dict[int, list[Event]]:
    """What each rank has sent and received, in order."""
    recorder = RECORDER.replace("{folder!r}", repr(str(tmp_path)))
    words = (checkpoint, tmp_path / "out", request.param, recorder)
    process = command(*words, script=recorder + TRAFFIC)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    return {int(path.name): json.loads(path.read_text()) for path in tmp_path.glob("[0-9]")}


def test_ranks_send_and_receive_in_one_order_and_never_both_ways_in_a_group(events: dict[int, list[Event]]) -> None:
    """NCCL runs what a rank does with a peer, or in a group, in the order of its calls: two orders would hang.

    Numbers that a host reads have a group of their own, which is not NCCL's.
    """
    assert sorted(events) == [0, 1, 2, 3]
    messages_of: dict[tuple[str, int, int], dict[str, list[Any]]] = defaultdict(lambda: {"sent": [], "received": []})
    collectives: dict[tuple[str, int], list[Any]] = defaultdict(list)
    numbers = {
        group
        for of_rank in events.values()
        for group, _, peer, dtype, _ in of_rank
        if peer is not None and dtype == "torch.int64"
    }
    others = {group for of_rank in events.values() for group, _, _, dtype, _ in of_rank if dtype != "torch.int64"}
    for rank, of_rank in events.items():
        for group, name, peer, dtype, shape in of_rank:
            if peer is None:
                collectives[group, rank].append((name, shape))
            elif name == "isend":
                messages_of[group, rank, peer]["sent"].append((dtype, shape))
            else:
                messages_of[group, peer, rank]["received"].append((dtype, shape))
    assert len(numbers) == 1
    assert not numbers & others
    for (group, sender, receiver), messages_between in messages_of.items():
        assert messages_between["sent"] == messages_between["received"]
        assert group in numbers or (group, receiver, sender) not in messages_of
    for group in {group for group, _ in collectives} - numbers:
        orders = [order for (of, _), order in collectives.items() if of == group]
        assert all(order == orders[0] for order in orders)


def test_more_ranks_than_a_machine_holds_are_not_started(checkpoint: Path, tmp_path: Path) -> None:
    script = "from mtnlg_eval.sharded import ranks; ranks.start_rank = None; from mtnlg_eval import cli; cli.main()"
    words = ("run", checkpoint, "--data", ROWS, "--tasks", "wic", "--out", tmp_path, "--layout", "dp=1000000")
    process = command(*words, script=script)
    _, stderr = process.communicate()
    assert process.returncode == 2
    assert "layout tp=1,pp=1,dp=1000000 needs 1,000,000 ranks and this machine" in stderr


def test_a_layout_that_cannot_be_is_refused_with_the_valid_choices(checkpoint: Path, tmp_path: Path) -> None:
    process = command("run", checkpoint, "--data", ROWS, "--out", tmp_path, "--layout", "tp=3")
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 2
    assert "layout.tp = 3 does not divide model.heads = 4; use 1, 2 or 4" in stderr


HANGING = """
import torch
from mtnlg_eval import cli
from mtnlg_eval.sharded.coordinator import Coordinator
def wait(self, batch):
    print("asked", flush=True)
    torch.distributed.recv(torch.empty(1), 1)
Coordinator.submit = wait
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


def test_a_batch_goes_to_the_replica_with_the_fewest_tokens_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(messages, "broadcast_command", lambda *_: None)
    monkeypatch.setattr(distributed, "irecv", lambda *_, group: group)
    monkeypatch.setattr(Coordinator, "_give", lambda _, dp, *__: given.append(dp))
    coordinator = Coordinator.__new__(Coordinator)
    layout = layouts.Layout(tp=1, pp=2, dp=3)
    coordinator.shard = SimpleNamespace(layout=layout, device=torch.device("cpu"))  # type: ignore[assignment]
    coordinator.channels = messages.Channels(None, None)  # type: ignore[arg-type]
    coordinator._series, coordinator._in_flight, coordinator._tokens_by_replica = False, deque(), [0, 0, 0]
    for size in (50, 20, 10, 10, 10, 10):
        row = Row(tuple(range(size)), (Branch((), ((1,),)),))
        coordinator.submit(pack_rows([row]))
    assert given == [2, 1, 0, 0, 1, 0]  # rank 0's own replica is the last to choose
    coordinator.collect()  # the first to come back is the first that was sent
    assert coordinator._tokens_by_replica == [30, 30, 0]
    coordinator.submit(pack_rows([row]))
    assert given[-1] == 2
