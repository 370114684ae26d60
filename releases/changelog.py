"""What a release says of itself: version, CHANGELOG.md and tags agree.

    python releases/changelog.py PACKAGE ...

A package's changes are the lines of its CHANGELOG.md's top section, one each; docs/decisions/0123 says why they are no
files of their own. A release is tagged NAME-vVERSION.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Sequence

SECTION = re.compile(r"^## (\S+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def check_release(package: Path, tags: Sequence[str], *, final: bool) -> None:
    """Raise ValueError unless version, changelog and tags agree; before a final release nothing may be "Unreleased"."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changes = package / "CHANGELOG.md"
    sections = SECTION.findall(changes.read_text(encoding="utf-8"))
    titles = [title for title, _ in sections]
    version = project["version"]
    released = [title for title in titles if title != "Unreleased"]
    if not released or released[0] != version:
        raise ValueError(f"{changes}: newest version {released[:1]}, pyproject.toml has {version}; make them one")
    if sorted(released, key=Version, reverse=True) != released or "Unreleased" in titles[1:]:
        raise ValueError(f"{changes}: sections {', '.join(titles)}; put the newest first, Unreleased before all")
    if empty := [title for title, text in sections if not re.search(r"^- \S", text, re.MULTILINE)]:
        raise ValueError(f'{changes}: section {empty[0]} has no change; write a line "- …" for each')
    if final and titles[0] == "Unreleased":
        raise ValueError(f"{changes}: changes are Unreleased; raise the version and name the section by it")
    tagged = [Version(tag.removeprefix(f"{package.name}-v")) for tag in tags if tag.startswith(f"{package.name}-v")]
    if final and tagged and max(tagged) >= Version(version):
        raise ValueError(f"{package / 'pyproject.toml'}: version {version} is not after {max(tagged)}, which is tagged")


def newest_section(package: Path) -> str:
    """Return the text of CHANGELOG.md's top section."""
    text: str = SECTION.findall((package / "CHANGELOG.md").read_text(encoding="utf-8"))[0][1]
    return text


def git(*words: str) -> str:
    """Return what git prints, without the last newline."""
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=True)  # noqa: S607  (its path differs)
    return done.stdout.rstrip("\n")


def earlier_tags() -> list[str]:
    """Return the tags of earlier commits; a release is checked at its own tag too."""
    return git("tag", "--list", "--no-contains", "HEAD").split()


if __name__ == "__main__":
    try:
        for name in sys.argv[1:]:
            check_release(Path("packages", name), earlier_tags(), final=True)
    except ValueError as error:
        sys.exit(str(error))
