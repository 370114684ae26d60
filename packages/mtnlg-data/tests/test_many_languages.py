"""Many languages in one corpus: lengths that suit each, settings by language and source, ISO's names of languages."""

from __future__ import annotations

import csv
import tarfile
from collections import Counter
from contextlib import closing
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import sentences_without_spaces as sentences
import small_corpus as corpus
from shards import run_here, write_shard

from mtnlg_data import (
    BoilerplateSettings,
    Clean,
    Decontaminate,
    Deduplicate,
    Document,
    Exact,
    Extract,
    Local,
    Record,
    SourceFile,
    Tokenize,
    curate,
    load_recipe,
)
from mtnlg_data.console import UsageFailure
from mtnlg_data.extract.language import LENGTH_RATIOS, Language
from mtnlg_data.extract.text import ExtractSettings, extract_record
from mtnlg_data.report import write_report
from mtnlg_data.step import Step, Where

if TYPE_CHECKING:
    from pathlib import Path

KOREAN = "어제 아침에 항구에서 만난 어부는 오래된 지도를 보여 주면서 그 섬에 대해 이야기했다. "
AMHARIC = "ትናንት ጠዋት ወደብ ላይ ያገኘነው ዓሣ አጥማጅ የቆየ ካርታ እያሳየን ስለዚያ ደሴት ነገረን። "
ARABIC = "صباح أمس التقينا في الميناء صيادا عجوزا أرانا خريطة قديمة وحكى لنا عن الجزيرة البعيدة. "
RUSSIAN = "Вчера утром мы встретили в порту старого рыбака, который показал нам карту и рассказал про далёкий остров. "
HEBREW = "אתמול בבוקר פגשנו בנמל דייג זקן שהראה לנו מפה ישנה וסיפר לנו על האי הרחוק. "


def page(*paragraphs: str) -> str:
    menu = "".join(f"<li><a href=/{n}>{n}</a>" for n in range(5))
    return f"<html><meta charset=utf-8><ul>{menu}</ul>{''.join(f'<p>{text}</p>' for text in paragraphs)}</html>"


def kept(html: str, **settings: Any) -> str | None:  # noqa: ANN401
    """The language of a page of which text is left."""
    found = extract_record(Record(0, html.encode(), "", "utf-8"), ExtractSettings(languages=(), **settings))
    return found.language.code if found.language and not found.reason else None


# --- lengths ---------------------------------------------------------------------------------------------------------


def test_short_paragraphs_are_kept_in_languages_of_short_texts() -> None:
    """A paragraph of 30 Chinese characters says what a hundred of English do."""
    pages = [page(*(sentences.sentence("zh", Random(f"{n} {part}")) * 2 for part in range(4))) for n in range(11)]
    assert [kept(html) for html in pages] == ["zh"] * 11
    english = BoilerplateSettings(length_low=70, length_high=200)
    assert [kept(html, justext=english) for html in pages] == [None] * 11
    spaceless = {code: sentences.text(code, Random(code)) for code in ("ja", "th")}
    for code, text, characters in (
        *(("ko", KOREAN, 155), ("am", AMHARIC, 155), ("iw", HEBREW, 155), ("ar", ARABIC, 185)),
        *(("ja", spaceless["ja"], 110), ("th", spaceless["th"], 185)),
    ):
        assert kept(page((text * 5)[:characters])) == code
        assert kept(page((text * 5)[:characters]), justext=english) is None


@pytest.mark.parametrize(("code", "ratio"), [("en", 1), ("de", 1), ("zh", 0.3), ("ko", 0.5), (None, 1)])
@pytest.mark.parametrize("shortest", [None, 100])
def test_shortest_document_scales_with_the_language(
    tmp_path: Path, code: str | None, ratio: float, shortest: int | None
) -> None:
    least = shortest or round(512 * ratio)
    shard = write_shard(
        tmp_path / "web-00000.parquet", (Document(f"{n}", "web", "x" * n, language=code) for n in (least - 1, least))
    )
    step = Clean(sources={"web": {"rules": ["short"]}}, shortest=shortest)
    run_here(step, [shard], tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / shard.name)["id"].to_pylist() == [str(least)]


# --- names -----------------------------------------------------------------------------------------------------------


