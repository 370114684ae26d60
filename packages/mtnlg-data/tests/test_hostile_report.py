"""What strangers wrote, in every field that a summary may have: no page runs it, and no terminal obeys it."""

from __future__ import annotations

import pty
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from html.parser import HTMLParser
from itertools import count
from os import close, read
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel

from mtnlg_data.report import write_report
from mtnlg_data.summary import RunSummary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RUN = "document.title='owned'"
SCRIPTS = [
    f"<script>{RUN}</script>",
    f'"><img src=x onerror="{RUN}">',
    f"' onmouseover={RUN} autofocus onfocus={RUN} x='",
    f"</title></style></script><svg/onload={RUN}>",
    f"--><!-- --!><iframe srcdoc='<script>parent.{RUN}</script>'>",
    f"javascript:{RUN}",
    f"]]><![CDATA[<body onload={RUN}>",
    f"&lt;script&gt;{RUN}&#60;/script&#62;",
    f"$title ${{style}} {{0}} %s \x00<script>{RUN}</script>",
]


def filled(annotation: Any, text: Callable[[], str]) -> Any:  # noqa: ANN401
    """A value of this type, with a text of ``text`` wherever it has one."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return {text(): [text(), 1, None]}
    if origin in {Union, UnionType}:
        return filled(arguments[0], text)
    if origin is dict:
        keys = [512, 1024] if arguments[0] is int else [text(), text()]
        return {key: filled(arguments[1], text) for key in keys}
    if origin is not None:
        return [filled(arguments[0], text) for _ in range(2)]
    if issubclass(annotation, BaseModel):
        return {name: filled(field.annotation, text) for name, field in annotation.model_fields.items()}
    return text() if annotation is str else annotation(1)


def write_page(folder: Path, text: Callable[[], str]) -> str:
    folder.mkdir(parents=True)
    summary = RunSummary.model_validate(filled(RunSummary, text))
    (folder / "summary.json").write_text(summary.model_dump_json(), encoding="utf-8")
    return write_report(folder).read_text(encoding="utf-8")


def hostile_page(folder: Path) -> tuple[Path, str]:
    numbers = count()
    place = folder / f"<img src=x onerror={RUN}>"
    return place / "report.html", write_page(place, lambda: f"~{(n := next(numbers))}~{SCRIPTS[n % len(SCRIPTS)]}")


class Tags(HTMLParser):
    """The opening tags of a page, with the names of their attributes and the targets of their links."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.links: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.links |= {str(value) for name, value in attrs if name in {"href", "src"}}


def test_texts_add_no_tags_to_the_page(tmp_path: Path) -> None:
    numbers = count()
    harmless = Tags(write_page(tmp_path / "harmless", lambda: f"~{next(numbers)}~"))
    _, page = hostile_page(tmp_path)
    hostile = Tags(page)
    assert hostile.tags == harmless.tags
    assert hostile.links == harmless.links
    assert not [tag for tag, attributes in hostile.tags if tag == "script" or any(a[:2] == "on" for a in attributes)]
    shown = sum(f"~{number}~" in page for number in range(next(numbers)))
    assert shown > 60, "most texts of a summary are on its page"


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def title_in_browser(page: Path) -> str:
    """The title of the page after its scripts have run."""
    with tempfile.TemporaryDirectory() as profile:
        words = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        words += ["--virtual-time-budget=2000", "--dump-dom", page.as_uri()]
        dom = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    return dom.partition("<title>")[2].partition("</title>")[0]


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_a_browser_runs_no_script_of_a_page(tmp_path: Path) -> None:
    control = tmp_path / "control.html"
    control.write_text(f"<title>x</title><img src=x onerror={RUN}>", encoding="utf-8")
    assert title_in_browser(control) == "owned"
    path, page = hostile_page(tmp_path)
    assert title_in_browser(path) == page.partition("<title>")[2].partition("</title>")[0].replace("&#39;", "'")


STEERS = "[red]a[/red] :smile: \x1b]52;c;eA==\x07 \x1b]0;title\x07 \x1b[2J \x9b2J \x7f \r \u202e"


def test_inspect_escapes_terminal_sequences(tmp_path: Path) -> None:
    path = tmp_path / "documents.parquet"
    pq.write_table(pa.table({"id": [STEERS], "source": [STEERS], "text": [f"{STEERS}\nsecond line"]}), path)
    terminal, its_end = pty.openpty()
    command = [sys.executable, "-c", "from mtnlg_data.cli import main; main()", "inspect", str(path)]
    with subprocess.Popen(command, stdout=its_end):
        close(its_end)
        written = b""
        with suppress(OSError):  # the end of a terminal whose other end is closed
            while block := read(terminal, 1 << 16):
                written += block
    close(terminal)
    shown = written.decode()
    for sequence in ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\x7f", "\u202e", "\x1b[31m"):
        assert sequence not in shown
    assert "\r" not in shown.replace("\r\n", "")
    assert "[red]a[/red] :smile:" in shown
    assert "second line\r\n" in shown
