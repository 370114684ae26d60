# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "megatron-core==0.16.1", "torch==2.13.0"]
# ///
"""Random samples of a blend: ``mtnlg_data.stream`` against megatron-core's BlendedDataset over GPTDatasets, one core.

    python benchmarks/blend.py [--scale 0.01] [--rounds 5] [--reads 1000] [--folder DIR] [--out FILE]

Fifteen stores with the paper's weights and its sizes times ``--scale`` (paper.md 4.1), of random tokens in documents of
about 1060 tokens (339e9 are 320e6 documents), sequences of 2048, as many samples as 270e9 tokens times the scale.
Both sides read the same files, from the page cache. Every round opens both, megatron-core with an empty cache folder,
since a change of weights, seed or length makes it build again: *start* is until the first sample is there. Then each
reads the same random samples: megatron-core's as it gives them (tokens, labels, loss mask and position ids; no
attention mask), ours as an array, and ours made into int64 tensors of tokens and labels. Reads are also timed with our
file of sums away, as megatron-core has none.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
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
from mtnlg_data.tokens.store import TokenStore, crc_path, writing_store
from record import conditions, keep

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # megatron-core's, of what it would rather have installed
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
    """The fifteen stores and blend.json; returns what they hold."""
    random = np.random.default_rng(SEED)
    sources = []
    documents = tokens = 0
    for dataset in CORPUS:
        about = round(dataset.tokens * 1e9 * scale)
        sizes = np.maximum(
            1, random.lognormal(np.log(TOKENS_A_DOCUMENT) - 0.5, 1.0, about // TOKENS_A_DOCUMENT)
        ).astype(int)
        with writing_store(folder / dataset.name, VOCABULARY) as writer:
            for some in np.array_split(sizes, len(sizes) // 1000 + 1):
                writer.extend(random.integers(0, VOCABULARY, int(some.sum()), np.uint16), some)
        store = TokenStore(folder / dataset.name)
        counts = {"documents": len(store), "tokens": store.tokens, "sha256": ""}
        documents, tokens = documents + len(store), tokens + store.tokens
        sources.append({"name": dataset.name, "prefix": dataset.name, "weight": dataset.weight, **counts})
    head = {"seed": SEED, "vocabulary": VOCABULARY, "eod": VOCABULARY - 1, "validation": 0.02}
    write_json(folder / "blend.json", {**head, "sources": sources})
    return {"documents": documents, "tokens": tokens}


def theirs(folder: Path, samples: int, cache: Path) -> Any:  # noqa: ANN401  (megatron-core is not annotated)
    """megatron-core's training set, its indices built into ``cache``."""
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


def clocked(times: Times, name: str, work: Callable[[], Any]) -> Any:  # noqa: ANN401  (what the work returns)
    """Do the work and note its seconds of processor, so that a neighbour at work costs neither side."""
    started = time.process_time()
    done = work()
    times.setdefault(name, []).append(time.process_time() - started)
    return done


def opened(dataset: Any) -> Any:  # noqa: ANN401  (either side's)
    """The dataset, once it has given a sample."""
    dataset[0]
    return dataset


def tensors(sample: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels, int64, as megatron-core gives them."""
    whole = torch.from_numpy(sample.astype(np.int64))
    return whole[:-1].contiguous(), whole[1:].contiguous()


def measure(folder: Path, scale: float, rounds: int, reads: int) -> dict[str, object]:
    """All figures of one run."""
    held = write_blend(folder, scale)
    samples = round(TRAINED * scale) // SEQUENCE
    times: Times = {}
    for number in range(rounds):
        cache = folder / f"cache-{number}"
        sides: dict[str, Callable[[], Any]] = {
            "ours": lambda: opened(open_stream(folder, SEQUENCE, samples=samples)),
            "theirs": lambda cache=cache: opened(theirs(folder, samples, cache)),  # type: ignore[misc]
        }
        order = ["ours", "theirs"] if number % 2 else ["theirs", "ours"]
        by_side = {side: clocked(times, f"start {side}", sides[side]) for side in order}
        ours, megatron = by_side["ours"], by_side["theirs"]
        for prefix in (folder / dataset.name for dataset in CORPUS):
            crc_path(prefix).rename(f"{crc_path(prefix)}.away")
        unchecked = open_stream(folder, SEQUENCE, samples=samples)
        for prefix in (folder / dataset.name for dataset in CORPUS):
            Path(f"{crc_path(prefix)}.away").rename(crc_path(prefix))
        wanted = np.random.default_rng(number).integers(0, samples, reads).tolist()
        ways: dict[str, Callable[[], list[Any]]] = {
            "read theirs": lambda m=megatron, w=wanted: [m[n] for n in w],  # type: ignore[misc]
            "read ours": lambda o=ours, w=wanted: [o[n] for n in w],  # type: ignore[misc]
            "read ours as tensors": lambda o=ours, w=wanted: [tensors(o[n]) for n in w],  # type: ignore[misc]
            "read ours unchecked": lambda u=unchecked, w=wanted: [u[n] for n in w],  # type: ignore[misc]
        }
        for side in ways if number % 2 else reversed(ways):
            clocked(times, side, ways[side])
        shutil.rmtree(cache)
    return {"scale": scale, "samples": samples, **held, "reads": reads, **told(times, reads)}


def told(times: Times, reads: int) -> dict[str, object]:
    """Ratios first: the median over the rounds of theirs over ours, and their spread; then the times."""

    def ratio(theirs_by: str, ours_by: str) -> dict[str, float]:
        each = [t / o for t, o in zip(times[theirs_by], times[ours_by], strict=True)]
        return {"median": round(statistics.median(each), 2), "least": round(min(each), 2), "most": round(max(each), 2)}

    return {
        "ratios": {
            "start": ratio("start theirs", "start ours"),
            **{way: ratio("read theirs", way) for way in times if way.startswith("read ours")},
        },
        "start_seconds": {side: [round(t, 5) for t in times[f"start {side}"]] for side in ("theirs", "ours")},
        "read_microseconds": {
            way: [round(t / reads * 1e6, 1) for t in found] for way, found in times.items() if way.startswith("read")
        },
    }


def main() -> None:
    """Run and print, and write to ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reads", type=int, default=1000)
    parser.add_argument(
        "--folder", type=Path, help="where to write two bytes a token; a temporary folder when left out"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    # megatron-core asks for its rank; alone in the world it is 0.
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    machine = conditions("mtnlg-data", "megatron-core", "torch", "numpy")
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        measured = measure(Path(scratch), options.scale, options.rounds, options.reads)
    result = {"claim": "random sample reads of a blend", "rounds": options.rounds, **measured, "machine": machine}
    keep(result, options.out)


if __name__ == "__main__":
    main()
