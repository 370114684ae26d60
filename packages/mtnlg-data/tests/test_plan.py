"""The plan: 320 million documents on a machine of 32 GB, and figures that follow from the recipe."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from mtnlg_data.dedup.plan import deduplication_state_bytes
from mtnlg_data.exact.plan import exact_state_bytes
from mtnlg_data.exact.settings import ExactSettings
from mtnlg_data.planning.schedule import COSTS, MEASURED_COSTS, START_SECONDS, Step, schedule, steps_of
from typer.testing import CliRunner

from mtnlg_data.cli import app
from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.document import batch_documents, write_documents
from mtnlg_data.engine import Local
from mtnlg_data.exact.stage import remove_repeats
from mtnlg_data.exchange import KeyRange, SortedFile
from mtnlg_data.planning.corpus_size import CorpusSize, estimate_corpus
from mtnlg_data.planning.plan import BATCHES_HELD, plan
from mtnlg_data.recipe import load_recipe
from mtnlg_data.schema import Document
from mtnlg_data.sources import tables
from mtnlg_data.steps.tokenize import TokenizeSettings
from mtnlg_data.tokens import encoding
from mtnlg_data.tokens.stage import tokenize_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from mtnlg_data.engine import Summary, U

ROOT = Path(__file__).parents[3]
WHOLE = ROOT / "recipes" / "mt-nlg-530b"
PAPER = 320_000_000  # paper.md 4.4


def planned(
    tmp_path: Path, documents: int, *overrides: str, workers: int = 2, characters: int = 4600
) -> dict[str, Any]:
    recipe = load_recipe(WHOLE, overrides, tmp_path)
    return plan(recipe, CorpusSize(documents, characters), workers)


def stage(plan: dict[str, Any], name: str) -> dict[str, Any]:
    figures: dict[str, Any] = next(stage for stage in plan["stages"] if stage["stage"] == name)
    return figures


@pytest.mark.parametrize("workers", [1, 8, 16])
def test_the_papers_corpus_fits_a_machine_of_32_gb(tmp_path: Path, workers: int) -> None:
    result = planned(tmp_path, PAPER, workers=workers)
    assert result["memory"] == max(stage["memory"] for stage in result["stages"]) < 32e9
    left = sum(stage["disk"] for stage in result["stages"])
    at_most = left + stage(result, "deduplicate")["scratch"]
    assert left <= result["disk"] < at_most


def test_deduplications_figures_are_its_own(tmp_path: Path) -> None:
    steps = deduplication_state_bytes(PAPER, load_recipe(WHOLE).deduplicate, characters=4600)
    figures = stage(planned(tmp_path, PAPER), "deduplicate")
    assert figures["memory_a_worker"] >= max(step.memory for step in steps)
    text = (1 - 0.75 * 0.3) * stage(planned(tmp_path, PAPER), "clean")["disk"]
    assert figures["disk"] + figures["scratch"] == pytest.approx(text + sum(step.disk for step in steps), rel=1e-3)
    assert figures["scratch"] == sum(step.disk for step in steps if step.scratch)
    more = planned(tmp_path, PAPER, "deduplicate.bands=40")
    assert stage(more, "deduplicate")["disk"] > figures["disk"]


def test_memory_grows_with_the_workers_and_not_with_the_corpus(tmp_path: Path) -> None:
    small, large = planned(tmp_path, 10**7), planned(tmp_path, 10**8)
    for name in ("extract", "clean", "decontaminate", "tokenize"):
        assert stage(large, name)["memory"] <= 1.2 * stage(small, name)["memory"]
        merged = 2 if name == "tokenize" else 1  # of more files, tokens are written once more on their way
        assert (
            9.99 * stage(small, name)["disk"]
            <= stage(large, name)["disk"]
            <= 10.01 * merged * stage(small, name)["disk"]
        )
        more = planned(tmp_path, 10**7, workers=4)
        assert stage(more, name)["memory"] > 1.5 * stage(small, name)["memory"]


def test_the_classifiers_samples_are_counted_where_it_trains(tmp_path: Path) -> None:
    many, few = planned(tmp_path, PAPER), planned(tmp_path, PAPER, "quality.sample=1000")
    assert stage(many, "quality")["memory"] > 800_000 * 2 * 4000
    assert stage(few, "quality")["memory"] < 3e9
    recipe = load_recipe(ROOT / "recipes" / "quickstart", ["sources.snapshot.filtered=false"], tmp_path)
    assert "quality" not in [stage["stage"] for stage in plan(recipe, CorpusSize(1000, 1000), 1)["stages"]]


def test_wider_tokens_take_more_disk(tmp_path: Path) -> None:
    recipe = load_recipe(ROOT / "recipes" / "quickstart", folder=tmp_path)
    wide = load_recipe(ROOT / "recipes" / "quickstart", ["tokenize.vocabulary=70000"], tmp_path)
    narrow, wider = (stage(plan(each, CorpusSize(10**6, 4600), 1), "tokenize")["disk"] for each in (recipe, wide))
    assert 1.7 < wider / narrow < 2


def test_hours_are_those_of_the_stages_units(tmp_path: Path) -> None:
    result = planned(tmp_path, PAPER, workers=4)
    hours = {each["stage"]: each["hours"] for each in result["stages"]}
    assert sum(hours.values()) == pytest.approx(result["schedule"]["hours"])
    assert hours["clean"] == pytest.approx(COSTS["clean.clean_shard"] * PAPER * 4600 / 1e6 / 4 / 3600, rel=0.02)
    assert planned(tmp_path, PAPER // 2, workers=4)["schedule"]["hours"] == pytest.approx(
        sum(hours.values()) / 2, rel=0.1
    )


def test_filter_and_exact_are_planned_where_they_are_asked_for(tmp_path: Path) -> None:
    kinds = "exact.kinds=['documents','lines','substrings']"
    plain = planned(tmp_path, PAPER)
    full = planned(tmp_path, PAPER, "sources.Pile-CC.filters=['c4']", kinds)
    names = [each["stage"] for each in full["stages"]]
    assert [name for name in names if name not in [each["stage"] for each in plain["stages"]]] == ["filter", "exact"]
    assert names.index("exact") == names.index("deduplicate") + 1
    for name in ("filter", "exact"):
        assert stage(full, name)["hours"] > 0
    small, large = (stage(planned(tmp_path, n, kinds), "exact") for n in (10**7, 10**8))
    assert large["memory"] <= 1.2 * small["memory"]
    assert large["disk"] == pytest.approx(10 * small["disk"], rel=1e-3)
    characters = stage(planned(tmp_path, 10**7, kinds, "exact.substring_unit='character'"), "exact")
    assert characters["disk"] > 2 * small["disk"]


# --- the schedule ----------------------------------------------------------------------------------------------------


def test_a_schedule_is_that_of_the_first_free_worker() -> None:
    """Units of 1 s take 0.5, 1.118, 0.736 and 1.354 s: of two workers one has the second and fourth."""
    even = schedule([Step("a", "b", 4, 1.0)], 2)
    assert even.wall == pytest.approx(1.118 + 1.354, abs=2e-3)
    assert even.busy == pytest.approx(0.5 + 1.118 + 0.736 + 1.354, abs=2e-3)
    rest = [Step("a", "one", 1, 5.0), Step("a", "driver", 1, 3.0, "driver"), Step("b", "start", 1, 2.0, "each")]
    alone = schedule([Step("a", "b", 4, 1.0), *rest], 2)
    assert alone.wall == pytest.approx(even.wall + 10)
    assert alone.cores == pytest.approx({"a": even.busy + 8, "b": 4.0})
    assert alone.idle["a: one"] == 5.0
    assert alone.idle["a: driver"] == 6.0
    assert alone.idle["b: start"] == 4.0
    assert alone.efficiency(2) == pytest.approx((even.busy + 5) / 2 / alone.wall)


def test_the_papers_corpus_keeps_64_workers_at_work(tmp_path: Path) -> None:
    shares = {workers: planned(tmp_path, PAPER, workers=workers)["schedule"] for workers in (1, 8, 64)}
    assert shares[1]["efficiency"] > 0.999
    assert shares[1]["hours"] > shares[8]["hours"] * 7.5 > shares[64]["hours"] * 50
    assert shares[64]["efficiency"] >= 0.85
    assert next(iter(shares[64]["idle"])) == "quality: train"


def test_the_costs_are_those_of_the_measurement_that_is_named() -> None:
    path = ROOT / MEASURED_COSTS
    if not path.exists():
        pytest.skip(f"{MEASURED_COSTS} is in the repository, not in the package")
    measured = json.loads(path.read_text(encoding="utf-8"))
    assert (measured["costs"], measured["start_seconds"]) == (COSTS, START_SECONDS)


class Sizes(Local):
    """Sums the bytes of what each room's units write, before anything of it goes."""

    def __init__(self) -> None:
        super().__init__(1)
        self.bytes: Counter[str] = Counter()

    def imap(self, function: Callable[[U], Summary], units: Iterable[U]) -> Iterator[tuple[U, Summary]]:
        for unit, summary in super().imap(function, units):
            paths = [unit.output, *(unit.output.parent / name for name in summary.get("files", ()))]
            self.bytes[type(unit).__name__] += sum(path.stat().st_size for path in paths)
            yield unit, summary


