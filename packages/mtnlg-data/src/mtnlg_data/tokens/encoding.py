"""The work of the step tokenize: documents to token stores and their blend.

    sample      texts of one shard, to train the tokenizer on
    vocabulary  trained on the samples, or read: tokenizer.json
    encode      some row groups of a shard: ids of the documents and the tokens around them, sorted by hash(seed, key)
    merge       for a source with more files than one task may open: the levels of ``mtnlg_data.exchange``
    stores      all encoded files of a source, by key: its store
    blend       the stores and their weights: blend.json, which ``stream.open_stream`` reads

No task opens more than ``exchange.FAN_OUT`` files, or holds more than about ``TEXT_BYTES_PER_UNIT`` of text or
``exchange.RUN_BYTES`` of tokens, however many shards and sources there are. Ids are those of ``tokenizers``. A text
that spells the end token is encoded as text, so that the end token occurs only at the ends of documents.

The key of a row is hash(seed, key of the document), so keys are uniform and their order is a shuffle. A row has a
document's ids as bytes, including its end token and, if there is one, its beginning token.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import chain, groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from mtnlg_data.console import Failure
from mtnlg_data.document import DocumentFile, number_shards, shard_source, text_bytes
from mtnlg_data.exchange import Rows, write_rows
from mtnlg_data.files import write_json
from mtnlg_data.summary import stage_summary
from mtnlg_data.tally import Tallies
from mtnlg_data.text.arrays import binary_column, text_lengths, texts_of
from mtnlg_data.text.hashing import salted_hashes

from .blend import Blend, BlendSource, held_out
from .chat import ChatEncoder, UnusableChat
from .encoder import batch_slices, open_encoder
from .store import bin_path, dtype_for, idx_path, span_digest, writing_store
from .tokenizer import Vocabulary, draw_sample, sample_limits, write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mtnlg_data.document import Shard
    from mtnlg_data.exchange import Range
    from mtnlg_data.job import Done, Job
    from mtnlg_data.steps.tokenize import Library, Tokenize, TokenizeSettings
    from mtnlg_data.summary import Summary

    from .chat import Chat

TEXT_BYTES_PER_UNIT = 64_000_000


def write_blend(blend: Blend, output: Path) -> Summary:
    """Write blend.json; returns no counts."""
    write_json(output, blend.model_dump(mode="json", exclude_defaults=True))
    return {}


def tokenize(step: Tokenize, job: Job) -> Summary:
    """Write tokenizer.json, a store per source and blend.json in the job's folder; returns the step's summary.

    Beside the documents kept, the summary has ``tokens`` by source, the size of the ``vocabulary``, and
    ``unigram_entropy_nats``: the entropy of single tokens in the blend's training split, which is the loss of a model
    that knows token frequencies only. Raises ``Failure`` where a source has no documents.
    """
    settings, weights, out = step.settings, step.weights, job.out
    shards = {name: number_shards(path for path in job.paths if shard_source(path) == name) for name in step.sources}
    if empty := [source for source, own in shards.items() if not sum(shard.rows for shard in own)]:
        raise Failure(f"source {empty[0]} has no document left to tokenize; take it out of the blend or filter it less")
    groups = {shard.path: text_bytes(shard.path) for own in shards.values() for shard in own}

    tokenizer = _write_tokenizer(job, shards, groups, weights, settings)
    vocabulary, around = tokenizer.summary["vocabulary"], tokenizer.summary["around"]
    work = [
        ((shard, part), Rows.path(job.state / "encoded" / source, number))
        for source, own in shards.items()
        for number, (shard, part) in enumerate(
            (shard, part) for shard in own for part in _split_row_groups(groups[shard.path])
        )
    ]
    how = Encoding(tokenizer, vocabulary, around, settings.seed, settings.library, chat := step.chat())
    encoded = job.map("encode", encode_groups, work, how=how)
    stores = [
        _encoded_source(job, source, [*own], masked=chat is not None and source in chat.sources)
        for source, own in groupby(encoded, key=lambda done: done.output.parent.name)
    ]
    written = job.map("stores", write_store, stores, vocabulary=vocabulary, validation=settings.validation)
    summaries = {source: done.summary for source, done in zip(shards, written, strict=True)}

    tokens_by_source = {
        source: {"documents": store["documents"], "tokens": store["tokens"], "weight": weights[source]}
        for source, store in summaries.items()
    }
    blend = Blend(
        seed=settings.seed,
        vocabulary=vocabulary,
        eod=around[-1],
        validation=settings.validation,
        sources=tuple(
            BlendSource(name=source, prefix=source, sha256=store["store"], mask=store.get("mask", ""), **counts)
            for (source, counts), store in zip(tokens_by_source.items(), summaries.values(), strict=True)
        ),
    )
    job.map("blend", write_blend, [(blend, out / "blend.json")])
    job.folder.shards = None
    unigrams = {source: store["unigrams"] for source, store in summaries.items()}
    counted = [done.summary for done in encoded]
    return {
        **stage_summary("tokenize", counted, list(shards)),
        "tokens": tokens_by_source,
        "vocabulary": vocabulary,
        "unigram_entropy_nats": unigram_entropy(weights, unigrams),
    }


def _write_tokenizer(
    job: Job,
    shards: Mapping[str, Sequence[Shard]],
    groups: Mapping[Path, Sequence[int]],
    weights: Mapping[str, float],
    settings: TokenizeSettings,
) -> Done:
    """Write the tokenizer; to train one, samples are drawn first."""
    samples: list[Done] = []
    if settings.vocabulary is not None:
        sizes = {shard: sum(own) for shard, own in groups.items()}
        limits = sample_limits(shards, sizes, weights, settings)
        work = [(limit, job.state / "sample" / f"{number:07d}.sample") for number, limit in enumerate(limits)]
        samples = job.map("sample", draw_sample, work, seed=settings.seed)
    (tokenizer,) = job.map("vocabulary", write_tokenizer, [(Vocabulary(settings, samples), job.out / "tokenizer.json")])
    return tokenizer


def _split_row_groups(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Gather consecutive row groups of a shard up to ``TEXT_BYTES_PER_UNIT``; ``sizes`` are their bytes of text."""
    units: list[tuple[int, ...]] = []
    room = 0
    for group, size in enumerate(sizes):
        if room < size:
            units.append(())
            room = TEXT_BYTES_PER_UNIT
        units[-1] += (group,)
        room -= size
    return units