def test_iso_names_map_to_cld2(tmp_path: Path) -> None:
    wanted = ExtractSettings(languages=("he", "nb", "jv", "zh-Hans", "zh-Hant", "fil", "de"))
    for code in ("iw", "he", "no", "nb", "jw", "zh", "zh-Hant", "tl", "de"):
        assert wanted.refuse(Language(code, 1.0)) is None
    assert wanted.refuse(Language("en", 1.0)) == "other_language"
    assert kept(page((HEBREW * 5)[:155])) == "iw"
    step = Clean(sources={"web": {"rules": ["short"]}}, where=Where(language={"he": {"shortest": 9}}), shortest=20)
    assert step.settings_for("web", "he") == step.settings_for("web", "iw") == step.settings.model_copy(
        update={"shortest": 9}
    )  # fmt: skip
    shard = tmp_path / "web-00000.parquet"
    rows = [Document(code, "web", "x" * 10, language=code) for code in ("iw", "he", "en")]  # lid.176 says he
    write_shard(shard, rows)
    run_here(step, [shard], tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / shard.name)["id"].to_pylist() == ["iw", "he"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("extract.languages=['zh-hans']", "languages = 'zh-hans': not a language of CLD2; did you mean zh?"),
        ("extract.languages=['deu']", "did you mean de?"),
        ("extract.languages=['he-IL']", "did you mean iw?"),
        ("filter.where.language.zh-hans.words='whitespace'", "filter.where.language = 'zh-hans': not a language"),
        ("clean.where.language.zh.languages=['deu']", "clean.where: languages = 'deu': not a language of CLD2"),
        ("extract.where.language.zh.justext.length_lwo=3", "length_lwo = 3: unknown key; did you mean length_low?"),
    ],
)  # fmt: skip
def test_fixed_and_unknown_settings_are_refused(tmp_path: Path, override: str, words: str) -> None:
    recipe = corpus.write_run(tmp_path, pages=2)
    with pytest.raises(UsageFailure) as refused:
        load_recipe(recipe, [override])
    assert words in str(refused.value)
    assert all(line.startswith(f"{recipe}: ") for line in str(refused.value).splitlines())


@pytest.mark.parametrize(
    ("step", "changed"),
    [
        (Exact, {"shortest": 9}),
        (Deduplicate, {"rows": 9}),
        (Decontaminate, {"n": 9}),
        (Extract, {"largest": 9}),
        (Clean, {"alarm_share": 0.9}),
        (Tokenize, {"seed": 9}),
    ],
)
def test_settings_without_variants_are_refused(step: type[Step[Any, Any]], changed: dict[str, Any]) -> None:
    options: dict[str, Any] = {"vocabulary": 300} if step is Tokenize else {}
    with pytest.raises(UsageFailure, match=rf"where\.language\.zh\.{next(iter(changed))}: this setting is the same"):
        step(where=Where(language={"zh": changed}), **options)


# --- settings by source and language ---------------------------------------------------------------------------------


def test_extract_settings_apply_table_source_language(tmp_path: Path) -> None:
    chinese, english = sentences.text("zh", Random(1), 120), " ".join(corpus.text(1)[:300].split())
    pages = [corpus.record(page(text).encode()) for text in (chinese, english)]
    (tmp_path / "c.warc.gz").write_bytes(b"".join(map(corpus.member, pages)))
    files = [SourceFile(source, tmp_path / "c.warc.gz", source, "warc") for source in ("news", "web")]

    def languages(**where: Any) -> dict[str, list[str]]:  # noqa: ANN401
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        settings = ExtractSettings(languages=(), justext=BoilerplateSettings(length_low=50, length_high=50))
        run_here(Extract(settings, where=Where(**where)), files, out)
        return {path.name[:-14]: pq.read_table(path)["language"].to_pylist() for path in sorted(out.glob("*.parquet"))}

    long = {"justext": {"length_high": 10_000}}
    assert languages() == {"news": ["zh", "en"], "web": ["zh", "en"]}
    assert languages(source={"web": long}) == {"news": ["zh", "en"], "web": []}
    assert languages(language={"zh-Hans": long}) == {"news": ["en"], "web": ["en"]}
    assert languages(source={"web": long}, language={"zh": {"method": "main"}}) == {"news": ["zh", "en"], "web": ["zh"]}
    again = {"justext": {"length_high": 60}}
    assert languages(source={"web": long}, language={"zh": again}) == {"news": ["zh", "en"], "web": ["zh"]}


def test_decontamination_window_varies_by_language(tmp_path: Path) -> None:
    task = "one two three four five six seven eight nine ten eleven twelve thirteen"
    text = "Aaaa bbbb. " * 60 + task + ". " + "Cccc dddd. " * 60
    corpus.write_jsonl(tmp_path / "texts.jsonl", [{"task": "boolq", "id": "0", "text": task}])
    shard = tmp_path / "web-00000.parquet"
    rows = [Document(code, "web", text, language=code) for code in ("en", "zh")]
    write_shard(shard, rows)
    where = Where(source={"web": {"window": 100}}, language={"zh": {"window": 20}})
    run_here(Decontaminate(texts=tmp_path / "texts.jsonl", where=where), [shard], tmp_path / "out")
    pieces = pq.read_table(tmp_path / "out" / shard.name).to_pylist()
    for code, least in (("en", 200 + len(task)), ("zh", 40 + len(task))):
        left = sum(len(row["text"]) for row in pieces if row["id"].startswith(code))
        assert least <= len(text) - left < least + 50