@pytest.mark.parametrize(("documents", "fan_out"), [(300, 128), (600, 4)])
def test_tokens_and_repeats_take_the_disk_that_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: int, fan_out: int
) -> None:
    draw = Random(documents)
    lines = ["\n".join(" ".join("".join(draw.choices("abcdefghij", k=4)) for _ in range(40)) for _ in range(5))
             for _ in range(documents)]  # fmt: skip
    shard = tmp_path / "web-00000.parquet"
    monkeypatch.setattr("mtnlg_data.document.ROWS_PER_GROUP", 50)
    write_documents(shard, batch_documents([Document(f"{n}", "web", text) for n, text in enumerate(lines)]))
    characters = sum(map(len, lines)) // documents
    monkeypatch.setattr("mtnlg_data.exchange.FAN_OUT", fan_out)
    for module in ("tokens.stage", "planning.schedule"):
        monkeypatch.setattr(f"mtnlg_data.{module}.TEXT_BYTES_PER_UNIT", 50 * characters)
    engine = Sizes()
    settings = TokenizeSettings(vocabulary=257)
    tokenized = tokenize_documents({"web": [shard]}, tmp_path / "tokens", settings, {"web": 1.0}, engine)
    tokens = tokenized["tokens"]["web"]["tokens"]
    for module in ("plan", "schedule"):
        ratio = documents * characters / (tokens - documents)
        monkeypatch.setattr(f"mtnlg_data.planning.{module}.CHARACTERS_PER_TOKEN", ratio)
    (tmp_path / "data.toml").write_text(
        'tokenize.vocabulary = 257\n[sources.web]\nkind = "jsonl"\npaths = ["*"]\nweight = 1.0\n'
    )
    figures = stage(plan(load_recipe(tmp_path), CorpusSize(documents, characters, near_duplicates=0.0), 1), "tokenize")
    written = sum(engine.bytes[name] for name in ("EncodeUnit", "MergeUnit", "StoreUnit"))
    assert (engine.bytes["MergeUnit"] > 0) == (fan_out == 4)
    assert figures["disk"] == pytest.approx(written, rel=0.2)

    for number, repeats in enumerate((ExactSettings(kinds=("lines",)), ExactSettings(kinds=("substrings",)))):
        engine = Sizes()
        remove_repeats([shard], tmp_path / str(number), repeats, ("web",), engine)
        state = exact_state_bytes(documents, characters, 10**9, repeats, repeated_share=0.0)
        assert state.disk == pytest.approx(engine.bytes["RunUnit"] + engine.bytes["RangeUnit"], rel=0.2)


