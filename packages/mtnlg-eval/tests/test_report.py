"""The report of a run: every part on the page, numbers as in the files, nothing fetched, the same bytes every time."""

from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mtnlg_eval.intervals import wilson
from mtnlg_eval.published import SHOTS, TASKS, published
from mtnlg_eval.report import report
from mtnlg_eval.report.notation import count, duration, percent, short
from mtnlg_eval.report.pictures import POINTS_SHOWN, condensed, thinned
from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from pathlib import Path

SOURCES = {"snapshot": 2412, "code": 1630, "docstrings": 3105}
DROPPED = {
    "extract": {"no text": 0.021, "not English": 0.008},
    "quality": {"low quality": 0.44},
    "clean": {"shorter than 512 characters": 0.06, "javascript": 0.002},
    "deduplicate": {"near duplicate": 0.035, "exact duplicate": 0.012},
    "decontaminate": {"cut too often": 0.0005},
    "tokenize": {},
}
ENTROPY = 6.412
STEPS = 160


def write(path: Path, value: Any) -> None:  # noqa: ANN401
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def stages() -> list[dict[str, Any]]:
    """The funnel: what a stage leaves is what the next one gets; only the snapshot is judged for quality."""
    left = {source: (n, 2900 * n) for source, n in SOURCES.items()}
    told = []
    for number, (name, reasons) in enumerate(DROPPED.items()):
        flows: dict[str, dict[str, Any]] = {}
        for source, (documents, characters) in left.items():
            dropped = {reason: round(documents * share) for reason, share in reasons.items()}
            dropped = {k: n for k, n in dropped.items() if n and (name != "quality" or source == "snapshot")}
            out = documents - sum(dropped.values()) + (3 if name == "decontaminate" else 0)
            flows[source] = {"documents_in": documents, "documents_out": out, "characters_in": characters}
            flows[source] |= {"characters_out": characters * out // documents, "dropped": dropped}
        left = {source: (flow["documents_out"], flow["characters_out"]) for source, flow in flows.items()}
        keys = ("documents_in", "documents_out", "characters_in", "characters_out")
        totals = {key: sum(flow[key] for flow in flows.values()) for key in keys}
        stage = {"name": name, "seconds": 3.7 + number, **totals, "sources": flows, "errors": []}
        told.append(stage)
    return told


def curation() -> dict[str, Any]:
    return {
        "version": 1,
        "seconds": 47.3,
        "stages": stages(),
        "quality": {
            "accuracy": 0.934,
            "auc": 0.9812,
            "edges": [0, 1],
            "candidates": [9],
            "kept": [3],
            "positives": [1],
        },
        "languages": {"en": 2360, "unknown": 31},
        "duplicates": {"components": 143, "cluster_sizes": {"2": 96, "3": 25}, "samples": []},
        "decontamination": {
            "documents_cut": 9,
            "documents_dropped": 1,
            "cuts_by_task": {"boolq": 6, "piqa": 4, "wic": 0},
        },
        "tokens": {},
        "vocabulary": 4096,
        "unigram_entropy_nats": ENTROPY,
    }


def blend() -> dict[str, Any]:
    tokens = {"snapshot": 2_310_442, "code": 3_987_120, "docstrings": 512_377}
    weights = {"snapshot": 0.5, "code": 0.2, "docstrings": 0.3}
    sources = [
        {"name": s, "prefix": s, "weight": weights[s], "documents": n // 2000, "tokens": n, "sha256": "0" * 64}
        for s, n in tokens.items()
    ]
    return {"seed": 1, "vocabulary": 4096, "eod": 4095, "validation": 0.02, "sources": sources}


def metrics(steps: int = STEPS) -> list[dict[str, Any]]:
    draw = random.Random(2)
    told, samples = [], 0
    for step in range(1, steps + 1):
        batch = min(32, 8 * (1 + step // 20))
        samples += batch
        loss = 3.9 + 4.4 * math.exp(-step / 30) + 0.08 * draw.gauss(0, 1)
        lr = 1e-3 * min(1, step / 10) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
        row = {"step": step, "samples": samples, "tokens": samples * 256, "loss": loss, "lr": lr, "batch_size": batch}
        row |= {"grad_norm": 0.6 + 3 * math.exp(-step / 12) + 0.1 * draw.random(), "seconds": 0.9}
        row |= {"tokens_per_second": batch * 256 / 0.9 * (0.9 + 0.2 * draw.random())}
        if step % 40 == 0:
            row["validation_loss"] = loss + 0.11
        told.append(row)
    return told


def training(tp: int = 2, pp: int = 2, dp: int = 2, layers: int = 4) -> dict[str, Any]:
    ranks = [
        {"rank": t + tp * (d + dp * p), "tp": t, "pp": p, "dp": d}
        for p in range(pp)
        for d in range(dp)
        for t in range(tp)
    ]
    each = layers // pp
    held = [[f"layers.{n}" for n in range(p * each, (p + 1) * each)] for p in range(pp)]
    held[0].insert(0, "embedding")
    held[-1] += ["final_norm", "head"]
    last = metrics()[-1]
    return {
        "version": 1,
        "layout": {"tp": tp, "pp": pp, "dp": dp},
        "ranks": ranks,
        "stages": [{"stage": p, "layers": names, "parameters": 1_700_000 + p} for p, names in enumerate(held)],
        "parameters": 3_412_992,
        "model": {"layers": layers, "hidden": 256, "heads": 8, "sequence": 256, "vocabulary": 4096, "init_std": 0.036},
        "recompute": True,
        "precision": "fp32",
        "steps": STEPS,
        "samples": last["samples"],
        "tokens": last["tokens"],
        "loss": last["loss"],
        "validation_loss": last["validation_loss"],
        "seconds": 153.2,
        "tokens_per_second": 7312.4,
        "versions": {"torch": "2.13.0", "deepspeed": "0.19.8", "megatron-core": "0.16.1"},
        "stream": "8f3a" * 16,
    }


def evaluation(rows_from: str = "/anywhere/recipes/quickstart/rows") -> dict[str, Any]:
    draw = random.Random(3)
    tasks: dict[str, Any] = {}
    for task in TASKS:
        tasks[task.name] = {}
        for shots, used in zip(SHOTS, (0, 1, 4.357), strict=True):
            right, rows = draw.randint(2, 11), 14
            share = right / rows
            score = {"metric": "acc", "value": share, "stderr": math.sqrt(share * (1 - share) / (rows - 1))}
            tasks[task.name][shots] = score | {"documents": rows, "shots_used": used}
    return {
        "version": 1,
        "checkpoint": "/anywhere/runs/quickstart/train/checkpoints/step-160",
        "digest": "c0ffee" * 10,
        "tokens": 1_003_520,
        "tasks": tasks,
        "not_run": [],
        "seconds": 31.4,
        "rows_from": rows_from,
    }


def make_run(run: Path) -> Path:
    """A whole run folder as the packages leave it."""
    write(run / "data/summary.json", curation())
    write(run / "data/tokens/blend.json", blend())
    (run / "data/report.html").touch()
    (run / "train").mkdir()
    lines = "".join(json.dumps(step) + "\n" for step in metrics())
    (run / "train/metrics.jsonl").write_text(lines, encoding="utf-8")
    write(run / "train/summary.json", training())
    write(run / "eval/summary.json", evaluation())
    write(run / "eval/results.json", {"lm_eval_version": "0.4.13", "results": {}})
    return run


VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """A page taken apart: its elements, what they refer to, the rows of its tables as text."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"} and self.rows:
            self.rows[-1].append("")

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


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("runs") / "quick & <small>")
    report(run, show=False)
    return run


@pytest.fixture(scope="module")
def page(whole: Path) -> Page:
    return Page((whole / "report.html").read_text(encoding="utf-8"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


def read(run: Path) -> Page:
    return Page(report(run, show=False).read_text(encoding="utf-8"))


def change(path: Path, **values: Any) -> None:  # noqa: ANN401
    write(path, json.loads(path.read_text(encoding="utf-8")) | values)


def test_page_has_every_section_and_every_picture(page: Page) -> None:
    assert not page.open
    anchors = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    assert {"data", "training", "layout", "scores", "versions"} <= anchors
    for words in ("dropped most", "data/report.html", "The blend"):
        assert words in page.text
    described = sum(1 for _, attributes in page.elements if attributes.get("role") == "img")
    assert described == len(["loss", "lr", "batch", "norm", "speed", "layout", "by-shots"])


def test_page_refers_to_nothing_outside_itself(whole: Path, page: Page) -> None:
    content = (whole / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|@import|//[a-z]", content)
    assert not {"script", "link", "img", "iframe", "object", "image"} & {tag for tag, _ in page.elements}
    anchors = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(anchors) == len(set(anchors)), "one name, one element"
    referred = [a[key] for _, a in page.elements for key in ("href", "src", "xlink:href") if key in a]
    referred += re.findall(r"url\(([^)]*)\)", content)
    assert referred
    assert {str(target) for target in referred} <= {f"#{anchor}" for anchor in anchors} | {"data/report.html"}


def test_pictures_take_their_colours_from_the_page(whole: Path) -> None:
    content = (whole / "report.html").read_text(encoding="utf-8")
    drawings = "".join(re.findall(r"<svg.*?</svg>", content, flags=re.DOTALL))
    assert not re.findall(r"#[0-9a-f]{6}\b", drawings), "a fixed colour is lost in the light or in the dark"
    assert "DejaVu" not in drawings


def test_same_run_gives_the_same_bytes_in_another_process(whole: Path, tmp_path: Path) -> None:
    copy = tmp_path / whole.name
    shutil.copytree(whole, copy)
    for name in ("report.html", "results.json"):
        (copy / name).unlink()
    code = "import sys, pathlib; from mtnlg_eval.report import report; report(pathlib.Path(sys.argv[1]), show=False)"
    environment = os.environ | {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    subprocess.run([sys.executable, "-c", code, str(copy)], check=True, env=environment)
    for name in ("report.html", "results.json"):
        assert (copy / name).read_bytes() == (whole / name).read_bytes()


def test_scores_on_the_page_are_those_of_the_files(page: Page) -> None:
    told = evaluation()["tasks"]
    rows = [row for row in page.rows if len(row) >= 8 and row[-8] in {"0", "1"} | {f"few ({t.few})" for t in TASKS}]
    assert len(rows) == len(TASKS) * len(SHOTS)
    for number, row in enumerate(rows):
        task, shots = TASKS[number // len(SHOTS)], SHOTS[number % len(SHOTS)]
        score = told[task.name][shots]
        assert len(row) < 9 or row[0] == f"{task.title}acc"
        low, high = (100 * bound for bound in wilson(score["value"] * 14, 14))
        assert row[-7:-5] == [f"{100 * score['value']:.1f}", f"{low:.1f}\N{EN DASH}{high:.1f}"]
        assert row[-5] == f"{published(task.name, 'MT-NLG', shots):.2f}"
        theirs = published(task.name, "GPT-2" if task.name == "hans" else "GPT-3", shots)
        assert row[-4].rstrip("*\N{DAGGER}") == f"{theirs:.2f}"
        assert float(row[-3]) == round(score["shots_used"], 1)
        assert row[-2] == str(score["documents"])


def test_several_checkpoints_make_a_curve_of_scores_and_the_newest_stands_in_the_table(run: Path) -> None:
    (run / "eval/summary.json").unlink()
    for step, tokens in ((40, 250_880), (160, 1_003_520), (80, 501_760)):
        told = evaluation() | {"tokens": tokens, "checkpoint": f"/anywhere/step-{step}"}
        told["tasks"]["wic"]["0"]["value"] = step / 200
        write(run / f"eval/step-{step}/summary.json", told)
    parsed = read(run)
    assert "Score against tokens" in parsed.text
    assert parsed.row("WiCacc")[2] == "80.0"
    described = [attributes for _, attributes in parsed.elements if attributes.get("role") == "img"]
    assert len(described) == 8


def test_funnel_is_that_of_the_files(page: Page) -> None:
    for stage in stages():
        assert page.row(stage["name"])[1] == count(stage["documents_out"])
    assert page.row("clean")[4].startswith("shorter than 512 characters ")


def test_page_of_the_curation_is_linked_to_where_there_is_one(run: Path) -> None:
    assert '<a href="data/report.html">' in report(run, show=False).read_text(encoding="utf-8")
    (run / "data/report.html").unlink()
    assert 'href="data' not in report(run, show=False).read_text(encoding="utf-8")
    assert "mtnlg-data report DIR/data draws the rest" in read(run).text


def test_headline_holds_the_figures_of_the_run(page: Page) -> None:
    for figure in ("7,147 \N{RIGHTWARDS ARROW} ", f"frequencies alone give {ENTROPY:.2f}", "7,312", "8 ranks"):
        assert figure in page.text


def test_epochs_are_tokens_trained_by_weight_over_tokens_held(whole: Path) -> None:
    told = json.loads((whole / "results.json").read_text(encoding="utf-8"))
    code = next(source for source in told["data"]["blend"] if source["name"] == "code")
    assert code["epochs"] == pytest.approx(metrics()[-1]["tokens"] * 0.2 / (3_987_120 * 0.98))


def test_results_are_one_object_for_a_machine(whole: Path) -> None:
    told = json.loads((whole / "results.json").read_text(encoding="utf-8"))
    assert told["version"] == 1
    assert told["not_run"] == []
    assert told["training"]["loss"] == metrics()[-1]["loss"]
    assert told["versions"]["lm-eval"] == "0.4.13"
    score, row = evaluation()["tasks"]["boolq"]["few"], told["evaluation"]["tasks"]["boolq"]["few"]
    assert row["percent"] == 100 * score["value"]
    low, high = row["interval_95"]
    assert (low, high) == pytest.approx([100 * x for x in wilson(score["value"] * 14, 14)])
    assert row["published"] == {"MT-NLG": 84.83, "GPT-3": 77.5}


@pytest.mark.parametrize(
    ("gone", "said", "still"),
    [
        (["data", "train", "eval"], ["not been curated", "Nothing has been trained", "Nothing has been scored"], []),
        (["train", "eval"], ["Nothing has been trained", "Nothing has been scored"], ["The blend"]),
        (["eval"], ["Nothing has been scored", "Still to be run: evaluation."], ["Learning rate", "The blend"]),
        (["data"], ["not been curated"], ["Learning rate", "WinoGrande"]),
        (["data/tokens"], ["not been tokenized"], ["dropped most", "WinoGrande"]),
        (
            ["train/summary.json"],
            ["Training has not finished: the newest step is 160"],
            ["Learning rate", "WinoGrande"],
        ),
        (["eval/results.json"], [], ["WinoGrande"]),
    ],
)
def test_page_says_which_part_has_not_been_run(run: Path, gone: list[str], said: list[str], still: list[str]) -> None:
    for name in gone:
        shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()
    content = read(run).text
    assert all(words in content for words in said + still)


def test_line_that_training_is_writing_is_left_out(run: Path) -> None:
    log = run / "train/metrics.jsonl"
    log.write_text(log.read_text(encoding="utf-8") + '{"step": 161, "samp', encoding="utf-8")
    (run / "train/summary.json").unlink()
    assert "the newest step is 160" in read(run).text


def test_whatever_a_file_holds_stays_text(run: Path) -> None:
    evil = "</title></svg><script>alert(1)</script>$title \"'&amp; $x$ ${y}"
    told = curation()
    for stage in told["stages"]:
        stage["name"] = evil
        stage["sources"] = {evil: stage["sources"]["code"] | {"dropped": {evil: 2}}}
    write(run / "data/summary.json", told)
    change(run / "data/tokens/blend.json", sources=[blend()["sources"][0] | {"name": evil}])
    held = [{"stage": 0, "layers": [evil], "parameters": 1}]
    change(run / "train/summary.json", stages=held, model={evil: evil}, precision=evil, versions={evil: evil})
    gaps = [{"task": evil, "why": evil}]
    change(run / "eval/summary.json", not_run=gaps, checkpoint=evil, digest=evil, rows_from=evil)
    parsed = read(run)
    assert "script" not in {tag for tag, _ in parsed.elements}
    assert parsed.text.count("<script>alert(1)</script>$title \"'&amp; $x$ ${y}") > 15


@pytest.mark.parametrize(
    ("rows_from", "documents", "said"),
    [
        ("/somewhere/recipes/quickstart/rows", 14, "were written for this project"),
        ("/data/published", 14, "fewer than the benchmarks' published splits"),
        ("/data/published", 30_000, "The rows come from data/published."),
    ],
)
def test_page_says_whose_rows_were_scored(run: Path, rows_from: str, documents: int, said: str) -> None:
    told = evaluation(rows_from)
    for scores in told["tasks"].values():
        for score in scores.values():
            score["documents"] = documents
    write(run / "eval/summary.json", told)
    content = read(run).text
    assert said in content
    assert "The model is tiny" in content
    assert ("were written for this project" in content) == said.startswith("were written")


def test_task_without_a_score_has_dashes_and_its_published_figures(run: Path) -> None:
    told = evaluation()
    del told["tasks"]["wic"]
    told["not_run"] = [{"task": "wic", "why": "no rows"}]
    write(run / "eval/summary.json", told)
    parsed = read(run)
    assert parsed.row("WiCnot scored")[1:6] == ["0", "\N{EN DASH}", "\N{EN DASH}", "48.59", "0.00\N{DAGGER}"]
    assert "Not run: wic, no rows." in parsed.text


def test_page_knows_no_path_of_the_machine(page: Page) -> None:
    assert "checkpoint step-160" in page.text
    assert "anywhere" not in page.text


def test_loss_that_is_no_number_leaves_a_gap_and_is_told(run: Path) -> None:
    steps = metrics()
    steps[70]["loss"] = steps[71]["grad_norm"] = None
    steps[-1]["loss"] = math.nan
    (run / "train/metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps), encoding="utf-8")
    change(run / "train/summary.json", loss=math.nan)
    assert "the last loss is not finite" in read(run).text
    assert json.loads((run / "results.json").read_text(encoding="utf-8"))["training"]["loss"] is None


def test_layout_of_thousands_of_ranks_is_drawn_in_part(run: Path) -> None:
    write(run / "train/summary.json", training(tp=8, pp=35, dp=8, layers=105))
    content = read(run).text
    assert "2,240 ranks" in content
    assert "and 6 more replicas" in content
    assert "layers 102\N{EN DASH}104, final norm, head" in content


def test_broken_file_is_named_with_its_key(run: Path) -> None:
    change(run / "eval/summary.json", seconds="soon")
    with pytest.raises(Failure, match=r"eval/summary.json: seconds = 'soon': "):
        report(run)
    (run / "eval/summary.json").write_text("{", encoding="utf-8")
    with pytest.raises(Failure, match=r"eval/summary.json: .*Invalid JSON"):
        report(run)


def test_missing_run_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="nowhere: no such run folder"):
        report(tmp_path / "nowhere")


def test_console_shows_the_table_unless_told_not_to(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(run)
    shown = capsys.readouterr().out
    assert "7,147 documents" in shown
    assert all(task.title in shown for task in TASKS)
    assert "84.83" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
    report(run, show=False)
    assert capsys.readouterr().out == ""


def test_thinned_curve_keeps_its_spike_and_its_ends() -> None:
    x = np.arange(80_000.0)
    y = np.sin(x / 5000)
    y[41_234] = 9.0
    y[5] = np.nan
    few_x, few_y = thinned(x, y)
    assert len(few_x) <= POINTS_SHOWN + 2
    assert few_y[few_x == 41_234] == 9.0
    assert few_x[0] == 0
    assert few_x[-1] == 79_999
    assert (np.diff(few_x) > 0).all()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (count(-1234567), "\N{MINUS SIGN}1,234,567"),
        (short(999.6), "1.00_k"),
        (short(338_600_000_000), "339_B"),
        (short(12_345), "12.3_k"),
        (short(7), "7"),
        (percent(1, 3), "33.3_%"),
        (percent(1, 0), "\N{EN DASH}"),
        (duration(59.96), "1_min 00_s"),
        (duration(41.26), "41.3_s"),
        (duration(3 * 3600 + 59), "3_h 01_min"),
        (duration(46 * 86400 + 7 * 3600), "46_d 07_h"),
        (condensed(["embedding", "layers.0", "layers.1", "final_norm"]), "embedding, layers 0\N{EN DASH}1, final norm"),
        (condensed(["layers.7"]), "layer 7"),
        (condensed([]), ""),
    ],
)
def test_numbers_are_written_as_a_person_reads_them(written: str, expected: str) -> None:
    assert written.replace("\N{NARROW NO-BREAK SPACE}", "_") == expected
