"""The report shows the figures of the summary, loads nothing, and never takes the content of a file for markup."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from mtnlg_data.cli import app
from mtnlg_data.console import Failure
from mtnlg_data.report import write_report
from mtnlg_data.report.inspection import inspect_path
from mtnlg_data.report.numbers import count

if TYPE_CHECKING:
    from pathlib import Path

SOURCES = {"books": 900, "crawl": 3100}
DROPPED = {
    "extract": {"other_language": 0.4},
    "quality": {"low_quality": 0.5},
    "clean": {"short": 0.1, "javascript": 0.02},
    "deduplicate": {"duplicate": 0.05},
    "decontaminate": {},
    "tokenize": {},
}
WORDS = "Return a new list that holds every item of the sequence for which the function is true. "


def stages() -> list[dict[str, Any]]:
    """Every stage takes the documents that the one before it left; only the crawl is filtered for quality."""
    left = dict(SOURCES)
    summaries = []
    for number, (name, reasons) in enumerate(DROPPED.items()):
        flows: dict[str, Any] = {}
        for source, documents in left.items():
            dropped = {reason: round(documents * share) for reason, share in reasons.items()}
            dropped = {} if name == "quality" and source == "books" else dropped
            out = documents - sum(dropped.values()) + (2 if name == "decontaminate" else 0)
            flows[source] = {"documents_in": documents, "documents_out": out, "dropped": dropped}
            flows[source] |= {"characters_in": 2000 * documents, "characters_out": 2000 * out}
            flows[source] |= {"lengths": {"512": out // 3, "1024": out - out // 3 - 5, "16384": 5}}
            left[source] = out
        keys = ("documents_in", "documents_out", "characters_in", "characters_out")
        totals = {key: sum(flow[key] for flow in flows.values()) for key in keys}
        shown = [
            {"source": source, "fate": fate, "id": f"{source}/x.jsonl/{n}", "text": f"{fate} {WORDS}", "score": 0.5}
            for source in SOURCES
            for fate in ("kept", *reasons)
            for n in range(2)
        ]
        summary = {"name": name, "seconds": 3.7 + number, **totals, "sources": flows}
        summaries.append({**summary, "errors": [], "shown": shown})
    summaries[0]["errors"] = [{"where": "crawl-1.warc.gz: byte 88123", "what": "its Content-Length is 9"}]
    return summaries


def summary() -> dict[str, Any]:
    edges = [n / 20 for n in range(21)]
    pair = {"kept": "books/x/1", "dropped": "crawl/y/2", "jaccard": 0.8421}
    pair |= {"text_kept": f"{WORDS * 4}the first{WORDS * 4}", "text_dropped": f"{WORDS * 4}the last{WORDS * 4}"}
    cut = {"document": "books/x/9", "tasks": ["boolq"], "ngram": "items that compare equal"}
    return {
        "version": 1,
        "seconds": 47.3,
        "stages": stages(),
        "languages": {"en": 2360, "un": 31, **{f"x{n}": 9 - n for n in range(9)}},
        "quality": {"accuracy": 0.934, "auc": 0.9812, "trained_on": 900, "held_out": 100, "edges": edges}
        | {"candidates": [20 - n for n in range(20)], "kept": [9] * 20, "positives": list(range(20))},
        "duplicates": {"components": 143, "cluster_sizes": {"2": 96, "3": 25, "7": 5, "12": 3, "63": 1}}
        | {"samples": [pair], "removed_share": {"books": 0.01, "crawl": 0.61}},
        "decontamination": {"documents_cut": 9, "documents_dropped": 1, "cuts_by_task": {"boolq": 6, "wic": 0}}
        | {"ngrams_common": 3, "samples": [{**cut, "text": "See: items that\ncompare - EQUAL, and go."}]},
        "tokens": {"books": {"documents": 800, "tokens": 512_377, "weight": 0.4}}
        | {"crawl": {"documents": 900, "tokens": 800_000, "weight": 0.6}},
        "vocabulary": 4096,
        "unigram_entropy_nats": 6.4123,
    }


class Page(HTMLParser):
    """A page taken apart: its elements, the rows of its tables as text, its text."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(content)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
        self.text += "§" * (tag == "h2")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def row(self, head: str) -> list[str]:
        return next(row for row in self.rows if row and row[0] == head)


def write_page(folder: Path, content: dict[str, Any]) -> tuple[Page, str]:
    (folder / "summary.json").write_text(json.dumps(content), encoding="utf-8")
    page = write_report(folder).read_text(encoding="utf-8")
    return Page(page), page


FIGURES = {
    "Alarms": ["clean drops 51.6% of <b>crawl</b>, short"],
    "Funnel": ["documents in", "kept without metadata: metadata too deep"],
    "Lengths": ["Characters per document, in octaves; faint: after extract, strong: after tokenize."],
    "Languages": ["unknown", "3 others"],
    "Quality": ["Trained on 900 documents", "accuracy 93.4", "AUC 0.981"],
    "Duplicates": ["143 clusters", "Jaccard 0.842"],
    "Decontamination": ["frequent n-grams left alone: 3", "boolq"],
    "Blend": ["Vocabulary: 4,096 tokens", "6.41 nats per token"],
    "Details": ["long", "model.layers[1, 2, null]", "noteno </script>"],
    "Sample documents": ["clean: dropped as short", "tokenize: kept"],
    "Unreadable records": ["crawl-1.warc.gz: byte 88123", "its Content-Length is 9"],
}


