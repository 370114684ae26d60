"""The README's blocks, run as they stand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGE = Path(__file__).parents[1]


def blocks(language: str) -> list[str]:
    readme = (PACKAGE / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", readme, re.DOTALL)


def test_the_blocks_of_the_readme_run(write_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoints")
    shutil.copytree(PACKAGE / "tests" / "rows", tmp_path / "rows")
    paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": paths,
        "OMP_NUM_THREADS": "1",
        "HF_HOME": str(tmp_path / "hub"),
        "HF_HUB_OFFLINE": "1",
    }
    commands = [["bash", "-euc", block] for block in blocks("bash")]
    commands += [[sys.executable, "-c", block] for block in blocks("python")]
    assert len(commands) == 6
    for command in commands:
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "eval" / "results.json").exists()
    assert (tmp_path / "eval-python" / "results.json").exists()
    assert (tmp_path / "texts.jsonl").exists()
    assert re.search(r"^[01]\.\d", ended.stdout, re.MULTILINE)
