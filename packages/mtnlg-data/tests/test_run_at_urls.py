"""A curation from S3 to S3 during which requests fail, and what reads the results there: the bytes of a local run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import object_store
import pytest
import small_corpus as corpus
from object_store import FAULTS, command, upload

from mtnlg_data import TokenStore, load_recipe, open_stream
from mtnlg_data.console import IoFailure
from mtnlg_data.transfer.publish import result_files
from mtnlg_data.transfer.url_files import list_files

if TYPE_CHECKING:
    from object_store import Store

    from conftest import Run


def curate(recipe: Path, work: Path) -> tuple[int, str]:
    places = ("--input", "s3://curation", "--out", "s3://curation/out/v1", "--work", work)
    return command("run", recipe, *places)


@pytest.fixture(scope="module")
def published(running_store: Store, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """Bucket, recipe and work folder of a curation from S3 to S3, during which many requests fail."""
    store, folder = running_store, tmp_path_factory.mktemp("s3")
    store.faults.clear()
    corpus.write_run(folder)
    upload(store, folder, "curation")
    recipe = folder / "data.toml"
    for number, end in enumerate(("0.jsonl.zst", "1.jsonl.zst", "0.warc.gz", "1.warc.gz", "texts.jsonl")):
        store.faults["GET", end] = [FAULTS[number % 3]]
    store.faults["PUT", "books.bin"] = [object_store.busy]
    status, line = curate(recipe, folder / "work")
    assert status == 0, line
    assert not any(store.faults.values())
    return "curation", recipe, folder / "work"


def test_run_on_s3_has_the_bytes_of_a_local_run(published: tuple[str, Path, Path], store: Store, finished: Run) -> None:
    names = [*list_files("s3://curation/out/v1")]
    # Other tests run commands on that folder, which make a page, and make or remove the record of its tokenizer.
    others = {"report.html", "tokens/tokenizer.json.json"}
    assert {*names} - others == {*result_files(finished.out)} - others
    for name in names:
        if Path(name).suffix in {".parquet", ".bin", ".idx", ".npy"} or name.endswith(("blend.json", "tokenizer.json")):
            assert store.get(f"curation/out/v1/{name}") == (finished.out / name).read_bytes(), name
    assert {"tokens/books.bin", "tokens/blend.json", "report.html", "05-decontaminate/books-00000.parquet"} <= {*names}
    assert not [name for name in names if name.startswith("01-extract/books") or "state" in name.split("/")]
    copies = [path for path in published[2].rglob("*") if path.name.startswith((".copies", ".fetch"))]
    assert not copies


def test_no_secret_is_in_the_state_or_at_the_url(published: tuple[str, Path, Path], store: Store) -> None:
    secret = object_store.SECRET.encode()
    for path in published[2].rglob("*"):
        assert not path.is_file() or secret not in path.read_bytes(), path
    for name in list_files("s3://curation/out/v1"):
        assert secret not in (store.get(f"curation/out/v1/{name}") or b""), name


def test_a_finished_run_reads_and_uploads_nothing_again(published: tuple[str, Path, Path], store: Store) -> None:
    _, recipe, work = published
    status, line = curate(recipe, work)
    assert status == 0, line
    assert store.asked("PUT") == store.asked("PUT", "/.mtnlg-data") == 1
    assert not store.asked("GET", ".gz") + store.asked("GET", ".zst")


def test_tokens_at_a_url_are_inspected_and_read_as_they_are(
    published: tuple[str, Path, Path], store: Store, finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert published
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    there, here = (open_stream(place, 32) for place in ("s3://curation/out/v1/tokens", finished.out / "tokens"))
    assert there.fingerprint == here.fingerprint
    assert all((there[number] == here[number]).all() for number in (0, 1, len(here) - 1))
    status, text = command("inspect", "s3://curation/out/v1/tokens", "--json")
    seen = json.loads(text)["parts"]
    assert all(part["samples"][0]["text"] for part in seen)
    assert (status, [part["documents"] for part in seen]) == (0, [len(s.store) for s in here.sources])
    status, text = command("inspect", "s3://curation/out/v1")
    assert status == 0
    assert "deduplicate" in text
    assert store.asked("GET", "books.bin")
    assert not [*tmp_path.iterdir()]
    sample = command("inspect", "s3://curation/out/v1/05-decontaminate/books-00000.parquet", "--json")[1]
    assert json.loads(sample)["sources"]["books"]["documents"] > 0


def test_inspect_of_a_folder_at_a_url_lists_table_urls(store: Store, finished: Run) -> None:
    upload(store, finished.out / "04-deduplicate" / "dropped", f"{store.bucket}/tables")
    url = f"s3://{store.bucket}/tables"
    tables = json.loads(command("inspect", url, "--json")[1])
    names = sorted(name for name in list_files(url) if name.endswith(".parquet"))
    assert [part["path"] for part in (tables, *tables["parts"])] == [url, *(f"{url}/{name}" for name in names)]


def test_outage_while_reading_tokens_names_the_file(store: Store, finished: Run) -> None:
    upload(store, finished.out / "tokens", f"{store.bucket}/tokens")
    store.faults["HEAD", "books.bin"] = [object_store.busy] * 20
    with pytest.raises(IoFailure, match=r"books.bin: .* 6 times"):
        TokenStore(f"s3://{store.bucket}/tokens/books")


def test_fetch_brings_a_folder_whole_and_only_once(
    published: tuple[str, Path, Path], store: Store, tmp_path: Path
) -> None:
    assert published
    url = "s3://curation/out/v1/tokens"
    store.faults["GET", "books.bin"] = [object_store.cut_short]
    status, line = command("fetch", url, "--out", tmp_path / "tokens")
    assert (status, "here before" in line) == (0, True)
    for name in list_files(url):
        assert (tmp_path / "tokens" / name).read_bytes() == store.get(f"curation/out/v1/tokens/{name}")
    (tmp_path / "tokens" / "books.idx").write_bytes(b"damaged")
    (tmp_path / "tokens" / "crawl.bin").unlink()
    store.requests.clear()
    assert command("fetch", url, "--out", tmp_path / "tokens")[0] == 0
    fetched = {path.partition("?")[0].rpartition("/")[2] for method, path in store.requests if method == "GET"}
    assert fetched >= {"books.idx", "crawl.bin"}
    assert "books.bin" not in fetched
    assert len(open_stream(tmp_path / "tokens", 32)) > 0


def test_a_stage_takes_the_shards_that_another_has_published(
    published: tuple[str, Path, Path], store: Store, tmp_path: Path, finished: Run
) -> None:
    assert published
    url, out = "s3://curation/out/v1/05-decontaminate", tmp_path / "out"
    rules = ("--rules", "short", "--shortest", 300)
    assert command("clean", url, "--out", out, *rules)[0] == 0
    assert command("clean", finished.out / "05-decontaminate", "--out", tmp_path / "local", *rules)[0] == 0
    shards = sorted((tmp_path / "local").glob("*.parquet"))
    assert [shard.read_bytes() for shard in shards] == [(out / shard.name).read_bytes() for shard in shards]
    store.requests.clear()
    assert command("clean", url, "--out", out, *rules)[0] == 0
    assert not store.asked("GET", ".parquet")


def test_plan_counts_files_at_a_url(published: tuple[str, Path, Path], store: Store, finished: Run) -> None:
    from mtnlg_data.planning.corpus_size import estimate_corpus

    assert store
    there = estimate_corpus(load_recipe(published[1], ["input=s3://curation"]))
    assert there == estimate_corpus(load_recipe(finished.recipe))
    assert estimate_corpus(load_recipe("s3://curation/data.toml")) == there  # whose paths start beside it
