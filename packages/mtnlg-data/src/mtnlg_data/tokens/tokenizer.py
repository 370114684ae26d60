"""The tokenizer: byte-level BPE as GPT-2's, trained here or read from files; one of its tokens ends a document.

What a trained one sees is a sample of the documents, drawn by hash(seed, id), of each source in proportion to its
weight: bounded for any corpus, and the same for any order of shards.
"""

from __future__ import annotations

import hashlib
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
from mtnlg_data.document import read_documents, rows_of
from mtnlg_data.settings import Settings

from .encoder import Library, require

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mtnlg_data.document import Shard

EOD = "<|endoftext|>"
GPT2_FILES = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
SMALLEST = 257  # the bytes and the end of a document


class TokenizeSettings(Settings):
    """Which tokenizer, and what of each source is held out for validation."""

    kind: Literal["train", "gpt2", "file"] = "train"
    vocabulary: int | None = Field(None, ge=SMALLEST, description="tokens of a trained one, the end token among them")
    path: Path | None = Field(None, description="gpt2: the folder of its two files; file: a tokenizer.json")
    seed: int = 1234
    validation: float = Field(0.02, ge=0, le=0.5, description="share of each source's documents")
    library: Library = Field("tokenizers", description="what encodes; gigatoken is the extra [gigatoken], same ids")
    sample_bytes: PositiveInt = Field(100_000_000, description="of text that a trained one sees, at most, about")

    @model_validator(mode="after")
    def _fit_the_kind(self) -> Self:
        if self.kind == "train" and (self.vocabulary is None or self.path is not None):
            raise ValueError('kind = "train" takes a vocabulary, such as 50257, and no path')
        if self.kind != "train" and (self.path is None or self.vocabulary is not None):
            raise ValueError(f'kind = "{self.kind}" takes a path, and no vocabulary: that is in the files')
        return self

    def check(self) -> None:
        """Look for what these settings name. Raises ``Failure`` where a file or the library is not there."""
        files_of(self)
        require(self.library)


def trained(texts: Iterator[str], vocabulary: int) -> Tokenizer:
    """A byte-level BPE with GPT-2's pre-tokenisation, at most ``vocabulary`` tokens; the same for the same texts."""
    tokenizer = _byte_level(BPE())
    alphabet = sorted(ByteLevel.alphabet())
    trainer = BpeTrainer(
        vocab_size=vocabulary - 1, min_frequency=2, initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _ended(tokenizer)


def files_of(settings: TokenizeSettings) -> tuple[Path, ...]:
    """What the tokenizer is read from: GPT-2's vocabulary and merges, a tokenizer.json, or nothing to train one."""
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


def read(files: Sequence[Path]) -> Tokenizer:
    """The tokenizer of these files, with an end-of-document token added where it has none."""
    try:
        if len(files) == 1:
            return _ended(Tokenizer.from_file(str(files[0])))
        return _ended(_byte_level(BPE.from_file(*map(str, files))))
    except Exception as error:  # noqa: BLE001  (tokenizers raises plain exceptions)
        raise Failure(f"{' and '.join(map(str, files))}: no tokenizer: {error}") from None


def _byte_level(model: BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer


def _ended(tokenizer: Tokenizer) -> Tokenizer:
    """Make EOD a special token, wherever it stands or else the last; nothing is cut or padded."""
    tokenizer.add_special_tokens([EOD])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def size_of(tokenizer: Tokenizer) -> int:
    """One more than the greatest token id."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())


def keyed(seed: int, name: str) -> int:
    """64 bits that depend on seed and document id alone: by these documents are drawn and shuffled."""
    digest = hashlib.blake2b(name.encode(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "little")


def sample(
    shards: Mapping[str, Sequence[Shard]], weights: Mapping[str, float], seed: int, sample_bytes: int
) -> Iterator[str]:
    """Texts to train on: of each source its weight's share of ``sample_bytes``, or all, source by source."""
    whole = sum(weights[source] for source in shards)
    for source in sorted(shards):
        held = sum(sum(text_bytes(shard.path)) for shard in shards[source])
        share = weights[source] / whole * sample_bytes / max(1, held)
        limit = min(1 << 64, int(share * (1 << 64)))
        for shard in shards[source]:
            ids = (name for batch in read_documents(shard.path, ["id"]) for name in batch["id"].to_pylist())
            chosen = [row for row, name in enumerate(ids) if keyed(seed, name) < limit]
            for _, table in rows_of(shard.path, np.array(chosen, np.int64), ["text"]):
                yield from table["text"].to_pylist()


def text_bytes(path: Path) -> list[int]:
    """Bytes of text in each row group of a shard, by its footer."""
    metadata = pq.read_metadata(path)
    column = metadata.schema.to_arrow_schema().get_field_index("text")
    groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
    return [group.column(column).total_uncompressed_size for group in groups]
