"""URLs as inputs and outputs, against an S3 server that fails in every way: the bytes of a local run, or one line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec
import object_store
import pytest
import small_corpus as corpus
from object_store import FAULTS, command

from mtnlg_data import TokenStore
from mtnlg_data.console import Failure, IoFailure, UsageFailure
from mtnlg_data.transfer.publish import Place, result_files
from mtnlg_data.transfer.url_files import fetch_files, list_files, read_url
from mtnlg_data.transfer.urls import TransientError, Url, connect, driver_errors, location

if TYPE_CHECKING:
    from object_store import Fault, Store

    from conftest import Run

CONTENT = bytes(range(256)) * 300


@pytest.mark.parametrize("text", ["s3://bucket/a/b.parquet", "hf://datasets/me/it@main/x.json", "file:///tmp/a b"])
def test_url_parts(text: str) -> None:
    url = location(text)
    assert isinstance(url, Url)
    assert (str(url), url.parent / url.name, url.with_name(url.name)) == (text, text, text)


@pytest.mark.parametrize("path", ["a", "/a/b", "./s3", "a:b", "x=s3", "s3:", "s3:/a", "a b://c", Path("s3://a")])
def test_path_is_not_a_url(path: Path | str) -> None:
    assert location(path) == Path(path)


def test_files_are_listed_by_folder_by_pattern_and_by_name(store: Store) -> None:
    for name in ("a.jsonl", "b.jsonl", "deep/c.jsonl", "deep/d.txt"):
        store.put(f"{store.bucket}/raw/{name}", name.encode())
    url = f"s3://{store.bucket}/raw"
    assert [*list_files(url)] == [*list_files(f"{url}/")] == ["a.jsonl", "b.jsonl", "deep/c.jsonl", "deep/d.txt"]
    assert [*list_files(f"{url}/*.jsonl")] == ["a.jsonl", "b.jsonl"]
    assert [*list_files(f"{url}/**/*.jsonl")] == ["a.jsonl", "b.jsonl", "deep/c.jsonl"]
    assert [*list_files(f"{url}/deep/*.jsonl")] == [*list_files(f"{url}/deep/c.jsonl")] == ["c.jsonl"]
    assert read_url(f"{url}/deep/c.jsonl") == b"deep/c.jsonl"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_network_fault_is_retried_without_loss(store: Store, tmp_path: Path, fault: Fault) -> None:
    store.put(f"{store.bucket}/a.bin", CONTENT)
    store.faults["GET", "/a.bin"] = [fault, fault]
    files = list_files(f"s3://{store.bucket}/a.bin")
    assert fetch_files(files, tmp_path)[:3] == (1, 0, len(CONTENT))
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert store.asked("GET", "/a.bin") == 3
    assert fetch_files(files, tmp_path)[:3] == (0, 1, len(CONTENT))  # it is here
    assert store.asked("GET", "/a.bin") == 3


@pytest.mark.parametrize("other", [CONTENT[:-1], CONTENT[::-1]], ids=["size", "content"])
def test_a_file_that_changed_since_it_was_listed_is_refused(store: Store, tmp_path: Path, other: bytes) -> None:
    store.put(f"{store.bucket}/a.bin", CONTENT)
    files = list_files(f"s3://{store.bucket}/a.bin")
    store.put(f"{store.bucket}/a.bin", other)
    with pytest.raises(Failure, match=r"a.bin: changed since this command listed it"):
        fetch_files(files, tmp_path)
    fetch_files(list_files(f"s3://{store.bucket}/a.bin"), tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == other


MISTAKES = [
    ("s3://no-such-bucket-anywhere/x", 1, "s3://no-such-bucket-anywhere/x: no such file, folder or bucket"),
    ("s4://bucket/x", 2, "s4://bucket/x: unknown scheme 's4'; did you mean s3://? such as s3, gs, az, hf, https"),
    ("gs://bucket/x", 2, "gs://bucket/x: its driver is not installed: pip install 'mtnlg-data[gs]'"),
    ("az://bucket/x", 2, "az://bucket/x: its driver is not installed: pip install 'mtnlg-data[az]'"),
    (f"s3://me:{object_store.SECRET}@bucket/x", 2, "s3://…: a password in a URL would be printed and recorded; give"),
    (f"https://host/x?sig={object_store.SECRET}", 2, "https://…: a query, which may be a signature, in a URL would be"),
]


@pytest.mark.parametrize(("url", "status", "line"), MISTAKES, ids=[url[:12] for url, _, _ in MISTAKES])
@pytest.mark.parametrize("place", ["input", "out"])
def test_a_wrong_url_is_one_line(  # noqa: PLR0917
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, status: int, line: str, place: str
) -> None:
    assert store
    monkeypatch.chdir(tmp_path)
    hide_driver(monkeypatch, "gcsfs")
    hide_driver(monkeypatch, "adlfs")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    words = (url, "--out", "out") if place == "input" else ("a.jsonl", "--out", url)
    got, said = command("extract", *words)
    assert (got, said[: len(line)]) == (status, line)
    assert "\n" not in said.strip()
    assert object_store.SECRET not in said


def hide_driver(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As where the driver is not installed."""
    monkeypatch.setitem(sys.modules, name, None)


def driver_error(name: str, text: str = "", **attributes: object) -> Exception:
    """An error as a driver raises it that is not installed here."""
    error: Exception = type(name, (Exception,), attributes)(text)
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (driver_error("ResourceNotFoundError", "The specified container does not exist."), "no such file"),
        (driver_error("HttpResponseError", "Server failed to authenticate", status_code=403), "access denied: Server"),
        (driver_error("HttpError", "no, 401", code=401), "access denied: no"),
        (OSError("Forbidden: b/bucket/o\nno"), "access denied: Forbidden: b/bucket/o;"),
    ],
)
def test_azure_and_google_errors_are_classified(error: Exception, said: str) -> None:
    with pytest.raises(Failure, match=f"^az://a/b: {said}") as caught, driver_errors("az://a/b"):
        raise error
    assert not isinstance(caught.value, IoFailure)
    with pytest.raises(TransientError), driver_errors("az://a/b"):
        raise driver_error("HttpResponseError", "busy", status_code=503)


