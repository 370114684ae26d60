# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data[gigatoken]", "gigatoken==0.10.0", "tokenizers==0.23.3"]
# ///
"""Texts to GPT-2's ids: mtnlg_data's two encoders against ``tokenizers.encode_batch``, one core, identical ids.

    python benchmarks/tokenization.py GPT2_FOLDER TEXTS [--rounds 5] [--out FILE]

GPT2_FOLDER holds GPT-2's two files; TEXTS is a file of JSON lines with "text". All sides get the same Python strings
and run on one thread; ours return arrays, ``tokenizers`` the lists of its ids. ``tokenizers``, alone and under ours,
gets the first megabytes of the texts, since it is slow and no slower on more; ratios are of megabytes a second. Before
anything is timed, the ids of those, and of 20,000 strings of random Unicode, are compared one by one. gigatoken
remembers words: *cold* makes the encoder anew for every round, as the tokenize stage does for every unit of 64 MB, its
loading included; *warm* has seen the texts before. *stage* is a whole unit of the stage, from Parquet to sorted Arrow,
by gigatoken, against ``encode_batch`` alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from record import conditions, keep

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

from tokenizers import Tokenizer

from mtnlg_data.document import Document, Made, batches, numbered, write_documents
from mtnlg_data.tokens.encoder import Encoder, encoder, some_at_once
from mtnlg_data.tokens.stage import Encoding, encode
from mtnlg_data.tokens.tokenizer import read, text_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SEED, FUZZ, PART = 1, 20_000, 3_000_000


def encoded(encode_some: Encoder, texts: list[str]) -> NDArray[np.uint32]:
    """All ids, as the tokenize stage makes them."""
    return np.concatenate([encode_some(texts[some])[0] for some in some_at_once(texts)])


def strings(count: int) -> list[str]:
    """Random Unicode, rich in spaces, quotes and line ends."""
    draw = random.Random(SEED)
    kinds = [lambda: draw.choice(" \n\t'\r"), lambda: chr(draw.randrange(0x300)), lambda: chr(draw.randrange(0xD800))]
    kinds += [lambda: chr(draw.randrange(0xE000, sys.maxunicode + 1)), lambda: draw.choice("aeinst")]
    return ["".join(draw.choice(kinds)() for _ in range(draw.randrange(60))) for _ in range(count)]


def check(path: Path, texts: list[str]) -> dict[str, int]:
    """Compare every id. Raises ``SystemExit`` where one differs."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    compared = {"texts": len(texts), "strings": FUZZ}
    ids = 0
    for some in (texts, strings(FUZZ)):
        expected = [each.ids for each in tokenizer.encode_batch(some, add_special_tokens=False)]
        flat = np.array([one for each in expected for one in each], np.uint32)
        for library in ("tokenizers", "gigatoken"):
            found, sizes = encoder(path, library)(some)
            if sizes.tolist() != list(map(len, expected)) or not np.array_equal(found, flat):
                raise SystemExit(f"{library} gives other ids")
        ids += len(flat)
    return {**compared, "ids": ids}


def sides(path: Path, texts: list[str], part: list[str], shard: Path) -> dict[str, Callable[[], object]]:
    """What is timed; ``part`` of the texts by ``tokenizers``, all by gigatoken."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    plain, warm = encoder(path, "tokenizers"), encoder(path, "gigatoken")
    encoded(warm, texts)
    (held,) = numbered([shard])
    groups = tuple(range(len(text_bytes(shard))))
    unit = Encoding(held, groups, Made(path, ""), SEED, "gigatoken", shard.with_suffix(".arrow"))
    return {
        "tokenizers encode_batch": lambda: [
            each.ids for each in tokenizer.encode_batch(part, add_special_tokens=False)
        ],
        "ours by tokenizers": lambda: encoded(plain, part),
        "ours by gigatoken, cold": lambda: encoded(encoder(path, "gigatoken"), texts),
        "ours by gigatoken, warm": lambda: encoded(warm, texts),
        "stage by gigatoken": lambda: encode(unit),
    }


def measure(gpt2: Path, texts: list[str], rounds: int, folder: Path) -> dict[str, object]:
    """All figures of one run."""
    path, shard = folder / "tokenizer.json", folder / "texts-00000.parquet"
    read([gpt2 / "encoder.json", gpt2 / "vocab.bpe"]).save(str(path))
    write_documents(shard, batches(Document(str(n), "texts", text) for n, text in enumerate(texts)))
    sizes = np.cumsum([len(text.encode()) for text in texts])
    part = texts[: int(np.searchsorted(sizes, PART)) + 1]
    shutil.copy(path, folder / "checked.json")  # another file, so that what is timed starts fresh
    compared = check(folder / "checked.json", part)
    ways = sides(path, texts, part, shard)
    megabytes = {way: float(sizes[len(part if "tokenizers" in way else texts) - 1]) / 1e6 for way in ways}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in ways if number % 2 else reversed(ways):
            started = time.process_time()
            ways[name]()
            times[name].append(time.process_time() - started)
    speeds = {way: [megabytes[way] / seconds for seconds in each] for way, each in times.items()}
    theirs = speeds.pop("tokenizers encode_batch")
    ratios = {way: [o / t for t, o in zip(theirs, each, strict=True)] for way, each in speeds.items()}
    return {
        "ratios": {
            way: {k: round(f(each), 2) for k, f in (("median", statistics.median), ("least", min), ("most", max))}
            for way, each in ratios.items()
        },
        "identical": compared,
        "megabytes": {way: round(size, 2) for way, size in megabytes.items()},
        "megabytes_a_second": {
            way: round(statistics.median(each), 2)
            for way, each in {"tokenizers encode_batch": theirs, **speeds}.items()
        },
    }


def main() -> None:
    """Run and print, and write to ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpt2", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    machine = conditions("mtnlg-data", "tokenizers", "gigatoken", "numpy")
    texts = [json.loads(line)["text"] for line in options.texts.read_text(encoding="utf-8").splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(options.gpt2, texts, options.rounds, Path(folder))
    result = {"claim": "tokens, identical ids", "rounds": options.rounds, **measured, "machine": machine}
    keep(result, options.out)


if __name__ == "__main__":
    main()
