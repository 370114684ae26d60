import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_model.config import ModelConfig
from mtnlg_model.decoder import Decoder
from mtnlg_model.initialization import ROWS, initial_value

# More rows than two blocks, so that boxes begin, end and stay inside blocks.
CONFIG = ModelConfig(layers=2, hidden=48, heads=4, sequence=2 * ROWS + 7, vocabulary=3 * ROWS + 1)
NAMES = sorted(CONFIG.parameter_shapes())


@given(data=st.data(), name=st.sampled_from(NAMES), seed=st.integers(0, 3))
def test_any_box_is_the_slice_of_the_whole(data: st.DataObject, name: str, seed: int) -> None:
    cuts = [
        sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n)))) for n in CONFIG.parameter_shapes()[name]
    ]
    index = tuple(slice(start, stop) for start, stop in cuts)
    assert torch.equal(initial_value(CONFIG, name, seed, index), initial_value(CONFIG, name, seed)[index])


def test_decoder_uses_the_initialization() -> None:
    decoder = Decoder(CONFIG, seed=9)
    for name, parameter in decoder.named_parameters():
        assert torch.equal(parameter, initial_value(CONFIG, name, seed=9))


def test_initial_deviations_match_the_paper() -> None:
    deviations = {
        name: float(initial_value(CONFIG, name, 1).std()) for name in NAMES if len(CONFIG.parameter_shapes()[name]) == 2
    }
    for name, deviation in deviations.items():
        rule = CONFIG.std / 2 if name.endswith(("attention.out.weight", "mlp.down.weight")) else CONFIG.std
        # The deviation of n normal values has a relative deviation of 1/sqrt(2n): six of them.
        n = CONFIG.parameter_shapes()[name][0] * CONFIG.parameter_shapes()[name][1]
        assert deviation == pytest.approx(rule, rel=6 / (2 * n) ** 0.5), name


def test_norms_are_the_identity_and_biases_nothing() -> None:
    assert torch.equal(initial_value(CONFIG, "layers.1.mlp_norm.weight", 1), torch.ones(48))
    assert not initial_value(CONFIG, "layers.1.mlp_norm.bias", 1).any()
    assert not initial_value(CONFIG, "layers.0.attention.qkv.bias", 1).any()


def test_seeds_and_names_give_different_values() -> None:
    first = initial_value(CONFIG, "layers.0.mlp.up.weight", 1)
    assert not torch.equal(first, initial_value(CONFIG, "layers.0.mlp.up.weight", 2))
    assert not torch.equal(first, initial_value(CONFIG, "layers.1.mlp.up.weight", 1))
    assert not torch.equal(first[:ROWS], first[ROWS : 2 * ROWS])
