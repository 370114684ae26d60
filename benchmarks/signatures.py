# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "datasketch==2.0.0"]
# ///
"""MinHash signatures from text, 260 permutations: mtnlg_data against datasketch's ``update_batch``, one core.

    python benchmarks/signatures.py ARTICLES [--rounds 7] [--out FILE]

ARTICLES holds one article a line, after its id (articles_1000.train of chrisjmccormick/MinHash). Both sides take Python
strings, make word 5-grams of the lower-cased text and sign them; datasketch hashes shingles by its default, SHA-1. From
equal hashes of shingles both make the same signatures (test_dedup_parts.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from datasketch import MinHash

from mtnlg_data.dedup.minhash import hash_shingles, minhash, permutations
from mtnlg_data.text.arrays import text_batches
from record import articles as read_articles
from record import megabytes_of, rates, ratios, run, spread, time_rounds

if TYPE_CHECKING:
    from pathlib import Path

PERMUTATIONS, WORDS, SEED = 260, 5, 1


def ours(texts: list[str]) -> np.ndarray:
    """Return the signatures of all texts by mtnlg_data."""
    a, b = permutations(PERMUTATIONS, SEED)
    signatures = []
    for batch in text_batches(texts):
        values, bounds = hash_shingles(pa.array(batch, pa.large_string()), "word", WORDS)
        signatures.append(minhash(values, bounds, a, b))
    return np.concatenate(signatures)


def theirs(texts: list[str]) -> np.ndarray:
    """Return the signatures by datasketch, with its own hash of a shingle's bytes."""
    word = re.compile(r"\w+")
    first = MinHash(PERMUTATIONS, seed=SEED, scheme="affine32")
    signatures = np.empty((len(texts), PERMUTATIONS), np.uint32)
    for number, text in enumerate(texts):
        words = word.findall(text.lower())
        signature = MinHash(PERMUTATIONS, seed=SEED, scheme="affine32", permutations=first.permutations)
        count = max(1, len(words) - WORDS + 1)
        signature.update_batch([" ".join(words[i : i + WORDS]).encode() for i in range(count)])
        signatures[number] = signature.hashvalues
    return signatures


def measure(articles: Path, rounds: int = 7) -> dict[str, Any]:
    """Sign every article four times, which makes a round of ours long enough to time."""
    texts = read_articles(articles) * 4
    ours(texts)  # compiles
    sides = {"mtnlg_data": lambda: ours(texts), "datasketch": lambda: theirs(texts)}
    seconds, megabytes = time_rounds(sides, rounds), megabytes_of(texts)
    return {
        "ratio": spread(ratios(seconds["datasketch"], seconds["mtnlg_data"])),
        "megabytes_per_second": rates(megabytes, seconds),
        "texts": len(texts),
        "megabytes": round(megabytes, 3),
        "permutations": PERMUTATIONS,
        "seconds_of_one_core": seconds,
    }


if __name__ == "__main__":
    run(measure, __doc__)
