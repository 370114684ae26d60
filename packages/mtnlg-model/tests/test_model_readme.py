"""The README's blocks, run in their order in one folder."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from mtnlg_model import cli

README = Path(__file__).parents[1] / "README.md"


def test_readme_examples_hold(
    tmp_path: Path, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(tokenizer_path, "tokenizer.json")
    shown = ""
    blocks = re.findall(r"```(\w+)\n(.*?)```", README.read_text(), re.DOTALL)
    assert {language for language, _ in blocks} == {"sh", "text", "python"}
    for language, block in blocks:
        if language == "python":
            exec(compile(block, str(README), "exec"), {})  # noqa: S102  (our own README)
        elif language == "text":
            # Columns may stand closer or wider.
            for line in block.splitlines():
                assert line.split() in [other.split() for other in shown.splitlines()], line
        else:
            for line in block.splitlines():
                if line != "pip install ./packages/mtnlg-model":
                    monkeypatch.setattr(sys, "argv", shlex.split(line))
                    with pytest.raises(SystemExit) as end:
                        cli.main()
                    assert not end.value.code, line
            shown = capsys.readouterr().out
    assert (tmp_path / "imported" / "manifest.json").is_file()