def _encoded_source(
    job: Job, source: str, encoded: Sequence[Done], *, masked: bool
) -> tuple[tuple[Range, int, bool], Path]:
    """Item and output of ``write_store`` for a source that these tasks have encoded."""
    documents = sum(done.summary["sources"][source]["documents_out"] for done in encoded)
    if not documents:
        reasons = {reason for done in encoded for reason in done.summary["sources"][source]["dropped"]}
        hint = 'read messages with message = "json"; docs/how-to/fine-tune.md has the reasons'
        raise Failure(f"source {source}: no chat becomes tokens: {', '.join(sorted(reasons))}; {hint}")
    (rows,) = job.collect("merge", encoded[0].output.parent, encoded, scratch=True).ranges(1)
    return (rows, documents, masked), bin_path(job.out / source)


def unigram_entropy(weights: Mapping[str, float], unigrams: Mapping[str, Sequence[int]]) -> float:
    """Entropy, in nats, of the sources' unigram distributions mixed by weight."""
    total_weight = sum(weights.values())
    shares = [
        weights[source] / total_weight * np.array(counts, np.float64) / max(1, sum(counts))
        for source, counts in unigrams.items()
    ]
    mixture = np.sum(shares, axis=0)
    present = mixture[mixture > 0]
    return float(-(present * np.log(present)).sum())


class Encoding(NamedTuple):
    """How to encode; the library is not in the fingerprint, since all libraries give the same ids."""

    tokenizer: Done
    vocabulary: int  # size; follows from the tokenizer, as does ``around``
    around: Sequence[int]  # the ids that begin and end a document, or only the one that ends it
    seed: int
    library: Library
    chat: Chat | None = None

    def fingerprint(self) -> object:
        """What the ids and their order depend on."""
        return [self.tokenizer, self.seed, *([self.chat] if self.chat else [])]


