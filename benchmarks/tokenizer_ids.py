# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "tokenizers==0.23.3"]
# ///
"""Texts of all kinds of tokenizers whose ids, or special tokens, differ from those of ``tokenizers``: none should.

    python benchmarks/tokenizer_ids.py [--texts 10000] [--kinds gpt2 llama3 …] [--out FILE]

Tokenizers of these kinds (tests/tokenizer_kinds.py of mtnlg-data) are trained on odd texts, and encode others: runs,
scripts, literal special tokens, broken and rare characters; one text in five thousand has two million characters.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from record import run

sys.path.insert(0, str(Path(__file__).parent.parent / "packages/mtnlg-data/tests"))
made = import_module("tokenizer_kinds")


def measure(texts: int = 10_000, kinds: tuple[str, ...] = tuple(made.KINDS)) -> dict[str, Any]:
    """Count the texts with other ids, by kind."""
    random = Random(0)
    lengths = [random.randrange(300) for _ in range(9 * texts // 10)]
    lengths += [random.randrange(5000) for _ in range(texts // 10 - texts // 5000)] + [2_000_000] * (texts // 5000)
    odd = [made.odd_text(random, length) for length in lengths]
    different: dict[str, int] = {}
    for kind in kinds:
        with TemporaryDirectory() as folder:
            different[kind] = len(made.differences(made.train_kind(kind), Path(folder), odd))
        print(f"{kind}: {different[kind]} of {len(odd)} texts differ", file=sys.stderr)
    return {
        "texts": len(odd),
        "characters": sum(map(len, odd)),
        "texts_that_differ": different,
        "differ": sum(different.values()),
    }


if __name__ == "__main__":
    run(measure, __doc__)
