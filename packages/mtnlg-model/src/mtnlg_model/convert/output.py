"""Output of conversions: a folder that appears only when complete, and a checkpoint written one tensor at a time."""

from __future__ import annotations

import fcntl
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from mtnlg_model.checkpoint.chat_files import read_chat_files
from mtnlg_model.checkpoint.manifest import TOKENIZER, Layout, Progress
from mtnlg_model.checkpoint.writer import CheckpointWriter, publish
from mtnlg_model.console import Failure
from mtnlg_model.files import open_to_update, sync_directory
from mtnlg_model.tokenizer import largest_token
from mtnlg_model.tokenizer_file import read_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from mtnlg_model.config import ModelConfig


MAX_LAYERS: Final = 10_000


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder; on success rename it to ``folder``, else remove it.

    Raises ``Failure`` if ``folder`` exists, or if another command is writing it.
    """
    exists = Failure(f"{folder}: exists already; remove it or name another")
    if folder.exists():
        raise exists
    partial = folder.with_name(f".{folder.name}.tmp")
    lock = partial.with_name(f"{partial.name}.lock")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open_to_update(lock) as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(f"{folder}: another command is writing it") from None
        try:
            if folder.exists():  # another command finished meanwhile
                raise exists
            shutil.rmtree(partial, ignore_errors=True)  # left by a killed command
            partial.mkdir()
            yield partial
            sync_directory(partial)
            partial.rename(folder)
            sync_directory(folder.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            lock.unlink()


def check_tokenizer(target: Path, config: ModelConfig, tokenizer: Path, folder: Path) -> None:
    """Raise ``Failure`` if the model in ``folder`` has no row for one of the tokenizer's tokens (`largest_token`)."""
    if (largest := largest_token(tokenizer, folder)) >= config.tokens:
        numbers = f"the tokenizer's highest id is {largest}, the model's {config.tokens - 1}"
        raise Failure(f"{target}: {numbers}: they do not belong together")


@contextmanager
def new_checkpoint(
    target: Path,
    config: ModelConfig,
    tokenizer: Path,
    folder: Path | None = None,
) -> Iterator[CheckpointWriter]:
    """Yield a writer for the checkpoint ``target``: weights only, without optimizer state and progress.

    `chat_files` are copied from ``folder``, by default the tokenizer's.

    Raises ``Failure`` if the tokenizer has a larger vocabulary than the model.
    """
    folder = folder or tokenizer.parent
    check_tokenizer(target, config, tokenizer, folder)
    # Read now, although needed last: by then, maybe hours later, the file may have been replaced.
    text, chat_files = read_tokenizer(tokenizer), read_chat_files(folder)
    with new_folder(target) as partial:
        (partial / TOKENIZER).write_text(text, encoding="utf-8")
        # backlog=0 bounds memory to a few tensors.
        writer = CheckpointWriter(partial, 0, "import", copy=False, backlog=0)
        yield writer
        writer.close()
        progress = Progress(step=0, samples=0, tokens=0, loss=0.0, stream="", layout=Layout())
        step = publish(partial, 0, ["import"], config, progress, partial / TOKENIZER, chat_files=chat_files)
        for path in step.iterdir():
            path.rename(partial / path.name)
        step.rmdir()


def require_file_size(config: ModelConfig, files: Iterable[Path]) -> None:
    """Raise ``Failure`` if these files are too small for the model, so a forged size allocates nothing.

    Sparse files can have any length, so the number of layers, and with it that of names, has its own limit.
    """
    files = list(files)
    size = sum(file.stat().st_size for file in files if file.is_file())
    place = files[0].parent if files else "no folder"
    parameters = config.unpadded.parameters
    if 2 * parameters > size:
        raise Failure(f"{place}: {size} bytes of weights for {parameters} parameters")
    if config.layers > MAX_LAYERS:
        raise Failure(f"{place}: {config.layers:,} layers, more than {MAX_LAYERS:,}")
