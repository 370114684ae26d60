"""Options made from settings: what `--help` shows of them, how they are read, and what a mistake says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import pytest
from command_line import command, invoke

from mtnlg_data import Step
from mtnlg_data.cli import app
from mtnlg_data.commands.setting_options import leaves
from mtnlg_data.commands.step_command import NAMES
from mtnlg_data.console import UsageFailure, run
from mtnlg_data.settings import Settings, setting
from mtnlg_data.user_code import open_step

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_data.step import Decide

STEPS = (
    "extract",
    "quality",
    "clean",
    "deduplicate",
    "exact",
    "decontaminate",
    "tokenize",
)  # names of filter are longer


class Inner(Settings):
    low: float = setting(0.3, "Least share.", unit="share", paper="0.32", ge=0, le=1)


class Every(Settings):
    """A setting of every type."""

    count: int | None = setting(None, "Number of pages.", unit="pages", ge=2)
    kind: Literal["one", "other"] = setting("one", "Which of two.")
    names: list[str] = setting(["a", "b"], "Names to keep.")
    shares: dict[str, int] = setting({}, "Pages by source.", unit="pages")
    loud: bool = setting(default=False, description="Speak up.")
    careful: bool = setting(default=True, description="Take care.")
    inner: Inner = Inner()


class SettingsRead(Exception):  # noqa: N818  (no error)
    """Ends a command with the settings that it got."""


class Spy(Step[Every, Settings]):
    """Runs nothing."""

    def check(self) -> None:
        raise SettingsRead(self.settings)

    def open(self, shard: object, item: object = None, **shared: object) -> Decide:
        raise NotImplementedError


def read(folder: Path, *words: str) -> object:
    """The settings that the command of a step gets with these options."""
    (folder / "x.jsonl").touch()
    with pytest.raises(SettingsRead) as ended:
        invoke("step", f"{__name__}:Spy", folder / "x.jsonl", "--out", folder / "out", *words)
    return ended.value.args[0]


def test_each_type_has_its_form_of_option(tmp_path: Path) -> None:
    assert read(tmp_path) == Every()
    words = ("--count", "3", "--kind", "other", "--names", "x,y", "--shares", "a=1,b=2", "--loud", "--no-careful")
    expected = Every(
        count=3,
        kind="other",
        names=["x", "y"],
        shares={"a": 1, "b": 2},
        loud=True,
        careful=False,
        inner=Inner(low=0.5),
    )
    assert read(tmp_path, *words, "--inner-low", "0.5") == expected


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--count 1", "--count 1: Input should be greater than or equal to 2"),
        ("--count many", "--count many: Input should be a valid integer"),
        ("--kind third", "--kind third: Input should be 'one' or 'other'"),
        (f"--count {1 << 63}", "--count 9223372036854775808: the integer 9223372036854775808 does not fit in"),
        (f"--shares a={10**30}", f"--shares a={10**30}: the integer {10**30} does not fit in"),
        ("--shares a=few", "--shares a=few: Input should be a valid integer"),
        ("--inner-low 2", "--inner-low 2: Input should be less than or equal to 1"),
    ],
)
def test_a_wrong_value_is_a_line_with_option_and_value(tmp_path: Path, words: str, line: str) -> None:
    with pytest.raises(UsageFailure) as failure:
        read(tmp_path, *words.split())
    assert str(failure.value).startswith(line)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("step", STEPS)
def test_help_shows_default_unit_and_paper_value(step: str) -> None:
    name, schema = NAMES.get(step, step), open_step(step).Settings
    narrow = command(name, "--help", env={"COLUMNS": "80"}).output
    assert max(map(len, narrow.splitlines())) <= 80
    assert not re.search(r"--\S*…", narrow), "an option's name is cut"
    # The borders of the table, and the line ends within its cells, are not part of the words.
    words = re.sub(r"\s+", " ", command(name, "--help", env={"COLUMNS": "400"}).output)
    for leaf in leaves(schema):
        assert leaf.field.description, f"{leaf.option} has no description"
        assert re.search(rf"{re.escape(leaf.option)} ", narrow)
        shown = f"{leaf.option} {leaf.metavar} {leaf.help}" if leaf.metavar else leaf.help
        assert shown in words
        assert leaf.default in leaf.help
        assert leaf.note("paper") in leaf.help


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("dedup x --out y --treshold 2", "No such option: --treshold"),
        ("dedupe", "No such command 'dedupe'"),
        ("dedup x", "Missing option '--out'"),
        ("dedup x --out y --workers none", "Invalid value for '--workers'"),
    ],
)
def test_a_mistyped_command_line_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["mtnlg-data", *words.split()])
    with pytest.raises(SystemExit) as ended:
        run(app)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"mtnlg-data: {line}")
    assert said.count("\n") == 1
