# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "datasketch==2.0.0"]
# ///
"""MinHash signatures from text, 260 permutations: mtnlg_data against datasketch's ``update_batch``, one core.

    python benchmarks/signatures.py ARTICLES [--rounds 7] [--out FILE]

ARTICLES holds an article a line after its id (articles_1000.train of chrisjmccormick/MinHash). Both sides take Python
strings, make word 5-grams of the lower-cased text and sign them; datasketch hashes shingles as it does by default
(SHA-1). Given our shingles' hashes it gives our signatures bit for bit, which is checked for every text first.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from pathlib import Path

import numpy as np
from datasketch import MinHash

from mtnlg_data.dedup.minhash import minhash, permutations, shingles
from mtnlg_data.words import portions
from record import conditions, keep

PERMUTATIONS, WORDS, SEED = 260, 5, 1


def ours(texts: list[str]) -> np.ndarray:
    """Signatures of all texts, from text."""
    a, b = permutations(PERMUTATIONS, SEED)
    signatures = []
    for some in portions(texts):
        values, bounds = shingles(some, "word", WORDS)
        signatures.append(minhash((values >> np.uint64(32)).astype(np.uint32), bounds, a, b))
    return np.concatenate(signatures)


def theirs(texts: list[str]) -> np.ndarray:
    """The same by datasketch, its own hash of a shingle's bytes."""
    word = re.compile(r"\w+")
    first = MinHash(PERMUTATIONS, seed=SEED, scheme="affine32")
    signatures = np.empty((len(texts), PERMUTATIONS), np.uint32)
    for number, text in enumerate(texts):
        words = word.findall(text.lower())
        signature = MinHash(PERMUTATIONS, seed=SEED, scheme="affine32", permutations=first.permutations)
        runs = max(1, len(words) - WORDS + 1)
        signature.update_batch([" ".join(words[i : i + WORDS]).encode() for i in range(runs)])
        signatures[number] = signature.hashvalues
    return signatures


def same(texts: list[str]) -> bool:
    """Whether datasketch makes our signatures of our shingles' hashes."""
    signatures = ours(texts)
    for text, signature in zip(texts, signatures, strict=True):
        values, _ = shingles([text], "word", WORDS)
        oracle = MinHash(PERMUTATIONS, seed=SEED, hashfunc=int, scheme="affine32")
        oracle.update_batch((values >> np.uint64(32)).tolist())
        if oracle.hashvalues.tolist() != signature.tolist():
            return False
    return True


def main() -> None:
    """Run and print, and write to ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("articles", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = options.articles.read_text(encoding="utf-8").splitlines()
    texts = [line.partition(" ")[2] for line in lines] * 4  # so that a round of ours is long enough to time
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    about = conditions("mtnlg-data", "datasketch", "numpy", "numba")
    equal = same(texts)
    ways = {"mtnlg_data": ours, "datasketch": theirs}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds):
        for name in sorted(ways, reverse=bool(number % 2)):
            started = time.process_time()
            ways[name](texts)
            seconds[name].append(time.process_time() - started)
    ratios = [one / other for one, other in zip(seconds["datasketch"], seconds["mtnlg_data"], strict=True)]
    result = {
        "ratio": round(statistics.median(ratios), 1),
        "ratio_spread": [round(min(ratios), 1), round(max(ratios), 1)],
        "megabytes_per_second": {name: round(megabytes / statistics.median(of), 2) for name, of in seconds.items()},
        "bit_equal_to_datasketch": equal,
        "texts": len(texts),
        "megabytes": round(megabytes, 3),
        "permutations": PERMUTATIONS,
        "seconds_of_one_core": seconds,
        **about,
    }
    keep(result, options.out)


if __name__ == "__main__":
    main()
