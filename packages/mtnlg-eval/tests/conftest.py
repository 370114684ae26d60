"""Shared fixtures: rows of our own, a small random model with its tokenizer, and a model that counts words."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
import torch
from hypothesis import settings
from lm_eval.api.model import TemplateLM

from mtnlg_eval import cli
from mtnlg_eval.tasks.paper_task import PAPER, SEED, PaperTask, paper_task
from mtnlg_eval.tasks.shots import ANY_SHOT
from mtnlg_model.checkpoint.manifest import Layout, Progress
from mtnlg_model.checkpoint.reader import Checkpoint, save
from mtnlg_model.config import ModelConfig
from mtnlg_model.convert.huggingface import export_huggingface
from mtnlg_model.decoder import Decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from mtnlg_eval.tasks.shots import ShotChoice

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(1)  # for small products threads cost more than they gain

# No deadline: machines differ, and the first example includes imports.
settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")

ROWS = Path(__file__).parent / "rows"
SEQUENCE = 256


class Counter(TemplateLM):  # type: ignore[misc]  # lm-eval carries no types
    """Tokenizes by words and scores a continuation by its length."""

    eot_token_id = 0
    loglikelihood_rolling = generate_until = None

    def __init__(self, max_length: int = 1_000_000) -> None:
        super().__init__()
        self.max_length = max_length

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[str]:
        del add_special_tokens
        return string.split(" ")

    def _loglikelihood_tokens(self, requests: list[Any], **_: object) -> list[tuple[float, bool]]:
        return [(-float(len(answer)), False) for _, _, answer in requests]


@pytest.fixture
def counter() -> type[Counter]:
    """A model that counts words."""
    return Counter


@pytest.fixture(name="load_task")
def load_any_task() -> Callable[..., Any]:
    """Loads a task over our rows, or those of another folder, with shots in its prompts for a model."""

    def load(  # noqa: PLR0917
        name: str,
        shots: int = 0,
        data: Path = ROWS,
        style: str = PAPER,
        lm: TemplateLM | None = None,
        choice: ShotChoice = ANY_SHOT,
        seed: int = SEED,
    ) -> PaperTask:
        return paper_task(name, data, style).with_shots(lm or Counter(), shots, choice, seed)

    return load


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command in this process; returns its exit status."""

    def command(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["mtnlg-eval", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    return command


def texts() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted(ROWS.rglob("*")) if path.is_file()]


@pytest.fixture(scope="session")
def made() -> Iterator[ModuleType]:
    """``whole_run.py``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        yield importlib.import_module("whole_run")


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE of 500 tokens, trained on our rows; the last is <|endoftext|>."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        texts(), tokenizers.trainers.BpeTrainer(vocab_size=499, initial_alphabet=alphabet, show_progress=False)
    )
    bpe.add_special_tokens(["<|endoftext|>"])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    bpe.save(str(path))
    return path


@pytest.fixture(scope="session")
def write_checkpoint(tokenizer: Path) -> Callable[..., Path]:
    """Writes a random decoder into a folder of checkpoints."""

    def write(folder: Path, seed: int = 1, step: int = 1) -> Path:
        return save_random_decoder(folder, tokenizer, seed, step)

    return write


def save_random_decoder(folder: Path, tokenizer: Path, seed: int, step: int) -> Path:
    """Save a random decoder with weights large enough that its scores differ; the vocabulary is padded to 512."""
    config = ModelConfig(layers=2, hidden=32, heads=4, sequence=SEQUENCE, vocabulary=512)
    decoder = Decoder(config, seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(1.5)
    progress = Progress(step=step, samples=8, tokens=768, loss=6.0, stream="none", layout=Layout())
    return save(decoder, folder, step, progress, tokenizer)


@pytest.fixture
def hf(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    """The model as a Hugging Face folder."""
    export_huggingface(checkpoint, tmp_path / "hf")
    return tmp_path / "hf"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, write_checkpoint: Callable[..., Path]) -> Checkpoint:
    return Checkpoint.open(write_checkpoint(tmp_path_factory.mktemp("checkpoints")))
