# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data[gigatoken]", "gigatoken==0.10.0", "tokenizers==0.23.3"]
# ///
"""Texts to GPT-2's ids: mtnlg_data's two encoders against ``tokenizers.encode_batch``, one core, identical ids.

    python benchmarks/tokenization.py GPT2_FOLDER TEXTS [--rounds 5] [--out FILE]

GPT2_FOLDER holds GPT-2's two files; TEXTS is a file of JSON lines with "text", or of one article a line after its id.
All sides get the same Python strings and run on one thread; ours return arrays, ``tokenizers`` lists of ids. That ids
are equal is shown by test_encoder.py. gigatoken caches words, so every round opens a new encoder and counts its loading
(*cold*), as the tokenize stage does for every unit of 64 MB: 27 MB of texts were measured.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from record import megabytes_of, rates, ratios, run, spread, time_rounds

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

from tokenizers import Tokenizer

from mtnlg_data.tokens.encoder import Encoder, batch_slices, open_encoder
from mtnlg_data.tokens.tokenizer import read_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def encode_all(encode: Encoder, texts: list[str]) -> NDArray[np.uint32]:
    """Return all ids, by the batches of the tokenize stage."""
    return np.concatenate([encode(texts[batch])[0] for batch in batch_slices(texts)])


def measure(gpt2: Path, texts: Path, rounds: int = 5) -> dict[str, object]:
    """Encode these texts with GPT-2's vocabulary."""
    lines = texts.read_text(encoding="utf-8").splitlines()
    read = [json.loads(line)["text"] if line.startswith("{") else line.partition(" ")[2] for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        read_tokenizer([gpt2 / "encoder.json", gpt2 / "vocab.bpe"]).save(str(path))
        tokenizer, plain = Tokenizer.from_file(str(path)), open_encoder(path, "tokenizers")
        tokenizer.encode_special_tokens = True
        sides: dict[str, Callable[[], object]] = {
            "tokenizers encode_batch": lambda: [
                each.ids for each in tokenizer.encode_batch(read, add_special_tokens=False)
            ],
            "ours by tokenizers": lambda: encode_all(plain, read),
            "ours by gigatoken, cold": lambda: encode_all(open_encoder(path, "auto"), read),
        }
        seconds, megabytes = time_rounds(sides, rounds), megabytes_of(read)
    theirs = seconds["tokenizers encode_batch"]
    return {
        "ratios": {name: spread(ratios(theirs, each)) for name, each in seconds.items() if each is not theirs},
        "megabytes_per_second": rates(megabytes, seconds),
        "megabytes": round(megabytes, 2),
    }


if __name__ == "__main__":
    run(measure, __doc__)
