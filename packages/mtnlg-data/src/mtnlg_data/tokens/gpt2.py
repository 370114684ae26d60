"""GPT-2's tokenizer by name: its two files, downloaded once from OpenAI's server, and checked.

They are kept in ``$XDG_CACHE_HOME/mtnlg-data/gpt2``, by default below ``~/.cache``.
"""

from __future__ import annotations

import os
from pathlib import Path

from mtnlg_data.console import Failure
from mtnlg_data.engine import lock_folder
from mtnlg_data.files import sha256
from mtnlg_data.transfer.url_files import fetch_files

GPT2 = "gpt2"
URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"
LARGEST = 8_000_000  # bytes; the vocabulary has one million
#: SHA-256 of the two files as OpenAI published them.
FILES = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}


def fetch_gpt2(url: str = URL) -> tuple[Path, ...]:
    """The vocabulary and the merges, from the cache or from ``url``.

    Raises ``Failure`` where they cannot be downloaded, or are not GPT-2's.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mtnlg-data" / GPT2
    with lock_folder(cache, wait=True):
        for name, digest in FILES.items():
            path = cache / name
            if path.is_file() and sha256(path) == digest:
                continue
            path.unlink(missing_ok=True)
            fetch_files({name: f"{url}/{name}"}, cache, largest=LARGEST)
            if sha256(path) != digest:
                path.unlink()
                raise Failure(f"{url}/{name}: not GPT-2's file; give a folder with {' and '.join(FILES)} instead")
    return tuple(cache / name for name in FILES)
