"""The README's first two commands with the distribution's own Python, which refuses `pip install` (PEP 668).

In a copy of the files that git knows, with nothing but /usr/bin and /bin on the PATH. The second command runs the
session `lint` in the place of `quickstart`, which takes minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from changelog import git

STOCK = Path("/usr/bin/python3")


def main() -> None:
    """Run them; say so where this machine cannot tell: no Python there, too old, or without venv."""
    try_venv = "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))"
    if not STOCK.exists() or subprocess.run([STOCK, "-c", try_venv], capture_output=True, check=False).returncode:
        print(f"{STOCK}: none here from 3.11 on with the module venv; the README's commands are not tried with it")
        return
    block = re.search(r"^```bash\n(.*?)^```", Path("README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    commands = block[1].replace("quickstart", "lint") if block else ""
    if "lint" not in commands:
        sys.exit("README.md: the first block has no `quickstart`")
    with tempfile.TemporaryDirectory() as folder:
        for name in git("ls-files", "--cached", "--others", "--exclude-standard").splitlines():
            if Path(name).is_file():
                copy = Path(folder, "clone", name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(name, copy)
        environment = {**os.environ, "PATH": "/usr/bin:/bin", "HOME": folder}  # no settings or caches of the user
        words = ["/bin/bash", "-euo", "pipefail", "-c", commands]
        done = subprocess.run(words, cwd=Path(folder, "clone"), env=environment, check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
