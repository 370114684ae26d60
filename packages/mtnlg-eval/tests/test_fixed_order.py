"""The fixed order of sums on a GPU: its mechanism on a CPU, and where there is a GPU the bits themselves."""

from __future__ import annotations

from contextlib import nullcontext
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from mtnlg_eval.scoring import decoder_lm
from mtnlg_eval.scoring.fixed_order import TILE, TiledProducts
from mtnlg_eval.scoring.open_model import open_lm, open_model
from mtnlg_eval.scoring.packing import Request
from mtnlg_model.config import LayerConfig, ModelConfig
from mtnlg_model.decoder import Decoder
from mtnlg_model.functional import fp32_logits

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_model.checkpoint.reader import Checkpoint


def tiled() -> TiledProducts:
    return TiledProducts()  # type: ignore[no-untyped-call]  # torch's


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what every product is called with."""
    shapes: list[tuple[int, ...]] = []
    mm = torch.mm

    def recorded(x: torch.Tensor, weight: torch.Tensor, **options: Any) -> torch.Tensor:  # noqa: ANN401
        shapes.append((*x.shape, weight.shape[1]))
        return mm(x, weight, **options)

    monkeypatch.setattr(torch, "mm", recorded)
    return shapes


@pytest.mark.parametrize("rows", [1, 7, TILE, TILE + 1, 3 * TILE])
@pytest.mark.parametrize(
    "product",
    [
        torch.nn.functional.linear,
        lambda x, weight: x @ weight.t(),
        lambda x, weight: (x[:, None] @ weight.t())[:, 0],
        fp32_logits,
    ],
    ids=["linear", "matmul", "with_a_batch", "logits"],
)
def test_every_product_has_the_same_shape_whatever_the_batch(
    product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], rows: int, products: list[tuple[int, ...]]
) -> None:
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, 48), torch.randn(23, 48)
    with torch.inference_mode(), tiled():
        y = product(x, weight)
    assert set(products) == {(TILE, 48, 23)}
    assert rows == 1 or y.stride() == (24, 1), "rows begin between the numbers of a vector"
    assert len(products) == -(-rows // TILE)
    assert torch.allclose(y, x @ weight.t(), atol=1e-4)


def test_attention_products_are_unchanged(products: list[tuple[int, ...]]) -> None:
    q = torch.randn(2, 3, 5, 8)
    with torch.inference_mode(), tiled():
        assert torch.allclose(q @ q.transpose(2, 3), torch.einsum("bnsd,bntd->bnst", q, q), atol=1e-5)
    assert not products


@pytest.fixture
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU gets, on the CPU: whole tiles, tiled products, and whichever attention there is."""
    monkeypatch.setattr(decoder_lm, "row_multiple", lambda _: TILE)
    monkeypatch.setattr(decoder_lm, "fixed_order", lambda _: tiled())


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_a_whole_forward_pass_has_products_and_sums_of_one_shape(
    checkpoint: Checkpoint, products: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    summed: list[int] = []
    score = decoder_lm.LocalEngine._score_positions

    def recorded(self: Any, x: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ANN401
        summed.append(len(x))
        return score(self, x, targets)

    monkeypatch.setattr(decoder_lm.LocalEngine, "_score_positions", recorded)
    draw = Random(1)
    requests = [
        Request(tuple(draw.choices(range(500), k=draw.randint(1, 200))), tuple(draw.choices(range(500), k=3)))
        for _ in range(9)
    ]
    shapes, scores = [], []
    for budget in (1, 300, 8192):
        lm = open_lm(open_model(checkpoint.directory))
        lm.batch_tokens = budget
        scores.append(lm.score(requests))
        shapes.append(set(products))
        products.clear()
    assert shapes[0] == shapes[1] == shapes[2]
    assert {rows for rows, _, _ in shapes[0]} == {TILE} == set(summed)
    assert scores[0] == scores[1] == scores[2]
    expected = open_lm(open_model(checkpoint.directory))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_lm, "fixed_order", lambda _: nullcontext())
        free = expected.score(requests)
    assert [logp for logp, _ in free] == pytest.approx([logp for logp, _ in scores[0]], abs=5e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "settings",
    [{}, {"kv_heads": 1}, {"by_layer": (LayerConfig(window=100), LayerConfig())}, {"positions": "alibi"}],
    ids=["gpt", "gqa", "window", "slopes"],
)
def test_bf16_scores_on_a_gpu_have_the_same_bits_in_every_batch(
    settings: dict[str, Any], checkpoint: Checkpoint
) -> None:
    config = ModelConfig(layers=2, hidden=256, heads=4, sequence=1024, vocabulary=512, **settings)
    decoder = Decoder(config).to("cuda", torch.bfloat16).eval()
    draw = Random(2)
    prefix = draw.choices(range(500), k=700)
    contexts = [(*prefix[: draw.choice((0, 100, 600, 700))], *draw.choices(range(500), k=9)) for _ in range(30)]
    requests = [
        Request(context, tuple(draw.choices(range(500), k=draw.choice((1, 4, 40)))))
        for context in contexts
        for _ in range(2)
    ]
    scores = []
    for budget, part in ((8192, requests), (1, requests[::-1]), (1000, requests), (8192, requests[:1])):
        lm = open_lm(open_model(checkpoint.directory))
        lm.engine, lm.max_length = decoder_lm.LocalEngine(decoder, lm._tokenizer), config.sequence
        lm.batch_tokens = budget
        scores.append(dict(zip(part, lm.score(part), strict=True)))
    for each in scores[1:]:
        assert each == {request: scores[0][request] for request in each}
