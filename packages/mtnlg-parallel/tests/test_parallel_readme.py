"""The README's Python blocks print what their comments say; its recipes and commands are in tests/test_docs.py."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_python_output_matches_comments() -> None:
    names: dict[str, object] = {}
    for block in blocks("python"):
        stdout = StringIO()
        with redirect_stdout(stdout):
            exec(compile(block, "README.md", "exec"), names)  # noqa: S102  (the block is what is tested)
        comments = [re.split(r"\s{2,}# ", line)[1] for line in block.splitlines() if line.startswith("print")]
        for line, comment in zip(stdout.getvalue().splitlines(), comments, strict=True):
            assert comment.startswith(line)
