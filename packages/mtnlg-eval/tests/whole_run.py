"""A run folder with invented figures, in the formats of the packages, and a parser of the report's page."""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
import subprocess
import tempfile
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

from mtnlg_eval.report import write_report
from mtnlg_eval.results.folder import ResultFolder
from mtnlg_eval.results.result import Result
from mtnlg_eval.tasks.published import SHOTS, TASKS, TASKS_BY_NAME

if TYPE_CHECKING:
    from pathlib import Path

ENTROPY = 6.412
STEPS = 160
ROWS_FROM = "/anywhere/recipes/quickstart/rows"


def write(path: Path, value: Any) -> None:  # noqa: ANN401
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def stage(name: str, before: int, after: int, **sources: tuple[int, int]) -> dict[str, Any]:
    """A stage of a curation, with the documents in and out of all, and of each source."""
    flows = {source: {"documents_in": a, "documents_out": b, "dropped": {}} for source, (a, b) in sources.items()}
    return {"name": name, "seconds": 3.7, "documents_in": before, "documents_out": after, "sources": flows}


def curation() -> dict[str, Any]:
    return {
        "version": 1,
        "seconds": 47.3,
        "stages": [
            stage("extract", 7147, 6800, snapshot=(2412, 2300), code=(4735, 4500)),
            stage("quality", 2300, 900, snapshot=(2300, 900)),  # of the snapshot alone
            stage("deduplicate", 5400, 5288, snapshot=(900, 890), code=(4500, 4398)),
        ],
        "languages": {"en": 2360, "unknown": 31},
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


def training() -> dict[str, Any]:
    return {
        "version": 1,
        "layout": {"tp": 2, "pp": 2, "dp": 2},
        "ranks": [],
        "parameters": 3_412_992,
        "precision": "fp32",
        "steps": STEPS,
        "samples": 3920,
        "tokens": 1_003_520,
        "loss": 3.957,
        "validation_loss": 4.067,
        "seconds": 153.2,
        "tokens_per_second": 7312.4,
        "versions": {"torch": "2.13.0", "deepspeed": "0.19.8", "megatron-core": "0.16.1"},
        "stream": "8f3a" * 16,
    }


DIGEST = "c0ffee" * 10


def evaluation(
    rows_from: str = ROWS_FROM,
    *names: str,
    step: int = 160,
    tokens: int = 1_003_520,
    digest: str = DIGEST,
    **parts: Any,  # noqa: ANN401
) -> list[Result]:
    """Results of the named tasks, or of all nine; a test names few, since every task is a chart to draw.

    ``parts`` replace parts of every result.
    """
    draw = random.Random(3 if digest == DIGEST else 4)
    results = []
    for task in (task for task in TASKS if task.name in names or not names):
        for asked, shown in zip(SHOTS, (0, 1, 4.357), strict=True):
            right, rows = draw.randint(2, 11), 14
            correct = draw.sample("1" * right + "0" * (rows - right), rows)
            results.append(result(task.name, asked, shown, "".join(correct), rows_from, step, tokens, digest, **parts))
    return results


def result(  # noqa: PLR0917
    task: str,
    asked: str,
    shown: float,
    correct: str,
    rows_from: str = ROWS_FROM,
    step: int = 160,
    tokens: int = 1_003_520,
    digest: str = DIGEST,
    **parts: Any,  # noqa: ANN401
) -> Result:
    """One result with these right and wrong answers."""
    count = TASKS_BY_NAME[task].few if asked == "few" else int(asked)
    share, n = correct.count("1") / len(correct), len(correct)
    stderr = math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else None
    likelihoods = {"log_likelihood": {"value": -2.5, "stderr": 0.25}, "bits_per_byte": {"value": 1.5, "stderr": 0.125}}
    shots = {"asked": asked, "count": count, "mean": shown, "least": int(shown), "pool": "train", "pool_rows": 8}
    rows = {"source": rows_from, "split": TASKS_BY_NAME[task].split, "count": n, "sample_of": n, "digest": f"{task}{n}"}
    checkpoint = f"/anywhere/runs/quickstart/train/checkpoints/step-{step}"
    model = {"checkpoint": checkpoint, "name": f"step-{step}", "digest": digest, "tokens": tokens, "step": step}
    content = {
        "task": task,
        "style": "paper",
        "shots": shots | {"seed": 1234 if count else None},
        "rows": rows | {"variant": "openai" if task == "lambada" else None},
        "truncated": 0,
        "requests_digest": hashlib.sha256(f"{task}{asked}{correct}".encode()).hexdigest(),
        "model": model | {"parameters": 3_412_992, "precision": "float32", "context": 256},
        "metric": "acc",
        "metrics": {"acc": {"value": share, "stderr": stderr}, **likelihoods},
        "values": list(map(float, correct)),
        "clusters": list(range(n)),
        "lm_eval": dict.fromkeys(("results", "configs", "versions", "n-shot", "higher_is_better", "n-samples"), 0),
        "provenance": {
            "command": "mtnlg-eval run",
            "date": "2026-11-22T12:00:00+00:00",
            "hardware": "2 cores",
            "layout": "one process",
            "packages": {"lm-eval": "0.4.13"},
            "seconds": 1.25,
        },
    }
    return Result.model_validate(content | parts)


def samples(result: Result, text: str = "The cook saw the boy.") -> list[dict[str, Any]]:
    """The lines of a result's samples: rows about ``text``, each with the choices yes and no, the first one right."""
    lines = []
    for number, right in enumerate(result.values):
        shots = "".join(f"{text} Shot {n}.\n\n" for n in range(int(result.shots.mean)))
        prompt = f"{shots}{text} Row {number}.\nAnswer:"
        scores = [-1.5, -2.25] if right else [-2.25, -1.5]
        lines.append(
            {
                "id": str(number),
                "digest": f"{number:016x}",
                "gold": 0,
                "target": 0,
                "metrics": ["acc"],
                "arguments": {word: {"arg_0": prompt, "arg_1": f" {word}"} for word in ("yes", "no")},
                "filtered_resps": [[score, False] for score in scores],
                "scores": scores,
                "acc": right,
                "shots": int(result.shots.mean),
                "truncated": False,
            }
        )
    return lines


def metrics() -> list[dict[str, Any]]:
    """Eight steps, of which one was skipped and one validated."""
    figures = {"lr": 1e-3, "grad_norm": 1.2, "batch_size": 20, "seconds": 1.0, "tokens_per_second": 640.0}
    steps: list[dict[str, Any]] = [
        {"step": n, "samples": 20 * n, "tokens": 640 * n, "loss": 5.0 - n / 8, **figures} for n in range(1, 9)
    ]
    steps[3] |= {"loss": None, "skipped": "loss is not finite"}
    steps[7] |= {"validation_loss": 4.1}
    return steps


def write_results(run: Path, results: list[Result], text: str = "The cook saw the boy.") -> None:
    folder = ResultFolder(run / "eval")
    for each in results:
        folder.add(each, map(json.dumps, samples(each, text)))
    folder.collect()


def make_run(run: Path, *names: str) -> Path:
    """A complete run folder with scores of these tasks, or of all nine."""
    write(run / "data/summary.json", curation())
    write(run / "data/tokens/blend.json", blend())
    (run / "data/report.html").touch()
    write(run / "train/summary.json", training())
    lines = "".join(json.dumps(step) + "\n" for step in metrics())
    (run / "train/metrics.jsonl").write_text(lines, encoding="utf-8")
    write_results(run, evaluation(ROWS_FROM, *names))
    return run


VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """A parsed page: its elements with their attributes, its text, and its table rows as text."""

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
        if {"style", "script"} & set(self.open):
            return
        self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def row(self, head: str) -> list[str]:
        return next(row for row in self.rows if row and row[0] == head)


def change(path: Path, **values: Any) -> None:  # noqa: ANN401
    write(path, json.loads(path.read_text(encoding="utf-8")) | values)


def read(run: Path) -> Page:
    """Write the report of this run and parse its page."""
    return Page(write_report(run, show=False).read_text(encoding="utf-8"))


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def dom_in_browser(page: Path, place: str = "") -> str:
    """A page after its scripts have run, as markup."""
    with tempfile.TemporaryDirectory() as profile:
        words = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        words += ["--virtual-time-budget=3000", "--dump-dom", page.as_uri() + place]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout
