"""Breaking changes of the public names since the last release, or since the last commit where nothing is released yet.

griffe compares signatures and attributes without importing. A break is allowed where the top section of the package's
CHANGELOG.md names what breaks.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

import griffe
from changelog import earlier_tags, git, newest_section
from packaging.version import Version


def main() -> None:
    """Print each break that the changelog does not name, and end with status 1 if there is one."""
    unnamed = []
    for package in sorted(Path("packages").glob("mtnlg-*")):
        changes = newest_section(package)
        for name, what in breaks(package, reference(package)):
            last = name.removesuffix(".__init__").rpartition(".")[2]
            if not re.search(rf"\b{re.escape(last)}\b", changes):
                unnamed.append(f"{package / 'CHANGELOG.md'}: {name}: {what}; name it in the top section")
    print(*unnamed, sep="\n", file=sys.stderr, end="\n" if unnamed else "")
    sys.exit(1 if unnamed else 0)


def reference(package: Path) -> str:
    """Return the package's last tag; without one the last commit, or the one before where nothing is changed since."""
    if tags := [tag for tag in earlier_tags() if tag.startswith(f"{package.name}-v")]:
        return max(tags, key=lambda tag: Version(tag.removeprefix(f"{package.name}-v")))
    first = git("rev-list", "--count", "HEAD") == "1"
    return "HEAD" if first or git("status", "--porcelain", "--untracked-files=no") else "HEAD~1"


def breaks(package: Path, ref: str) -> list[tuple[str, str]]:
    """Return name and kind of every breaking change of what ``__all__`` holds or held, and of what is in it."""
    module, source = package.name.replace("-", "_"), package / "src"
    words = ["git", "archive", "--format=zip", ref, str(source)]
    archive = subprocess.run(words, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with ZipFile(io.BytesIO(archive)) as files:
            files.extractall(folder)
        old = griffe.load(module, search_paths=[Path(folder) / source], resolve_aliases=True)
    new = griffe.load(module, search_paths=[source], resolve_aliases=True)
    gone = [(f"{module}.{name}", "Public object was removed") for name in set(old.exports) - set(new.exports)]
    places = [old.members[name].final_target.path for name in old.exports]
    inside = {(found.obj.path, found.kind.value) for found in griffe.find_breaking_changes(old, new)}
    public = [(path, what) for path, what in inside if any(f"{path}.".startswith(f"{place}.") for place in places)]
    return sorted({*gone, *public})


if __name__ == "__main__":
    main()
