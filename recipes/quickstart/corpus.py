"""The quickstart's corpus: the Python standard library of this machine, as a web crawl, as code and as curated prose.

``python corpus.py OUT`` writes

- ``OUT/raw/snapshot/*.warc.gz``: pydoc's HTML page of every module, public class and documented function, and of every
  topic of the language reference, as the gzipped response records of a crawl;
- ``OUT/raw/code/*.jsonl.zst``: the library's source;
- ``OUT/raw/docstrings/*.jsonl.zst``: its longer docstrings.

The library is cut into ``PARTS`` by module name; each part is imported and rendered by a process of its own, so a
module that prints or exits harms nobody, and its bytes depend on nothing but this Python: no paths, no addresses, no
clock, no values of variables. A part that is there is kept.
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

from mtnlg_data.files import replacing, sha256, write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PARTS = 8
LIBRARY = Path(sysconfig.get_path("stdlib"))
DATE = "2021-01-15T00:00:00Z"
#: Tests, applications, data tables and copies of other projects; modules that draw, open a browser or print.
LEFT_OUT = {
    *("__main__", "__phello__", "antigravity", "distutils", "encodings", "ensurepip", "idlelib", "lib2to3", "msilib"),
    *("pydoc_data", "test", "tests", "this", "tkinter", "turtle", "turtledemo", "venv"),
}
LONG_FUNCTION = 80  # characters of docstring that earn a function a page of its own
LONG_DOCSTRING = 300
ADDRESS = re.compile(r"(?: |&nbsp;)at(?: |&nbsp;)0x[0-9A-Fa-f]+")


def main() -> None:
    """Write every part that is not there, two at a time, and say what lies there."""
    parser = argparse.ArgumentParser(description="Write the quickstart's corpus below OUT.")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder of the run")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--key", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    raw = arguments.out / "raw"
    if arguments.part is not None:
        os.environ.clear()  # some functions have it as a default, which their page would show
        write_part(raw, arguments.part, arguments.key)
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = list(pool.map(partial(finished_part, arguments.out), range(PARTS)))
    total = {name: sum(count[name] for count in counts) for name in counts[0]}
    print(
        f"corpus: {total['pages']:,} pages ({total['html'] / 1e6:.1f} MB of HTML), {total['sources']:,} files of code"
        f" ({total['code'] / 1e6:.1f} MB), {total['docstrings']:,} docstrings ({total['prose'] / 1e6:.1f} MB) in {raw}"
    )


def finished_part(out: Path, part: int) -> dict[str, int]:
    """The counts of a part, which a process of its own makes where it is not there or was made by another Python."""
    marker = marker_of(out / "raw", part)
    key = hashlib.sha256(sys.version.encode() + Path(__file__).read_bytes()).hexdigest()
    manifest = whole(marker, key)
    if manifest is None:
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-P", "-s", __file__, str(out), "--part", str(part), "--key", key]
        ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        manifest = whole(marker, key)
        if manifest is None:
            sys.exit(f"corpus: part {part} failed: {ended.stderr.decode(errors='replace').strip()[-500:]}")
    return dict(manifest["counts"])


def whole(marker: Path, key: str) -> dict[str, Any] | None:
    """The manifest of a part if its files are as it says."""
    try:
        manifest: dict[str, Any] = json.loads(marker.read_text(encoding="utf-8"))
        same = all(sha256(marker.parent / name) == digest for name, digest in manifest["sha256"].items())
    except (OSError, ValueError, KeyError):
        return None
    return manifest if same and manifest["key"] == key else None


def marker_of(raw: Path, part: int) -> Path:
    """Where a part says that it is whole."""
    return raw / f"part-{part:02d}.json"


def write_part(raw: Path, part: int, key: str) -> None:
    """Import this part's modules and write its three files, then its marker."""
    names = module_names()[part::PARTS]
    modules = [module for name in names if (module := imported(name)) is not None]
    pages = [page for module in modules for page in pages_of(module)]
    if part == 0:
        pages += topic_pages()
    sources = [source for name in names if (source := source_of(name)) is not None]
    docstrings = list(docstrings_of(modules))
    files = {
        f"snapshot/part-{part:02d}.warc.gz": b"".join(warc_records(pages)),
        f"code/part-{part:02d}.jsonl.zst": json_lines(sources),
        f"docstrings/part-{part:02d}.jsonl.zst": json_lines(docstrings),
    }
    for name, content in files.items():
        with replacing(raw / name) as file:
            file.write(content)
    counts = {"pages": len(pages), "sources": len(sources), "docstrings": len(docstrings)}
    sizes = {"html": size(page for _, page in pages), "code": size(sources), "prose": size(docstrings)}
    checksums = {name: sha256(raw / name) for name in files}
    write_json(marker_of(raw, part), {"key": key, "sha256": checksums, "counts": {**counts, **sizes}})


