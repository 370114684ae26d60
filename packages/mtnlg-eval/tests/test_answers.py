"""The page's browser of answers: the data of report/samples, and what it lists in a browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest

from mtnlg_eval import write_report
from mtnlg_eval.report import samples
from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def data_of(file: Path) -> dict[str, Any]:
    (text,) = re.findall(r'^mtnlgAnswers\("[^"]+", "([^"]+)"\);\n$', file.read_text(encoding="utf-8"))
    content: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(text)))
    return content


def sample(pairs: list[tuple[str, str]], scores: list[float], **parts: Any) -> samples.Sample:  # noqa: ANN401
    return samples.Sample.model_validate(
        {
            "id": "7",
            "digest": "d",
            "metrics": ["acc"],
            "arguments": {str(n): {"arg_0": context, "arg_1": text} for n, (context, text) in enumerate(pairs)},
            "filtered_resps": [[-10.0 - n, False] for n in range(len(pairs))],
            "scores": scores,
            "shots": 0,
            "truncated": False,
        }
        | parts
    )


def browsed(folder: Path, *lines: samples.Sample) -> dict[str, Any]:
    """The page's data of these rows."""
    (folder / "n.jsonl").write_text("".join(f"{line.model_dump_json()}\n" for line in lines))
    samples.write_samples(folder, {"n": folder / "n.jsonl"})
    return data_of(folder / "report/samples/n.js")


def on_paper(context: str, *texts: str) -> list[tuple[str, str]]:
    return [(context, text) for text in texts]


ANSWER = "A.\n\nB.\nAnswer:"
GENERATED = {"filtered_resps": ["six"], "target": "seven", "arguments": {"gen_args_0": {"arg_0": "Q", "arg_1": {}}}}


@pytest.mark.parametrize(
    ("one", "prompt", "choices", "answer", "chosen"),
    [
        (
            sample(on_paper(ANSWER, " no", " yes"), [-1.0, -2.0], gold=1),
            ANSWER,
            [["", " no", -1.0, -10.0, None], ["", " yes", -2.0, -11.0, None]],
            1,
            0,
        ),
        (  # contexts that differ: from a whole word on
            sample([("Shot.\n\nIt fell: the jar", " broke."), ("Shot.\n\nIt fell: the jam", " broke.")], [-2.0, -1.0]),
            "Shot.\n\nIt fell: the ",
            [["jar", " broke.", -2.0, -10.0, None], ["jam", " broke.", -1.0, -11.0, None]],
            -1,
            1,
        ),
        (
            sample([*on_paper("Q", " a", " b"), *on_paper("Answer:", " a", " b")], [2.0, 1.0]),
            "Q",
            [["", " a", 2.0, -10.0, -12.0], ["", " b", 1.0, -11.0, -13.0]],
            -1,
            0,
        ),
        (
            sample([*on_paper("Q", " a", " b"), *on_paper("", " a", " b")], [-1.0, -2.0, -3.0, -4.0]),
            "Q",
            [["", " a", -1.0, -10.0, -12.0], ["", " b", -2.0, -11.0, -13.0]],
            -1,
            0,
        ),
        (
            sample(on_paper("", "They go.", "They goes."), [-1.0, -2.0]),
            "",
            [["", "They go.", -1.0, -10.0, None], ["", "They goes.", -2.0, -11.0, None]],
            -1,
            0,
        ),
        (sample([], [], **GENERATED), "Q", [["", text, None, None, None] for text in ("seven", "six")], 0, 1),
    ],
    ids=["one prompt", "two contexts", "without the prompt", "mutual", "no prompt, as in BLiMP", "generated"],
)
def test_prompt_and_choices_of_a_row(  # noqa: PLR0917
    one: samples.Sample, prompt: str, choices: list[list[Any]], answer: int, chosen: int, tmp_path: Path
) -> None:
    data = browsed(tmp_path, one)
    ((*_, shown, found),) = data["rows"]
    words = data["texts"]
    assert "\n\n".join(words[n] for n in shown) == prompt
    assert [[words[lead], words[text], *figures] for lead, text, *figures in found] == choices
    assert data["rows"][0][3:5] == [answer, chosen]


def test_shared_prompt_text_is_stored_once(tmp_path: Path) -> None:
    data = browsed(tmp_path, *[sample(on_paper("Shot.\n\nQ", " a", " b"), [-1.0, -2.0])] * 2)
    assert sorted(data["texts"]) == ["", " a", " b", "Q", "Shot."]
    assert [row[0] for row in data["rows"]] == ["d", "d#2"]


def test_rows_beyond_the_bound_are_counted_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MAX_CHARACTERS", 200)
    data = browsed(tmp_path, *(sample([(f"{n:0100}", " a")], [-1.0]) for n in range(5)))
    assert (data["total"], len(data["rows"])) == (5, 2)


