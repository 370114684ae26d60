"""The method main finds the true text of pages that its weights were not fitted to, where those pages are here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from extraction_quality import EXTRACTORS, mean_f1, read_samples  # noqa: E402  (after the path)

DATA = ROOT.parent / "shared" / "data"


@pytest.mark.skipif(not (DATA / "extraction" / "wcxb-dev").is_dir(), reason="needs the published pages")
def test_main_content_is_found_on_held_out_pages() -> None:
    scores = mean_f1(read_samples(DATA), EXTRACTORS["mtnlg_data, main"])
    assert min(scores["seven kinds"], scores["articles"]) > 0.8
    assert scores["seven kinds"] > mean_f1(read_samples(DATA), EXTRACTORS["mtnlg_data, justext"])["seven kinds"] + 0.1
