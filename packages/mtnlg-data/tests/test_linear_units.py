"""Twice the shards: twice the units, each of the same few bytes and files, in all stages but fuzzy deduplication."""

from __future__ import annotations

import os
import pickle
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from mtnlg_data.clean.stage import clean_documents
from mtnlg_data.filters.stage import apply_filters
from mtnlg_data.quality.stage import filter_documents

from mtnlg_data import document
from mtnlg_data.decontaminate.stage import decontaminate_documents
from mtnlg_data.dedup import runs as sorted_runs
from mtnlg_data.document import batch_documents, write_documents
from mtnlg_data.engine import Local
from mtnlg_data.exact import runs
from mtnlg_data.exact.settings import ExactSettings
from mtnlg_data.exact.stage import remove_repeats
from mtnlg_data.filters.rules import expand_rules
from mtnlg_data.filters.settings import FilterSettings
from mtnlg_data.schema import Document
from mtnlg_data.steps.clean import CleanSettings
from mtnlg_data.steps.decontaminate import DecontaminateSettings
from mtnlg_data.steps.quality import QualitySettings
from mtnlg_data.steps.tokenize import TokenizeSettings
from mtnlg_data.tokens import encoding, stage
from mtnlg_data.tokens.stage import tokenize_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pytest

    from mtnlg_data.engine import Summary, U

FAN_OUT = 8
SHARDS = 8  # of each of two sources
SENTENCE = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
OURS = "test_twice_the_shards"
opened: Counter[str] = Counter()


def _note(event: str, arguments: Sequence[Any]) -> None:
    if event == "open" and isinstance(arguments[0], str) and OURS in arguments[0] and arguments[1] != "w":
        opened[arguments[0]] += 1


sys.addaudithook(_note)


class CountedFile(pq.ParquetFile):  # type: ignore[misc]  # pyarrow carries no types
    """Parquet is opened by Arrow, past Python's hook."""

    def __init__(self, source: str | Path, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        opened[str(source)] += 1
        super().__init__(source, *arguments, **options)


class Measuring(Local):
    """Notes of each class of units how many there are, the most pickled bytes, the most files of a folder opened."""

    def __init__(self) -> None:
        super().__init__(1)
        self.bytes: Counter[str] = Counter()
        self.units: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def imap(self, function: Callable[[U], Summary], units: Iterable[U]) -> Iterator[tuple[U, Summary]]:
        for unit in units:
            name = f"{type(unit).__module__}.{type(unit).__name__}"
            self.bytes[name] = max(self.bytes[name], len(pickle.dumps(unit)))
            opened.clear()
            summary = function(unit)
            paths = (path for path in opened.elements() if not path.endswith((".json", ".tmp")))
            files = Counter(path.rpartition("/")[0] for path in paths)
            self.units[name] += 1
            self.most[name] = max([self.most[name], *files.values()])
            yield unit, summary


def measured(folder: Path, shards: int) -> Measuring:
    """Run the stages over so many shards, of three documents each."""
    paths: dict[str, list[Path]] = {"web": [], "books": []}
    for number in range(shards):
        for source, own in paths.items():
            texts = [f"{SENTENCE}\n{source} {number} {row} {'word ' * 60}{row * number}" for row in range(3)]
            own.append(folder / "in" / f"{source}-{number:05d}.parquet")
            rows = [Document(f"{source}/{number}/{row}", source, text) for row, text in enumerate(texts)]
            write_documents(own[-1], batch_documents(rows))
    engine = Measuring()
    both = [*paths["web"], *paths["books"]]
    before = {source: {"documents_out": 3 * shards, "characters_out": 1000} for source in paths}
    few = QualitySettings(epochs=1)
    filter_documents(both, folder / "good", few, ["web"], ["books"], before=before, engine=engine)
    kinds = ExactSettings(kinds=("documents", "lines", "substrings"), substring_length=8)
    remove_repeats(both, folder / "once", kinds, ("books", "web"), engine)
    clean_documents(both, folder / "clean", CleanSettings(), dict.fromkeys(paths, ("whitespace", "short")), engine)
    rules = dict.fromkeys(paths, expand_rules(["gopher_quality"]))
    kept: dict[str, Summary] = {source: {} for source in paths}
    apply_filters(both, folder / "kept", FilterSettings(), rules, before=kept, engine=engine)
    (folder / "texts.jsonl").write_text(f'{{"task": "t", "id": "0", "text": "{SENTENCE}"}}\n')
    cuts = DecontaminateSettings(common=1000)
    decontaminate_documents(both, folder / "pure", cuts, folder / "texts.jsonl", engine)
    options = TokenizeSettings(vocabulary=260, library="tokenizers")
    tokenize_documents(paths, folder / "tokens", options, {"web": 0.5, "books": 0.5}, engine)
    return engine


def test_twice_the_shards_are_twice_the_units_and_each_opens_as_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(pq, "ParquetFile", CountedFile)
    monkeypatch.setattr("mtnlg_data.exchange.FAN_OUT", FAN_OUT)
    monkeypatch.setattr(document, "ROWS_PER_GROUP", 2)
    monkeypatch.setattr(runs, "KEYS_PER_RANGE", 16)
    monkeypatch.setattr(sorted_runs, "RUN_BYTES", 16 * 24)
    monkeypatch.setattr(stage, "TEXT_BYTES_PER_UNIT", 1)
    monkeypatch.setattr(stage, "TOKENS_PER_UNIT", 1000)
    monkeypatch.setattr(encoding, "TOKENS_PER_BATCH", 1000)
    once, twice = (measured(tmp_path / str(shards), shards) for shards in (SHARDS, 2 * SHARDS))
    seen = (
        "tokens.encoding.MergeUnit",
        "dedup.runs.MergeUnit",
        "clean.stage.Cleaning",
        "filters.stage.Filtering",
    )
    assert {f"mtnlg_data.{unit}" for unit in seen} <= {*once.bytes}
    for name in once.bytes:
        # longer numbers and names, and as many files of each of three kinds as one unit may open
        assert twice.bytes[name] <= once.bytes[name] + 64 + 3 * 20 * FAN_OUT < 3000, name
        assert twice.units[name] <= 2.2 * once.units[name] + 4, (name, once.units[name], twice.units[name])
        one_by_one = name.endswith(("TokenizerUnit", "TrainingUnit"))  # the samples of all shards, in turn
        assert one_by_one or twice.most[name] <= FAN_OUT + 2, (name, twice.most[name])
