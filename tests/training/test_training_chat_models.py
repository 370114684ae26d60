"""What a chat model needs beside its weights goes on through training that starts from it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from mtnlg_model.checkpoint.manifest import CHAT_FILES, Layout, Progress
from mtnlg_model.checkpoint.reader import Checkpoint, save
from mtnlg_model.decoder import Decoder
from mtnlg_model.tokenizer import Tokenizer
from training.reference_loop import RunRanks, recipe_of

SHORT: dict[str, Any] = {"batch": 8, "ramp": None, "validation_every": 0, "checkpoint_every": 2}


def write_tokenizer(path: Path, *special: str) -> None:
    """A tokenizer of 64 tokens."""
    words = tokenizers.models.WordLevel({str(n): n for n in range(64 - len(special))}, unk_token="0")  # noqa: S106
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(path))


NAMES = ("<|endoftext|>", "<|im_end|>")
Runs = Callable[..., list[Any]]


@pytest.fixture
def runs(run_ranks: RunRanks, data: Path, tmp_path: Path) -> Runs:
    """``runs(samples, scenario)`` trains on from a chat model's weights, with data of ``NAMES`` in the order given."""
    data, start = shutil.copytree(data, tmp_path / "data"), tmp_path / "start"
    start.mkdir()
    write_tokenizer(start / "tokenizer.json", *NAMES)
    (start / "chat_template.jinja").write_text("{{ messages[0].content }}<|im_end|>")
    (start / "generation_config.json").write_text(json.dumps({"eos_token_id": [62, 63]}))
    progress = Progress(step=1, samples=8, tokens=64, loss=4.0, stream="", layout=Layout())
    step = save(Decoder(recipe_of().model), tmp_path / "weights", 1, progress, start / "tokenizer.json")

    def run(names: tuple[str, ...], samples: int, fails: bool = False, **train: object) -> list[Any]:
        write_tokenizer(data / "tokens" / "tokenizer.json", *names)
        keys: dict[str, Any] = {"samples": samples, "initial": str(step), **SHORT, **train}
        scenario = "run_until_death" if fails else "train"  # which does not prepare the run's folder
        return run_ranks(scenario, [recipe_of((1, 1, 2), **keys)], data=data, outs=[tmp_path / "out"], fails=fails)

    return run


def test_chat_files_are_carried_through_training(runs: Runs, tmp_path: Path) -> None:
    runs(NAMES, 16)
    shutil.rmtree(tmp_path / "weights")  # what comes next goes by the run's own
    runs(NAMES, 32)
    for number in (2, 4):
        checkpoint = Checkpoint.open(tmp_path / "out" / "checkpoints" / f"step-{number}")
        checkpoint.verify()
        assert Tokenizer(checkpoint.tokenizer_path).ends == {62, 63}
        assert [(checkpoint.directory / name).exists() for name in CHAT_FILES] == [True, True, False]
    errors = runs(NAMES[::-1], 48, fails=True, new_tokenizer=True)
    assert all("step-4: trained with another tokenizer" in error for error in errors)


def test_documents_end_as_in_their_data(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    data = shutil.copytree(data, tmp_path / "data")
    write_tokenizer(data / "tokens" / "tokenizer.json", "<|document|>")
    (data / "tokens" / "generation_config.json").write_text(json.dumps({"eos_token_id": 63}))  # as mtnlg-data does
    for samples in (16, 32):
        recipe = recipe_of((1, 1, 2), samples=samples, **SHORT)
        run_ranks("train", [recipe], data=data, outs=[tmp_path / "out"])
    newest = Checkpoint.open(tmp_path / "out" / "checkpoints" / "step-4")
    assert Tokenizer(newest.tokenizer_path).eod == 63