@pytest.mark.parametrize("documents", [3200, 6400])
def test_a_range_of_tokens_takes_the_memory_that_is_planned_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: int
) -> None:
    monkeypatch.setattr(encoding, "TOKENS_PER_BATCH", 400_000)
    keys = np.sort(np.random.default_rng(0).integers(0, 1 << 64, documents, np.uint64))
    sizes = np.full(documents, 500)
    batch = encoding.Encoded(keys, np.ones(sizes.sum(), np.uint16), sizes)
    file = SortedFile(0, 0, 0)
    encoding.write_encoded(encoding.encoded_path(tmp_path, file), [batch])
    del batch
    tracemalloc.start()
    for _ in encoding.read_sorted(tmp_path, KeyRange(0, (1 << 64) - 1, (file,)), np.dtype(np.uint16)):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pytest.approx(peak, rel=0.2) == BATCHES_HELD * 2 * 400_000


def test_without_a_number_the_documents_of_the_files_are_counted(
    tmp_path: Path, corpus: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus.write_run(tmp_path, pages=60)
    shown = json.loads(CliRunner().invoke(app, ["plan", str(tmp_path), "--json"]).stdout)
    # 80 books and 60 pages, none of which extraction drops, of some 1,600 characters
    assert shown["documents"] == 140
    assert 1000 < shown["characters_a_document"] < 2200
    # a long file is read in its beginning: its share of documents and characters stands for the rest
    rows = [{"text": corpus.text(n)} for n in range(400)]
    corpus.write_jsonl(tmp_path / "own" / "a.jsonl", rows)
    for name in ("b.jsonl.gz", "c.parquet"):
        corpus.write_texts(tmp_path / "own" / name, [row["text"] for row in rows])
    with pa.OSFile(str(tmp_path / "own" / "d.arrow"), "wb") as sink:
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table, max_chunksize=20)
    read: list[int] = []
    read_batch = tables.read_batch

    def counted(batch: pa.RecordBatch, *arguments: Any, **options: Any) -> Iterator[Any]:  # noqa: ANN401
        read.append(batch.num_rows)
        return read_batch(batch, *arguments, **options)

    monkeypatch.setattr(tables, "read_batch", counted)
    monkeypatch.setattr("mtnlg_data.planning.corpus_size.SAMPLED_BYTES", 30_000)
    monkeypatch.setattr("mtnlg_data.planning.corpus_size.SAMPLED_ROWS", 50)
    for name, kind in (("a.jsonl", "jsonl"), ("b.jsonl.gz", "jsonl"), ("c.parquet", "parquet"), ("d.arrow", "arrow")):
        content = f'tokenize.vocabulary = 400\n[sources.own]\nkind = "{kind}"\npaths = ["own/{name}"]\nweight = 1.0\n'
        (tmp_path / "own.toml").write_text(content)
        documents, characters, *_ = estimate_corpus(load_recipe(tmp_path / "own.toml"))
        assert documents == pytest.approx(400, rel=0.15), name
        assert characters == pytest.approx(sum(len(row["text"]) for row in rows) / 400, rel=0.05), name
    assert read == [400, 20, 20, 20]  # of Parquet a row group; of 400 rows of Arrow the 50, and no more to count them
    with pytest.raises(Failure, match="no such file"):
        estimate_corpus(load_recipe(WHOLE, folder=tmp_path))


