"""The page beside a run shows all of it, in a file whose size does not grow with the run, and never ends it."""

from __future__ import annotations

import errno
import json
import re
import shutil
import subprocess
import tempfile
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.record.curves import Scale
from mtnlg_parallel.record.history import FILE as HISTORY
from mtnlg_parallel.record.metrics import FILE as METRICS
from mtnlg_parallel.record.page import Page

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

RECIPE = Recipe.model_validate(
    {
        "model": {"preset": "tiny"},
        "train": {"samples": 80_000, "batch": 8, "ramp": {"start": 4, "increment": 4, "samples": 80}, "lr": 1e-3},
    }
)
SKIPPED, SPIKE = 77, 6837


def write_steps(out: Path, numbers: Iterable[int]) -> None:
    with (out / METRICS).open("a") as file:
        for n in numbers:
            step: dict[str, Any] = {"step": n, "samples": 8 * n, "tokens": 1024 * n, "loss": 2 + 6 / n, "lr": 1e-3}
            step |= {
                "grad_norm": 5000 if n == SPIKE else 1 + n % 5,
                "batch_size": 8,
                "seconds": 1.0,
                "tokens_per_second": 1024.0,
            }
            step |= {"validation_loss": 2.5} if n % 50 == 0 else {}
            step |= {"loss": 900.0, "grad_norm": None, "skipped": "loss is <high>"} if n == SKIPPED else {}
            file.write(json.dumps(step) + "\n")


def write_events(out: Path, *reasons: str) -> None:
    events: list[dict[str, Any]] = [{"event": "start", "time": 0.0}, {"event": "resumed", "time": 1.0, "step": 0}]
    for number, reason in enumerate(reasons, 1):
        events += [
            {"event": "failed", "time": 100.0 * number, "reason": reason, "node": "n7"},
            {"event": "resumed", "time": 100.0 * number + 5, "step": 90, "source": "memory", "lost_steps": 3},
        ]
    (out / HISTORY).write_text("".join(json.dumps(event) + "\n" for event in events))


def page_of(out: Path) -> str:
    Page(out, RECIPE).close()
    return (out / "report.html").read_text(encoding="utf-8")


def svgs(html: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]  # noqa: S314  (ours)


def test_the_page_shows_curves_restarts_skipped_steps_and_goodput_and_loads_nothing(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 201))
    write_events(tmp_path, "rank 3 <died>")
    html = page_of(tmp_path)
    assert not re.search(r"https?:|src=|href=|<script", html)
    assert "prefers-color-scheme: dark" in html
    assert [svg[0].text for svg in svgs(html)][1:] == [
        "Loss over the last half",
        "Learning rate",
        "Gradient norm",
        "Speed",
        "Batch",
    ]
    loss = svgs(html)[0]
    assert len(loss.findall("line[@class='restart']")) == 1
    assert len(loss.findall("line[@class='skip']")) == 1
    line = loss.find("polyline[@class='line']")
    assert line is not None
    assert len(line.attrib["points"].split()) == 199  # each but the one skipped
    assert "100" not in {text.text for text in loss.findall("text")}  # the leap does not set the scale
    assert len(loss.findall("circle")) == 4
    for words in (
        "rank 3 &lt;died&gt; on n7",
        "loss is &lt;high&gt;",
        "90, memory",
        "goodput, of",
        "useful steps",
    ):
        assert words in html
    standing_alone = ET.parse(tmp_path / "loss.svg").getroot()  # noqa: S314  (ours)
    assert standing_alone.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme:dark" in "".join(standing_alone.itertext())


def test_a_page_of_many_steps_is_no_larger_and_keeps_every_spike(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 1001))
    small = len(page_of(tmp_path))
    write_steps(tmp_path, range(1001, 10_001))
    html = page_of(tmp_path)
    assert len(html) < 1.3 * small
    norm = svgs(html)[3]
    band = norm.find("polygon")
    assert band is not None
    assert min(float(point.partition(",")[2]) for point in band.attrib["points"].split()) == pytest.approx(14.0)
    assert "1 k" in "".join(norm.itertext()).replace("\N{NARROW NO-BREAK SPACE}", " ")


def test_a_page_continued_is_the_page_begun_anew(tmp_path: Path) -> None:
    continued = tmp_path / "continued"
    whole = tmp_path / "continued" / "train"
    for out in (continued, whole):
        out.mkdir()
        write_events(out, "a", "b")
    write_steps(continued, range(1, 80))
    page = Page(continued, RECIPE)
    page.update()
    page._thread.submit(int).result()  # the page before it in the queue is written
    write_steps(continued, range(80, 300))
    page.close()
    write_steps(whole, range(1, 300))
    at = re.compile("written .* at")
    assert at.sub("", (continued / "report.html").read_text()) == at.sub("", page_of(whole))


