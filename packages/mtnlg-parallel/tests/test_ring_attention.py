"""Ring attention equals attention over the whole sequence, forward and backward, with ranks as threads."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch import Tensor

from mtnlg_model import alibi, functional
from mtnlg_model.functional import Documents, Rule
from mtnlg_parallel.model import ring_attention
from mtnlg_parallel.model.ring_attention import Context, flash, flash_backward, own_chunks, part_of

if TYPE_CHECKING:
    from collections.abc import Callable

HEADS, KV_HEADS, WIDTH, BATCH = 4, 2, 8, 2
CPU = torch.device("cpu")


class Group(NamedTuple):
    """A rank's process group, of threads: a queue per message and sender."""

    number: int
    links: list[list[queue.Queue[Tensor]]]

    def rank(self) -> int:
        return self.number

    def size(self) -> int:
        return len(self.links)


class Arriving(NamedTuple):
    link: queue.Queue[Tensor]

    def receive(self) -> Tensor:
        return self.link.get(timeout=60)


def pass_on(tensor: Tensor, group: Group, tag: int) -> Arriving:
    group.links[group.number][tag].put(tensor.clone())
    return Arriving(group.links[group.number - 1][tag])


class Whole(NamedTuple):
    """Queries, keys, values and the gradient of the context, over a whole sequence."""

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor


def drawn(sequence: int, dtype: torch.dtype) -> Whole:
    torch.manual_seed(sequence)
    sizes = (HEADS, KV_HEADS, KV_HEADS, HEADS)
    return Whole(*(torch.randn(BATCH, heads, sequence, WIDTH).to(dtype) for heads in sizes))


def run(whole: Whole, attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> tuple[Tensor, ...]:
    """Context, and the gradients of q, k and v."""
    inputs = [x.detach().requires_grad_() for x in whole[:3]]
    out = attention(*inputs)
    return (out.detach(), *torch.autograd.grad(out, inputs, whole.do))


def ring(whole: Whole, ranks: int, positions: Tensor | None, options: dict[str, Any]) -> list[tuple[Tensor, ...]]:
    """Each rank's context and gradients."""
    links: list[list[queue.Queue[Tensor]]] = [[queue.Queue() for _ in range(2)] for _ in range(ranks)]

    def of_rank(rank: int) -> tuple[Tensor, ...]:
        context = Context(Group(rank, links), whole.q.shape[2])
        attend = context.attention(CPU, positions)[1]
        own = Whole(*(cut(x, rank, ranks) for x in whole))
        return run(own, lambda q, k, v: functional.attention(q, k, v, attend, Rule(0.3, **options)))

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(of_rank, range(ranks)))


def cut(x_BNSD: Tensor, rank: int, ranks: int) -> Tensor:
    return own_chunks(x_BNSD.transpose(1, 2), rank, ranks).transpose(1, 2)


OPTIONS: list[dict[str, Any]] = [
    {},
    *({"window": window} for window in (1, 3, 8, 100)),
    {"cap": 1.5},
    {"slopes": alibi.slopes(HEADS)},
    {"window": 5, "cap": 1.5},
]


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_whole_attention(options: dict[str, Any], isolated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_attention, "_pass_on", pass_on)
    monkeypatch.setattr(ring_attention, "TILE_ELEMENTS", 1 << 8)
    for ranks, chunk in product((1, 2, 3, 4), (1, 4, 5)):
        sequence = 2 * ranks * chunk
        whole, mask, positions = drawn(sequence, torch.float32), None, None
        if isolated:  # a document of a row's first token, then two others
            mask = Documents(tuple(n for n in (1, sequence // 2, sequence - sequence // 2 - 1) * BATCH if n))
            positions = torch.cat([torch.arange(n) for n in mask.lengths]).view(BATCH, sequence)
        expected = run(whole, partial(functional.attention, mask=mask, rule=Rule(0.3, **options)))
        for rank, found in enumerate(ring(whole, ranks, positions, options)):
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, cut(other, rank, ranks), atol=1e-5, rtol=1e-5)


def test_half_precision_rounds_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of bf16 inputs, the fp32 result is rounded."""
    monkeypatch.setattr(ring_attention, "_pass_on", pass_on)
    whole = drawn(24, torch.bfloat16)
    exact = run(Whole(*(x.float() for x in whole)), lambda q, k, v: functional.attention(q, k, v, None, Rule(0.3)))
    for rank, found in enumerate(ring(whole, 3, None, {})):
        for one, other in zip(found, exact, strict=True):
            assert one.dtype == torch.bfloat16
            torch.testing.assert_close(one.float(), cut(other, rank, 3), atol=2e-2, rtol=2**-7)


def test_causal_work_is_balanced() -> None:
    places = [[pair(rank, other).places(CPU) for other in range(4)] for rank in range(4)]  # type: ignore[union-attr]
    work = [sum(int((rows[:, None] >= columns).sum()) for rows, columns in each) for each in places]
    assert [*work] == [64 * 65 // 8] * 4


def pair(rank: int, other: int, window: int | None = None) -> ring_attention.Part | None:
    return part_of(rank, other, 4, 64, Rule(0.3, window=window))


def test_parts_beyond_the_window_are_left_out() -> None:
    assert [bool(pair(0, other, 8)) for other in range(4)] == [True, True, False, False]
    part = pair(3, 2, 40)
    assert part is not None
    assert part.is_plain  # its greatest distance is within the window


@pytest.mark.parametrize("rank", [0, 1])
def test_flash_shapes(rank: int) -> None:
    """PyTorch's flash attention takes a part's queries and keys, and shared heads, on a GPU."""
    part = part_of(rank, 1, 2, 64, Rule(0.3))
    assert part is not None
    rows, columns = map(len, part.places(CPU))
    q, do = (torch.empty(2, 8, rows, 64, dtype=torch.bfloat16, device="meta") for _ in range(2))
    k, v = (torch.empty(2, 2, columns, 64, dtype=torch.bfloat16, device="meta") for _ in range(2))
    out, lse = flash(q, k, v, part)
    assert (out.shape, lse.shape, lse.dtype) == (q.shape, q.shape[:3], torch.float32)
    assert [x.shape for x in flash_backward(do, q, out, lse, k, v, part)] == [q.shape, k.shape, v.shape]
