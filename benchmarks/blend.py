# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "megatron-core==0.16.1", "torch==2.13.0"]
# ///
"""Random samples of a blend: ``mtnlg_data.stream`` against megatron-core's BlendedDataset over GPTDatasets, one core.

    python benchmarks/blend.py [--scale 0.01] [--rounds 5] [--reads 1000] [--folder DIR] [--out FILE]

Fifteen stores with the paper's weights and its sizes times ``--scale`` (paper.md 4.1), of random tokens in documents of
about 1060 tokens (339e9 tokens are 320e6 documents), sequences of 2048, 270e9 tokens times the scale in samples.
Both sides read the same files from the page cache. Every round opens both; megatron-core gets an empty cache folder,
since a change of weights, seed or length makes it rebuild its index. *start* is the time to the first sample. Then both
read the same random samples: megatron-core as it returns them (tokens, labels, loss mask and position ids; no attention
mask), ours as an array, and ours converted to int64 tensors of tokens and labels.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from mtnlg_data.files import write_json
from mtnlg_data.sources.corpus import CORPUS
from mtnlg_data.stream import open_stream
from mtnlg_data.tokens.store import TokenStore, writing_store
from record import conditions, option_parser, ratios, spread, write_result

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
Times = dict[str, list[float]]


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


def timed(times: Times, name: str, work: Callable[[], Any]) -> Any:  # noqa: ANN401  (whatever ``work`` returns)
    """Call ``work`` and record its CPU seconds, so that other work on the machine costs neither side."""
    started = time.process_time()
    result = work()
    times.setdefault(name, []).append(time.process_time() - started)
    return result


def with_first_sample(dataset: Any) -> Any:  # noqa: ANN401  (either side's)
    """Read the first sample; return the dataset."""
    dataset[0]
    return dataset


def tensors(sample: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and labels as int64 tensors, as megatron-core does."""
    tokens = torch.from_numpy(sample.astype(np.int64))
    return tokens[:-1].contiguous(), tokens[1:].contiguous()


def measure(folder: Path, scale: float, rounds: int, reads: int) -> dict[str, object]:
    """Write the blend, time both sides in rounds, and return all figures."""
    sizes = write_blend(folder, scale)
    samples = round(TRAINED * scale) // SEQUENCE
    times: Times = {}
    for number in range(rounds):
        cache = folder / f"cache-{number}"
        sides: dict[str, Callable[[], Any]] = {
            "ours": lambda: with_first_sample(open_stream(folder, SEQUENCE, samples=samples)),
            "theirs": lambda cache=cache: with_first_sample(megatron_dataset(folder, samples, cache)),  # type: ignore[misc]
        }
        order = ["ours", "theirs"] if number % 2 else ["theirs", "ours"]
        by_side = {side: timed(times, f"start {side}", sides[side]) for side in order}
        ours, megatron = by_side["ours"], by_side["theirs"]
        numbers = np.random.default_rng(number).integers(0, samples, reads).tolist()
        ways: dict[str, Callable[[], list[Any]]] = {
            "read theirs": lambda m=megatron, w=numbers: [m[n] for n in w],  # type: ignore[misc]
            "read ours": lambda o=ours, w=numbers: [o[n] for n in w],  # type: ignore[misc]
            "read ours as tensors": lambda o=ours, w=numbers: [tensors(o[n]) for n in w],  # type: ignore[misc]
        }
        for side in ways if number % 2 else reversed(ways):
            timed(times, side, ways[side])
        shutil.rmtree(cache)
    return {"scale": scale, "samples": samples, **sizes, "reads": reads, **summary(times, reads)}


def summary(times: Times, reads: int) -> dict[str, object]:
    """Return the rounds' ratios, theirs over ours, with their spread; then the times."""
    return {
        "ratios": {
            "start": spread(ratios(times["start theirs"], times["start ours"]), 2),
            **{
                way: spread(ratios(times["read theirs"], times[way]), 2) for way in times if way.startswith("read ours")
            },
        },
        "start_seconds": {side: [round(t, 5) for t in times[f"start {side}"]] for side in ("theirs", "ours")},
        "read_microseconds": {
            way: [round(t / reads * 1e6, 1) for t in rounds] for way, rounds in times.items() if way.startswith("read")
        },
    }


def main() -> None:
    """Measure; print the result and write it to ``--out``."""
    parser = option_parser(__doc__)
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--reads", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="holds the stores, two bytes a token (default: a temporary folder)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # megatron-core asks for its rank, even in one process.
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    machine = conditions("mtnlg-data", "megatron-core", "torch", "numpy")
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        measured = measure(Path(scratch), options.scale, options.rounds, options.reads)
    result = {"claim": "random sample reads of a blend", "rounds": options.rounds, **measured, "machine": machine}
    write_result(result, options.out)


if __name__ == "__main__":
    main()
