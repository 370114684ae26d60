"""The README's Python blocks run as they stand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=[str(number) for number in range(len(BLOCKS))])
def test_a_python_block_of_the_readme_runs(block: str, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    texts = [f"Line {n} is about the harbour and the ships that wait in it. " * 4 for n in range(9)]
    lines = [json.dumps({"text": text}) for text in texts]
    (tmp_path / "raw" / "notes.jsonl").write_text("\n".join(lines))
    (tmp_path / "block.py").write_text(block)
    done = subprocess.run([sys.executable, "block.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    promised = re.findall(r"^print\(.*?  # (\{.*?\}):", block, re.MULTILINE)
    assert all(line in done.stdout for line in promised)
