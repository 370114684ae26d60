"""Settings of hypothesis for all tests, and a run that is at work in a folder."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: machines differ, and the first example includes imports.
settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")

HOLD = """
import sys
from pathlib import Path
from mtnlg_data.engine.folder_lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    print(flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def at_work(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lock of ``tmp_path``, as a run does, until its stdin is closed."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout
        run.stdout.readline()
        yield run
