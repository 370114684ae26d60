"""mtnlg_data's TokenStream for the conformance tests of contract 1."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.files import write_json
from mtnlg_data.stream import open_stream
from mtnlg_data.tokens.store import TokenStore, writing_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mtnlg_data.stream import TokenStream

    Make = Callable[[Path, int, int], TokenStream]

VOCABULARY = 512
WEIGHTS = {"web": 0.5, "code": 0.3, "books": 0.2}


def blend(folder: Path, seq_length: int, seed: int) -> TokenStream:
    """Return a blend of three random stores under ``folder``; the seed changes only their order."""
    tokens = folder / f"tokens-{seed}"
    sources = []
    for number, (name, weight) in enumerate(WEIGHTS.items()):
        if not (tokens / f"{name}.idx").exists():
            write_random_store(tokens / name, number)
        store = TokenStore(tokens / name)
        size = {"documents": len(store), "tokens": store.tokens, "sha256": store.checksum()}
        sources.append({"name": name, "prefix": name, "weight": weight, **size})
    head = {"seed": seed, "vocabulary": VOCABULARY, "eod": VOCABULARY - 1, "validation": 0.1}
    write_json(tokens / "blend.json", {**head, "sources": sources})
    return open_stream(tokens, seq_length)


def write_random_store(prefix: Path, seed: int) -> None:
    """Write sixty documents of random tokens."""
    random = np.random.default_rng(seed)
    with writing_store(prefix, VOCABULARY) as writer:
        for length in random.integers(10, 200, size=60):
            writer.add(random.integers(0, VOCABULARY, size=int(length)))


def resolve(entry: str) -> Make:
    """Import the function that ``MODULE:FUNCTION`` names."""
    module, _, function = entry.partition(":")
    make: Make = getattr(import_module(module), function)
    return make


def read_samples(entry: str, folder: Path, seq_length: int, numbers: list[int]) -> tuple[str, list[list[int]]]:
    """Return fingerprint and samples as this process reads them."""
    stream = resolve(entry)(folder, seq_length, 1)
    return stream.fingerprint, [stream[number].tolist() for number in numbers]