RECIPE = """
texts = "texts.jsonl"

[sources.books]
kind = "jsonl"
paths = ["books.jsonl"]

[sources.web]
kind = "warc"
paths = ["?.warc.gz"]
filters = ["gopher_fewest_words"]

[sources.wet]
kind = "warc"
paths = ["texts.warc.wet.gz"]

[sources.samples]
kind = "tar"
paths = ["*.tar"]

[sources.rows]
kind = "csv"
paths = ["*.csv"]

[sources.chats]
kind = "jsonl"
paths = ["chats.jsonl"]
field = "messages"
message = "{role}: {content}\\n"

[extract]
languages = []

[extract.where.language.zh]
justext.length_low = 10

[extract.where.source.web]
justext.length_high = 40

[clean]
where.language.zh = { shortest = 60 }
where.language.he = { shortest = 90 }
where.source.books = { shortest = 200 }

[filter]
where.language.zh = { gopher_fewest_words = 40 }
where.language.ja = { gopher_fewest_words = 5000 }

[decontaminate]
where.language.zh = { window = 10 }
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Books, pages, texts of a crawl, samples, rows and chats in nine languages."""
    folder = tmp_path_factory.mktemp("many")
    made = {code: [sentences.text(code, Random(f"{code} {n}"), 250) for n in range(20)] for code in ("zh", "ja", "th")}
    made |= {
        code: [" ".join(f"{text}{n * part}." for part in range(1, 9)) for n in range(20)]
        for code, text in (("ko", KOREAN), ("am", AMHARIC), ("iw", HEBREW), ("ar", ARABIC), ("ru", RUSSIAN))
    }
    made["en"] = [corpus.text(n) for n in range(20)]
    tasks = [{"task": "boolq", "id": code, "text": made[code][3][40:110]} for code in ("en", "zh")]
    corpus.write_jsonl(folder / "texts.jsonl", tasks)
    corpus.write_jsonl(folder / "books.jsonl", [{"text": text} for texts in made.values() for text in texts[:5]])
    for part in range(2):
        pages = [page(*text.split("\n\n")) for texts in made.values() for text in texts[4 + part : 12 : 2]]
        members = [
            corpus.member(corpus.record(html.encode(), f"http://example.org/{n}")) for n, html in enumerate(pages)
        ]
        (folder / f"{part}.warc.gz").write_bytes(b"".join(members))
    wet, samples, rows, chats = (
        [(f"{code}{n}", texts[n]) for code, texts in made.items() for n in (first, first + 1)]
        for first in range(12, 20, 2)
    )
    head = "WARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n"
    records = [f"{head.format(len(text.encode()))}{text}\r\n\r\n".encode() for _, text in wet]
    (folder / "texts.warc.wet.gz").write_bytes(b"".join(map(corpus.member, records)))
    with tarfile.open(folder / "samples.tar", "w") as archive:
        for name, text in samples:
            (folder / f"{name}.txt").write_text(text)
            archive.add(folder / f"{name}.txt", f"{name}.txt")
    with (folder / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *rows])
    turns = [[{"role": "user", "content": name}, {"role": "bot", "content": text}] for name, text in chats]
    corpus.write_jsonl(folder / "chats.jsonl", [{"messages": messages} for messages in turns])
    (folder / "data.toml").write_text(RECIPE)
    return folder / "data.toml"


def test_languages_go_through_a_run_by_their_settings(recipe: Path, tmp_path: Path) -> None:
    with closing(Local(2)) as engine:
        summary = curate(load_recipe(recipe), tmp_path / "whole", engine)
    by_name = {stage["name"]: stage for stage in summary["stages"]}
    assert list(by_name) == ["extract", "clean", "filter", "deduplicate", "decontaminate"]  # there is no [tokenize]
    codes = ["en", "zh", "ja", "th", "ko", "am", "iw", "ar", "ru"]
    assert {*summary["languages_kept"]} == {*codes}
    first = tmp_path / "whole" / "01-extract"
    for source in ("wet", "samples", "rows", "chats"):
        (shard,) = first.glob(f"{source}-*.parquet")
        assert Counter(pq.read_table(shard)["language"].to_pylist()) == dict.fromkeys(codes, 2), source
    report = write_report(tmp_path / "whole").read_text()
    assert not [name for name in [*load_recipe(recipe).sources, *codes] if f">{name}<" not in report]
    last = [row for path in sorted((tmp_path / "whole" / "05-decontaminate").glob("*.parquet"))
            for row in pq.read_table(path, columns=["source", "language"]).to_pylist()]  # fmt: skip
    assert {row["language"] for row in last if row["source"] == "books"} == {*summary["languages_kept"]}
    of_web = {row["language"] for row in last if row["source"] == "web"}
    assert {*summary["languages_kept"]} - of_web == {"ja", "th"}  # of too few words; too short


def test_language_setting_reruns_its_step_and_later_ones(recipe: Path) -> None:
    keys = {step.name: step.run_key() for step in load_recipe(recipe).steps}
    for override, moved in (
        ("extract.where.language.zh.justext.length_low=11", "extract"),
        ("filter.where.language.ja.gopher_fewest_words=1", "filter"),
        ("decontaminate.where.language.zh.window=11", "decontaminate"),
    ):
        changed = {step.name: step.run_key() for step in load_recipe(recipe, [override]).steps}
        assert {name for name, key in keys.items() if changed[name] != key} == {moved}


def test_length_ratios_name_cld2_languages() -> None:
    for code in LENGTH_RATIOS:
        Extract(languages=(code,))
