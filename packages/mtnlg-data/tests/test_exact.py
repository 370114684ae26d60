"""Exact deduplication against brute force: what an earlier document has does not stay in a later one."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, get_args

import pyarrow.parquet as pq
import pytest
import small_corpus as corpus
from command_line import invoke
from engines import Recording
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import write_shard

from mtnlg_data import Local, exchange, run_step
from mtnlg_data.console import UsageFailure
from mtnlg_data.report.why import explain
from mtnlg_data.schema import SCHEMA, Document, document_columns
from mtnlg_data.steps.exact import Exact, ExactSettings, Kind
from mtnlg_data.tally import EXCERPT_CHARACTERS
from mtnlg_data.text.characters import fold_case
from mtnlg_data.text.hashing import document_orders

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_data.engine import Summary

PRIORITY = ("books", "web")
TOKEN = re.compile(r"[漢字]|\.|[^\s漢字.]+")  # of the words below


def run(
    folder: Path, documents: Sequence[Document], options: ExactSettings, shards: int = 3
) -> tuple[dict[str, str], Summary]:
    """Deduplicate documents dealt over so many shards; return the texts that are left by id, and the summary."""
    paths = []
    for number in range(shards):
        paths.append(folder / "in" / f"all-{number:05d}.parquet")
        write_shard(paths[-1], documents[number::shards])
    summary = run_step(Exact(options, {source: {} for source in PRIORITY}), paths, folder / "out", Local(1))
    tables = [pq.read_table(folder / "out" / path.name) for path in paths]
    return {row["id"]: row["text"] for table in tables for row in table.select(["id", "text"]).to_pylist()}, summary


def expected(documents: Sequence[Document], options: ExactSettings) -> dict[str, str | None]:
    """By brute force, None for a document that goes: each thing that an earlier document has, or an earlier place."""
    orders = document_orders(document_columns(documents, SCHEMA), PRIORITY).tolist()
    equal: set[str] = set()
    lines: set[str] = set()
    windows: set[tuple[str, ...]] = set()
    left: dict[str, str | None] = {}
    for _, document in sorted(zip(orders, documents, strict=True), key=lambda pair: pair[0]):
        text = document.text
        gone = [False] * len(text)
        is_equal = " ".join(text.split()) in equal
        equal.add(" ".join(text.split()))
        for match in re.finditer(r"[^\n]+", text) if "lines" in options.kinds else ():
            line = match[0].strip()
            if len(line) >= options.shortest_line:
                if fold_case(line) in lines:  # as Unicode's simple mapping, which makes one letter of one
                    gone[match.start() : match.end()] = [True] * len(match[0])
                lines.add(fold_case(line))
        tokens = list(TOKEN.finditer(text)) if "substrings" in options.kinds else []
        for first in range(len(tokens) - options.substring_length + 1):
            window = tokens[first : first + options.substring_length]
            words = tuple(token[0] for token in window)
            if words in windows:
                gone[window[0].start() : window[-1].end()] = [True] * (window[-1].end() - window[0].start())
            windows.add(words)
        rest = "".join(character for character, is_gone in zip(text, gone, strict=True) if not is_gone)
        dropped = ("documents" in options.kinds and is_equal) or (any(gone) and not rest.split())
        left[document.id] = None if dropped else rest
    return left


WORDS = ["ab", "c", "Ab", "é", "İk", "i\u0307k", "it's", ".", "漢字", "d" * 9]
TEXTS = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from([" ", "\n", "\n\n", "\u3000"])), max_size=40).map(
    lambda pairs: "".join(word + space for word, space in pairs)
)


@settings(max_examples=15)
@given(data=st.data(), texts=st.lists(TEXTS, min_size=1, max_size=12), shards=st.integers(1, 5))
def test_result_matches_brute_force(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, texts: list[str], shards: int
) -> None:
    documents = [Document(f"{n}", PRIORITY[n % 2], text) for n, text in enumerate(texts)]
    options = ExactSettings(
        kinds=tuple(data.draw(st.lists(st.sampled_from(get_args(Kind)), min_size=1, unique=True))),
        shortest_line=3,
        substring_length=data.draw(st.integers(2, 9)),
        shortest=1,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "ROWS_PER_RANGE", 16)  # so that there are several
        patch.setattr(exchange, "RUN_BYTES", 5 * 32)
        patch.setattr(exchange, "FAN_OUT", 2)
        patch.setattr(os, "fsync", lambda _: None)
        left, _ = run(tmp_path_factory.mktemp("exact"), documents, options, shards)
    for name, text in expected(documents, options).items():
        assert (name in left) == (text is not None), name
        assert "".join(left.get(name, "").split()) == "".join((text or "").split()), name


def prose(number: int, words: int = 60) -> str:
    """Words that no other number has."""
    return " ".join(f"w{number}x{word}" for word in range(words))


def test_best_sources_equal_document_is_kept(tmp_path: Path) -> None:
    documents = [Document(f"{source}{n}", source, prose(n)) for n in range(20) for source in ("web", "other", "books")]
    documents.append(Document("spaced", "web", f" {prose(3)} ".replace(" ", "\n\t ")))
    documents.append(Document("upper", "web", prose(3).upper()))
    left, summary = run(tmp_path, documents, ExactSettings(kinds=("documents",)))
    assert set(left) == {*(f"books{n}" for n in range(20)), "upper"}
    assert summary["sources"]["other"]["dropped"] == {"exact_document": 20}
    assert explain(tmp_path / "out", "spaced")[0]["stages"][0]["reason"] == "exact_document"
    assert [alarm["source"] for alarm in summary["alarms"]] == ["web", "other"]


def test_cuts_leave_lines_and_paragraphs_apart(tmp_path: Path) -> None:
    notice, passage = "Subscribe to our letter, and never miss a thing again!", prose(9, 50)
    documents = [
        Document("first", "books", f"{notice}\n{passage}"),
        Document("lines", "web", f"{prose(1)}\n\n  {notice.upper()}\n\n{prose(2)}\n{notice}"),
        Document("two", "web", f"{prose(12)}\n{notice}\n{notice.lower()}\n{prose(13)}"),
        Document("inside", "web", f"{prose(3)} {passage} {prose(4)}"),
        Document("end", "web", f"{prose(5)} {passage}\n\n{prose(6)}"),
        Document("begin", "web", f"{prose(7)}\n\n{passage} {prose(8)}"),
        Document("shorter", "web", f"{prose(10)} {passage.rpartition(' ')[0]} {prose(11)}"),
        Document("little", "web", f"{notice}\n{passage} too little"),
    ]
    left, summary = run(tmp_path, documents, ExactSettings(kinds=("lines", "substrings")))
    texts = {document.id: document.text for document in documents}
    assert left == {
        "first": texts["first"],
        "lines": f"{prose(1)}\n\n{prose(2)}",
        "two": f"{prose(12)}\n{prose(13)}",
        "inside": f"{prose(3)} {prose(4)}",
        "end": f"{prose(5)}\n\n{prose(6)}",
        "begin": f"{prose(7)}\n\n{prose(8)}",
        "shorter": texts["shorter"],
    }
    assert summary["sources"]["web"]["dropped"] == {"exact_remainder": 1}
    counts = {rule["rule"]: (rule["published"], rule["threshold"], rule["count"]) for rule in summary["exact"]["rules"]}
    assert counts == {
        "exact_line": ("C4", 30, 5),
        "exact_substring": ("Lee et al. 2022", 50, 4),
        "exact_remainder": ("", 200, 1),
    }
    assert {(cut["rule"], cut["text"]) for cut in summary["exact"]["cuts"]} == {
        ("exact_line", notice),
        ("exact_line", notice.upper()),
        ("exact_substring", passage[:EXCERPT_CHARACTERS]),
        ("exact_substring", f"{notice}\n{passage}"[:EXCERPT_CHARACTERS]),
    }


def test_changed_minimum_length_reruns_cuts_but_not_the_search(tmp_path: Path) -> None:
    documents = [Document(f"{n}", "web", f"{prose(n)}\n{prose(0)}") for n in range(4)]
    paths = [tmp_path / "web-00000.parquet"]
    write_shard(paths[0], documents)
    for shortest in (200, 1000):
        engine = Recording()
        run_step(Exact(kinds=["lines"], shortest=shortest), paths, tmp_path / "out", engine)
    assert engine.functions == ["write_shard"]


def test_command_needs_kinds_and_reports_cuts(tmp_path: Path) -> None:
    for name in "ab":
        rows = [f"{prose(10 * ord(name) + n)}\n<b>Cookies & more, and all of it on every page</b>" for n in range(5)]
        corpus.write_texts(tmp_path / f"{name}.jsonl", rows)
    words = ["exact", tmp_path / "a.jsonl", f"b={tmp_path / 'b.jsonl'}", "--out", tmp_path / "out"]
    with pytest.raises(UsageFailure, match="--kinds"):
        invoke(*words)
    invoke(*words, "--kinds", "lines,substrings")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Exact duplicates" in page
    assert re.search(r'exact line</th><td class="n">C4</td><td class="n">30</td><td class="n">9</td>', page)
    assert "<mark>&lt;b&gt;Cookies &amp; more" in page
