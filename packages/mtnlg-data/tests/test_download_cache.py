"""Two runs that download at the same time: one waits for the other, or says that it is there; no file is torn."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from object_store import command

from mtnlg_data.engine import lock_folder

CONTENT = bytes(range(256)) * 300


def test_a_run_waits_while_another_downloads_the_same_file(tmp_path: Path) -> None:
    served = tmp_path / "served.bin"
    served.write_bytes(CONTENT)
    url = f"file://{served}"
    cache = tmp_path / "cache" / "mtnlg-data" / "urls" / hashlib.sha256(url.encode()).hexdigest()[:16]
    code = "from mtnlg_data.transfer import url_files, urls\n"
    code += f"print(url_files.local_path(urls.Url({url!r})))"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    words = [sys.executable, "-c", code]
    with (
        lock_folder(cache),
        subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as second,
    ):
        assert second.stderr is not None
        assert second.stdout is not None
        try:
            assert second.stderr.readline() == f"{cache}: another run is using this folder; this one waits for it\n"
            assert not [path for path in cache.iterdir() if path.name != ".lock"]
            _unlock(cache)
            copy = Path(second.stdout.readline().strip())
        finally:
            second.kill()
    assert copy.parent == cache
    assert copy.read_bytes() == CONTENT


def _unlock(folder: Path) -> None:
    """Release this process's lock, as a process does that ends: it goes when any descriptor of the file is closed."""
    (folder / ".lock").open("rb").close()


def test_fetch_into_a_locked_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(CONTENT)
    other = f"from mtnlg_data.cli import main; import sys; sys.argv[1:] = {['fetch', f'file://{tmp_path}/a.bin']!r}"
    other += f" + ['--out', {str(tmp_path / 'out')!r}]; main()"
    with lock_folder(tmp_path / "out"):
        done = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "another run is using this folder; wait for it, or give another --out" in done.stderr


def test_fetch_prints_counts_and_refuses_snapshot_options(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(CONTENT)
    words = ("fetch", f"file://{tmp_path}/a.bin", "--out", tmp_path / "out")
    for fetched in (1, 0):
        status, said = command(*words, "--json")
        assert status == 0
        content = json.loads(said[said.index("{") :])
        assert content == {"url": words[1], "fetched": fetched, "kept": 1 - fetched, "bytes": len(CONTENT)}
    for option in (("--largest", 10), ("--files", 1), ("--base", tmp_path), ("--verify",)):
        status, said = command(*words, *option)
        assert (status, said) == (
            2,
            f"{words[1]}: --base, --files, --largest and --verify are for snapshots of Common Crawl",
        )
