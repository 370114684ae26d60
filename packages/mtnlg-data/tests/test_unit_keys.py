"""What reruns a unit or a stage: its own code, its settings, the libraries whose results it keeps, and nothing else."""

from __future__ import annotations

import shutil
import sys
from contextlib import closing
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from mtnlg_data.extract.stage import ExtractUnit

from mtnlg_data.engine import Local, code_digest, library_version
from mtnlg_data.extract.text import ExtractSettings
from mtnlg_data.pipeline import STAGES, curate
from mtnlg_data.recipe import load_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType

code = import_module("mtnlg_data.engine.code_digest")

Edit = tuple[str, str, str]  # module, old words, new words


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Changes the source of modules, and versions of libraries, as this process sees them."""

    read, installed = code.read_source, code.version

    def forget() -> None:
        for cached in (code.code_digest, code.library_version):
            cached.cache_clear()
        if code.read_source is not read:
            code._read_module.cache_clear()

    def change(*edits: Edit, **versions: str) -> None:
        def edited_source(module: str) -> str:
            text = str(read(module))
            for edited, old, new in edits:
                assert edited != module or old in text, f"{module} does not say {old}"
                text = text.replace(old, new) if edited == module else text
            return text

        if edits:
            monkeypatch.setattr(code, "read_source", edited_source)
        monkeypatch.setattr(code, "version", lambda name: versions.get(name) or installed(name))
        forget()

    yield change
    forget()
    monkeypatch.undo()


NOTHING: list[Edit] = [
    ("mtnlg_data.report.page", "f", "g"),
    ("mtnlg_data.cli", "import", "from"),
    ("mtnlg_data.engine.local", "UNITS_PER_WORKER = 2", "UNITS_PER_WORKER = 3"),
    ("mtnlg_data.console", "def say(", "def tell("),
    ("mtnlg_data.clean.stage", '"""Clean one shard."""', '"""Clean a shard, and count it."""'),
    ("mtnlg_data.clean.stage", "Rule short drops documents under this.", "Drop shorter documents."),
    ("mtnlg_data.clean.stage", "BROKEN_SPACE = ", "# Spaces.\nBROKEN_SPACE = "),
    ("mtnlg_data.tokens.blend", "Integer weights of the sources", "Weights of the sources"),
    ("mtnlg_data.clean.stage", "from pathlib import Path", "from mtnlg_data.report.page import page"),
]


class NoWork:
    """An engine that must not be asked for anything."""

    def imap(self, function: object, units: object) -> Iterator[Any]:
        raise AssertionError(f"{function} was to run over {units}")


@pytest.mark.parametrize("edit", NOTHING, ids=lambda edit: f"{edit[0]}: {edit[2][:20]}")
def test_neither_words_nor_code_that_decides_no_byte_rerun_anything(
    finished: Any,  # noqa: ANN401  (the curation that conftest.py runs)
    changed: Callable[..., None],
    edit: Edit,
) -> None:
    changed(edit)
    assert curate(load_recipe(finished.recipe), finished.out, NoWork()) == finished.summary


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        ({"ftfy": "6.99"}, {"03-clean"}),
        ({"tokenizers": "9"}, {"06-tokenize", "tokens"}),
        (("mtnlg_data.mojibake", "MAX_COMBINING_MARKS = 100", "MAX_COMBINING_MARKS = 99"), {"03-clean"}),
        (
            ("mtnlg_data.decontaminate.cut_planning", "\nclass CutPlan", "\nNEW = 1\nclass CutPlan"),
            {"05-decontaminate"},
        ),
    ],
)
def test_a_change_reruns_its_stage_and_of_the_others_what_follows_from_changed_bytes(
    finished: Any,  # noqa: ANN401
    tmp_path: Path,
    changed: Callable[..., None],
    change: Edit | dict[str, str],
    stages: set[str],
) -> None:
    out = shutil.copytree(finished.out, tmp_path / "data")
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.parent != out}
    changed(**change) if isinstance(change, dict) else changed(change)
    with closing(Local(1)) as engine:
        summary = curate(load_recipe(finished.recipe), out, engine)
    assert {path.relative_to(out).parts[0] for path, time in times.items() if path.stat().st_mtime_ns != time} == stages
    assert summary["tokens"] == finished.summary["tokens"]


def test_a_stage_depends_on_the_versions_of_the_libraries_whose_results_it_keeps(changed: Callable[..., None]) -> None:
    def digests() -> dict[str, str]:
        return {name: code_digest(stage.__module__) for name, stage in STAGES.items()}

    upgraded = {}
    before = digests()
    for library in ("jusText", "lxml", "pycld2", "scikit-learn", "ftfy", "datasketch", "tokenizers", "pyarrow"):
        changed(**{library: "99"})
        upgraded[library] = {name for name, digest in digests().items() if digest != before[name]}
    assert upgraded == {
        "jusText": {"extract"},
        "lxml": {"extract"},
        "pycld2": {"extract", "clean"},
        "scikit-learn": {"quality"},
        "ftfy": {"clean"},
        "datasketch": {"deduplicate"},
        "tokenizers": {"tokenize"},
        "pyarrow": set(),
    }


def test_every_unit_depends_on_the_code_of_its_own_module(
    tmp_path: Path, units: ModuleType, changed: Callable[..., None]
) -> None:
    """Over a changed input of equal settings, the code is all that tells two keys apart."""
    before = units.units_in(tmp_path, "a")[0].key
    changed((units.__name__, "def echo(", "def repeat("))
    assert units.units_in(tmp_path, "a")[0].key != before


def test_an_extra_counts_where_a_setting_chooses_it(tmp_path: Path, changed: Callable[..., None]) -> None:
    def keys() -> list[str]:
        chosen = [ExtractSettings(method=method) for method in ("justext", "resiliparse")]
        return [ExtractUnit((), (), (), settings, tmp_path / "x").key for settings in chosen]

    before = keys()
    changed(resiliparse="99")
    assert [key == old for key, old in zip(keys(), before, strict=True)] == [True, False]


def test_code_counts_over_imports_of_imports_and_in_functions(changed: Callable[..., None]) -> None:
    changed()
    before = {name: code_digest(f"mtnlg_data.{name}") for name in ("dedup.representatives", "clean.stage")}
    changed(("mtnlg_data.dedup.union_find", "UNLINKED = -1", "UNLINKED = -2"))
    assert code_digest("mtnlg_data.dedup.representatives") != before["dedup.representatives"]
    assert code_digest("mtnlg_data.clean.stage") == before["clean.stage"]
    changed(("mtnlg_data.clean.stage", '"""Clean one shard."""', '"""Clean."""\n    from mtnlg_data import words'))
    inside = code_digest("mtnlg_data.clean.stage")
    assert inside != before["clean.stage"]
    changed(
        ("mtnlg_data.clean.stage", '"""Clean one shard."""', '"""Clean."""\n    from mtnlg_data import words'),
        ("mtnlg_data.words", "BATCH_CHARACTERS = 1_000_000", "BATCH_CHARACTERS = 1_000_001"),
    )
    assert code_digest("mtnlg_data.clean.stage") != inside


def test_all_modules_that_a_stage_loads_here_are_in_its_digest(changed: Callable[..., None]) -> None:
    """The graph that is read from the sources misses nothing that Python itself imported for the pipeline."""
    changed()
    waiting, seen = {"mtnlg_data.pipeline"}, set[str]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        waiting |= code._read_module(name).imports - seen
    for stage in ("sources", "extract", "quality", "clean", "dedup", "decontaminate", "tokens"):
        loaded = {name for name in sys.modules if name.startswith(f"mtnlg_data.{stage}.")}
        apart = {"corpus", "plan"}  # of the recipe, and the command plan
        assert {name for name in loaded - seen if name.rpartition(".")[2] not in apart} == set()


def test_the_version_of_a_library_that_is_missing_is_none() -> None:
    assert library_version("no-such-library-anywhere") is None
