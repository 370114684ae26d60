"""Opening a model: read where it lies, verified, and known by what decides its answers."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest
import tokenizers
import torch

from mtnlg_eval.scoring.decoder_lm import LocalEngine
from mtnlg_eval.scoring.open_model import ModelOptions, choose_threads, open_lm, open_model
from mtnlg_eval.scoring.packing import Request, plan_rows
from mtnlg_model.checkpoint.manifest import CheckpointError
from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure, UsageFailure
from mtnlg_model.families import preset
from mtnlg_model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mtnlg_model.checkpoint.reader import Checkpoint

REQUESTS = [Request((1, 2, 3), (4, 5)), Request((7,), (8, 9, 10))]


@pytest.fixture(autouse=True)
def _memory_of_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_hugging_face_folder_is_read_where_it_lies(hf: Path, checkpoint: Checkpoint, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in hf.iterdir()}
    model = open_model(hf)
    assert model.record.name == "hf"
    lm, ours = open_lm(model, tmp_path / "out" / "scores.sqlite"), open_lm(open_model(checkpoint.directory))
    assert lm.score(REQUESTS) == ours.score(REQUESTS)
    assert {path: path.stat().st_mtime_ns for path in hf.iterdir()} == before
    assert {path.name for path in (tmp_path / "out").iterdir()} <= {
        f"scores.sqlite{end}" for end in ("", "-wal", "-shm")
    }


def test_identity_covers_weights_tokenizer_template_dtype(hf: Path, tmp_path: Path) -> None:
    def digest(folder: Path, **options: object) -> str:
        return open_model(folder, ModelOptions.parse(options)).record.digest

    others = {name: tmp_path / "others" / name / "hf" for name in ("same", "weights", "tokenizer", "template")}
    for folder in others.values():
        shutil.copytree(hf, folder)
    weights = others["weights"] / "model.safetensors"
    content, stat = bytearray(weights.read_bytes()), weights.stat()
    content[-9] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as in an archive that keeps times
    definition = json.loads((others["tokenizer"] / "tokenizer.json").read_text())
    definition["model"]["merges"] = definition["model"]["merges"][:-1]
    (others["tokenizer"] / "tokenizer.json").write_text(json.dumps(definition))
    (others["template"] / "chat_template.jinja").write_text("{{ messages[0].content }}")
    digests = {name: digest(folder) for name, folder in others.items()}
    digests |= {"dtype": digest(hf, dtype="bfloat16"), "context": digest(hf, max_length=64)}
    assert digests.pop("same") == digest(hf)
    assert len({*digests.values(), digest(hf)}) == 6


def test_damaged_weights_are_refused_and_checksums_remembered(
    write_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path / "checkpoints")
    open_model(folder)
    with monkeypatch.context() as patch:
        patch.setattr("mtnlg_model.checkpoint.reader.file_checksum", None)
        open_model(folder)  # nothing is read again
    weights = next(folder.glob("*weights*"))
    content = bytearray(weights.read_bytes())
    content[-400:-200] = bytes(200)
    weights.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"checksum differs from manifest\.json"):
        open_model(folder)


def test_a_model_of_the_hub_is_read_from_its_cache(hf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "hub" / "models--some--model"
    commit = "3de24cf8022eb3de24cf8022eb3de24cf8022eb3"
    shutil.copytree(hf, place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    model = open_model("some/model").record
    assert (model.name, model.checkpoint) == ("model", "some/model")
    pinned = open_model("some/model", ModelOptions(revision=commit))
    assert model.digest == pinned.record.digest == open_model(hf).record.digest
    with pytest.raises(Failure, match="some/other: neither a folder nor a model on the hub"):
        open_model("some/other")


def test_a_tokenizer_of_another_model_is_refused(hf: Path) -> None:
    larger = tokenizers.Tokenizer.from_file(str(hf / "tokenizer.json"))
    larger.add_tokens([f"word{n}" for n in range(13)])
    larger.save(str(hf / "tokenizer.json"))
    with pytest.raises(Failure, match="the tokenizer has 513 tokens, the model 512"):
        open_model(hf)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"peft": "some/adapter"}, "peft=some/adapter: adapters are not applied; merge it"),
        ({"dtype": "int3"}, "model arguments: dtype = 'int3': "),
        ({"max_length": 0}, "model arguments: max_length = 0: "),
        ({"parallelize": True}, "model arguments: parallelize = True: unknown key; valid keys: batch_tokens"),
        ({"enable_thinking": True}, "needs think_end_token"),
    ],
)
def test_a_wrong_model_argument_is_refused(words: dict[str, object], message: str) -> None:
    with pytest.raises(UsageFailure, match=message):
        ModelOptions.parse(words)


def test_an_adapter_is_refused_by_name(hf: Path) -> None:
    (hf / "adapter_config.json").write_text("{}")
    with pytest.raises(Failure, match=r"adapter_config\.json: an adapter: adapters are not applied"):
        open_model(hf)


def test_a_longer_context_than_the_models_is_refused(hf: Path) -> None:
    with pytest.raises(UsageFailure, match=r"max_length=257: .* reads at most 256 tokens"):
        open_model(hf, ModelOptions(max_length=257))


def test_small_products_use_one_thread_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    small = ModelConfig(layers=6, hidden=384, heads=6, sequence=64, vocabulary=512)
    choose_threads(small)
    assert threads == ([] if torch.cuda.is_available() else [1])
    choose_threads(preset("llama-3.2-1b"))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    choose_threads(small)
    assert len(threads) <= 1


def test_logits_of_bf16_weights_are_not_rounded(checkpoint: Checkpoint) -> None:
    """In bf16 logits of 8 bits many of 500 tokens tie; sums of products of bf16 numbers in fp32 hardly ever do."""
    engine = LocalEngine(checkpoint.decoder(torch.bfloat16), Tokenizer(checkpoint.tokenizer_path))
    requests = [Request((1, 2, 3), (token,)) for token in range(500)]
    (scores,) = engine.score([plan_rows(requests, 256)])
    assert len({logp for logp, _ in scores.values()}) > 495