def test_the_hours_of_exact_are_those_of_the_kinds_that_are_asked_for(tmp_path: Path) -> None:
    def core_hours(*kinds: str) -> float:
        return float(stage(planned(tmp_path, PAPER, f"exact.kinds={list(kinds)}"), "exact")["core_hours"])

    alone = {kind: core_hours(kind) for kind in ("documents", "lines", "substrings")}
    cut = COSTS["exact.cut_shard"] * 0.775 * PAPER * 4600 / 1e6 / 3600
    assert core_hours(*alone) == pytest.approx(sum(alone.values()) - 2 * cut, rel=0.01)
    recipe = load_recipe(WHOLE, [f"exact.kinds={list(alone)}"], tmp_path)
    units = {step.step: step.units for step in steps_of(recipe, CorpusSize(PAPER, 4600)) if step.stage == "exact"}
    assert units["scan substrings"] == 2 * units["scan lines"] == 2 * units["scan documents"] > 0
    assert core_hours("documents", "lines") < 0.5 * alone["substrings"]
    for kind, hours in alone.items():
        of_kind = sum(COSTS[f"exact.{step}.{kind}"] for step in ("scan_shard", "write_repeats"))
        assert hours - cut == pytest.approx(of_kind * 0.775 * PAPER * 4600 / 1e6 / 3600, rel=0.05)


@pytest.mark.parametrize("number", ["0", "-1", "nan", "inf", "1e30", "many"])
def test_a_number_of_documents_that_is_none_is_refused_at_once(tmp_path: Path, number: str) -> None:
    done = CliRunner().invoke(app, ["plan", str(WHOLE), "--documents", number, "--input", str(tmp_path)])
    assert done.exit_code == 2


def test_the_mean_length_goes_with_the_number_of_documents(tmp_path: Path) -> None:
    words = ["plan", str(WHOLE), "--characters-a-document", "1000", "--input", str(tmp_path)]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, UsageFailure)
    assert str(error).startswith("--characters-a-document goes with --documents")


def test_the_command_prints_a_table_or_json(tmp_path: Path) -> None:
    words = ["plan", str(WHOLE), "--documents", "320e6", "--workers", "2", "--input", str(tmp_path)]
    table = CliRunner().invoke(app, words)
    assert table.exit_code == 0, table.output
    assert "320,000,000 documents of 4,600 characters" in table.output
    assert "deduplicate" in table.output
    result = json.loads(CliRunner().invoke(app, [*words, "--characters-a-document", "1000", "--json"]).stdout)
    assert result == planned(tmp_path, PAPER, characters=1000) | {"here": result["here"], "fits": result["fits"]}
    with pytest.raises(Failure, match="nowhere: no such folder; give the folder of the corpus by --input FOLDER"):
        plan(load_recipe(WHOLE, folder=Path("nowhere")), CorpusSize(10, 10), 1)
