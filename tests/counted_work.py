"""Count the work of every reader at three sizes, each four times the one before: python counted_work.py prints JSON.

Work is calls of functions, in Python and in C, and bytes: those that are allocated, copied (memcpy, memmove) and read,
which `LIBRARY` counts below Python, so that what a C library copies counts too. Searches that copy nothing do not.
"""

from __future__ import annotations

import bz2
import ctypes
import gzip
import json
import lzma
import os
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import zstandard

from mtnlg_data.tokens.store import writing_store
from test_openers import CASES, CHAT, CURATION, HEADER, LINES, STEP, TASK, file_bytes, place, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIBRARY = r"""
#include <stdatomic.h>
#include <stddef.h>
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static _Atomic unsigned long long bytes;
unsigned long long counted(void) { return bytes; }
void *malloc(size_t n) { bytes += n; return __libc_malloc(n); }
void *calloc(size_t k, size_t n) { bytes += k * n; return __libc_calloc(k, n); }
void *realloc(void *p, size_t n) { bytes += n; return __libc_realloc(p, n); }
void *memmove(void *to, const void *from, size_t n) {
    char *t = to; const char *f = from;
    bytes += n;
    if (t <= f || t >= f + n) {
#ifdef __x86_64__
        __asm__ volatile("rep movsb" : "+D"(t), "+S"(f), "+c"(n) : : "memory");
#else
        while (n--) *(volatile char *)t++ = *f++;
#endif
    } else while (n--) ((volatile char *)t)[n] = f[n];
    return to;
}
void *memcpy(void *to, const void *from, size_t n) { return memmove(to, from, n); }
"""


def lines(form: str) -> Callable[[int], bytes]:
    return lambda n: "".join(form.replace("#", str(i)) + "\n" for i in range(n)).encode()


def inner(before: str, form: str, after: str, between: str = ", ") -> Callable[[int], bytes]:
    return lambda n: (before + between.join(form.replace("#", str(i)) for i in range(n)) + after).encode()


def text(before: str = "", after: str = "", letter: str = "a ") -> Callable[[int], bytes]:
    """One value of 1,000 n characters."""
    return lambda n: (before + letter * (500 * n) + after).encode()


def then(pack: Callable[[bytes], bytes], make: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda n: pack(make(n))


def times(part: bytes) -> Callable[[int], bytes]:
    return lambda n: part * n


def tar(n: int) -> bytes:
    target = BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for number in range(n):
            member = tarfile.TarInfo(f"{number}ä.txt")
            member.size = 3
            archive.addfile(member, BytesIO(b"one"))
    return target.getvalue()


def rows(n: int, **options: Any) -> bytes:  # noqa: ANN401  (of pyarrow)
    table = pa.table({"text": ["some text " * 10] * n, "id": [str(i) for i in range(n)]})
    return file_bytes(lambda file: pq.write_table(table, file, **options))


def columns(n: int) -> bytes:
    table = pa.table({"text": ["one"], "id": ["a"]} | {str(i): [i] for i in range(n)})
    return file_bytes(lambda file: pq.write_table(table, file))


def arrow(n: int) -> bytes:
    table = pa.table({"text": ["some text " * 10] * n, "id": ["a"] * n})

    def write(file: BytesIO) -> None:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=10)

    return file_bytes(write)


def saved(n: int) -> bytes:
    return file_bytes(lambda file: torch.save({str(i): torch.ones(2) for i in range(n)}, file))


