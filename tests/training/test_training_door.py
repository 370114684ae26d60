"""`mtnlg_parallel.train` with a token stream, callbacks and trackers of one's own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import mtnlg_parallel
from mtnlg_model import Tokenizer, UsageFailure
from training.reference_loop import recipe_of

SCRIPT = """
import json, sys
import numpy as np
import mtnlg_parallel

class Counting:
    seq_length, vocab_size, fingerprint = 8, 64, "counting"
    def __len__(self):
        return 1000
    def __getitem__(self, sample):
        return (np.arange(9) + sample).astype(np.int32) % 64

class Tracker:
    def __init__(self):
        self.steps = []
    def log(self, step, metrics):
        self.steps.append([step, metrics["loss"]])
    def close(self):
        pass

recipe, out, last = sys.argv[1:]
seen, tracker = [], Tracker()
def watch(step):
    seen.append([step["step"], step["loss"]])
    return step["step"] == int(last)

summary = mtnlg_parallel.train(recipe, Counting(), out, callbacks=[watch], trackers=[tracker])
if seen:
    print(json.dumps({"seen": seen, "tracked": tracker.steps, "steps": summary and summary["steps"]}))
"""


FAILING = """
import os, shutil, sys, threading
from pathlib import Path
import mtnlg_parallel
from mtnlg_model import Failure

recipe, data, out = map(Path, sys.argv[1:])

def train(callback):
    try:
        summary = mtnlg_parallel.train(recipe, data, out, callbacks=[callback])
        print(summary and summary["steps"])
    except Failure as failure:
        print(failure)
    print([thread.name for thread in threading.enumerate() if "_watch" in thread.name])

def fail(step):
    raise ValueError("mine")

train(fail)
train(lambda step: step["step"] == 2)
weights = out / "checkpoints" / "step-2" / "rank-0.weights-0.safetensors"
os.truncate(weights, 100)
train(fail)
shutil.rmtree(out)
train(lambda step: False)
"""


def test_a_process_can_train_again_after_a_failure(data: Path, tmp_path: Path) -> None:
    (tmp_path / "train.toml").write_text(_toml(recipe_of((1, 1, 1), samples=32, ramp=None)))
    words = [str(tmp_path / "train.toml"), str(data), str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", FAILING, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    mine, _, stopped, _, damaged, *rest = done.stdout.splitlines()
    assert "ValueError: mine" in mine
    assert stopped == "None"
    assert "100 bytes where manifest.json says" in damaged
    assert rest == ["[]", "4", "[]"]
    assert "Exception in thread" not in done.stderr


@pytest.mark.parametrize("ranks", [1, 2])
def test_custom_stream_callback_and_tracker(ranks: int, tmp_path: Path) -> None:
    """A callback stops the run at its step, with a checkpoint; the same call resumes it."""
    script = tmp_path / "own.py"
    script.write_text(SCRIPT)
    recipe = recipe_of((1, 1, ranks), samples=64, ramp=None, validation_every=0)
    (tmp_path / "train.toml").write_text(_toml(recipe))
    launcher = [sys.executable] if ranks == 1 else [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    answers = []
    for last in (3, 100):
        words = [str(tmp_path / "train.toml"), str(tmp_path / "out"), str(last)]
        done = subprocess.run([*launcher, str(script), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout.strip().splitlines()[-1]))
    stopped, rest = answers
    assert ([step for step, _ in stopped["seen"]], stopped["steps"]) == ([1, 2, 3], None)
    assert ([step for step, _ in rest["seen"]], rest["steps"]) == ([4, 5, 6, 7, 8], 8)
    assert stopped["tracked"] == stopped["seen"]
    tokenizer = Tokenizer(tmp_path / "out" / "checkpoints" / "step-3" / "tokenizer.json")
    assert (tokenizer.encode("3 14"), tokenizer.decode([3, 14]), tokenizer.eod) == ([3, 14], "3 14", 63)


def test_objects_of_this_process_need_this_process_to_be_a_rank(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match="torchrun --nproc-per-node 2"):
        mtnlg_parallel.train(recipe_of((1, 1, 2)), tmp_path, tmp_path / "out", callbacks=[lambda _step: None])


def _toml(recipe: mtnlg_parallel.Recipe) -> str:
    from mtnlg_model.settings import dump

    return dump(recipe)
