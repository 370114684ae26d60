"""Isolated documents and masks: what a micro-batch says of them; `test_conformance` shows training with them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mtnlg_data.stream import Sample
from mtnlg_model.config import ModelConfig
from mtnlg_model.console import UsageFailure
from mtnlg_model.functional import Documents, Rule, attention
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.training.samples import Data, micro_batches, open_data

CONFIG = ModelConfig(layers=1, hidden=16, heads=2, sequence=6, vocabulary=32)


class Chats:
    """Documents of three tokens, of which the second is not learned."""

    seq_length, vocab_size, fingerprint, masked = 6, 100, "chats", True

    def __len__(self) -> int:
        return 100

    def __getitem__(self, sample: int) -> NDArray[np.int32]:
        return np.arange(6 * sample, 6 * sample + 7, dtype=np.int32) + 10

    def sample(self, sample: int) -> Sample:
        tokens = self[sample]
        return Sample(tokens, tokens % 3 != 1, tokens % 3 == 0)


class Plain:
    """A stream that knows no documents."""

    seq_length, vocab_size, fingerprint = 6, 100, "plain"

    def __len__(self) -> int:
        return 100

    def __getitem__(self, sample: int) -> NDArray[np.int32]:
        return np.zeros(7, np.int32)


class Unsaid(Plain):
    """A stream whose masks would not be asked for."""

    sample = Chats.sample


def test_micro_batches_say_where_documents_begin_and_what_counts() -> None:
    joined, isolated = (next(micro_batches(Chats(), range(2), 2, 1, 0, isolated)) for isolated in (False, True))
    assert joined.inputs.tolist() == isolated.inputs.tolist() == [[10, 11, 12, 13, 14, 15], [16, 17, 18, 19, 20, 21]]
    assert joined.targets.tolist() == [[11, 12, -1, 14, 15, -1], [17, 18, -1, 20, 21, -1]]
    assert (joined.counted, joined.positions, joined.lengths) == (8, None, ())
    assert isolated.targets.tolist() == [[11, -1, -1, 14, -1, -1], [17, -1, -1, 20, -1, -1]]
    assert isolated.positions is not None
    assert isolated.positions.tolist() == [[0, 1, 0, 1, 2, 0]] * 2
    assert isolated.bounds is not None
    assert isolated.bounds.tolist() == [0, 2, 5, 6, 8, 11, 12]
    assert (isolated.counted, isolated.lengths) == (4, (2, 3, 1, 2, 3, 1))


def test_documents_need_a_stream_that_knows_them(tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    model = {"layers": 1, "hidden": 8, "heads": 1, "sequence": 6, "vocabulary": 100}
    train = {"samples": 8, "batch": 4, "lr": 1.0}
    sections = {"model": model, "train": train, "data": {"documents": "isolated"}, "layout": Layout(pp=1)}
    recipe = Recipe.model_validate(sections, strict=False)
    assert open_data(Data(Chats(), tokenizer), recipe).train.masked
    with pytest.raises(UsageFailure, match="Plain knows no documents"):
        open_data(Data(Plain(), tokenizer), recipe)
    assert open_data(Data(Unsaid(), tokenizer), recipe).train.masked, "its samples may have masks"


@pytest.mark.parametrize("window", [None, 7])
def test_flash_attention_takes_documents(window: int | None) -> None:
    """PyTorch's kernel has the arguments that we give it; on the meta device it computes shapes alone."""
    q, k, v = (torch.empty(2, heads, 24, 64, device="meta", dtype=torch.bfloat16) for heads in (4, 2, 2))
    documents = Documents((10, 14, 24), torch.empty(4, dtype=torch.int32, device="meta"))
    q.requires_grad_()
    out = attention(q, k, v, documents, Rule(0.1, 0.1, window))
    (gradient,) = torch.autograd.grad(out.sum(), q)
    assert out.shape == gradient.shape == q.shape


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("window", [None, 7])
def test_flash_attention_matches_separate_documents(window: int | None) -> None:
    inputs = [torch.randn(2, h, 96, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for h in (4, 2, 2)]
    lengths, results = (40, 56, 96), []
    bounds = torch.tensor([0, 40, 96, 192], dtype=torch.int32, device="cuda")
    for documents in (Documents(lengths, bounds), Documents(lengths)):
        out = attention(inputs[0], inputs[1], inputs[2], documents, Rule(0.1, 0.0, window))
        results.append((out, *torch.autograd.grad(out.float().square().sum(), inputs)))
    for flash, exact in zip(*results, strict=True):
        assert torch.allclose(flash, exact, rtol=2e-2, atol=2e-2)