def size(texts: Iterable[str | dict[str, str]]) -> int:
    """Characters in all."""
    return sum(len(text) if isinstance(text, str) else len(text["text"]) for text in texts)


def module_names() -> list[str]:
    """The public modules of the standard library, in order."""
    files = [path.relative_to(LIBRARY).with_suffix("").parts for path in LIBRARY.rglob("*.py")]
    names = {".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in files} | sys.stdlib_module_names
    return sorted(name for name in names if not any(wanted_not(part) for part in name.split(".")))


def wanted_not(part: str) -> bool:
    """Whether a module of this name, or anything within, is left out."""
    return not part.isidentifier() or part in LEFT_OUT or (part.startswith("_") and part != "__future__")


def imported(name: str) -> Any | None:  # noqa: ANN401  (a module)
    """The module; None where it is not of this system or does not bear to be imported."""
    try:
        return importlib.import_module(name)
    except BaseException:  # noqa: BLE001  (a module of the library may raise anything, SystemExit too)
        return None


class Pages(pydoc.HTMLDoc):
    """pydoc's pages without what belongs to one machine: where a file lies, and the values of variables."""

    def filelink(self, url: str, path: str) -> str:
        """Name the file within the library."""
        del url
        return Path(path).relative_to(LIBRARY).as_posix() if Path(path).is_relative_to(LIBRARY) else Path(path).name

    def docother(self, object: Any, name: str | None = None, mod: str | None = None, *ignored: Any) -> str:  # noqa: A002, ANN401
        """Name a variable and its type."""
        del mod, ignored
        return f"<strong>{name}</strong>: {self.escape(type(object).__name__)}"


RENDERER = Pages()


def pages_of(module: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401  (a module)
    """(name, HTML) of the module, of its public classes and of its documented functions."""
    name = module.__name__
    yield from rendered(name, module, name)
    for key, value in public_members(module):
        if inspect.isclass(value) or (inspect.isroutine(value) and len(inspect.getdoc(value) or "") >= LONG_FUNCTION):
            yield from rendered(f"{name}.{key}", value, key)


def public_members(module: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401  (a module)
    """What a module defines or exports, in order of name."""
    exported = getattr(module, "__all__", None)
    for key, value in sorted(vars(module).items()):
        own = getattr(value, "__module__", None) == module.__name__
        if key in exported if exported is not None else own and not key.startswith("_"):
            yield key, value


def rendered(title: str, thing: Any, name: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401  (a module, class or function)
    """The page of one thing, if pydoc can render it."""
    try:
        page = RENDERER.page(title, RENDERER.document(thing, name))
    except Exception:  # noqa: BLE001  (its repr or signature may raise anything; it costs its page)
        return
    # A few functions have a path of this machine as a default.
    yield title, ADDRESS.sub("", page).replace(str(LIBRARY), "Lib").replace(sys.executable, "python")


def topic_pages() -> list[tuple[str, str]]:
    """(name, HTML) of the language reference's topics, which pydoc carries."""
    topics = importlib.import_module("pydoc_data.topics").topics
    return [
        (f"topic.{name}", RENDERER.page(name, f"<h1>{name}</h1>\n<pre>{RENDERER.markup(text)}</pre>"))
        for name, text in sorted(topics.items())
    ]


def warc_records(pages: Iterable[tuple[str, str]]) -> Iterator[bytes]:
    """The pages as the records of a crawl, one gzip member each."""
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


def source_of(name: str) -> dict[str, str] | None:
    """The source of a module that is written in Python."""
    path = LIBRARY.joinpath(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file() and (text := candidate.read_text(encoding="utf-8", errors="replace")).strip():
            return {"text": text, "url": candidate.relative_to(LIBRARY).as_posix()}
    return None


def docstrings_of(modules: Iterable[Any]) -> Iterator[dict[str, str]]:
    """The longer docstrings of modules, classes, methods and functions, each where it is first met."""
    seen = set()
    for module in modules:
        members = [member for _, member in public_members(module)]
        methods = [
            method for member in members if inspect.isclass(member) for _, method in sorted(vars(member).items())
        ]
        for thing in [module, *members, *methods]:
            text = documented(thing)
            if text is not None and text not in seen:
                seen.add(text)
                yield {"text": text}


def documented(thing: Any) -> str | None:  # noqa: ANN401  (anything that a module holds)
    """The docstring of a thing of the library, if it is long enough to be a document."""
    if not (inspect.ismodule(thing) or inspect.isclass(thing) or inspect.isroutine(thing)):
        return None
    try:
        text = inspect.getdoc(thing) or ""
    except Exception:  # noqa: BLE001  (a descriptor may raise anything)
        return None
    return ADDRESS.sub("", text) if len(text) >= LONG_DOCSTRING else None


def json_lines(rows: Iterable[dict[str, str]]) -> bytes:
    """The rows as zstandard-compressed JSON lines."""
    return zstandard.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows), 9)


if __name__ == "__main__":
    main()
