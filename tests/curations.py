"""Shared by the tests of whole curations: a small corpus with every stage on, and the files of a run."""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mtnlg_data.engine import Local
from mtnlg_data.pipeline import curate
from mtnlg_data.recipe import load_recipe

if TYPE_CHECKING:
    from types import ModuleType

    from mtnlg_data.engine import Engine, Summary

PACKAGE_TESTS = Path(__file__).parents[1] / "packages" / "mtnlg-data" / "tests"
COMMAND = str(Path(sys.executable).with_name("mtnlg-data"))
RECIPE = """
texts = "texts.jsonl"

[sources.books]
kind = "pile"
paths = ["raw/pile/*.jsonl.zst"]
subset = "Books3"
weight = 0.3
curated = true

[sources.letters]
kind = "pile"
paths = ["raw/pile/*.jsonl.zst"]
subset = "Letters"
weight = 0.2

[sources.crawl]
kind = "warc"
paths = ["raw/crawl/*.warc.gz"]
weight = 0.5
filtered = true
filters = ["fineweb", "pii_email"]

[extract]
shard_characters = 15_000

[quality]
alpha = 1.0

[clean]
shortest = 200

[filter]
annotate = true

[exact]
kinds = ["documents", "lines", "substrings"]
substring_length = 20
shortest = 100

[tokenize]
vocabulary = 300
"""
#: Keys of values that differ from run to run: durations and modification times.
TIMES = {"seconds", "files"}


class Undisturbed(NamedTuple):
    """A recipe, and the files that one undisturbed process writes for it."""

    recipe: Path
    left: dict[str, Any]


def beside_the_package(name: str) -> ModuleType:
    """Import a helper module beside the tests of mtnlg-data, in such a way that a spawned worker can import it too."""
    if str(PACKAGE_TESTS) not in sys.path:
        sys.path.append(str(PACKAGE_TESTS))
    return importlib.import_module(name)


def write_run(folder: Path) -> Path:
    """Write raw files, task texts and a recipe; return the recipe. Some pages are advertisements, some duplicates."""
    corpus = beside_the_package("small_corpus")
    for part in range(2):
        numbers = range(part * 30, part * 30 + 30)
        subsets = [("Books3", "Letters", "Code")[number % 3] for number in numbers]
        rows = [
            {"text": corpus.text(number), "meta": {"pile_set_name": subset}}
            for number, subset in zip(numbers, subsets, strict=True)
        ]
        corpus.write_jsonl(folder / "raw" / "pile" / f"{part}.jsonl.zst", rows)
        texts = [corpus.text(n if n % 10 else 1000, good=n % 2 == 0) for n in range(part * 20, part * 20 + 20)]
        pages = [corpus.record(corpus.page(text).encode(), f"http://example.org/{n}") for n, text in enumerate(texts)]
        (folder / "raw" / "crawl").mkdir(parents=True, exist_ok=True)
        (folder / "raw" / "crawl" / f"{part}.warc.gz").write_bytes(b"".join(map(corpus.member, pages)))
    corpus.write_jsonl(folder / "texts.jsonl", [{"task": "boolq", "id": "0", "text": corpus.text(3)[:300]}])
    recipe = folder / "data.toml"
    recipe.write_text(RECIPE)
    return recipe


def run(recipe: Path, out: Path, engine: Engine | None = None) -> Summary:
    """Curate, by default in this process."""
    with closing(Local(1)) as local:
        return curate(load_recipe(recipe), out, engine or local)


def undisturbed(folder: Path) -> Undisturbed:
    """Write a recipe in ``folder`` and curate it."""
    recipe = write_run(folder)
    run(recipe, folder / "data")
    return Undisturbed(recipe, left_by(folder / "data"))


def left_by(out: Path) -> dict[str, Any]:
    """Return every file of a run with its bytes, JSON summaries without times; skip the report."""
    left: dict[str, Any] = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file() and path.name not in {".lock", "report.html"}):
        name = path.relative_to(out).as_posix()
        assert not name.endswith(".tmp"), name
        timed = path.suffix == ".json" and path.stem in {"stage", "summary"}
        left[name] = _without_times(json.loads(path.read_text())) if timed else path.read_bytes()
    return left


def _without_times(content: Any) -> Any:  # noqa: ANN401  (any JSON value)
    if isinstance(content, dict):
        return {key: _without_times(value) for key, value in content.items() if key not in TIMES}
    return [_without_times(value) for value in content] if isinstance(content, list) else content