def scores(n: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        base = sqlite3.connect(path := Path(folder, "a"))
        base.execute("CREATE TABLE answers (key BLOB PRIMARY KEY, answer TEXT NOT NULL)")
        base.executemany("INSERT INTO answers VALUES (?, '1')", ((str(i).encode(),) for i in range(n)))
        base.commit()
        base.close()
        return path.read_bytes()


def safetensors(n: int) -> bytes:
    entry = '"#":{"dtype":"F32","shape":[1],"data_offsets":[@,%]}'
    parts = (entry.replace("#", str(i)).replace("@", str(4 * i)).replace("%", str(4 * i + 4)) for i in range(n))
    header = ("{" + ",".join(parts) + "}").encode()
    return len(header).to_bytes(8, "little") + header + bytes(4 * n)


VOCABULARY = '{"model": {"type": "BPE", "vocab": {'
ADDED = '{"id": #, "content": "<#>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, '
JSONL = (times(LINES), text('{"text": "', '"}\n'), text('{"text": "', '"}\n', "\\u"), times(b"{\n"))
PARQUET = (rows, partial(rows, row_group_size=10), columns)
SHAPES: dict[str, tuple[Callable[[int], bytes], ...]] = {
    "recipe": (lines("a# = #"), lines("[t#]"), inner("a = [", "#", "]"), text('a = "', '"')),
    "cluster": (lines("a# = #"), inner("a = [", "#", "]")),
    "jsonl": JSONL,
    "jsonl.gz": (*(then(gzip.compress, make) for make in JSONL), times(gzip.compress(LINES))),
    "jsonl.zst": (*(then(zstandard.compress, make) for make in JSONL), times(zstandard.compress(LINES))),
    "jsonl.xz": (*(then(lzma.compress, make) for make in JSONL), times(lzma.compress(LINES))),
    "jsonl.bz2": (*(then(bz2.compress, make) for make in JSONL), times(bz2.compress(LINES))),
    "jsonl.lz4": (*(then(partial(pa.compress, codec="lz4", asbytes=True), make) for make in JSONL),),
    "csv": (
        lambda n: b"text,n\n" + b"one,1\n" * n,
        text('text,n\n"', '",1\n'),
        lambda n: b"text" + b",n" * n + b"\none" + b",1" * n,
    ),
    "text": (lines("line #"), text(), times(b"\n\n")),
    "tar": (tar, times(b"\0" * 512)),
    "parquet": PARQUET,
    "arrow": (arrow,),
    "warc": (
        times(b"WARC/1.0\r\nContent-Length: 3\r\n\r\none\r\n\r\n"),
        lambda n: b"WARC/1.0\r\n" + b"A: b\r\n" * n + b"Content-Length: 0\r\n\r\n\r\n\r\n",
        times(b"WARC/1.0\r\n"),
    ),
    "documents": PARQUET,
    "footer": PARQUET,
    "inspect": PARQUET,
    "inspect folder": PARQUET,
    "beginning": (times(LINES),),
    "list": (lines("a#.example"), text()),
    "list.gz": (then(gzip.compress, lines("a#.example")), times(gzip.compress(b"a.example\n"))),
    "task texts": (lines('{"task": "t", "id": "#", "text": "x"}'), text('{"task": "t", "id": "1", "text": "', '"}\n')),
    "classifier": (times(b"\x93NUMPY"),),
    "index": (times(b"d"),),
    "tokens": (times(b"d"),),
    "merges": (lambda n: b"#version: 0.2\n" + lines("a# a#")(n),),
    "blend": (inner('{"sources": [', '{"name": "#", "prefix": "#", "weight": 1.0}', "]}"),),
    "tokenizer": (
        inner(VOCABULARY, '"t#": #', '}, "merges": []}}'),
        inner(VOCABULARY + '"a": 0}, "merges": [', '"a a"', "]}}"),
        inner(
            '{"added_tokens": [', ADDED + '"special": true}', '], "model": {"type": "BPE", "vocab": {}, "merges": []}}'
        ),
    ),
    "metrics": (lines(STEP.decode().strip()), text('{"step": 1, "loss": "', '"}\n')),
    "history": (lines('{"event": "start", "time": 1.0}'),),
    "summary": (inner("{", '"k#": #', "}"),),
    "failure": (text('{"reason": "', '", "status": 1, "node": ""}'),),
    "hans": (lines('{"doc": {"label": #}}'),),
    "answers": (lines('{"doc_id": #}'),),
    "rows": (lines('{"question": "#", "passage": "b", "label": 1}'),),
    "race": (text(), inner('{"questions": [', '"#"', "]}")),
    "manifest": (inner('{"files": {', '"f#": {"bytes": 1, "checksum": "0"}', "}}"),),
    "length": (text(),),
    "checksum": (text(),),
    "digest": (text(),),
    "tensors": (safetensors, lambda n: HEADER + bytes(n)),
    "config": (inner('{"model_type": "gpt2", ', '"k#": #', "}"),),
    "torch.save": (saved,),
    "chat files": (text(),),
    "chat template": (text(CHAT[:20].decode(), CHAT[20:].decode()),),
    "curation": (lambda n: CURATION + lines('[sources.s#]\nfiles = ["*.jsonl"]')(n),),
    "curation's summary": (inner('{"stages": [', '{"name": "#"}', "]}"),),
    "listing": (then(gzip.compress, lines("crawl-data/a#.warc.gz")), then(gzip.compress, lines("/bad/#"))),
    "task": (lambda n: TASK + lines("k#: #")(n),),
    "result": (inner("{", '"k#": #', "}"),),
    "gap": (text('{"task": "', '", "why": "", "checkpoint": ""}'),),
    "training's summary": (inner("{", '"k#": #', "}"),),
    "study": (inner("{", '"k#": #', "}"),),
    "scores": (scores,),
}
SIZES = (250, 1000, 4000)


def work(name: str, content: bytes) -> list[int]:
    """Calls, and bytes allocated, copied and read, while a reader reads this content."""
    case, library = CASES[name], ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.counted.restype = ctypes.c_ulonglong
    with tempfile.TemporaryDirectory() as folder:
        path = place(case, Path(folder))
        if name in {"index", "tokens"}:  # as many documents
            with writing_store(path.with_suffix(""), 512) as store:
                store.extend(np.arange(len(content)) % 512, np.ones(len(content), np.int64))
        else:
            path.write_bytes(content)
        before = library.counted(), bytes_read()
        with counting_calls() as calls:
            read(case, path)
        return [calls[0], library.counted() - before[0] + bytes_read() - before[1]]


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


@contextmanager
def counting_calls() -> Iterator[list[int]]:
    calls = [0]

    def count(_frame: object, event: str, _value: object) -> None:
        calls[0] += event in {"call", "c_call"}

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "counted.c"), Path(folder, "counted.so")
        source.write_text(LIBRARY, encoding="ascii")
        options = ["-O1", "-shared", "-fPIC", "-fno-builtin"]
        words = ["cc", *options, "-o", str(library), str(source)]
        subprocess.run(words, check=True)
        subprocess.run(
            [sys.executable, __file__, *sys.argv[1:]], env=os.environ | {"LD_PRELOAD": str(library)}, check=True
        )


def count_all(names: list[str]) -> None:
    found: dict[str, list[list[list[int]]]] = {}
    for name in names or SHAPES:
        found[name] = []
        for make in SHAPES[name]:
            work(name, make(10))
            found[name].append([work(name, make(size)) for size in SIZES])
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    if "LD_PRELOAD" in os.environ:
        count_all(sys.argv[1:])
    else:
        main()
