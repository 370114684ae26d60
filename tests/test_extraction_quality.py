"""Extraction of published pages, where those pages are here: F1 of the text, language by the beginning."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from extraction_quality import EXTRACTORS, mean_f1, read_samples  # noqa: E402  (after the path)
from mtnlg_data.extract import language  # noqa: E402

DATA = ROOT.parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not (DATA / "extraction" / "wcxb-dev").is_dir(), reason="needs the published pages")


def test_beginning_of_a_page_tells_its_language(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each page longer than what is read of it: the same language as of the whole page."""
    pages = [sample.html for sample in read_samples(DATA) if len(sample.html) > language.SAMPLE_CHARACTERS]
    by_beginning = [language.detect_language(page, html=True).code for page in pages]
    monkeypatch.setattr(language, "SAMPLE_CHARACTERS", max(map(len, pages)))
    assert len(pages) >= 100
    assert by_beginning == [language.detect_language(page, html=True).code for page in pages]


def test_main_content_is_found_on_held_out_pages() -> None:
    scores = mean_f1(read_samples(DATA), EXTRACTORS["mtnlg_data, main"])
    assert min(scores["seven kinds"], scores["articles"]) > 0.8
    assert scores["seven kinds"] > mean_f1(read_samples(DATA), EXTRACTORS["mtnlg_data, justext"])["seven kinds"] + 0.1
