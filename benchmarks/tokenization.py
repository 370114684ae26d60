# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data[gigatoken]", "gigatoken==0.10.0", "tokenizers==0.23.3"]
# ///
"""Texts to GPT-2's ids: mtnlg_data's two encoders against ``tokenizers.encode_batch``, one core, identical ids.

    python benchmarks/tokenization.py GPT2_FOLDER TEXTS [--rounds 5] [--out FILE]

GPT2_FOLDER holds GPT-2's two files; TEXTS is a file of JSON lines with "text", or of one article a line after its id.
All sides get the same Python strings and run on one thread; ours return arrays, ``tokenizers`` lists of ids.
``tokenizers``, alone and under ours, gets only the first megabytes of the texts: it is slow, and its rate does not fall
on more. Ratios are of megabytes per second. First, the ids of those texts are compared one by one (test_encoder.py
has random Unicode). gigatoken caches words, so every round opens a new encoder and counts its loading (*cold*), as the
tokenize stage does for every unit of 64 MB.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from record import ratios, run, spread, time_rounds

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

from tokenizers import Tokenizer

from mtnlg_data.tokens.encoder import Encoder, batch_slices, open_encoder
from mtnlg_data.tokens.tokenizer import read_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

PART_BYTES = 3_000_000


def encode_all(encode: Encoder, texts: list[str]) -> NDArray[np.uint32]:
    """Return all ids, by the batches of the tokenize stage."""
    return np.concatenate([encode(texts[batch])[0] for batch in batch_slices(texts)])


def check(path: Path, texts: list[str]) -> dict[str, int]:
    """Compare every id and return the counts; exit where one differs."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    expected = [each.ids for each in tokenizer.encode_batch(texts, add_special_tokens=False)]
    flat = np.array([id_ for each in expected for id_ in each], np.uint32)
    for library in ("tokenizers", "auto"):
        encoded, sizes = open_encoder(path, library)(texts)
        if sizes.tolist() != list(map(len, expected)) or not np.array_equal(encoded, flat):
            raise SystemExit(f"{library}: its ids differ from encode_batch's")
    return {"texts": len(texts), "ids": len(flat)}


def sides(path: Path, texts: list[str], part: list[str]) -> dict[str, Callable[[], object]]:
    """Return the timed calls: ``part`` of the texts by ``tokenizers``, all by gigatoken."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    plain = open_encoder(path, "tokenizers")
    return {
        "tokenizers encode_batch": lambda: [
            each.ids for each in tokenizer.encode_batch(part, add_special_tokens=False)
        ],
        "ours by tokenizers": lambda: encode_all(plain, part),
        "ours by gigatoken, cold": lambda: encode_all(open_encoder(path, "auto"), texts),
    }


def compare(gpt2: Path, texts: list[str], rounds: int, folder: Path) -> dict[str, object]:
    """Check the ids, time all sides in rounds, and return all figures."""
    path = folder / "tokenizer.json"
    read_tokenizer([gpt2 / "encoder.json", gpt2 / "vocab.bpe"]).save(str(path))
    sizes = np.cumsum([len(text.encode()) for text in texts])
    part = texts[: int(np.searchsorted(sizes, PART_BYTES)) + 1]
    shutil.copy(path, folder / "checked.json")  # another path, so that no timed encoder is cached by it
    compared = check(folder / "checked.json", part)
    ways = sides(path, texts, part)
    megabytes = {way: float(sizes[len(part if "tokenizers" in way else texts) - 1]) / 1e6 for way in ways}
    seconds = time_rounds(ways, rounds)
    speeds = {way: [megabytes[way] / each for each in of_way] for way, of_way in seconds.items()}
    theirs = speeds["tokenizers encode_batch"]
    return {
        "ratios": {way: spread(ratios(each, theirs)) for way, each in speeds.items() if each is not theirs},
        "identical": compared,
        "megabytes": {way: round(size, 2) for way, size in megabytes.items()},
        "megabytes_a_second": {way: round(statistics.median(each), 2) for way, each in speeds.items()},
    }


def measure(gpt2: Path, texts: Path, rounds: int = 5) -> dict[str, object]:
    """Encode these texts with GPT-2's vocabulary."""
    lines = texts.read_text(encoding="utf-8").splitlines()
    read = [json.loads(line)["text"] if line.startswith("{") else line.partition(" ")[2] for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        return compare(gpt2, read, rounds, Path(folder))


if __name__ == "__main__":
    run(measure, __doc__)
