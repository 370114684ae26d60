"""The decoder's parts: attention passed in, and dropout; families are in test_families."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from mtnlg_model import alibi
from mtnlg_model.config import ModelConfig
from mtnlg_model.decoder import Decoder
from mtnlg_model.families import preset
from mtnlg_model.functional import AttentionOp, Rule, attention, causal_mask

Build = Callable[[ModelConfig], Decoder]


def model(layers: int = 2, hidden: int = 32, heads: int = 4, sequence: int = 24, vocabulary: int = 101) -> ModelConfig:
    # A deviation of 0.1 keeps every gradient far from underflow; dropout off, or nothing could be compared.
    return ModelConfig(
        layers=layers,
        hidden=hidden,
        heads=heads,
        sequence=sequence,
        vocabulary=vocabulary,
        dropout=0.0,
        attention_dropout=0.0,
        init_std=0.1,
    )


def tokens_of(config: ModelConfig, rows: int = 3) -> Tensor:
    return torch.randint(config.vocabulary, (rows, config.sequence), generator=torch.Generator().manual_seed(5))


def distance(mine: Tensor, its: Tensor) -> float:
    """Largest difference, relative to the largest value."""
    return float((mine - its).detach().abs().max() / its.detach().abs().max())


def test_query_key_layer_scaling_changes_no_logit(biased: Build) -> None:
    config = model()
    plain = biased(config)
    scaled = Decoder(config.model_copy(update={"scale_attention_by_layer": True}))
    scaled.load_state_dict(plain.state_dict())
    assert distance(scaled(tokens_of(config)), plain(tokens_of(config))) < 1e-5


@dataclass
class Masked:
    """Attention under a mask, limited to ``places`` if given."""

    mask: Tensor
    places: Tensor | None = None

    def __call__(self, attention: AttentionOp, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        x_BNSD = attention(q, k, v, self.mask, rule)
        return x_BNSD if self.places is None else x_BNSD[:, :, self.places]


def test_caller_attention_replaces_the_rule(biased: Build) -> None:
    decoder = biased(model())
    tokens_BS = tokens_of(decoder.config)
    everything = torch.ones(24, 24, dtype=torch.bool)
    seen_BSV, causal_BSV = decoder(tokens_BS, attend=[Masked(everything)] * 2), decoder(tokens_BS)
    assert distance(seen_BSV[:, 0], causal_BSV[:, 0]) > 1e-3
    assert distance(decoder(tokens_BS, attend=[Masked(everything.tril())] * 2), causal_BSV) < 1e-5


def test_the_last_layer_can_be_limited_to_some_places(biased: Build) -> None:
    decoder = biased(model())
    tokens_BS, places, causal = tokens_of(decoder.config), torch.tensor([23, 4, 4]), torch.ones(24, 24).bool().tril()
    some_BNV = decoder(tokens_BS, attend=[Masked(causal), Masked(causal, places)])
    assert distance(some_BNV, decoder(tokens_BS)[:, places]) < 1e-5


def test_dropout_at_zero_is_exact() -> None:
    config = model()
    before = torch.get_rng_state()
    decoder = Decoder(config).train()
    first = decoder(tokens_of(config))
    assert torch.equal(torch.get_rng_state(), before)
    for field in ("dropout", "attention_dropout"):
        dropping = Decoder(config.model_copy(update={field: 0.5})).train()
        assert not torch.equal(dropping(tokens_of(config)), dropping(tokens_of(config)))
        assert torch.equal(dropping.eval()(tokens_of(config)), first)


def test_meta_device_allocates_nothing_for_largest_preset() -> None:
    with torch.device("meta"):
        decoder = Decoder(preset("mt-nlg-530b"))
    assert {name: tuple(p.shape) for name, p in decoder.named_parameters()} == preset("mt-nlg-530b").parameter_shapes()
    assert all(parameter.is_meta for parameter in decoder.parameters())


@pytest.mark.parametrize("options", [{}, {"cap": 2.0}, {"slopes": alibi.slopes(4)}], ids=str)
@pytest.mark.parametrize(("queries", "keys", "window"), [(300, 300, 9), (300, 300, 150), (1, 30, 9), (260, 500, 200)])
def test_blocks_of_a_window_equal_the_mask(queries: int, keys: int, window: int, options: dict[str, Any]) -> None:
    inputs = [torch.randn(2, *shape, 8, requires_grad=True) for shape in ((4, queries), (2, keys), (2, keys))]
    results = []
    for mask in (None, causal_mask(queries, keys)):
        out = attention(inputs[0], inputs[1], inputs[2], mask, Rule(0.3, 0.0, window, **options))
        results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)


KERNELS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, *_, **__: 2 * math.prod(q) * k[2],
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda _, q, k, *__, **___: (
        5 * math.prod(q) * k[2]
    ),
}
"""Products of a kernel, which the counter does not know."""


def work(window: int | None, cap: float | None) -> tuple[int, int]:
    """Operations of both passes, and the bytes that forward keeps for backward."""
    q, k, v = (torch.randn(1, heads, 1024, 16, requires_grad=True) for heads in (4, 2, 2))
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with FlopCounterMode(display=False, custom_mapping=KERNELS) as counter, saved_tensors_hooks(keep, lambda x: x):
        torch.autograd.grad(attention(q, k, v, None, Rule(0.1, 0.0, window, cap)).sum(), [q, k, v])
    return counter.get_total_flops(), sum(kept.values())


@pytest.mark.parametrize(("cap", "bytes_share"), [(None, 1.2), (5.0, 0.25)])
def test_a_window_takes_less_work_and_memory(cap: float | None, bytes_share: float) -> None:
    """Counted as if the kernel computed what causality hides: half is what full attention takes."""
    (full, full_bytes), (less, less_bytes) = work(None, cap), work(64, cap)
    assert less < 0.2 * full
    assert less_bytes < bytes_share * full_bytes


def test_flash_attention_takes_the_window() -> None:
    """PyTorch's kernel has the arguments that we give it; on the meta device it computes shapes alone."""
    q, k, v = (torch.empty(2, heads, 300, 64, device="meta", dtype=torch.bfloat16) for heads in (4, 2, 2))
    q.requires_grad_()
    with FlopCounterMode(display=False) as counter:
        out = attention(q, k, v, None, Rule(0.1, 0.1, 9))
        (gradient,) = torch.autograd.grad(out.sum(), q)
    assert out.shape == gradient.shape == q.shape
    assert [*counter.get_flop_counts()["Global"]] == [
        torch.ops.aten._flash_attention_forward,
        torch.ops.aten._flash_attention_backward,
    ]
