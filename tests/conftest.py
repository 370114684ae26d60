"""Options by which another implementation of a contract runs the same conformance tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from curations import Undisturbed

SLURM = Path(__file__).parent / "training" / "start_slurm.sh"

# What a shell starts in the background ignores Ctrl-C, what nohup starts SIGHUP; so would processes that tests signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("contracts")
    group.addoption(
        "--token-stream",
        metavar="MODULE:FUNCTION",
        help="function(folder, seq_length, seed) -> TokenStream, tested instead of mtnlg_data's",
    )
    group.addoption(
        "--checkpoint",
        metavar="MODULE",
        default="mtnlg_model",
        help="module with Checkpoint, CheckpointWriter, publish and latest, tested instead of mtnlg_model's",
    )


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a GPU that is not there (`training.stub_gpu`)."""
    from training import stub_gpu

    if not stub_gpu.CAN_RUN:
        pytest.skip("compiles a library for Linux with g++")
    return stub_gpu.build(tmp_path_factory.mktemp("stub"))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """An undisturbed curation of a small corpus; do not write to it."""
    import curations  # imports mtnlg_data, which most tests here do not need

    return curations.undisturbed(tmp_path_factory.mktemp("curation"))


@pytest.fixture(scope="module")
def slurm_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Slurm of three nodes on this machine, for this process' environment; returns its folder."""
    missing = [name for name in ("sbatch", "slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing or os.geteuid():
        pytest.skip(f"no Slurm: needs {', '.join(missing) or 'its daemons'} (Debian: slurm-wlm, munge) and root")
    folder = tmp_path_factory.mktemp("slurm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        try:
            subprocess.run([SLURM, folder, "start", "3"], check=True)
            yield folder
        finally:
            subprocess.run([SLURM, folder, "stop"], check=True)
