"""Shared fixtures: a decoder beside the same GPT-2 of transformers, a tokenizer, a checkpoint."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from mtnlg_model.checkpoint.manifest import Layout, Progress
from mtnlg_model.checkpoint.reader import save
from mtnlg_model.config import ModelConfig
from mtnlg_model.decoder import Decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


sys.path.insert(0, str(Path(__file__).parent))  # for what test modules share

# One thread, so that tests that fork have no thread pool to lose and machines with many cores compute the same.
torch.set_num_threads(1)

# No deadline: machines differ, and the first example includes imports.
settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")
# MUTATIONS=20000 pytest -k test_any_ tries as many of each kind.
settings.register_profile(
    "mutations",
    max_examples=int(os.environ.get("MUTATIONS", "128")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def biased() -> Callable[[ModelConfig], Decoder]:
    """A decoder in evaluation mode, its biases and norms random too."""

    def build(config: ModelConfig) -> Decoder:
        decoder = Decoder(config, seed=3).eval()
        generator = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for parameter in decoder.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
        return decoder

    return build


@pytest.fixture
def malice(tmp_path: Path) -> object:
    """An object whose pickle, when loaded, makes the folder ``ran``."""

    class Malice:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    return Malice()


@pytest.fixture
def no_gigabytes() -> Iterator[None]:
    """Limit memory to one more gigabyte of addresses, so an allocation of a forged size raises MemoryError."""
    statistics = Path("/proc/self/statm")
    if not statistics.exists():
        pytest.skip("needs /proc to know how much memory is in use")
    used = int(statistics.read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE of 300 tokens, the last of them <|endoftext|>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=299, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog, and the dog over the fox"], trainer)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    path: Path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
def checkpoint_path(tmp_path: Path, tokenizer_path: Path) -> Path:
    """A checkpoint of a small decoder with a vocabulary padded beyond the tokenizer's."""
    config = ModelConfig(layers=2, hidden=32, heads=4, sequence=48, vocabulary=320, init_std=0.1)
    progress = Progress(step=5, samples=10, tokens=480, loss=3.25, stream="f00d", layout=Layout(tp=2))
    return save(Decoder(config), tmp_path / "checkpoints", 5, progress, tokenizer_path)
