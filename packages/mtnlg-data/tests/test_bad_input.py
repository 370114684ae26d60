"""Bad input, kind after kind: no document is lost in silence, and docs/bad-input.md says what becomes of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import bad_input
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from bad_input import Case, RemoteCase


@pytest.mark.parametrize("case", bad_input.CASES, ids=lambda case: case.kind)
def test_every_bad_input_is_counted_and_the_page_is_current(tmp_path: Path, case: Case) -> None:
    seen = bad_input.outcome(case, tmp_path)
    assert bad_input.lost_in_silence(case, seen) == 0
    if not bad_input.PAGE.exists():
        pytest.skip("docs/bad-input.md is in the repository, not in the package")
    assert bad_input.row(case, seen) in bad_input.PAGE.read_text(encoding="utf-8").splitlines(keepends=True)


@pytest.mark.parametrize("case", bad_input.REMOTE_CASES, ids=lambda case: case.kind)
def test_failing_server_loses_no_document_silently(tmp_path: Path, case: RemoteCase, no_waits: None) -> None:
    assert no_waits is None
    seen = bad_input.remote_outcome(case, tmp_path)
    assert (seen.status == 0) == (seen.kept == len(bad_input.ROWS))
    if not bad_input.PAGE.exists():
        pytest.skip("docs/bad-input.md is in the repository, not in the package")
    assert bad_input.remote_row(case, seen) in bad_input.PAGE.read_text(encoding="utf-8").splitlines(keepends=True)


def test_page_lists_only_these_inputs() -> None:
    if not bad_input.PAGE.exists():
        pytest.skip("docs/bad-input.md is in the repository, not in the package")
    text = bad_input.PAGE.read_text(encoding="utf-8")
    head = bad_input.HEAD.format(sound=bad_input.SOUND)
    assert text.startswith(head)
    between = bad_input.REMOTE_HEAD.format(there=len(bad_input.ROWS))
    here, there = text.removeprefix(head).split(between)
    assert len(here.splitlines()) == len(bad_input.CASES)
    assert len(there.splitlines()) == len(bad_input.REMOTE_CASES)
