"""Trains a small fastText model that tells languages, and writes it in fastText's own format (12).

The features are a word's characters and pairs of characters, hashed as fastText hashes them; the model is a softmax
regression on their mean. Dimension k of the hidden layer is label k, and the output matrix a diagonal.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

BUCKETS = 4096
LONGEST = 2  # characters
SOFTMAX, TREE = 3, 1  # fastText's numbers of its losses


def features(text: str) -> NDArray[np.int64]:
    """Rows of the input matrix that fastText looks up for a text; row 0 is the end of the line."""
    rows = [0]
    for word in (f"<{word}>" for word in text.split()):
        for first in range(len(word)):
            for size in range(1, LONGEST + 1):
                gram = word[first : first + size]
                if len(gram) == size and gram not in {"<", ">"}:
                    rows.append(1 + hash_bytes(gram.encode()) % BUCKETS)
    return np.array(rows)


def hash_bytes(content: bytes) -> int:
    """FNV-1a over signed bytes, as in fastText."""
    value = 2166136261
    for byte in content:
        value = ((value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) % (1 << 32)
    return value


def train(path: Path, texts: Mapping[str, Sequence[str]], loss: int = SOFTMAX, scale: float = 1.0) -> Path:
    """Write a model of these labels, trained on their texts; ``scale`` is the diagonal of the output matrix."""
    labels = sorted(texts)
    examples = [(features(text), number) for number, label in enumerate(labels) for text in texts[label]]
    weights = np.zeros((1 + BUCKETS, len(labels)))
    for _ in range(20):
        for rows, label in examples:
            odds = np.exp(weights[rows].mean(axis=0))
            np.add.at(weights, rows, 5 * (np.eye(len(labels))[label] - odds / odds.sum()) / len(rows))
    header = struct.pack("<2i12id", 793712314, 12, len(labels), 5, 5, 1, 5, 1, loss, 3, BUCKETS, 1, LONGEST, 100, 1e-4)
    sizes = struct.pack("<3i2q", 1 + len(labels), 1, len(labels), 10, -1)
    kinds = [("</s>", 0), *((f"__label__{label}", 1) for label in labels)]
    entries = b"".join(word.encode() + struct.pack("<bqb", 0, 1, kind) for word, kind in kinds)
    matrices = [
        struct.pack("<?2q", False, *matrix.shape) + matrix.astype("<f4").tobytes()
        for matrix in (weights, scale * np.eye(len(labels)))
    ]
    path.write_bytes(header + sizes + entries + b"".join(matrices))
    return path
