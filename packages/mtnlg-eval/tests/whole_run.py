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
from pathlib import Path
from typing import Any

from mtnlg_eval.report import write_report
from mtnlg_eval.results.folder import ResultFolder
from mtnlg_eval.results.result import Result
from mtnlg_eval.tasks.published import SHOTS, TASKS, TASKS_BY_NAME

HERE = Path(__file__).parent
RUN = HERE / "run"


def write(path: Path, value: Any) -> None:  # noqa: ANN401
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def load(name: str, folder: Path = RUN) -> Any:  # noqa: ANN401
    return json.loads((folder / name).read_text(encoding="utf-8"))


RESULT, STUDIES = load("run_result.json", HERE), load("studies.json", HERE)
DIGEST = RESULT["model"]["digest"]


def evaluation(*names: str, **parts: Any) -> list[Result]:  # noqa: ANN401
    """Results of the named tasks, or of all nine; a test names few, since every task is a chart to draw."""
    draw = random.Random(3)
    results = []
    for task in (task for task in TASKS if task.name in names or not names):
        for asked, shown in zip(SHOTS, (0, 1, 4.357), strict=True):
            right, rows = draw.randint(2, 11), 14
            correct = draw.sample("1" * right + "0" * (rows - right), rows)
            results.append(result(task.name, asked, shown, "".join(correct), **parts))
    return results


def result(task: str, asked: str, shown: float, correct: str, step: int = 160, **parts: Any) -> Result:  # noqa: ANN401
    """One result with these right and wrong answers; ``parts`` replace parts of it, and parts of them."""
    published, n = TASKS_BY_NAME[task], len(correct)
    count = published.few if asked == "few" else int(asked)
    share = correct.count("1") / n
    stderr = math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else None
    seed, variant = 1234 if count else None, "openai" if task == "lambada" else None
    checkpoint = f"/anywhere/runs/quickstart/train/checkpoints/step-{step}"
    changes: dict[str, Any] = {
        "task": task,
        "shots": {"asked": asked, "count": count, "mean": shown, "least": int(shown), "seed": seed},
        "rows": {"split": published.split, "count": n, "sample_of": n, "digest": f"{task}{n}", "variant": variant},
        "requests_digest": hashlib.sha256(f"{task}{asked}{correct}".encode()).hexdigest(),
        "model": {"checkpoint": checkpoint, "name": f"step-{step}", "step": step},
        "metrics": {"acc": {"value": share, "stderr": stderr}},
        "values": list(map(float, correct)),
        "clusters": list(range(n)),
    }
    content = dict(RESULT)
    for name, value in [*changes.items(), *parts.items()]:
        content[name] = content[name] | value if isinstance(value, dict) else value
    return Result.model_validate(content)


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


def write_results(run: Path, results: list[Result], text: str = "The cook saw the boy.") -> None:
    folder = ResultFolder(run / "eval")
    for each in results:
        folder.add(each, map(json.dumps, samples(each, text)))
    folder.collect()


def metrics() -> list[dict[str, Any]]:
    """The run's steps, of which one was skipped and one validated."""
    return [json.loads(line) for line in (RUN / "train/metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def make_run(run: Path, *names: str) -> Path:
    """A complete run folder with scores of these tasks, or of all nine."""
    shutil.copytree(RUN, run)
    write_results(run, evaluation(*names))
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
    write(path, load(path.name, path.parent) | values)


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
