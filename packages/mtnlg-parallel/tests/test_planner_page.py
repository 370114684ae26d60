"""``plan --html``: a page that needs nothing else, and what stands on it."""

import re
from pathlib import Path

import pytest
from plan_command import PAPER, plan, plan_json


@pytest.mark.parametrize(("batch", "paths", "boxes"), [(8, 0, 2 * 4 * 8 + 1), (600, 2, 1)])
def test_a_pipeline_of_many_passes_is_one_path_a_colour(tmp_path: Path, batch: int, paths: int, boxes: int) -> None:
    plan("dense-1.3b --layout tp=2,pp=4,dp=1 --batch", batch, "--html", tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert (page.count("<path"), page.count("<rect")) == (paths, boxes)


def test_page_is_self_contained(tmp_path: Path) -> None:
    words = "llama-3.1-8b --set model.sequence=8192 --cluster dgx-h100 --software megatron-core"
    run = "--layout tp=2,pp=2,dp=2 --batch 16 --recompute selective"
    plan(words, run, "--html", tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    for title in (
        "Where the time goes",
        "The pipeline",
        "Memory by stage",
        "Best layouts",
    ):
        assert title in page
    assert page.count("stage 1") >= 1
    assert not re.search(r"<script|href|src=", page)


def test_page_of_an_unfit_run_says_so(tmp_path: Path) -> None:
    run = ("mt-nlg-530b --layout tp=1,pp=2,dp=1 --batch 4 --html", tmp_path / "plan.html")
    planned = plan_json(*run)
    page = (tmp_path / "plan.html").read_text()
    memory = page.partition("<h2>Memory by stage</h2>")[2].partition("</section>")[0]
    assert "does NOT fit" in page
    assert "a run may use" in memory
    ends = {
        kind: [float(width) for width in re.findall(rf'<i class="{kind}" style="width:([\d.]+)%">', memory)]
        for kind in ("weights", "buffers")
    }
    totals = planned["memory_bytes_of_stages"]
    assert ends["buffers"] == pytest.approx([100 * total / max(totals) for total in totals], abs=0.01)
    weights = 100 * planned["memory_bytes_by"]["weights"] / max(totals)
    assert ends["weights"][planned["fullest_stage"]] == pytest.approx(weights, abs=0.01)
    assert "No layout fits" in page


def test_page_shows_days_with_interval(tmp_path: Path) -> None:
    planned = plan_json(PAPER, "--tokens 270B --html", tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text().replace("\N{NARROW NO-BREAK SPACE}", " ")
    days, seconds = planned["run"]["days"], planned["step_seconds"]
    low, high = (days * planned[bound] / seconds for bound in ("low_step_seconds", "high_step_seconds"))
    assert f"<dd>{days:.1f} days</dd>" in page
    assert f"{low:.1f} to {high:.1f} by the same errors" in page
    assert page.count("this plan</td>") == 1
    rows = re.findall(r'<tr(?: class="total")?><th scope="row">tp=[^<]*</th><td class="n">([\d.]+)</td>', page)
    assert len(rows) == 10
    assert sorted(map(float, rows)) == list(map(float, rows))
