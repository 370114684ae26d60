"""Commands and functions whose paths must all be on this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from typer.core import TyperGroup

from .console import UsageFailure

URL: Final = re.compile(r"(?:--[\w-]+=)?[A-Za-z][A-Za-z0-9+.-]*:/")
"""A URL, of which a `Path` keeps one slash."""
TEXTS: Final = {"--from", "--launch", "--prompt", "--sbatch", "--setup", "--srun", "--stop", "--system"}
"""Options whose value may be a URL."""


HINT: Final = "reads and writes local folders: mount it, or copy it and give the copy's path"


def local_path(path: Path | str) -> Path:
    """``path`` as a `Path`. Raises ``UsageFailure`` if it is a URL."""
    if URL.match(os.fspath(path)):
        raise UsageFailure(f"{path}: this function {HINT}")
    return Path(path)


class LocalPaths(TyperGroup):
    """Command group that rejects URLs on the command line, except as values of `TEXTS`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  (a class that typer hides)
        """Parse as the base class does. Raises ``UsageFailure`` if an argument is a URL."""
        for before, word in zip(["", *args], args, strict=False):
            if URL.match(word) and not TEXTS & {before, word.partition("=")[0]}:
                raise UsageFailure(f"{word}: {ctx.info_name} {HINT}")
        return super().parse_args(ctx, args)
