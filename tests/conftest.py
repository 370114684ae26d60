"""Options by which another implementation of a contract runs the same conformance tests."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from curations import Undisturbed

# A process that a shell starts in the background ignores Ctrl-C, and so would the processes that these tests interrupt.
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
    """An undisturbed curation of a small corpus; do not write to it."""
    import curations  # imports mtnlg_data, which most tests here do not need

    return curations.undisturbed(tmp_path_factory.mktemp("curation"))
