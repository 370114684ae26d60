"""The chunks in which the head computes its loss; `tests/training/test_training_kernels.py` shows their loss."""

from hypothesis import given
from hypothesis import strategies as st

from mtnlg_parallel.layout import CHUNK_MULTIPLE, MIN_CHUNK, head_chunk


@given(st.integers(1, 1 << 17), st.sampled_from([64, 1024, 20480]), st.sampled_from([32, 6400, 51200]))
def test_a_chunk_holds_at_most_half_of_a_micro_batchs_tokens(tokens: int, hidden: int, width: int) -> None:
    rows = head_chunk(tokens, hidden, width)
    assert rows % CHUNK_MULTIPLE == 0
    assert rows <= max(tokens * hidden / width, MIN_CHUNK) + CHUNK_MULTIPLE
    assert -(-tokens // rows) >= 2 or tokens <= CHUNK_MULTIPLE
