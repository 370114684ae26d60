"""Hugging Face's files beside a tokenizer.json that say how a chat model's answers begin and end.

    chat_template.jinja       how a chat becomes a prompt, if tokenizer_config.json does not say it
    generation_config.json    eos_token_id: numbers of the tokens that end a text or an answer
    tokenizer_config.json     eos_token and bos_token, which end and begin texts; chat_template; transformers reads more

`import` copies them byte for byte, a run that starts from the checkpoint copies them to its own checkpoints, and
`export` writes them back. This module reads tokens and sampling settings; `chat` renders templates in a sandbox.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from pydantic import ConfigDict, Field

from mtnlg_model.files import read_small
from mtnlg_model.settings import Settings

from .manifest import CHAT_FILES, parse_json

if TYPE_CHECKING:
    import tokenizers

TEMPLATE, GENERATION, CONFIG = CHAT_FILES
MODEL: Final = "config.json"
MAX_BYTES: Final = 16 << 20

Number = Annotated[int, Field(ge=0, lt=1 << 31)]


class NamedTokens(NamedTuple):
    """Numbers of the tokens that begin texts, and that end texts or answers; tokenizer_config.json's come first."""

    begin: tuple[int, ...]
    end: tuple[int, ...]


class PartOfFile(Settings):
    """Fields of a file that has others, which are ignored."""

    model_config = ConfigDict(extra="ignore")


class _Token(PartOfFile):
    content: str


class _Tokens(PartOfFile):
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    eos_token_id: Number | tuple[Number, ...] | None = None


class _Sampling(PartOfFile):
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def sampling_defaults(folder: Path) -> dict[str, float]:
    """Sampling settings of the folder's generation_config.json, as fields of `Sampling`; no temperature if greedy.

    A missing setting has transformers' default, which differs from ours in one: top_k = 50. Raises ``Failure``.
    """
    sampling = parse_json(read_chat_files(folder).get(GENERATION, b"{}"), _Sampling, folder / GENERATION)
    settings: dict[str, float] = sampling.model_dump(exclude_none=True)
    if settings.pop("do_sample", False):
        settings = {"temperature": 1.0, "top_k": 50, **settings}
    else:
        settings = {name: value for name, value in settings.items() if name == "repetition_penalty"}
    return {name: value for name, value in settings.items() if value or name != "top_k"}


def read_chat_files(folder: Path) -> dict[str, bytes]:
    """Content of each of `CHAT_FILES` in the folder. Raises ``Failure`` for a link or a file above `MAX_BYTES`.

    A missing generation_config.json has the end tokens of config.json.
    """
    files = {
        name: read_small(own_file(folder, name), MAX_BYTES) for name in (*CHAT_FILES, MODEL) if (folder / name).exists()
    }
    with suppress(ValueError):  # which the reader of the model reports
        ends = _Tokens.model_validate_json(files.pop(MODEL, b"{}")).eos_token_id
        if ends is not None:
            files.setdefault(GENERATION, json.dumps({"eos_token_id": ends}).encode())
    return files


def named_tokens(folder: Path, tokenizer: tokenizers.Tokenizer) -> NamedTokens:
    """The tokens that the folder's files name; names and numbers that ``tokenizer`` lacks are ignored.

    Raises ``Failure`` for a malformed file.
    """
    files = read_chat_files(folder)
    config, generation = (parse_json(files.get(name, b"{}"), _Tokens, folder / name) for name in (CONFIG, GENERATION))
    names = [token.content if isinstance(token, _Token) else token for token in (config.bos_token, config.eos_token)]
    begin, end = ((number,) if (number := tokenizer.token_to_id(name or "")) is not None else () for name in names)
    end_tokens = generation.eos_token_id
    numbers = (end_tokens,) if isinstance(end_tokens, int) else end_tokens or ()
    return NamedTokens(begin, (*end, *(number for number in numbers if tokenizer.id_to_token(number) is not None)))


def own_file(folder: Path, name: str) -> Path:
    """Path of a file in the folder. Only links of Hugging Face's cache are resolved: others could lead to a secret.

    In the cache, snapshots/REVISION/FILE links to blobs/DIGEST of the same model. Callers open the path without
    following links.
    """
    path, place = folder / name, folder.resolve()
    if path.is_symlink() and place.parent.name == "snapshots":
        blob = Path(os.path.normpath(place / path.readlink()))
        if blob.parent == place.parent.parent / "blobs":
            return blob
    return path
