"""Options by which another implementation of a contract runs the same conformance tests."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from curations import Undisturbed

# What a shell starts in the background ignores Ctrl-C, and so would every process that these tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """A curation of a small corpus that nobody disturbed; not to be written to."""
    import curations  # and with it mtnlg_data, which most tests here do without

    return curations.undisturbed(tmp_path_factory.mktemp("curation"))
