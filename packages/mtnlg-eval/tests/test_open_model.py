"""Opening a checkpoint: a Hugging Face folder is imported once, however many processes come for it."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from mtnlg_eval.scoring import open_model
from mtnlg_eval.scoring.decoder_lm import LocalEngine
from mtnlg_eval.scoring.packing import Branch, Row, pack_rows
from mtnlg_model.console import progress
from mtnlg_model.convert.huggingface import export_huggingface, import_huggingface
from mtnlg_model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mtnlg_model.checkpoint.reader import Checkpoint
    from mtnlg_model.console import Advance


@pytest.fixture
def gpt2(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    with progress("export", 1) as advance:
        export_huggingface(checkpoint, tmp_path / "gpt2", advance)
    return tmp_path / "gpt2"


def test_an_import_holds_a_lock_that_other_ranks_wait_for(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported: list[Path] = []

    def import_under_lock(folder: Path, target: Path, advance: Advance) -> None:
        with (target.parent / f".{target.name}.lock").open("w") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        imported.append(target)
        import_huggingface(folder, target, advance)

    monkeypatch.setattr(open_model, "import_huggingface", import_under_lock)
    digests = [open_model.open_checkpoint(gpt2, tmp_path / "out").digest for _ in range(2)]
    assert len(imported) == len(set(digests)) == 1


def test_what_another_rank_imported_meanwhile_is_not_imported_again(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Path(open_model.open_checkpoint(gpt2, tmp_path / "other").directory)
    monkeypatch.setattr(fcntl, "flock", lambda *_: other.rename(tmp_path / "out" / other.name))
    monkeypatch.setattr(open_model, "import_huggingface", None)
    assert open_model.open_checkpoint(gpt2, tmp_path / "out").directory == tmp_path / "out" / other.name


def test_logits_of_bf16_weights_are_not_rounded(checkpoint: Checkpoint) -> None:
    """In bf16 logits of 8 bits many of 500 tokens tie; sums of products of bf16 numbers in fp32 hardly ever do."""
    decoder = checkpoint.decoder(torch.bfloat16)
    engine = LocalEngine(decoder, Tokenizer(checkpoint.tokenizer_path))
    answers = tuple((token,) for token in range(500))
    engine.submit(pack_rows([Row((1, 2, 3), (Branch((), answers),))]))
    logp_N, _ = engine.collect()
    assert len(set(logp_N.tolist())) > 495
