"""Initial weights of a new run: a checkpoint, or a Hugging Face folder, read in place. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_model.checkpoint.manifest import parse_manifest, read_manifest_bytes, resolve_checkpoint
from mtnlg_model.convert.config_json import is_huggingface, read_family

if TYPE_CHECKING:
    from mtnlg_model.checkpoint.manifest import Progress
    from mtnlg_model.config import ModelConfig

VOCABULARY_MULTIPLE: Final = 128
"""Multiple to which a model from a Hugging Face folder has its vocabulary padded: any usual tp divides 128."""


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
