"""Settings of hypothesis for all tests, a rank's environment, and a run that is at work in a folder."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from mtnlg_parallel.environment import Environment

sys.path.insert(0, str(Path(__file__).parent))  # for what test modules share

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
def be_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give this process the environment of a rank: fields of `Environment`, and variables beside theirs in capitals."""

    def set_variables(**values: Any) -> None:  # noqa: ANN401  (of any field)
        fields: dict[str, Any] = {"address": "127.0.0.1", "port": 29400}
        fields |= {name: value for name, value in values.items() if name.islower()}
        others = {name: values[name] for name in values.keys() - fields.keys()}
        for name, value in {**Environment(**fields).variables(), **others}.items():
            monkeypatch.setenv(name, str(value))

    return set_variables


@pytest.fixture
def at_work(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lock of ``tmp_path``, as a run does, until its stdin is closed."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout
        run.stdout.readline()
        yield run
