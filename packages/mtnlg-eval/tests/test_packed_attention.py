"""Packed attention: each text gets the attention it has alone, to the last bit, whatever it is packed with."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from mtnlg_eval.scoring import packed_attention
from mtnlg_eval.scoring.packed_attention import PackedAttention, Span, plan_attention
from mtnlg_model import functional
from mtnlg_model.config import LayerConfig, ModelConfig
from mtnlg_model.decoder import Decoder
from mtnlg_model.functional import Rule

Text = tuple[int, ...]
CPU = torch.device("cpu")
STEP = 32  # rows of a product, on one thread


BLOOM = {"positions": "alibi", "embedding_norm": True}
GPTJ = {"positions": "rotary", "rotary_fraction": 0.5, "tied": False, "head_bias": True}
GPTJ |= {"parallel_residual": True, "shared_norm": True}
LLAMA = {"positions": "rotary", "kv_heads": 1, "norm": "rms", "mlp": "swiglu", "bias": False, "tied": False}
GPT_NEO = {"by_layer": (LayerConfig(window=100), LayerConfig())}
GEMMA = {**LLAMA, **GPT_NEO, "attention_softcap": 5.0, "sandwich_norm": True, "zero_centered_norm": True}


@pytest.fixture(
    scope="module",
    params=[{}, LLAMA, BLOOM, GPTJ, GPT_NEO, GEMMA],
    ids=["gpt", "llama", "bloom", "gptj", "gpt_neo", "gemma"],
)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    """With heads of 64, whose sums over keys a BLAS cuts up, and a context of several blocks of keys."""
    gpt = ModelConfig(layers=2, hidden=128, heads=2, sequence=1100, vocabulary=100)
    return Decoder(gpt.model_copy(update=request.param), seed=1).eval()


def line(texts: list[tuple[Text, list[Text]]], cut: int = 0) -> tuple[Tensor, list[Span], list[list[int]]]:
    """Tokens and spans of contexts (cut in two) and answers, and the positions of the last span of each path."""
    tokens: list[int] = []
    spans: list[Span] = []
    positions: list[list[int]] = []

    def add(part: Text, parent: int) -> int:
        spans.append(Span(len(tokens), len(part), parent))
        tokens.extend(part)
        return len(spans) - 1

    for context, answers in texts:
        last = add(context[:cut] or context, -1)
        if context[:cut]:
            last = add(context[cut:], last)
        positions.append([spans[last].start + spans[last].length - 1])
        for answer in answers:
            span = spans[add(answer, last)]
            positions.append(list(range(span.start, span.start + span.length)))
    tokens += [0] * (-len(tokens) % STEP)
    return torch.tensor(tokens), spans, positions


@torch.inference_mode()
def hidden(decoder: Decoder, texts: list[tuple[Text, list[Text]]], cut: int = 0) -> list[Tensor]:
    tokens, spans, positions = line(texts, cut)
    scored = [position for group in positions for position in group]
    scored_N = torch.tensor(scored + [0] * (-len(scored) % STEP))
    positions_S, attend = plan_attention(spans, len(tokens), scored_N, CPU, decoder.config.layers)
    x_N1H = decoder.hidden(tokens[None], positions_S[None], attend)
    return list(torch.split(x_N1H[: len(scored), 0], [len(group) for group in positions]))


def drawn(draw: Random, size: int) -> Text:
    return tuple(draw.randrange(100) for _ in range(size))


@pytest.mark.parametrize("size", [5, 100, 128, 129, 255, 256, 300, 512, 513, 700, 1024])
def test_packed_text_scores_as_alone(size: int, decoder: Decoder) -> None:
    draw = Random(size)
    context, answers = drawn(draw, size), [drawn(draw, length) for length in (1, 3, 40)]
    together = hidden(decoder, [(context, answers)])
    with torch.inference_mode():
        alone = [
            decoder.hidden(torch.tensor([context + answer]))[size - 1 if not answer else size :, 0]
            for answer in ((), *answers)
        ]
    for mine, other in zip(together, alone, strict=True):
        assert torch.allclose(mine, other, atol=1e-5, rtol=0)
    beside = (drawn(draw, 70), [drawn(draw, 9)])
    for company in (
        hidden(decoder, [beside, (context, answers[::-1])], cut=max(1, size // 3))[2:],
        hidden(decoder, [(context, answers[::-1]), beside, (drawn(draw, 300), [])], cut=size - 1)[:4],
    ):
        assert all(map(torch.equal, [company[0], *company[:0:-1]], together))


def test_another_number_of_threads_changes_no_bit(decoder: Decoder) -> None:
    draw = Random(0)
    texts = [(drawn(draw, size), [drawn(draw, 5)]) for size in (20, 200, 600)]
    first, threads = hidden(decoder, texts), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert all(map(torch.equal, hidden(decoder, texts), first))
    finally:
        torch.set_num_threads(threads)


SPANS = [(0, 700, -1), (700, 1, 0), (701, 40, 0), (741, 5, 2), (746, 1, -1), (747, 130, -1), (877, 3, 5)]


def plan_of_spans(device: str) -> tuple[list[PackedAttention], int, int]:
    length, scored = 896, torch.tensor([699, 0, 745, 746, 699, 879, 0, 0])
    _, attends = plan_attention([Span(*span) for span in SPANS], length, scored, torch.device(device), 2)
    return attends, 880, length


def attention_of_sequences(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:  # noqa: ANN401
    """`flash_varlen` by `attention`, one sequence at a time."""
    (bounds, longest, rule), out = rest, torch.full_like(q, torch.nan)
    for (a, b), (c, d) in zip(*(torch.stack((x[:-1], x[1:]), 1).tolist() for x in bounds), strict=True):
        assert longest[0] >= max(b - a, 2)
        assert longest[1] >= max(d - c, rule.window or 0)
        q_1NSD, k_1GTD, v_1GTD = (x.transpose(0, 1)[None] for x in (q[a:b], k[c:d], v[c:d]))
        out[a:b] = functional.attention(q_1NSD, k_1GTD, v_1GTD, None, rule)[0].transpose(0, 1)
    return out


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("window", [None, 9, 600, 5000])
def test_spans_are_sequences_of_flash_attention(
    heads: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    attends, end, length = plan_of_spans("cpu")
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, n, length, 16, generator=draw) for n in (4, heads, heads))
    attention, rule = functional.attention, Rule(0.2, window=window)
    chunked = [attend(attention, q, k, v, rule) for attend in attends]
    monkeypatch.setattr(packed_attention, "has_flash", lambda _: True)
    monkeypatch.setattr(packed_attention, "flash_varlen", attention_of_sequences)
    by_span = [attend(attention, q, k, v, rule) for attend in attends]
    for one, other in zip(chunked, by_span, strict=True):
        assert torch.allclose(one[:, :, :end], other[:, :, :end], atol=1e-5, rtol=0)


def test_flash_attention_takes_spans() -> None:
    """PyTorch's kernel has the arguments that we give it; on the meta device it computes shapes alone."""
    attends, _, length = plan_of_spans("meta")
    q, k, v = (torch.empty(1, n, length, 64, device="meta", dtype=torch.bfloat16) for n in (4, 2, 2))
    shapes = [attend(functional.attention, q, k, v, Rule(0.2)).shape for attend in attends]
    assert shapes == [(1, 4, length, 64), (1, 4, 8, 64)]


@pytest.mark.parametrize(("major", "flash"), [(7, False), (8, True)])
def test_gpus_before_ampere_have_no_flash_attention(major: int, flash: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(major=major))
    with FakeTensorMode():
        assert functional.has_flash(torch.empty(9, 4, 64, dtype=torch.float16, device="cuda")) is flash


def test_a_gpu_has_a_mask_for_every_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_attention, "to_device", Tensor.to)
    attends, _, _ = plan_of_spans("meta")
    for attend in attends:
        assert all(batch.mask is not None for batch in attend._chunks[0])
