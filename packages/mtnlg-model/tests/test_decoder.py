"""The decoder against transformers' GPT2LMHeadModel on the same weights, fp32."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers import GPT2LMHeadModel

from mtnlg_model import functional, initialization
from mtnlg_model.config import ModelConfig
from mtnlg_model.convert.family_tensors import to_theirs
from mtnlg_model.decoder import Attention, Decoder
from mtnlg_model.families import load_family, preset
from mtnlg_model.functional import AttentionOp, Ops
from mtnlg_model.generation.cache import Cache

Pairs = Callable[[ModelConfig], tuple[Decoder, GPT2LMHeadModel]]


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


SHAPES = [
    pytest.param(model(), id="small"),
    pytest.param(model(layers=3, hidden=48, heads=1, vocabulary=97), id="one head"),
    pytest.param(model(hidden=320, heads=2, vocabulary=131), id="head size 160"),
    pytest.param(model(layers=1, hidden=64, heads=16, sequence=50, vocabulary=50), id="many heads"),
]


def tokens_of(config: ModelConfig, rows: int = 3) -> Tensor:
    return torch.randint(config.vocabulary, (rows, config.sequence), generator=torch.Generator().manual_seed(5))


def distance(mine: Tensor, its: Tensor) -> float:
    """Largest difference, relative to the largest value."""
    return float((mine - its).detach().abs().max() / its.detach().abs().max())


@pytest.mark.parametrize("config", SHAPES)
def test_logits_loss_and_every_gradient_equal_gpt2(pair: Pairs, config: ModelConfig) -> None:
    decoder, gpt2 = pair(config)
    tokens_BS = tokens_of(config)
    logits_BSV, reference = decoder(tokens_BS), gpt2(tokens_BS, labels=tokens_BS)
    loss = functional.cross_entropy(logits_BSV[:, :-1], tokens_BS[:, 1:]).mean()
    assert distance(logits_BSV, reference.logits) < 1e-5
    assert abs(loss.item() - reference.loss.item()) < 1e-5 * reference.loss.item()
    torch.autograd.backward(loss)
    torch.autograd.backward(reference.loss)
    gradients = {name: parameter.grad for name, parameter in gpt2.named_parameters()}
    for name, parameter in decoder.named_parameters():
        assert parameter.grad is not None
        ((key, gradient),) = to_theirs(load_family("gpt2"), config, name, parameter.grad).items()
        assert distance(gradient, gradients[key]) < 1e-5, name


@pytest.mark.parametrize("config", SHAPES)
def test_query_key_layer_scaling_changes_no_logit(pair: Pairs, config: ModelConfig) -> None:
    plain, _ = pair(config)
    scaled = Decoder(config.model_copy(update={"scale_attention_by_layer": True}))
    scaled.load_state_dict(plain.state_dict())
    assert distance(scaled(tokens_of(config)), plain(tokens_of(config))) < 1e-5


@dataclass
class Masked:
    """Attention under a mask, limited to ``places`` if given."""

    mask: Tensor
    places: Tensor | None = None

    def __call__(  # noqa: PLR0917  (the signature of Attend)
        self, attention: AttentionOp, q: Tensor, k: Tensor, v: Tensor, scale: float, rate: float
    ) -> Tensor:
        x_BNSD = attention(q, k, v, self.mask, scale, rate)
        return x_BNSD if self.places is None else x_BNSD[:, :, self.places]


def test_attention_that_the_caller_passes_is_the_whole_rule(pair: Pairs) -> None:
    decoder, _ = pair(model())
    tokens_BS = tokens_of(decoder.config)
    everything = torch.ones(24, 24, dtype=torch.bool)
    seen_BSV, causal_BSV = decoder(tokens_BS, attend=[Masked(everything)] * 2), decoder(tokens_BS)
    assert distance(seen_BSV[:, 0], causal_BSV[:, 0]) > 1e-3
    assert distance(decoder(tokens_BS, attend=[Masked(everything.tril())] * 2), causal_BSV) < 1e-5


def test_the_last_layer_can_be_limited_to_some_places(pair: Pairs) -> None:
    decoder, _ = pair(model())
    tokens_BS, places, causal = tokens_of(decoder.config), torch.tensor([23, 4, 4]), torch.ones(24, 24).bool().tril()
    some_BNV = decoder(tokens_BS, attend=[Masked(causal), Masked(causal, places)])
    assert distance(some_BNV, decoder(tokens_BS)[:, places]) < 1e-5


@pytest.mark.parametrize("cuts", [[24], [1] * 24, [10, 1, 1, 12], [5, 7, 12]])
def test_a_cache_fed_piece_by_piece_gives_the_logits_of_the_whole(pair: Pairs, cuts: list[int]) -> None:
    decoder, _ = pair(model())
    tokens_BS, cache = tokens_of(decoder.config), Cache(decoder.config, 24)
    split = torch.split(tokens_BS, cuts, dim=1)
    pieces = [decoder(piece_BS, cache.positions(piece_BS), cache.attend()) for piece_BS in split]
    assert distance(torch.cat(pieces, dim=1), decoder(tokens_BS)) < 1e-5


def test_a_layer_with_half_the_rows_is_half_the_heads() -> None:
    """What tensor parallelism relies on: widths come from the tensors."""
    config, x_SBH = model(), torch.randn(6, 2, 32)
    whole = Attention(config, 0)
    assert whole.qkv.bias is not None
    initialization.initialize(whole, config, 0, "layers.0.attention.")
    whole_SBH = whole(x_SBH)
    halves = []
    for rows, columns in ((slice(0, 48), slice(0, 16)), (slice(48, 96), slice(16, 32))):
        half = Attention(config, 0)
        assert half.qkv.bias is not None
        half.qkv.weight.data, half.qkv.bias.data = whole.qkv.weight[rows], whole.qkv.bias[rows]
        half.out.weight.data = whole.out.weight[:, columns]
        halves.append(half(x_SBH))
    assert distance(halves[0] + halves[1], whole_SBH) < 1e-5


def test_dropout_leaves_no_trace_at_rate_zero_and_acts_at_any_other() -> None:
    config = model()
    before = torch.get_rng_state()
    decoder = Decoder(config).train()
    first = decoder(tokens_of(config))
    assert torch.equal(torch.get_rng_state(), before)
    assert "dropout" not in _operations(first)
    for field in ("dropout", "attention_dropout"):
        dropping = Decoder(config.model_copy(update={field: 0.5})).train()
        assert not torch.equal(dropping(tokens_of(config)), dropping(tokens_of(config)))
        assert torch.equal(dropping.eval()(tokens_of(config)), first)


def test_kernels_come_in_by_the_ops_table() -> None:
    config, called = model(), []

    def gelu(x: Tensor, bias: Tensor) -> Tensor:
        called.append(bias.shape)
        return functional.bias_gelu(x, bias)

    decoder = Decoder(config, ops=Ops(bias_gelu=gelu))
    assert torch.equal(decoder(tokens_of(config)), Decoder(config)(tokens_of(config)))
    assert called == [(128,)] * config.layers


def test_the_meta_device_builds_the_largest_preset_without_a_byte() -> None:
    with torch.device("meta"):
        decoder = Decoder(preset("mt-nlg-530b"))
    assert {name: tuple(p.shape) for name, p in decoder.named_parameters()} == preset("mt-nlg-530b").parameter_shapes()
    assert all(parameter.is_meta for parameter in decoder.parameters())


def _operations(tensor: Tensor) -> str:
    seen, names, stack = set(), [], [tensor.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        names.append(node.name().lower())
        stack.extend(parent for parent, _ in node.next_functions)
    return " ".join(names)
