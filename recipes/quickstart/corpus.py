"""The quickstart's corpus: the Python standard library of this machine, as a web crawl, as code and as curated prose.

``python corpus.py OUT`` writes

- ``OUT/raw/snapshot/*.warc.gz``: pydoc's HTML page of every module, public class and documented function, and of every
  topic of the language reference, as gzipped response records of a crawl;
- ``OUT/raw/code/*.jsonl.zst``: the library's source;
- ``OUT/raw/docstrings/*.jsonl.zst``: its longer docstrings.

The library is split by module name into ``PARTS``, each imported and rendered in a process of its own, so that a module
that prints or exits does no harm. The bytes of a part depend only on this Python: no paths, addresses, times or values
of variables enter them. Finished parts are kept.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib
import inspect
import json
import os
import pydoc
import re
import subprocess
import sys
import sysconfig
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zstandard

from mtnlg_data.files import atomic_open, sha256, write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PARTS = 8
LIBRARY = Path(sysconfig.get_path("stdlib"))
DATE = "2021-01-15T00:00:00Z"
#: Tests, applications, data tables and copies of other projects; modules that draw, open a browser or print.
EXCLUDED = {
    *("__main__", "__phello__", "antigravity", "distutils", "encodings", "ensurepip", "idlelib", "lib2to3", "msilib"),
    *("pydoc_data", "test", "tests", "this", "tkinter", "turtle", "turtledemo", "venv"),
}
MIN_FUNCTION_DOCSTRING = 80  # characters of docstring from which a function gets a page
MIN_DOCSTRING = 300  # characters from which a docstring is a document
ADDRESS = re.compile(r"(?: |&nbsp;)at(?: |&nbsp;)0x[0-9A-Fa-f]+")


def main() -> None:
    """Write the missing parts, one process per core, and print the totals."""
    parser = argparse.ArgumentParser(description="Write the quickstart's corpus below OUT.")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder of the run")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--key", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    raw = arguments.out / "raw"
    if arguments.part is not None:
        os.environ.clear()  # a default argument of some functions, which their page would show
        write_part(raw, arguments.part, arguments.key)
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = list(pool.map(partial(finish_part, arguments.out), range(PARTS)))
    total = {name: sum(count[name] for count in counts) for name in counts[0]}
    print(
        f"corpus: {total['pages']:,} pages ({total['html'] / 1e6:.1f} MB of HTML), {total['sources']:,} files of code"
        f" ({total['code'] / 1e6:.1f} MB), {total['docstrings']:,} docstrings ({total['prose'] / 1e6:.1f} MB) in {raw}"
    )


def finish_part(out: Path, part: int) -> dict[str, int]:
    """The counts of a part; a process writes it first if it is missing or another Python wrote it."""
    path = manifest_path(out / "raw", part)
    key = hashlib.sha256(sys.version.encode() + Path(__file__).read_bytes()).hexdigest()
    manifest = read_manifest(path, key)
    if manifest is None:
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-P", "-s", __file__, str(out), "--part", str(part), "--key", key]
        completed = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        manifest = read_manifest(path, key)
        if manifest is None:
            sys.exit(f"corpus: part {part} failed: {completed.stderr.decode(errors='replace').strip()[-500:]}")
    return dict(manifest["counts"])


def read_manifest(path: Path, key: str) -> dict[str, Any] | None:
    """The manifest of a part, if it has this key and its files have the SHA-256 it gives."""
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        intact = all(sha256(path.parent / name) == digest for name, digest in manifest["sha256"].items())
    except (OSError, ValueError, KeyError):
        return None
    return manifest if intact and manifest["key"] == key else None


def manifest_path(raw: Path, part: int) -> Path:
    """Path of a part's manifest."""
    return raw / f"part-{part:02d}.json"


def write_part(raw: Path, part: int, key: str) -> None:
    """Import this part's modules and write its three files, then its manifest."""
    names = module_names()[part::PARTS]
    modules = [module for name in names if (module := import_module(name)) is not None]
    pages = [page for module in modules for page in module_pages(module)]
    if part == 0:
        pages += topic_pages()
    sources = [source for name in names if (source := read_source(name)) is not None]
    docstrings = list(collect_docstrings(modules))
    files = {
        f"snapshot/part-{part:02d}.warc.gz": b"".join(warc_records(pages)),
        f"code/part-{part:02d}.jsonl.zst": json_lines(sources),
        f"docstrings/part-{part:02d}.jsonl.zst": json_lines(docstrings),
    }
    for name, content in files.items():
        with atomic_open(raw / name) as file:
            file.write(content)
    counts = {"pages": len(pages), "sources": len(sources), "docstrings": len(docstrings)}
    texts = {"html": [page for _, page in pages], "code": [row["text"] for row in sources]}
    texts["prose"] = [row["text"] for row in docstrings]
    sizes = {name: sum(map(len, content)) for name, content in texts.items()}
    checksums = {name: sha256(raw / name) for name in files}
    write_json(manifest_path(raw, part), {"key": key, "sha256": checksums, "counts": {**counts, **sizes}})