def test_refused_connection_is_a_one_line_retry_hint(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    system = fsspec.get_filesystem_class("s3")
    system.clear_instance_cache()
    status, line = command("extract", f"s3://{store.bucket}/a.jsonl", "--out", tmp_path / "out")
    system.clear_instance_cache()
    assert status == 74
    assert "Could not connect" in line
    assert line.endswith("6 times; run the same command again")


def test_interrupted_publication_resumes_and_is_never_half_visible(store: Store, tmp_path: Path) -> None:
    texts = [f"Of the town and what it was told, number {number}. " * 20 for number in range(8)]
    for name in "ab":
        corpus.write_texts(tmp_path / f"{name}.jsonl", [f"{name} {text}" for text in texts])
    url, words = f"s3://{store.bucket}/out", (f"a={tmp_path / 'a.jsonl'}", f"b={tmp_path / 'b.jsonl'}")
    arguments = ("extract", *words, "--out", url, "--work", tmp_path / "work")
    store.faults["PUT", "b-00000.parquet"] = [object_store.denied] * 20
    status, line = command(*arguments)
    assert status == 1
    assert line.startswith(f"{url}/b-00000.parquet: access denied")
    names = [*list_files(url)]
    assert "a-00000.parquet" in names
    assert "stage.json" not in names
    store.faults.clear()
    store.requests.clear()
    assert command(*arguments)[0] == 0
    assert not store.asked("PUT", "a-00000.parquet")
    assert store.asked("PUT", "b-00000.parquet") == 1
    assert [*list_files(url)] == result_files(tmp_path / "work")

    corpus.write_texts(tmp_path / "b.jsonl", ["Another text. " * 20])
    order = store.requests
    order.clear()
    assert command(*arguments)[0] == 0
    changes = [("DELETE", "stage.json"), ("PUT", "b-00000.parquet"), ("PUT", "stage.json")]
    assert sorted(changes, key=lambda change: order.index(_first(order, *change))) == changes
    assert command("extract", *words[:1], *arguments[3:])[0] == 0  # b is gone
    assert [*list_files(url)] == result_files(tmp_path / "work")
    assert not [name for name in list_files(url) if name.startswith("b-")]


def _first(requests: list[tuple[str, str]], method: str, end: str) -> tuple[str, str]:
    return next(r for r in requests if r[0] == method and r[1].partition("?")[0].endswith(end))


def test_output_url_with_foreign_files_is_refused_before_work(store: Store, tmp_path: Path) -> None:
    store.put(f"{store.bucket}/out/mine.txt", b"mine")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    status, line = command(
        "extract", tmp_path / "a.jsonl", "--out", f"s3://{store.bucket}/out", "--work", tmp_path / "work"
    )
    assert status == 1
    assert "holds 1 files that were not published from" in line
    assert not (tmp_path / "work").exists()
    assert store.get(f"{store.bucket}/out/mine.txt") == b"mine"


def test_unwritable_target_is_refused_before_work(store: Store, tmp_path: Path) -> None:
    store.faults["PUT", ""] = [object_store.denied] * 20
    with pytest.raises(Failure, match="access denied"):
        Place.of(location(f"s3://{store.bucket}/out"), tmp_path / "work")


def test_files_of_settings_may_be_urls(store: Store, tmp_path: Path, finished: Run) -> None:
    store.put(f"{store.bucket}/tokenizer.json", (finished.out / "tokens" / "tokenizer.json").read_bytes())
    store.put(f"{store.bucket}/blocked.txt", b"blocked.example\n")
    rows = [{"text": "A text. " * 30, "url": f"http://{name}.example/"} for name in ("blocked", "open")]
    corpus.write_jsonl(tmp_path / "a.jsonl", rows)
    lists = ("--rules", "url_domain", "--domain-files", f"s3://{store.bucket}/blocked.txt")
    status, line = command("filter", tmp_path / "a.jsonl", "--out", tmp_path / "kept", *lists, "--json")
    assert status == 0, line
    words = ("--tokenizer", f"s3://{store.bucket}/tokenizer.json")
    status, line = command("tokenize", tmp_path / "kept", "--out", tmp_path / "tokens", *words)
    assert status == 0, line
    assert len(TokenStore(tmp_path / "tokens" / "documents")) == 1


def test_work_folder_needs_a_url() -> None:
    with pytest.raises(UsageFailure, match=r"--work w needs an --out that is a URL"):
        Place.of(Path("out"), Path("w"))


@pytest.mark.parametrize("words", [("why", "s3://b/run", "x"), ("report", "s3://b/run")])
def test_random_access_commands_name_the_copy_command(words: tuple[str, ...]) -> None:
    status, line = command(*words)
    assert status == 2
    assert line.endswith("--out FOLDER")


def test_a_local_url_and_one_in_memory_work_as_folders_do(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "A text of some length. "}\n')
    for url in (f"file://{tmp_path}/out", "memory://out"):
        words = ("extract", f"file://{tmp_path}/in", "--out", url, "--work", tmp_path / url[:4])
        assert command(*words)[0] == 0
        assert [*list_files(url)] == result_files(tmp_path / url[:4])
    system, path = connect("memory://out")
    assert system.cat_file(f"{path}/documents-00000.parquet") == (tmp_path / "out/documents-00000.parquet").read_bytes()
