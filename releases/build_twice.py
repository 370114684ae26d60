"""Build the packages' sdists and wheels twice, in folders that differ, and check what they hold.

    python releases/build_twice.py DIST

The second build has another path, other times of files and another umask; equal bytes show that none of them is in the
result. A wheel is built from its sdist, which shows that the sdist is whole. Both are dated by the last commit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

from changelog import check_release, earlier_tags, git


def main() -> None:
    """Leave the first build's files in DIST and print their hashes; end with one line and status 1 at what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path)
    dist = parser.parse_args().dist
    packages = sorted(Path("packages").glob("mtnlg-*"))
    try:
        for package in packages:
            check_release(package, earlier_tags(), final=False)
        shutil.rmtree(dist, ignore_errors=True)
        for package in packages:
            build_twice(package, dist)
    except ValueError as error:
        sys.exit(str(error))


def build_twice(package: Path, dist: Path) -> None:
    """Build the package's sdist and wheel into ``dist``; raise ValueError if a second build has other bytes."""
    epoch = git("log", "-1", "--format=%ct", "--", str(package))
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "a"), Path(folder, "elsewhere", "b")
        build(package, first, epoch, umask=0o022)
        build(package, second, epoch, umask=0o077, aged=True)
        compare(first / "dist", second / "dist")
        shutil.copytree(first / "dist", dist, dirs_exist_ok=True)
    for path in sorted(dist.glob(f"{package.name.replace('-', '_')}-*")):
        print(f"{sha256(path.read_bytes()).hexdigest()}  {path}")
        if path.suffix == ".whl":
            check_wheel(path)


def build(package: Path, folder: Path, epoch: str, *, umask: int, aged: bool = False) -> None:
    """Copy the package's files, those that git knows or would, into ``folder``, and build in the copy."""
    names = git("ls-files", "--cached", "--others", "--exclude-standard", "--", str(package)).splitlines()
    for name in names:
        source, copy = Path(name), folder / "source" / Path(name).relative_to(package)
        if source.exists():  # a file that was removed and is not yet committed
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
            if aged:
                os.utime(copy, (1, 1))
                copy.chmod(copy.stat().st_mode & ~umask)
    words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(folder / "source")]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "TZ": "Asia/Tokyo" if aged else "UTC"}
    done = subprocess.run(words, env=environment, umask=umask, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{package}: not built:\n{done.stdout}{done.stderr}")


def compare(first: Path, second: Path) -> None:
    """Raise ValueError unless both folders hold the same files."""
    names = sorted({path.name for folder in (first, second) for path in folder.iterdir()})
    for name in names:
        one, other = first / name, second / name
        if not (one.exists() and other.exists()) or one.read_bytes() != other.read_bytes():
            raise ValueError(f"{name}: two builds differ; diffoscope shows where")


def check_wheel(path: Path) -> None:
    """Raise ValueError unless the wheel holds licence, bill of materials and py.typed, and no other package."""
    with ZipFile(path) as wheel:
        names = set(wheel.namelist())
    module, info = path.name.partition("-")[0], "-".join(path.name.split("-")[:2]) + ".dist-info"
    wanted = {f"{module}/py.typed", f"{info}/licenses/LICENSE", f"{info}/sboms/sbom.cdx.json"}
    if missing := wanted - names:
        raise ValueError(f"{path}: without {', '.join(sorted(missing))}")
    if others := {name for name in names if name.partition("/")[0] not in {module, info}}:
        raise ValueError(f"{path}: {min(others)} is not of {module}")


if __name__ == "__main__":
    main()