def module_names() -> list[str]:
    """Names of the public modules of the standard library, sorted."""
    files = [path.relative_to(LIBRARY).with_suffix("").parts for path in LIBRARY.rglob("*.py")]
    names = {".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in files} | sys.stdlib_module_names
    return sorted(name for name in names if not any(is_excluded(part) for part in name.split(".")))


def is_excluded(part: str) -> bool:
    """Whether modules with this part in their dotted name are left out."""
    return not part.isidentifier() or part in EXCLUDED or (part.startswith("_") and part != "__future__")


def import_module(name: str) -> Any | None:  # noqa: ANN401  (a module)
    """The module, or None if it is for another system or cannot be imported."""
    try:
        return importlib.import_module(name)
    except BaseException:  # noqa: BLE001  (a module may raise anything, SystemExit too)
        return None


class Pages(pydoc.HTMLDoc):
    """pydoc's pages without the paths of this machine and the values of variables."""

    def filelink(self, url: str, path: str) -> str:
        """Show a file by its path within the library."""
        del url
        return Path(path).relative_to(LIBRARY).as_posix() if Path(path).is_relative_to(LIBRARY) else Path(path).name

    def docother(self, object: Any, name: str | None = None, mod: str | None = None, *ignored: Any) -> str:  # noqa: A002, ANN401
        """Show a variable by its name and type."""
        del mod, ignored
        return f"<strong>{name}</strong>: {self.escape(type(object).__name__)}"


RENDERER = Pages()


def module_pages(module: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401  (a module)
    """(name, HTML) of the module, its public classes and its documented functions."""
    name = module.__name__
    yield from render_page(name, module, name)
    for key, value in public_members(module):
        has_docstring = inspect.isroutine(value) and len(inspect.getdoc(value) or "") >= MIN_FUNCTION_DOCSTRING
        if inspect.isclass(value) or has_docstring:
            yield from render_page(f"{name}.{key}", value, key)


def public_members(module: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401  (a module)
    """(name, object) of what a module exports, or else defines, sorted by name."""
    exported = getattr(module, "__all__", None)
    for key, value in sorted(vars(module).items()):
        own = getattr(value, "__module__", None) == module.__name__
        if key in exported if exported is not None else own and not key.startswith("_"):
            yield key, value


def render_page(title: str, documented: Any, name: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401  (module, class or function)
    """(title, HTML) of one object, unless pydoc cannot render it."""
    try:
        page = RENDERER.page(title, RENDERER.document(documented, name))
    except Exception:  # noqa: BLE001  (a repr or signature may raise anything)
        return
    # A few functions have a path of this machine as a default argument.
    yield title, ADDRESS.sub("", page).replace(str(LIBRARY), "Lib").replace(sys.executable, "python")


def topic_pages() -> list[tuple[str, str]]:
    """(name, HTML) of the topics of the language reference that pydoc carries."""
    topics = importlib.import_module("pydoc_data.topics").topics
    return [
        (f"topic.{name}", RENDERER.page(name, f"<h1>{name}</h1>\n<pre>{RENDERER.markup(text)}</pre>"))
        for name, text in sorted(topics.items())
    ]


def warc_records(pages: Iterable[tuple[str, str]]) -> Iterator[bytes]:
    """The pages as WARC response records, one gzip member each."""
    for name, page in pages:
        body = page.encode(errors="replace")
        http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: %d\r\n\r\n" % len(body)
        content = http + body
        identity = uuid.uuid5(uuid.NAMESPACE_URL, f"{name} {hashlib.sha256(content).hexdigest()}")
        header = (
            f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:{identity}>\r\nWARC-Date: {DATE}\r\n"
            f"WARC-Target-URI: https://pydoc.example/{name}.html\r\n"
            f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        yield gzip.compress(header.encode() + content + b"\r\n\r\n", mtime=0)


def read_source(name: str) -> dict[str, str] | None:
    """The source of a module, or None if it is not written in Python."""
    path = LIBRARY.joinpath(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file() and (text := candidate.read_text(encoding="utf-8", errors="replace")).strip():
            return {"text": text, "url": candidate.relative_to(LIBRARY).as_posix()}
    return None


def collect_docstrings(modules: Iterable[Any]) -> Iterator[dict[str, str]]:
    """The longer docstrings of modules, classes, methods and functions, each once."""
    seen = set()
    for module in modules:
        members = [member for _, member in public_members(module)]
        methods = [
            method for member in members if inspect.isclass(member) for _, method in sorted(vars(member).items())
        ]
        for item in [module, *members, *methods]:
            text = long_docstring(item)
            if text is not None and text not in seen:
                seen.add(text)
                yield {"text": text}


def long_docstring(item: Any) -> str | None:  # noqa: ANN401  (anything that a module holds)
    """The docstring of a module, class or function, if it is long enough to be a document."""
    if not (inspect.ismodule(item) or inspect.isclass(item) or inspect.isroutine(item)):
        return None
    try:
        text = inspect.getdoc(item) or ""
    except Exception:  # noqa: BLE001  (a descriptor may raise anything)
        return None
    return ADDRESS.sub("", text) if len(text) >= MIN_DOCSTRING else None


def json_lines(rows: Iterable[dict[str, str]]) -> bytes:
    """The rows as zstandard-compressed JSON lines."""
    return zstandard.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows), 9)


if __name__ == "__main__":
    main()
