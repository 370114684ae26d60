"""The tokenizer: GPT-2's byte-level BPE, trained here or read from files, with an end-of-document token.

It is trained on a sample of the documents, drawn by hash(seed, id) from each source in proportion to its weight. The
sample has a bounded size for any corpus, and does not depend on the order of the shards.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003  (pydantic reads the annotation)
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
import pyarrow.parquet as pq
from pydantic import Field, PositiveInt, model_validator
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from mtnlg_data.console import Failure
from mtnlg_data.document import read_documents, read_rows
from mtnlg_data.engine import Unit
from mtnlg_data.files import sha256, write_text
from mtnlg_data.settings import Settings

from .encoder import Library, require_library

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Summary

EOD = "<|endoftext|>"
#: Names under which tokenizers have a special token for the end of a text; the first that is there ends documents.
EOD_NAMES = (EOD, "<|end_of_text|>", "</s>", "<eos>", "<EOS>", "[EOS]")
GPT2_FILES = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
MIN_VOCABULARY = 257  # 256 bytes and EOD


class TokenizeSettings(Settings):
    """Which tokenizer to use, and what share of each source is held out for validation."""

    kind: Literal["train", "gpt2", "file"] = "train"
    vocabulary: int | None = Field(None, ge=MIN_VOCABULARY, description="train: tokens, the end token included")
    path: Path | None = Field(None, description="gpt2: the folder of its two files; file: a tokenizer.json")
    seed: int = 1234
    validation: float = Field(0.02, ge=0, le=0.5, description="share of each source's documents")
    library: Library = Field("tokenizers", description="encoder; gigatoken, the extra [gigatoken], gives the same ids")
    eod: str | None = Field(None, min_length=1, description="token that ends documents; else the tokenizer's own")
    sample_bytes: PositiveInt = Field(100_000_000, description="train: text to train on, at most, about")

    @model_validator(mode="after")
    def _fit_the_kind(self) -> Self:
        if self.kind == "train" and (self.vocabulary is None or self.path is not None):
            raise ValueError('kind = "train" takes a vocabulary, such as 50257, and no path')
        if self.kind != "train" and (self.path is None or self.vocabulary is not None):
            raise ValueError(f'kind = "{self.kind}" takes a path, and no vocabulary: that is in the files')
        return self

    def check(self) -> None:
        """Raise ``Failure`` where a file of the tokenizer or the encoding library is missing."""
        tokenizer_files(self)
        require_library(self.library)


@dataclass(frozen=True)
class TokenizerUnit(Unit):
    """Unit: the settings, and the shards of all sources where a tokenizer is trained -> tokenizer.json."""

    settings: TokenizeSettings
    shards: dict[str, list[Shard]]
    weights: dict[str, float]
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        settings = self.settings
        if settings.vocabulary is None:
            return ("vocabulary", settings.kind, settings.eod, [sha256(file) for file in tokenizer_files(settings)])
        checksums = {source: [shard.checksum for shard in shards] for source, shards in self.shards.items()}
        training = (settings.vocabulary, settings.eod, settings.seed, settings.sample_bytes)
        return ("vocabulary", training, checksums, self.weights)


def write_tokenizer(unit: TokenizerUnit) -> Summary:
    """Train or read the tokenizer; returns its vocabulary size and the id of its end token."""
    settings = unit.settings
    if settings.vocabulary is None:
        tokenizer = read_tokenizer(tokenizer_files(settings), settings.eod)
    else:
        texts = sample_texts(unit.shards, unit.weights, settings.seed, settings.sample_bytes)
        tokenizer = train_tokenizer(texts, settings.vocabulary, settings.eod)
    write_text(unit.output, tokenizer.to_str(pretty=True))
    eod = tokenizer.token_to_id(_end_token(tokenizer, settings.eod))
    return {"vocabulary": vocabulary_size(tokenizer), "eod": eod}


def train_tokenizer(texts: Iterator[str], vocabulary: int, eod: str | None = None) -> Tokenizer:
    """Train a byte-level BPE with GPT-2's pre-tokenization and at most ``vocabulary`` tokens; deterministic."""
    tokenizer = _byte_level(BPE())
    alphabet = sorted(ByteLevel.alphabet())
    trainer = BpeTrainer(
        vocab_size=vocabulary - 1, min_frequency=2, initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _add_eod(tokenizer, eod)


def tokenizer_files(settings: TokenizeSettings) -> tuple[Path, ...]:
    """The files to read: GPT-2's vocabulary and merges, a tokenizer.json, or none where one is trained.

    Raises ``Failure`` where they are missing.
    """
    path = settings.path
    if path is None:
        return ()
    if settings.kind == "file":
        if path.is_file():
            return (path,)
        raise Failure(f"{path}: no such tokenizer.json")
    for vocabulary, merges in GPT2_FILES:
        if (path / vocabulary).is_file() and (path / merges).is_file():
            return path / vocabulary, path / merges
    raise Failure(f"{path}: holds neither {' nor '.join(' and '.join(names) for names in GPT2_FILES)}")


def read_tokenizer(files: Sequence[Path], eod: str | None = None) -> Tokenizer:
    """Read a tokenizer, and add an end token where it has none. Raises ``Failure`` where the files hold none."""
    try:
        if len(files) == 1:
            return _add_eod(Tokenizer.from_file(str(files[0])), eod)
        return _add_eod(_byte_level(BPE.from_file(*map(str, files))), eod)
    except Exception as error:  # noqa: BLE001  (tokenizers raises plain exceptions)
        raise Failure(f"{' and '.join(map(str, files))}: no tokenizer: {error}") from None


def _byte_level(model: BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer


def _add_eod(tokenizer: Tokenizer, eod: str | None) -> Tokenizer:
    """Make the end token special, with its id or else the next; turn truncation and padding off."""
    tokenizer.add_special_tokens([_end_token(tokenizer, eod)])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _end_token(tokenizer: Tokenizer, eod: str | None) -> str:
    """The token that ends documents: the one asked for, EOD if the vocabulary has it, or a special one of its own."""
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    own = [name for name in EOD_NAMES if name in special or (name == EOD and tokenizer.token_to_id(EOD) is not None)]
    return eod or next(iter(own), EOD)


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """The greatest token id plus one."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())


def document_key(seed: int, document_id: str) -> int:
    """hash(seed, id), 64 bits: samples the documents to train on, and shuffles all."""
    digest = hashlib.blake2b(document_id.encode(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "little")


def sample_texts(
    shards: Mapping[str, Sequence[Shard]], weights: Mapping[str, float], seed: int, sample_bytes: int
) -> Iterator[str]:
    """Texts to train on, source by source: about ``sample_bytes`` x weight from each, or all that it has."""
    total_weight = sum(weights[source] for source in shards)
    for source in sorted(shards):
        source_bytes = sum(sum(text_bytes(shard.path)) for shard in shards[source])
        share = weights[source] / total_weight * sample_bytes / max(1, source_bytes)
        limit = min(1 << 64, int(share * (1 << 64)))
        for shard in shards[source]:
            ids = (name for batch in read_documents(shard.path, ["id"]) for name in batch["id"].to_pylist())
            rows = [row for row, name in enumerate(ids) if document_key(seed, name) < limit]
            for _, batch in read_rows(shard.path, np.array(rows, np.int64), ["text"]):
                yield from batch["text"].to_pylist()


def text_bytes(path: Path) -> list[int]:
    """Bytes of text in each row group of a shard, read from its footer."""
    metadata = pq.read_metadata(path)
    column = metadata.schema.to_arrow_schema().get_field_index("text")
    groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
    return [group.column(column).total_uncompressed_size for group in groups]
