"""Files beside a tokenizer.json that say how a chat model's answers begin and end, as Hugging Face's folders have them.

    chat_template.jinja       how a chat becomes a prompt, where tokenizer_config.json does not say it
    generation_config.json    eos_token_id: numbers of the tokens that end a text or an answer
    tokenizer_config.json     eos_token and bos_token, which end and begin texts; chat_template; transformers reads more

`import` keeps them byte for byte, a run that starts from the checkpoint carries them on, and `export` gives them back.
Those tokens and how answers are sampled are read here; `chat` renders templates, in a sandbox.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from pydantic import ConfigDict, Field

from mtnlg_model.files import read_small
from mtnlg_model.settings import Settings

from .manifest import CHAT_FILES, parse_json

if TYPE_CHECKING:
    import tokenizers

TEMPLATE, GENERATION, CONFIG = CHAT_FILES
MAX_BYTES: Final = 16 << 20

Number = Annotated[int, Field(ge=0, lt=1 << 31)]


class NamedTokens(NamedTuple):
    """Numbers of the tokens that begin texts, and that end texts or answers; tokenizer_config.json's come first."""

    begin: tuple[int, ...]
    end: tuple[int, ...]


class _Token(Settings):
    model_config = ConfigDict(extra="ignore")

    content: str


class _Tokens(Settings):
    model_config = ConfigDict(extra="ignore")

    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    eos_token_id: Number | tuple[Number, ...] | None = None


class _Sampling(Settings):
    model_config = ConfigDict(extra="ignore")

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def sampling_defaults(folder: Path) -> dict[str, float]:
    """How the folder's generation_config.json says that tokens are drawn, as settings of `Sampling`; {} if greedily.

    What it leaves out is transformers' default, of which one is not ours: the 50 likeliest tokens. Raises ``Failure``.
    """
    given = parse_json(read_chat_files(folder).get(GENERATION, b"{}"), _Sampling, folder / GENERATION)
    penalty = {"repetition_penalty": given.repetition_penalty}
    if given.do_sample:
        penalty |= {"temperature": 1.0 if given.temperature is None else given.temperature, "top_p": given.top_p}
        penalty |= {"top_k": (50 if given.top_k is None else given.top_k) or None, "min_p": given.min_p}
    return {name: value for name, value in penalty.items() if value is not None}


def read_chat_files(folder: Path) -> dict[str, bytes]:
    """Content of those of `CHAT_FILES` that the folder has. Raises ``Failure`` for a link, or more than `MAX_BYTES`."""
    return {name: read_small(own_file(folder, name), MAX_BYTES) for name in CHAT_FILES if (folder / name).exists()}


def named_tokens(folder: Path, tokenizer: tokenizers.Tokenizer) -> NamedTokens:
    """The tokens that the folder's files name; a name or number that ``tokenizer`` does not have means nothing.

    Raises ``Failure`` where a file is malformed.
    """
    files = read_chat_files(folder)
    config, generation = (parse_json(files.get(name, b"{}"), _Tokens, folder / name) for name in (CONFIG, GENERATION))
    names = [token.content if isinstance(token, _Token) else token for token in (config.bos_token, config.eos_token)]
    begin, end = ((number,) if (number := tokenizer.token_to_id(name or "")) is not None else () for name in names)
    given = generation.eos_token_id
    numbers = (given,) if isinstance(given, int) else given or ()
    return NamedTokens(begin, (*end, *(number for number in numbers if tokenizer.id_to_token(number) is not None)))


def own_file(folder: Path, name: str) -> Path:
    """A file of the folder; of links, whose target could be a secret, only those of Hugging Face's cache are followed.

    In it snapshots/REVISION/FILE is a link to blobs/DIGEST of the same model. Whoever opens the path follows no other.
    """
    path, place = folder / name, folder.resolve()
    if path.is_symlink() and place.parent.name == "snapshots":
        blob = Path(os.path.normpath(place / path.readlink()))
        if blob.parent == place.parent.parent / "blobs":
            return blob
    return path