def test_a_malformed_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "n.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(Failure, match=r"n\.jsonl:1: id"):
        samples.write_samples(tmp_path, {"n": tmp_path / "n.jsonl"})


def test_result_with_an_unsafe_name_has_no_answers(tmp_path: Path) -> None:
    for name in ("plain.jsonl", "x y.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "in").mkdir()
    found = samples.sample_files(tmp_path / "in" / "..", ["../plain", "plain", "x y", ".hidden", "missing"])
    assert list(found) == ["plain"]


@pytest.fixture(scope="module")
def compared(made: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints on two tasks; the second is right on another half of BoolQ's rows."""
    run: Path = made.make_run(tmp_path_factory.mktemp("runs") / "run", "wic")
    for step, correct in ((160, "1100" * 30), (80, "1010" * 30)):
        digest = made.DIGEST if step == 160 else "80"
        result = made.result("boolq", "0", 0, correct, step=step, model={"tokens": step, "digest": digest})
        made.write_results(run, [result], f"The cook saw boy {step}.")
    write_report(run, show=False)
    return run


def browse(made: ModuleType, run: Path, place: str) -> tuple[list[list[str]], str]:
    """The verdicts and snippet of each row listed, and the whole section, after the page's script has run."""
    dom = made.dom_in_browser(run / "report.html", place)
    section = dom.partition('<section id="answers">')[2].partition("</section>")[0]
    listed = section.partition('<div id="answers-rows">')[2].partition('<div id="answers-turn"')[0]
    rows = re.findall(r"<summary>(.*?)</summary>", listed, re.DOTALL)
    return [list(map(unescape, re.findall(r"<span[^>]*>([^<]*)</span>", row))) for row in rows], section


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(
    ("place", "verdicts", "count"),
    [
        ("#task=boolq&with=&show=wrong", {("wrong",)}, "60 of 120 rows: 1 to 50"),
        ("#task=boolq", {("right", "wrong"), ("wrong", "right")}, "60 of 120 rows: 1 to 50"),
        ("#task=boolq&show=lost&find=ROW+77", {("right", "wrong")}, "1 of 120 rows"),
    ],
)
def test_browser_lists_requested_rows(
    made: ModuleType, compared: Path, place: str, verdicts: set[tuple[str, ...]], count: str
) -> None:
    rows, section = browse(made, compared, place)
    assert {tuple(row[:-1]) for row in rows} == verdicts
    assert f">{count}</p>" in section


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_row_link_opens_prompt_and_choice_scores(made: ModuleType, compared: Path) -> None:
    rows, section = browse(made, compared, "#task=boolq&row=77")
    assert len(rows) == 50
    prompts = [re.sub(r"<[^>]*>", "", text) for text in re.findall(r"<pre[^>]*>(.*?)</pre>", section, re.DOTALL)]
    assert prompts == [f"The cook saw boy {n}. Row 77.\nAnswer:" for n in (160, 80)]
    cells = [re.sub(r"<[^>]*>", "|", cell) for cell in re.findall(r'<td class="said".*?</tr>', section)]
    figures = {True: "\N{MINUS SIGN}1.500", False: "\N{MINUS SIGN}2.250"}
    right = [True, False]  # row 77 of each checkpoint
    assert [figures[is_right] in cells[2 * n] for n, is_right in enumerate(right)] == [True, True]
    assert all("right answer" in cells[n] and "|yes" in cells[n] for n in (0, 2))
    assert ["chosen" in cell for cell in cells] == [True, False, False, True]


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_page_without_its_folder_warns(made: ModuleType, compared: Path, tmp_path: Path) -> None:
    shutil.copy(compared / "report.html", tmp_path)
    _, section = browse(made, tmp_path, "#task=boolq")
    assert re.search(r"report/samples/boolq_0-[\w-]+\.js is not beside this page: move both together", section)


def test_index_offers_comparisons_of_equal_rows_only(compared: Path) -> None:
    content = (compared / "report.html").read_text(encoding="utf-8")
    (text,) = re.findall(r'<script type="application/json" id="answers-index">(.*?)</script>', content)
    index = json.loads(text)
    boolq = [entry for entry in index if entry["task"] == "boolq"]
    assert [entry["label"] for entry in boolq] == [
        "step-160, 0 shots: 50.0 % of 120 rows",
        "step-80, 0 shots: 50.0 % of 120 rows",
    ]
    assert {entry["rows"] for entry in boolq} == {"boolq120"}
    assert all((compared / f"report/samples/{entry['name']}.js").is_file() for entry in index)
    href = f'href="#task=boolq&amp;of={boolq[0]["name"]}&amp;with={boolq[1]["name"]}&amp;show=differ"'
    assert href in content, "the difference in the table leads to its rows"