def test_a_run_without_a_step_has_a_page(tmp_path: Path) -> None:
    write_steps(tmp_path, [])
    assert "No step has been recorded yet" in page_of(tmp_path)


def test_a_page_that_cannot_be_written_is_told_and_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, _text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    write_steps(tmp_path, range(1, 5))
    monkeypatch.setattr("mtnlg_parallel.record.page.write_text", full)
    Page(tmp_path, RECIPE).close()
    assert capsys.readouterr().err == (
        f"{tmp_path}/loss.svg: No space left on device; the page of the run was not written\n"
    )


def test_checkpoints_in_quick_succession_write_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("mtnlg_parallel.record.page.time.monotonic", lambda: clock[0])
    write_steps(tmp_path, range(1, 5))
    page, report = Page(tmp_path, RECIPE), tmp_path / "report.html"
    for seconds, written in ((0, True), (29, False), (31, True), (32, False)):
        clock[0] = 1000.0 + seconds
        page.update()
        page._thread.submit(int).result()
        assert report.exists() == written
        report.unlink(missing_ok=True)
    page.close()


@given(st.floats(1e-9, 1e12), st.floats(1.01, 1e9), st.booleans())
def test_ticks_are_few_and_within(low: float, factor: float, logarithmic: bool) -> None:
    scale = Scale(low, low * factor, 200, 10, logarithmic)
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 8
    assert ticks == sorted(set(ticks))
    assert all(10 - 1e-3 <= scale(tick) <= 200 + 1e-3 for tick in ticks)


RUN = "document.title='owned'"
SCRIPTS = (
    f"<script>{RUN}</script>",
    f'"><img src=x onerror="{RUN}">',
    f"' onmouseover={RUN} autofocus onfocus={RUN} x='",
    f"</title></style></pre></details><svg/onload={RUN}>",
    f"--><iframe srcdoc='<script>parent.{RUN}</script>'>",
    f"&lt;script&gt;{RUN}&#60;/script&#62;",
    f"$title ${{style}} {{0}} %s <script>{RUN}</script>",
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def page_with(folder: Path, text: str) -> str:
    """The page of a run with this text in every field that anyone but the trainer may have written."""
    folder.mkdir()
    write_steps(folder, [1])
    step = {"step": 2, "samples": 16, "tokens": 2048, "loss": 2.0, "lr": 1e-3, "skipped": text, "grad_norm": None}
    with (folder / METRICS).open("a") as file:
        file.write(json.dumps({**step, "batch_size": 8, "seconds": 1.0, "tokens_per_second": 9.0, text: text}) + "\n")
    write_events(folder, text, text)
    for name, value in (("n7", text), ("memory", text)):
        history = (folder / HISTORY).read_text().replace(f'"{name}"', json.dumps(value))
        (folder / HISTORY).write_text(history)
    slurm = {"sbatch": {"comment": text}, "srun": {"container-image": text}, "setup": [text]}
    train = RECIPE.train.model_copy(update={"initial": text})
    recipe = RECIPE.model_copy(update={"slurm": RECIPE.slurm.model_validate(slurm, strict=False), "train": train})
    Page(folder, recipe).close()
    return (folder / "report.html").read_text(encoding="utf-8")


class Tags(HTMLParser):
    """The opening tags of a page, with the names of their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))


def test_no_text_of_a_run_becomes_markup_of_its_page_and_no_browser_runs_it(tmp_path: Path) -> None:
    harmless = Tags(page_with(tmp_path / "harmless", "a text"))
    shown = page_with(tmp_path / "all", hostile := " ".join(SCRIPTS))
    assert shown.count("&lt;script&gt;document.title") >= 10, "the text is in many places"
    for number, text in enumerate((*SCRIPTS, hostile)):
        name = text.replace("/", "\N{DIVISION SLASH}") if number == 1 else f"{number}"
        assert Tags(page_with(tmp_path / name, text)).tags == harmless.tags, text
    if CHROMIUM is None:
        return
    control = tmp_path / "control.html"
    control.write_text(f"<title>x</title><img src=x onerror={RUN}>", encoding="utf-8")
    assert title_in_browser(control) == "owned"
    assert title_in_browser(tmp_path / "all" / "report.html") == "all"


def title_in_browser(page: Path) -> str:
    """The title of a page after its scripts have run."""
    with tempfile.TemporaryDirectory() as profile:
        words = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        words += ["--virtual-time-budget=1000", "--dump-dom", page.as_uri()]
        dom = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout
    return dom.partition("<title>")[2].partition("</title>")[0]