def encode_groups(work: tuple[Shard, Sequence[int]], output: Path, how: Encoding) -> Summary:
    """Encode row groups of a shard to rows by key; returns the tallies and the number of ``tokens``."""
    shard, groups = work
    if how.chat and shard_source(shard.path) in how.chat.sources:
        return _encode_chats(shard, groups, output, how)
    around, dtype = how.around, dtype_for(how.vocabulary)
    encode = open_encoder(how.tokenizer.output, how.library)
    tally = (tallies := Tallies())[shard_source(shard.path)]
    tokens = 0
    with DocumentFile(shard.path) as file, write_rows(output) as rows:
        for group in groups:
            batch = file.read(group, ["key", "text"])
            texts, lengths = batch["text"].to_pylist(), text_lengths(batch["text"])
            keys = salted_hashes(batch["key"].to_pylist(), str(how.seed))
            tally.measure(lengths, lengths)
            for part in batch_slices(texts):
                ids, sizes = encode(texts[part])
                ends = np.cumsum(sizes)
                places = np.column_stack([ends - sizes, ends])[:, -len(around) :]
                ids = np.insert(ids.astype(dtype), places.ravel(), np.tile(around, len(sizes)))
                rows.add(keys[part], {"ids": binary_column(ids, np.cumsum([0, *(sizes + len(around))]))})
                tokens += len(ids)
    return {**tallies.summary(), "tokens": tokens}


def _encode_chats(shard: Shard, groups: Sequence[int], output: Path, how: Encoding) -> Summary:
    """Like `encode_groups`, for a source of chats, with an additional column ``mask``."""
    assert how.chat  # noqa: S101  (`encode_groups` has looked)
    encode = ChatEncoder(how.tokenizer.output, how.chat, how.around[-1])
    tally = (tallies := Tallies())[shard_source(shard.path)]
    tokens = 0
    with DocumentFile(shard.path) as file, write_rows(output) as rows:
        for group in groups:
            batch = file.read(group, ["id", "key", "text"])
            keys, ids, masks = list[str](), list[bytes](), list[bytes]()
            for name, key, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                try:
                    numbers, learned = encode(text)
                except UnusableChat as reason:
                    tally.drop(len(text), str(reason))
                    tally.show(str(reason), name, text, key=key)
                    continue
                tally.keep(len(text))
                keys.append(key)
                ids.append(np.array(numbers, dtype_for(how.vocabulary)).tobytes())
                masks.append(bytes(learned))
                tokens += len(numbers)
            columns = {"ids": pa.array(ids, pa.large_binary()), "mask": pa.array(masks, pa.large_binary())}
            rows.add(salted_hashes(keys, str(how.seed)), columns)
    return {**tallies.summary(), "tokens": tokens}


def write_store(item: tuple[Range, int, bool], output: Path, *, vocabulary: int, validation: float) -> Summary:
    """Write a store, whose ``.bin`` is ``output``; ``unigrams`` counts the tokens of documents that are not held out.

    ``item`` has the rows, their number and whether they are masked: then a store of masks, ``PREFIX.mask``, is written
    beside it; ``mask`` is its checksum. Raises ``ValueError`` as ``StoreWriter.extend`` does.
    """
    rows, documents, masked = item
    prefix, dtype = output.with_suffix(""), dtype_for(vocabulary)
    training = documents - held_out(documents, validation)
    unigrams = np.zeros(vocabulary, np.int64)
    tokens = 0
    beside = prefix.with_name(f"{prefix.name}.mask")
    with writing_store(prefix, vocabulary) as writer, ExitStack() as stack:
        mask = stack.enter_context(writing_store(beside, 2, np.dtype(np.uint8))) if masked else None
        for batch in chain.from_iterable(table.to_batches() for table in rows.tables()):
            data, bounds = texts_of(batch["ids"])
            ids, sizes = data[bounds[0] : bounds[-1]].view(dtype), np.diff(bounds) // dtype.itemsize
            trained = sizes[: max(0, training - writer.documents)].sum()
            unigrams += np.bincount(ids[:trained], minlength=vocabulary)
            writer.extend(ids, sizes)
            if mask:
                data, bounds = texts_of(batch["mask"])
                mask.extend(data[bounds[0] : bounds[-1]], sizes)
            tokens += len(ids)
    paths = [output, idx_path(prefix)]
    masks = [bin_path(beside), idx_path(beside)] if masked else []
    return {
        "documents": writer.documents,
        "tokens": tokens,
        "store": span_digest(paths),
        "unigrams": unigrams.tolist(),
        "files": [path.name for path in (*paths[1:], *masks)],
        **({"mask": span_digest(masks)} if masks else {}),
    }
