# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "megatron-core==0.16.1", "torch==2.13.0"]
# ///
"""Random samples of a blend: ``mtnlg_data.stream`` against megatron-core's BlendedDataset over GPTDatasets, one core.

    python benchmarks/blend.py [--scale 0.01] [--rounds 5] [--reads 1000] [--folder DIR] [--out FILE]

Fifteen stores with the paper's weights and its sizes times ``--scale`` (paper.md 4.1), of random tokens in documents of
about 1060 tokens (339e9 tokens are 320e6 documents), sequences of 2048, 270e9 tokens times the scale in samples.
Both sides read the same files from the page cache. Every round opens both; megatron-core gets an empty cache folder,
since a change of weights, seed or length makes it rebuild its index. *start* is the time to the first sample. Then, in
rounds again, both read the same random samples: megatron-core as it returns them (tokens, labels, loss mask, position
ids; no attention mask), ours as an array.
"""

from __future__ import annotations

import tempfile
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from mtnlg_data.files import write_json
from mtnlg_data.sources.corpus import CORPUS
from mtnlg_data.stream import open_stream
from mtnlg_data.tokens.store import TokenStore, writing_store
from record import ratios, run, spread, time_rounds

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # megatron-core warns of optional packages
    import torch
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from torch._C._distributed_c10d import HashStore

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY, SEQUENCE, SEED, TRAINED = 50_257, 2048, 1234, 270e9
TOKENS_A_DOCUMENT = 1060


def write_blend(folder: Path, scale: float) -> dict[str, int]:
    """Write the fifteen stores and blend.json; return their documents and tokens."""
    random = np.random.default_rng(SEED)
    sources = []
    documents = tokens = 0
    for dataset in CORPUS:
        count = round(dataset.tokens * 1e9 * scale) // TOKENS_A_DOCUMENT
        sizes = np.maximum(1, random.lognormal(np.log(TOKENS_A_DOCUMENT) - 0.5, 1.0, count)).astype(int)
        with writing_store(folder / dataset.name, VOCABULARY) as writer:
            for chunk in np.array_split(sizes, len(sizes) // 1000 + 1):
                writer.extend(random.integers(0, VOCABULARY, int(chunk.sum()), np.uint16), chunk)
        store = TokenStore(folder / dataset.name)
        counts = {"documents": len(store), "tokens": store.tokens, "sha256": ""}
        documents, tokens = documents + len(store), tokens + store.tokens
        sources.append({"name": dataset.name, "prefix": dataset.name, "weight": dataset.weight, **counts})
    head = {"seed": SEED, "vocabulary": VOCABULARY, "eod": VOCABULARY - 1, "validation": 0.02}
    write_json(folder / "blend.json", {**head, "sources": sources})
    return {"documents": documents, "tokens": tokens}


def megatron_dataset(folder: Path, samples: int, cache: Path) -> Any:  # noqa: ANN401  (megatron-core is not annotated)
    """Return megatron-core's training set; it builds its indices in ``cache``."""
    config = GPTDatasetConfig(
        random_seed=SEED,
        sequence_length=SEQUENCE,
        blend=([str(folder / dataset.name) for dataset in CORPUS], [dataset.weight for dataset in CORPUS]),
        split="98,2,0",
        path_to_cache=str(cache),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        tokenizer=SimpleNamespace(eod=VOCABULARY - 1, vocab_size=VOCABULARY, unique_identifiers={"name": "random"}),
    )
    return BlendedMegatronDatasetBuilder(GPTDataset, [samples, 0, 0], lambda: True, config).build()[0]


def measure(scale: float = 0.01, reads: int = 1000, folder: Path | None = None, rounds: int = 5) -> dict[str, Any]:
    """Write the blend into ``folder``, two bytes a token, and time both sides."""
    torch.set_num_threads(1)
    # megatron-core asks for its rank, even in one process.
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    opened: dict[str, Any] = {}
    samples = round(TRAINED * scale) // SEQUENCE
    numbers = np.random.default_rng(SEED).integers(0, samples, reads).tolist()
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        stores = Path(scratch)
        sizes = write_blend(stores, scale)

        def start(side: str, open_blend: Callable[[], Any]) -> None:
            opened[side] = open_blend()
            opened[side][0]

        ways = {
            "ours": lambda: open_stream(stores, SEQUENCE, samples=samples),
            "theirs": lambda: megatron_dataset(stores, samples, Path(tempfile.mkdtemp(dir=stores))),
        }
        starts = time_rounds({side: partial(start, side, way) for side, way in ways.items()}, rounds)
        ours, theirs = opened["ours"], opened["theirs"]
        times = time_rounds(
            {
                "read theirs": lambda: [theirs[n] for n in numbers],
                "read ours": lambda: [ours[n] for n in numbers],
            },
            rounds,
        )
    return {
        "scale": scale,
        "samples": samples,
        **sizes,
        "reads": reads,
        "rounds": rounds,
        "ratios": {
            "start": spread(ratios(starts["theirs"], starts["ours"])),
            "read ours": spread(ratios(times["read theirs"], times["read ours"])),
        },
        "start_seconds": starts,
        "read_microseconds": {way: [round(t / reads * 1e6, 1) for t in each] for way, each in times.items()},
    }


if __name__ == "__main__":
    run(measure, __doc__)
