"""The decoder's parts: attention passed in, and dropout; families are in test_families."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mtnlg_model.config import ModelConfig
from mtnlg_model.decoder import Decoder
from mtnlg_model.families import preset
from mtnlg_model.functional import AttentionOp

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

    def __call__(  # noqa: PLR0917  (the signature of Attend)
        self, attention: AttentionOp, q: Tensor, k: Tensor, v: Tensor, scale: float, rate: float
    ) -> Tensor:
        x_BNSD = attention(q, k, v, self.mask, scale, rate)
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