def test_every_part_of_the_summary_has_its_section(tmp_path: Path) -> None:
    content = summary()
    content["stages"][0]["sources"]["crawl"]["metadata_lost"] = {"metadata_too_deep": 1234}
    content["stages"][2]["alarms"] = [{"source": "crawl", "message": "clean drops 51.6% of <b>crawl</b>, short"}]
    content["stages"][3] |= {"name": "long", "details": {"model": {"layers": [1, 2, None]}, "note": "no </script>"}}
    page, written = write_page(tmp_path, content)
    parts = page.text.split("§")[1:]  # a mark before each heading
    assert [part.partition("\n")[0] for part in parts] == list(FIGURES)
    for part, words in zip(parts, FIGURES.values(), strict=True):
        assert not [word for word in words if word not in part]
    assert page.row("kept without metadata: metadata too deep")[1:4] == ["1,234", "0", "1,234"]
    assert len([tag for tag, _ in page.elements if tag == "svg"]) == len(SOURCES) + 2
    assert write_report(tmp_path).read_text(encoding="utf-8") == written


def test_ledger_adds_up_as_in_the_summary(tmp_path: Path) -> None:
    page, content = write_page(tmp_path, summary())
    for stage in stages():
        outs = [stage["documents_out"], *(flow["documents_out"] for flow in stage["sources"].values())]
        assert page.row(f"after {stage['name']}")[1:4] == [count(n) for n in outs]
    assert page.row("documents in")[1] == count(sum(SOURCES.values()))
    assert page.row("low quality")[1:4] == [f"\N{MINUS SIGN}{n}" if n else "" for n in (930, 0, 930)]
    assert page.row("pieces of documents cut apart")[1:4] == ["+4", "+2", "+2"]
    assert page.row("crawl")[1:5] == ["900", "800,000", *(f"{n}\N{NARROW NO-BREAK SPACE}%" for n in ("61.0", "60.0"))]
    bars = content[content.index('<div class="bars">') :].partition("</div>")[0]
    widths = [float(width) for width in re.findall(r'"strong" style="width:([\d.]+)%', bars)]
    outs = [stage["documents_out"] for stage in stages()]
    assert widths == pytest.approx([100 * out / sum(SOURCES.values()) for out in outs], abs=0.01)


def test_differences_of_a_pair_and_the_ngram_of_a_cut_are_marked(tmp_path: Path) -> None:
    _, content = write_page(tmp_path, summary())
    marked = re.findall(r"<mark>(.*?)</mark>", content, re.DOTALL)
    assert marked == ["firstReturn", "lastReturn", "items that\ncompare - EQUAL"]


def test_the_page_loads_no_other_file(tmp_path: Path) -> None:
    page, content = write_page(tmp_path, summary())
    assert not re.search(r"https?:|@import|//[a-z]|url\(", content)
    assert not {"script", "link", "img", "iframe", "object", "image"} & {tag for tag, _ in page.elements}
    anchors = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(anchors) == len(set(anchors))
    referred = {str(a[key]) for _, a in page.elements for key in ("href", "src") if key in a}
    assert referred == {f"#{anchor}" for anchor in anchors}


def test_a_single_stage_has_a_report_of_its_summary(tmp_path: Path) -> None:
    page, _ = write_page(tmp_path, {"version": 1, "seconds": 1.0, "stages": stages()[2:3]})
    headings = [part.partition("\n")[0] for part in page.text.split("§")[1:]]
    assert headings == ["Funnel", "Lengths", "Sample documents"]
    assert tmp_path.name in page.text


def test_the_command_writes_the_report_of_a_run(tmp_path: Path, finished: Any) -> None:  # noqa: ANN401
    folder = tmp_path / finished.out.parent.name / "data"
    folder.mkdir(parents=True)
    shutil.copy(finished.out / "summary.json", folder)
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert done.exit_code == 0, done.output
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    assert page.row("after tokenize")[1] == count(finished.summary["stages"][-1]["documents_out"])
    assert "quality: dropped as low quality" in page.text


STAGE = '{"name": "x", "seconds": 1, "documents_in": 1, "documents_out": 1, "characters_in": 1, "characters_out": 1'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file"),
        ("{", "no summary of a curation: Invalid JSON"),
        ("[1]", "no summary of a curation: Input should be an object"),
        ('{"seconds": 1}', "no summary of a curation: stages: Field required"),
        ('{"seconds": 1, "stages": []}', "stages: List should have at least 1 item"),
        ('{"seconds": NaN, "stages": []}', "seconds: Input should be a finite number"),
        ('{"seconds": 1, "stages": [{"name": "x"}]}', "stages.0.seconds: Field required"),
        (f'{{"seconds": 1, "stages": [{STAGE}}}]}}', "stages.0.sources: Field required"),
        (
            f'{{"seconds": 1, "stages": [{STAGE}, "sources": {{"a": 3}}}}]}}',
            "stages.0.sources.a: Input should be an obj",
        ),
        (
            STAGE.replace("1,", '"1",', 1).join(('{"seconds": 1, "stages": [', "}]}")),
            "stages.0.seconds: Input should be a valid number",
        ),
    ],
)
def test_a_file_that_is_no_summary_is_one_line(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_text(content, encoding="utf-8")
        with pytest.raises(Failure, match=f"summary.json: .*{words}"):
            inspect_path(tmp_path, 1, 1)
    with pytest.raises(Failure, match=f"summary.json: .*{words}"):
        write_report(tmp_path)


def test_what_may_be_missing_in_a_summary_is_missed_by_nobody(tmp_path: Path) -> None:
    source = STAGE.partition('"seconds": 1, ')[2]
    content = f'{{"seconds": 1, "stages": [{STAGE}, "sources": {{"a": {{{source}}}}}}}]}}'
    (tmp_path / "summary.json").write_text(content, encoding="utf-8")
    assert write_report(tmp_path).exists()
    done = CliRunner().invoke(app, ["inspect", str(tmp_path)])
    assert "x: kept 1 of 1 documents" in done.output
