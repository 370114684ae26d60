"""Initial weights of a new run: a checkpoint, or a Hugging Face folder, read in place. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_data.transfer.urls import Url, location
from mtnlg_model.checkpoint.manifest import MANIFEST, latest, parse_manifest, read_manifest_bytes, resolve_checkpoint
from mtnlg_model.console import UsageFailure
from mtnlg_model.convert.config_json import is_huggingface, read_family

if TYPE_CHECKING:
    from mtnlg_model.checkpoint.manifest import Progress
    from mtnlg_model.config import ModelConfig

VOCABULARY_MULTIPLE: Final = 128
"""Multiple to which a model from a Hugging Face folder has its vocabulary padded: any usual tp divides 128."""


DOWNLOADED: Final = "initial"
"""Subfolder of a run's folder for the checkpoint that --from URL names."""


class Initial(NamedTuple):
    """Description of a folder of weights; for a Hugging Face folder ``manifest`` is empty and ``progress`` None."""

    folder: Path
    config: ModelConfig
    manifest: bytes = b""
    progress: Progress | None = None


def read_initial(place: Path | str, vocabulary_multiple: int = VOCABULARY_MULTIPLE) -> Initial:
    """Read the description of a checkpoint, of the newest in a folder of them, or of a Hugging Face folder.

    Pads a Hugging Face model's vocabulary to ``vocabulary_multiple``. Raises ``Failure`` if there is none of these.
    """
    folder = resolve_checkpoint(Path(place)).resolve()
    if is_huggingface(folder):
        return Initial(folder, read_family(folder, vocabulary_multiple)[1])
    raw = read_manifest_bytes(folder)
    manifest = parse_manifest(folder, raw)
    return Initial(folder, manifest.config, raw, manifest.progress)


def with_tokens(config: ModelConfig, tokens: int) -> ModelConfig:
    """A model whose vocabulary has at least ``tokens`` tokens: rows of padding become tokens, then rows are added."""
    if tokens <= config.tokens:
        return config
    vocabulary = max(config.vocabulary, tokens + -tokens % VOCABULARY_MULTIPLE)
    return config.model_copy(update={"vocabulary": vocabulary, "vocabulary_padding": vocabulary - tokens})


def initial_weights(source: Path | str, out: Path, resume: bool = True) -> str:
    """The recipe override that starts a new run from a step-N folder, its URL, or a Hugging Face folder.

    A folder of checkpoints is refused, since its newest one changes. A URL is downloaded into ``out``. Raises
    ``UsageFailure`` if there are no weights, unless the run will ``resume`` from checkpoints of its own in ``out``.
    """
    from .record.run_dir import CHECKPOINTS  # noqa: PLC0415  (which imports this module)

    resumes = resume and latest(out / CHECKPOINTS) is not None
    checkpoint = location(source)
    if isinstance(checkpoint, Url):
        from .training.copies import download  # noqa: PLC0415  (seldom needed)

        url, checkpoint = checkpoint, out / DOWNLOADED / checkpoint.name
        if not (resumes or checkpoint.exists()):
            download(url, checkpoint.parent)
    if not resumes and not (checkpoint / MANIFEST).is_file() and not is_huggingface(checkpoint):
        newest = resolve_checkpoint(checkpoint)
        hint = f"its newest is {newest}" if newest != checkpoint else "give a step-N folder, or one of Hugging Face's"
        raise UsageFailure(f"--from {checkpoint}: no checkpoint; {hint}")
    return f"train.initial={json.dumps(str(checkpoint.absolute()))}"
