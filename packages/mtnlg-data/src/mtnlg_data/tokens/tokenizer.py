"""The tokenizer: GPT-2's byte-level BPE, trained here or read from files, with an end-of-document token.

It is trained on a sample of the documents, drawn by hash(seed, key) from each source in proportion to its weight. The
sample has a bounded size for any corpus, and does not depend on the order of the shards.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from mtnlg_data.console import Failure, foreign_data, say
from mtnlg_data.document import read_documents, read_rows
from mtnlg_data.files import atomic_path, read_small, write_json, write_text
from mtnlg_data.fingerprint import File
from mtnlg_data.text.hashing import salted_hashes
from mtnlg_data.transfer.url_files import local_path
from mtnlg_data.transfer.urls import location

from . import tokenizer_file
from .gpt2 import GPT2, fetch_gpt2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from mtnlg_data.document import Shard
    from mtnlg_data.job import Done
    from mtnlg_data.steps.tokenize import TokenizeSettings
    from mtnlg_data.summary import Summary

EOD = "<|endoftext|>"
#: Names of tokenizers' special tokens for the end of a text; the first name that is present ends documents.
EOD_NAMES = (EOD, "<|end_of_text|>", "</s>", "<eos>", "<EOS>", "[EOS]")
#: The same for the beginning of a text.
BOS_NAMES = ("<|begin_of_text|>", "<s>", "<bos>", "[BOS]")
GENERATION = "generation_config.json"
#: Sets of files that make a tokenizer; a folder needs one set.
TOKENIZER_FILES = (("tokenizer.json",), ("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))


def check_tokenizer(settings: TokenizeSettings) -> None:
    """Read the tokenizer, if one is given. Raises ``Failure`` if it cannot be used.

    An end token that is added is announced, or refused where the tokenizer's own configuration names another; so is a
    beginning token that is left out.
    """
    if settings.tokenizer is None:
        return
    files = tokenizer_files(settings)
    tokenizer = _open_tokenizer(files)
    if tokenizer.token_to_id(_end_token(tokenizer, settings.eod)) is None:
        _announce_end(files[0], tokenizer, settings.eod)
    before = tokenizer.encode("").tokens
    if before and before[0] in BOS_NAMES and not settings.bos:
        say(f"{files[0]}: puts {before[0]} before a text, but documents begin without it; tokenize.bos = true adds it")
    _add_ends(tokenizer, settings.eod, settings.bos)


def draw_sample(work: tuple[Shard, int], output: Path, seed: int) -> Summary:
    """Write the texts of a shard that the tokenizer is trained on: those whose hash(seed, key) is below a limit."""
    shard, limit = work
    keys = (key for batch in read_documents(shard.path, ["key"]) for key in batch["key"].to_pylist())
    rows = np.flatnonzero(salted_hashes(keys, str(seed)) < limit)
    schema = pa.schema({"text": pa.large_string()})
    with atomic_path(output) as partial, pq.ParquetWriter(partial, schema, compression="zstd") as writer:
        for batch in read_rows(shard.path, rows, ["text"]):
            writer.write_table(pa.table([batch["text"].cast(pa.large_string())], schema))
    return {}


def sample_limits(
    shards: Mapping[str, Sequence[Shard]],
    sizes: Mapping[Path, int],
    weights: Mapping[str, float],
    settings: TokenizeSettings,
) -> list[tuple[Shard, int]]:
    """(shard, limit) for ``draw_sample``, to draw about ``sample_bytes`` x weight of each source, or all of its text.

    ``sizes`` has the bytes of text of each shard.
    """
    total_weight = sum(weights[source] for source in shards)
    limits = []
    for source in sorted(shards):
        size = sum(sizes[shard.path] for shard in shards[source])
        share = weights[source] / total_weight * settings.sample_bytes / max(1, size)
        limits += [(shard, min(1 << 64, int(share * (1 << 64)))) for shard in shards[source]]
    return limits


class Vocabulary(NamedTuple):
    """The settings, and the samples if a tokenizer is trained."""

    settings: TokenizeSettings
    samples: Sequence[Done]

    def fingerprint(self) -> object:
        """What the tokenizer depends on."""
        settings = self.settings
        return [settings.vocabulary, settings.eod, settings.bos, self.samples, [*map(File, tokenizer_files(settings))]]


def write_tokenizer(work: Vocabulary, output: Path) -> Summary:
    """Train or read the tokenizer; returns its vocabulary size and the ids around documents.

    The id of an end token that its name does not show is written to generation_config.json, as Hugging Face does.
    """
    settings = work.settings
    if settings.vocabulary is None:
        tokenizer = read_tokenizer(tokenizer_files(settings), settings.eod, settings.bos)
    else:
        tokenizer = train_tokenizer(_read_samples(work.samples), settings.vocabulary, settings.eod)
    write_text(output, tokenizer.to_str(pretty=True))
    name, ends = _end_token(tokenizer, settings.eod), output.with_name(GENERATION)
    eod = tokenizer.token_to_id(name)
    if known := name == _end_token(tokenizer, None):
        ends.unlink(missing_ok=True)
    else:
        write_json(ends, {"eos_token_id": eod})
    bos = tokenizer.encode("").ids[:1] if settings.bos else []
    return {"vocabulary": vocabulary_size(tokenizer), "around": [*bos, eod], "files": [] if known else [GENERATION]}


def _read_samples(samples: Iterable[Done]) -> Iterator[str]:
    """The texts of samples, in order."""
    for sample in samples:
        with pq.ParquetFile(sample.output) as file:
            for batch in file.iter_batches():
                yield from batch["text"].to_pylist()


def train_tokenizer(texts: Iterator[str], vocabulary: int, eod: str | None = None) -> Tokenizer:
    """Train a byte-level BPE with GPT-2's pre-tokenization and at most ``vocabulary`` tokens; deterministic."""
    tokenizer = _byte_level(BPE())
    alphabet = sorted(ByteLevel.alphabet())
    trainer = BpeTrainer(
        vocab_size=vocabulary - 1, min_frequency=2, initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _add_ends(tokenizer, eod)


def tokenizer_files(settings: TokenizeSettings) -> tuple[Path, ...]:
    """The files to read: a tokenizer.json, or GPT-2's vocabulary and merges; none if a tokenizer is trained.

    Raises ``Failure`` if they are missing, or GPT-2's cannot be downloaded.
    """
    if settings.tokenizer is None:
        return ()
    if settings.tokenizer == GPT2:
        return fetch_gpt2()
    path = local_path(location(settings.tokenizer))
    if path.is_file():
        return (path,)
    for names in TOKENIZER_FILES:
        if all((path / name).is_file() for name in names):
            return tuple(path / name for name in names)
    if (path / "config.json").is_file():  # a model's
        raise tokenizer_file.missing_tokenizer(path)
    wanted = "; ".join(" and ".join(names) for names in TOKENIZER_FILES)
    raise Failure(f"{path}: not a tokenizer: expected a tokenizer.json, {GPT2}, or a folder with one of: {wanted}")


def read_tokenizer(files: Sequence[Path], eod: str | None = None, bos: str | bool | None = None) -> Tokenizer:
    """Read a tokenizer, and add an end token if it has none.

    Raises ``Failure`` if the files hold no tokenizer, one beyond the bounds of ``tokenizer_file``, or one without the
    beginning token that is asked for.
    """
    return _add_ends(_open_tokenizer(files), eod, bos)


def _open_tokenizer(files: Sequence[Path]) -> Tokenizer:
    text = tokenizer_file.read_tokenizer(files[0].resolve()) if len(files) == 1 else None
    place = " and ".join(map(str, files))
    try:
        with foreign_data(place):
            for file in files:
                read_small(file, follow=True)  # the library would wait for a pipe, and has no limit
            return Tokenizer.from_str(text) if text is not None else _byte_level(BPE.from_file(*map(str, files)))
    except (Failure, OSError):
        raise
    except Exception as error:  # noqa: BLE001  (tokenizers raises plain exceptions)
        raise Failure(f"{place}: no tokenizer: {error}") from None


def _byte_level(model: BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer


def _add_ends(tokenizer: Tokenizer, eod: str | None, bos: str | bool | None = None) -> Tokenizer:
    """Make the end token special, with its id or else the next; turn off truncation, padding and other added tokens.

    The prompts of a model that is trained on the documents begin as these do: with ``bos``, or without a token that the
    tokenizer would add.
    """
    tokenizer.add_special_tokens([_end_token(tokenizer, eod)])
    if tokenizer.num_special_tokens_to_add(is_pair=False):
        tokenizer.post_processor = None
    if bos:
        name = bos if isinstance(bos, str) else _own_token(tokenizer, BOS_NAMES)
        number = tokenizer.token_to_id(name or "")
        if number is None:
            raise Failure(
                f"tokenize.bos: the tokenizer has no token {name or ', '.join(BOS_NAMES)}; give one that it has"
            )
        tokenizer.add_special_tokens([name])
        tokenizer.post_processor = TemplateProcessing([name, "$A"], special_tokens=[(name, number)])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _end_token(tokenizer: Tokenizer, eod: str | None) -> str:
    """The token that ends documents: the one asked for, EOD if the vocabulary has it, or a special one of its own."""
    own = None if tokenizer.token_to_id(EOD) is not None else _own_token(tokenizer, EOD_NAMES)
    return eod or own or EOD


def _own_token(tokenizer: Tokenizer, names: Sequence[str]) -> str | None:
    """The first of these names that is a special token."""
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    return next((name for name in names if name in special), None)


def _announce_end(file: Path, tokenizer: Tokenizer, eod: str | None) -> None:
    """Say that the end token is added. Raises ``Failure`` where the tokenizer has one that its configuration names."""
    own = None
    with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        token = json.loads(read_small(file.with_name("tokenizer_config.json")))["eos_token"]
        own = token["content"] if isinstance(token, dict) else token
    if eod is None and isinstance(own, str) and tokenizer.token_to_id(own) is not None:
        raise Failure(f"{file}: the tokenizer_config.json beside it ends texts with {own!r}; set tokenize.eod to that")
    name, number = _end_token(tokenizer, eod), vocabulary_size(tokenizer)
    say(f"{file}: has no token {name}; it is added as number {number}; tokenize.eod sets another")


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """The greatest token id plus one."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
