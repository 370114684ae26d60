"""Documents of two sources, tokenized: what the tests of tokens have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shards import write_shards
from tokenizers import Tokenizer

from mtnlg_data import Document, Local, run_step
from mtnlg_data.steps.tokenize import Tokenize, TokenizeSettings
from mtnlg_data.tokens.tokenizer import EOD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mtnlg_data.engine import Engine
    from mtnlg_data.summary import Summary

TRAIN = TokenizeSettings(vocabulary=400, validation=0.1)
WEIGHTS = {"web": 0.75, "code": 0.25}

texts = [f"The {n} quick brown foxes — naïve café {n * n} 日本\n\tdef f{n}(x): return x" for n in range(60)]


def corpus(folder: Path, shards: int = 3) -> dict[str, list[Path]]:
    """Two sources, with some awkward texts."""
    awkward = ["", " ", f"a{EOD}b", "\x00\x7f\u0301", "\U0001f600" * 20]
    return {
        source: write_shards(folder, [Document(f"{source}/{n}", source, text) for n, text in enumerate(own)], shards)
        for source, own in {"web": texts + awkward, "code": texts[:21]}.items()
    }


def tokenize(
    folder: Path, out: Path, settings: TokenizeSettings = TRAIN, weights: Mapping[str, float] = WEIGHTS, shards: int = 3
) -> Summary:
    return tokenize_shards(corpus(folder, shards), out, settings, weights, Local(1))


def tokenize_shards(
    shards: Mapping[str, Sequence[Path]],
    out: Path,
    settings: TokenizeSettings,
    weights: Mapping[str, float],
    engine: Engine,
) -> Summary:
    step = Tokenize(settings, {name: {"weight": weights[name]} for name in shards if name in weights})
    return run_step(step, [path for paths in shards.values() for path in paths], out, engine)


def plain(path: Path, text: str) -> list[int]:
    """The ids of ``tokenizers`` for a text, special tokens in it encoded as text."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return list(tokenizer.encode(text, add_special_tokens=False).ids)
