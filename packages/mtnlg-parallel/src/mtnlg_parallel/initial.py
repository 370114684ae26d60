"""Weights that a new run starts from: a checkpoint, or a Hugging Face folder, read where it lies. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_model.checkpoint.manifest import parse_manifest, read_manifest_bytes, resolve_checkpoint
from mtnlg_model.convert.config_json import is_huggingface, read_family

if TYPE_CHECKING:
    from mtnlg_model.checkpoint.manifest import Progress
    from mtnlg_model.config import ModelConfig

VOCABULARY_MULTIPLE: Final = 128
"""Of the vocabulary of a recipe that takes its model from a Hugging Face folder: 128 divides by any usual tp."""


class Initial(NamedTuple):
    """What a folder says of its weights; of a Hugging Face folder ``manifest`` is empty and ``progress`` None."""

    folder: Path
    config: ModelConfig
    manifest: bytes = b""
    progress: Progress | None = None


def read_initial(place: Path | str, vocabulary_multiple: int = VOCABULARY_MULTIPLE) -> Initial:
    """Read a checkpoint, the newest in a folder of them, or a Hugging Face folder, its vocabulary padded to a multiple.

    Raises ``Failure`` where there is none of these.
    """
    folder = resolve_checkpoint(Path(place)).resolve()
    if is_huggingface(folder):
        return Initial(folder, read_family(folder, vocabulary_multiple)[1])
    raw = read_manifest_bytes(folder)
    manifest = parse_manifest(folder, raw)
    return Initial(folder, manifest.config, raw, manifest.progress)
