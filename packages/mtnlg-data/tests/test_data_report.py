"""The report shows the figures of the summary, loads nothing, and never takes the content of a file for markup."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import lxml.html
import pytest
from command_line import command, invoke

from mtnlg_data.console import Failure
from mtnlg_data.report import write_report
from mtnlg_data.report.inspection import inspect_path
from mtnlg_data.report.numbers import count

if TYPE_CHECKING:
    from pathlib import Path

WORDS = "Return a new list that holds every item of the sequence for which the function is true. " * 4
PAIR = {"kept": "books/x/1", "dropped": "crawl/y/2", "jaccard": 0.8421, "text_kept": f"{WORDS}the first{WORDS}"}
CUT = {"document": "books/x/9", "tasks": ["boolq"], "ngram": "items that compare equal"}
ALARM = {"source": "crawl", "message": "clean drops 51.6% of <b>crawl</b>, short"}
ERROR = {"source": "crawl", "where": "crawl-1.warc.gz: byte 88123", "what": "its Content-Length is 9"}
#: What the page of ``summary`` says under each heading.
SECTIONS = {
    "Alarms": [ALARM["message"]],
    "Funnel": ["documents in", "kept without metadata: metadata too deep"],
    "Lengths": ["Characters per document, in octaves; faint: after extract, strong: after tokenize."],
    "Languages": ["unknown", "3 others"],
    "Quality": ["Trained on 134 documents", "accuracy ", "AUC 0."],
    "Duplicates": [" cluster", "Jaccard 0.842"],
    "Decontamination": ["frequent n-grams left alone: 3", "boolq"],
    "Blend": ["Vocabulary: 400 tokens", "nats per token"],
    "Details": ["long", "model.layers[1, 2, null]", "noteno </script>"],
    "Sample documents": ["quality: dropped as low quality", "decontaminate: kept"],
    "Unreadable records": [*ERROR.values()][1:],
}


@pytest.fixture
def summary(finished: Any) -> dict[str, Any]:  # noqa: ANN401
    """That of a run, with what it lacks."""
    content: dict[str, Any] = json.loads((finished.out / "summary.json").read_text(encoding="utf-8"))
    extract, _, clean, long, *_ = content["stages"]
    extract["errors"], clean["alarms"] = [ERROR], [ALARM]
    extract["sources"]["crawl"]["metadata_lost"] = {"metadata_too_deep": 1234}
    long |= {"name": "long", "details": {"model": {"layers": [1, 2, None]}, "note": "no </script>"}}
    content["languages"] |= {"un": 31, **{f"x{n}": 13 - n for n in range(13)}}
    content["duplicates"]["samples"] = [{**PAIR, "text_dropped": f"{WORDS}the last{WORDS}"}]
    content["decontamination"]["ngrams_common"] = 3
    content["decontamination"]["samples"] = [{**CUT, "text": "See: items that\ncompare - EQUAL, and go."}]
    return content


class Page:
    """A page taken apart: its tree, its text with a mark before each heading, the rows of its tables."""

    def __init__(self, content: str) -> None:
        self.tree = lxml.html.document_fromstring(content)
        for style in self.tree.iter("style"):
            style.text = ""
        for heading in self.tree.iter("h2"):
            heading.text = f"§{heading.text}"
        self.text = str(self.tree.text_content())
        self.rows = [[str(cell.text_content()) for cell in row.iter("td", "th")] for row in self.tree.iter("tr")]

    def row(self, head: str) -> list[str]:
        return next(row for row in self.rows if row and row[0] == head)


def write_page(folder: Path, content: dict[str, Any]) -> tuple[Page, str]:
    (folder / "summary.json").write_text(json.dumps(content), encoding="utf-8")
    page = write_report(folder).read_text(encoding="utf-8")
    return Page(page), page


def test_every_part_of_the_summary_has_its_section(tmp_path: Path, summary: dict[str, Any]) -> None:
    page, written = write_page(tmp_path, summary)
    parts = page.text.split("§")[1:]  # a mark before each heading
    assert [part.partition("\n")[0] for part in parts] == list(SECTIONS)
    for part, words in zip(parts, SECTIONS.values(), strict=True):
        assert not [word for word in words if word not in part]
    assert len([*page.tree.iter("svg")]) == 2 + 2
    marked = re.findall(r"<mark>(.*?)</mark>", written, re.DOTALL)
    assert marked == ["firstReturn", "lastReturn", "items that\ncompare - EQUAL"]
    assert write_report(tmp_path).read_text(encoding="utf-8") == written


def test_ledger_adds_up_as_in_the_summary(tmp_path: Path, summary: dict[str, Any]) -> None:
    page, content = write_page(tmp_path, summary)
    for stage in summary["stages"]:
        outs = [stage["documents_out"], *(flow["documents_out"] for flow in stage["sources"].values())]
        assert page.row(f"after {stage['name']}")[1:4] == [count(n) for n in outs]
    assert page.row("documents in")[1:4] == ["200", "80", "120"]
    assert page.row("kept without metadata: metadata too deep")[1:4] == ["1,234", "0", "1,234"]
    assert page.row("low quality")[1:4] == [f"\N{MINUS SIGN}{n}" if n else "" for n in (57, 0, 57)]
    made = [flow["documents_out"] - flow["documents_in"] for flow in summary["stages"][4]["sources"].values()]
    assert page.row("pieces of documents cut apart")[1:4] == [f"+{n}" if n else "" for n in (sum(made), *made)]
    bars = content[content.index('<div class="bars">') :].partition("</div>")[0]
    widths = [float(width) for width in re.findall(r'"strong" style="width:([\d.]+)%', bars)]
    assert widths == pytest.approx([stage["documents_out"] / 2 for stage in summary["stages"]], abs=0.01)


def test_the_page_loads_no_other_file(tmp_path: Path, summary: dict[str, Any]) -> None:
    page, content = write_page(tmp_path, summary)
    assert not re.search(r"https?:|@import|//[a-z]|url\(", content)
    assert not [*page.tree.iter("script", "link", "img", "iframe", "object", "image")]
    anchors = page.tree.xpath("//@id")
    assert len(anchors) == len(set(anchors))
    assert {*page.tree.xpath("//@href | //@src")} == {f"#{anchor}" for anchor in anchors}


def test_the_command_writes_the_report_of_a_run_or_stage(tmp_path: Path, summary: dict[str, Any]) -> None:
    (tmp_path / "data").mkdir()
    write_page(tmp_path / "data", {"version": 1, "seconds": 1.0, "stages": summary["stages"][1:2]})
    invoke("report", tmp_path / "data")
    page = Page((tmp_path / "data" / "report.html").read_text(encoding="utf-8"))
    headings = [part.partition("\n")[0] for part in page.text.split("§")]
    assert headings[1:] == ["Funnel", "Lengths", "Sample documents"]
    assert tmp_path.name in page.text.partition("§")[0]


STAGE = '{"name": "x", "seconds": 1, "documents_in": 1, "documents_out": 1, "characters_in": 1, "characters_out": 1'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file"),
        ("{", "no summary of a curation: Invalid JSON"),
        ('{"seconds": NaN, "stages": []}', "seconds: Input should be a finite number"),
        ('{"seconds": 1, "stages": []}', "stages: List should have at least 1 item"),
        (f'{{"seconds": 1, "stages": [{STAGE}}}]}}', "stages.0.sources: Field required"),
        (f'{{"seconds": 1, "stages": [{STAGE}, "sources": {{"a": 3}}}}]}}', "sources.a: Input should be an obj"),
    ],
)
def test_a_file_that_is_no_summary_is_one_line(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_text(content, encoding="utf-8")
        with pytest.raises(Failure, match=f"summary.json: .*{words}"):
            inspect_path(tmp_path, 1, 1)
    with pytest.raises(Failure, match=f"summary.json: .*{words}"):
        write_report(tmp_path)


def test_optional_summary_fields_may_be_missing(tmp_path: Path) -> None:
    source = STAGE.partition('"seconds": 1, ')[2]
    content = f'{{"seconds": 1, "stages": [{STAGE}, "sources": {{"a": {{{source}}}}}}}]}}'
    (tmp_path / "summary.json").write_text(content, encoding="utf-8")
    assert write_report(tmp_path).exists()
    done = command("inspect", tmp_path)
    assert "x: kept 1 of 1 documents" in done.output
