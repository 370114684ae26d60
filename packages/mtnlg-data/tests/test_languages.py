"""Wanted languages, by CLD2 or by a fastText model, in ``extract`` and in the rule ``language`` of ``clean``."""

from __future__ import annotations

import json
from importlib.util import find_spec
from random import Random
from typing import TYPE_CHECKING, Any

import language_model as language_models
import pytest
import sentences_without_spaces as sentences
import small_corpus as corpus
from shards import read_rows, run_here, write_shard

from mtnlg_data import Clean, Document, Extract, Record, SourceFile, load_recipe
from mtnlg_data.console import Failure
from mtnlg_data.document import shard_name
from mtnlg_data.extract import language
from mtnlg_data.extract.language import Language, open_identifier
from mtnlg_data.extract.text import ExtractSettings, extract_record

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_data.summary import Summary

GERMAN = (
    "Der alte Hafen war schon immer ein Ort, an dem sich die Leute aus der Stadt trafen und von der See erzählten. "
)


@pytest.fixture(scope="session")
def texts() -> dict[str, list[str]]:
    """Twenty texts of each language."""
    random = Random(1)
    without_spaces = {code: [sentences.text(code, random, 300) for _ in range(20)] for code in ("zh", "ja", "th")}
    english = [" ".join(corpus.text(number)[:600].split()) for number in range(20)]
    return {"en": english, "de": [GERMAN.strip() * 3] * 20, **without_spaces}


@pytest.fixture(scope="session")
def model(texts: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fastText model, trained on half of these texts, with labels like GlotLID's."""
    pytest.importorskip("fasttext", reason="fasttext-predict is not installed")
    path = tmp_path_factory.mktemp("model") / "lid.bin"
    return language_models.train(path, {f"{code}_X": own[:10] for code, own in texts.items()})


def rows_of(out: Path) -> list[dict[str, Any]]:
    return read_rows(*sorted(out.glob("*.parquet")))


def page(text: str) -> str:
    return f"<html><meta charset=utf-8><ul><li><a href=/>Home</a></ul><p>{text}</p></html>"


# --- extract ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codes", "by_model", "kept"),
    [
        (None, False, ["en"]),  # the default
        (("de", "th", "zh"), False, ["de", "zh", "th"]),
        ((), False, ["en", "de", "zh", "ja", "th"]),
        (("en_X", "zh_X"), True, ["en", "zh"]),
    ],
)
def test_wanted_languages_are_kept_with_their_stop_words(  # noqa: PLR0917
    tmp_path: Path,
    request: pytest.FixtureRequest,
    texts: dict[str, list[str]],
    codes: tuple[str, ...] | None,
    by_model: bool,
    kept: list[str],
) -> None:
    settings: dict[str, Any] = {} if codes is None else {"languages": codes}
    if by_model:
        settings |= {"language_model": request.getfixturevalue("model"), "min_language_score": 0.65}
    records = [corpus.record(page(text).encode()) for own in texts.values() for text in own]
    (tmp_path / "c.warc.gz").write_bytes(b"".join(map(corpus.member, records)))
    file = SourceFile("web", tmp_path / "c.warc.gz", "c", "warc")
    summary: Summary = run_here(Extract(**settings), [file], tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    named = {code: f"{code}_X" if by_model else code for code in texts}
    assert [row["text"] for row in rows] == [text.strip() for code in kept for text in texts[code]]
    assert [row["language"] for row in rows] == [named[code] for code in kept for _ in range(20)]
    assert all(0.65 <= row["language_score"] <= 1 for row in rows)
    assert summary["languages"] == {named[code]: 20 for code in texts}
    assert summary["languages_kept"] == {named[code]: 20 * (code in kept) for code in texts}
    dropped = {"other_language": 100 - len(rows)} if len(rows) < 100 else {}
    assert summary["sources"]["web"]["dropped"] == dropped
    if by_model:
        identify = open_identifier(settings["language_model"])
        scores = [row["language_score"] for row in rows]
        assert scores == pytest.approx([identify(row["text"]).score for row in rows], abs=1e-6)


def test_page_with_low_language_score_is_dropped(texts: dict[str, list[str]]) -> None:
    mixed = page(texts["en"][0] + "</p><p>" + texts["zh"][0])
    record = Record(0, mixed.encode(), "", "utf-8")
    found = extract_record(record, ExtractSettings(languages=())).language
    assert found is not None
    assert found.score is not None
    assert 0.4 < found.score < 0.9
    for least, reason in ((found.score, None), (found.score + 0.01, "language_score")):
        settings = ExtractSettings(languages=(found.code,), min_language_score=least)
        assert extract_record(record, settings).reason == reason


def test_language_model_reads_main_text_only(texts: dict[str, list[str]], model: Path) -> None:
    menu = page(texts["en"][0]).replace("Home", texts["zh"][0] * 3)  # most of the HTML is Chinese, none of its text
    settings = ExtractSettings(languages=("en_X", "zh_X"), language_model=model)
    found = extract_record(Record(0, menu.encode(), "", "utf-8"), settings)
    assert (found.text, found.language and found.language.code) == (texts["en"][0], "en_X")
    for text in ("", "\n", "\ud800 \x00"):
        assert isinstance(open_identifier(model)(text), Language)


def test_plain_texts_are_kept_with_the_models_language(
    tmp_path: Path, texts: dict[str, list[str]], model: Path
) -> None:
    corpus.write_jsonl(tmp_path / "a.jsonl", [{"text": own[15] + "\nend"} for own in texts.values()])
    file = SourceFile("own", tmp_path / "a.jsonl", "a.jsonl", "jsonl")
    run_here(Extract(languages=("en_X",), language_model=model), [file], tmp_path / "out")
    assert [row["language"] for row in rows_of(tmp_path / "out")] == [f"{code}_X" for code in texts]


# --- clean -----------------------------------------------------------------------------------------------------------


def clean(folder: Path, documents: list[Document], **settings: Any) -> tuple[dict[str, int], list[dict[str, Any]]]:  # noqa: ANN401
    shard = write_shard(folder / shard_name("web", 0), documents)
    step = Clean(sources={"web": {"rules": ["language"]}}, **settings)
    summary = run_here(step, [shard], folder / "clean")
    return summary["sources"]["web"]["dropped"], rows_of(folder / "clean")


def test_clean_filters_recorded_languages_by_score(tmp_path: Path) -> None:
    recorded = [("zh", 0.7), ("th", 0.5), ("en", 1.0)]
    documents = [Document(code, "web", "x", language=code, language_score=score) for code, score in recorded]
    dropped, rows = clean(tmp_path, documents, languages=("zh", "th"), min_language_score=0.65)
    assert dropped == {"language_score": 1, "other_language": 1}
    assert [(row["id"], row["language_score"]) for row in rows] == [("zh", pytest.approx(0.7))]


def test_clean_finds_the_language_where_none_is_recorded(
    tmp_path: Path, texts: dict[str, list[str]], model: Path
) -> None:
    documents = [Document(code, "web", own[12]) for code, own in texts.items()]
    dropped, rows = clean(tmp_path, documents, languages=("zh", "de"))
    assert dropped == {"other_language": 3}
    assert [(row["id"], row["language"]) for row in rows] == [("de", "de"), ("zh", "zh")]
    assert all(row["language_score"] > 0.9 for row in rows)
    assert [row["id"] for row in clean(tmp_path, documents, languages=("th_X",), language_model=model)[1]] == ["th"]


# --- what is refused -------------------------------------------------------------------------------------------------

RECIPE = '[sources.own]\nkind = "jsonl"\npaths = ["*.jsonl"]\nweight = 1.0\n[tokenize]\nvocabulary = 300\n[extract]\n'


def test_clean_wants_the_languages_of_extract_by_default(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text(RECIPE + 'languages = ["zh"]\nlanguage_model = "m/lid.bin"\n')
    recipe = load_recipe(tmp_path)
    for settings in (recipe.step("extract").settings, recipe.step("clean").settings):
        assert (settings.languages, settings.language_model) == (("zh",), tmp_path / "m" / "lid.bin")
    other = load_recipe(tmp_path, ['clean.languages=["th"]', "clean.min_language_score=0.5"])
    scores = [(s.settings.languages, s.settings.min_language_score) for s in map(other.step, ("clean", "extract"))]
    assert scores == [(("th",), 0.5), (("zh",), 0.0)]


@pytest.mark.parametrize("loss", ["SOFTMAX", "TREE"])
def test_a_language_that_the_model_lacks_is_one_line(tmp_path: Path, loss: str) -> None:
    """Also where labels are in a tree, and fastText gives those of a probability under 1e-5 only when asked."""
    pytest.importorskip("fasttext", reason="fasttext-predict is not installed")
    codes = ["eng_Latn", "enm_Latn", *(f"x{number}" for number in range(60))]
    by_label = {code: [code] for code in codes}
    path = language_models.train(tmp_path / "lid.bin", by_label, getattr(language_models, loss), 1e5)
    Extract(languages=tuple(codes), language_model=path).check()
    line = r"lid\.bin: no language 'en'; set languages to some of its 62, such as eng_Latn, enm_Latn$"
    for step in (Extract(languages=("en",), language_model=path), Clean(languages=("en",), language_model=path)):
        with pytest.raises(Failure, match=line):
            step.check()


def test_invalid_model_and_missing_extra_are_one_line_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lid.bin"
    path.write_text(json.dumps({}))
    if find_spec("fasttext") is not None:
        for name in ("lid.bin", "none.bin"):
            with pytest.raises(Failure, match=rf"{name}.*language_model must be a fastText \.bin"):
                Extract(language_model=tmp_path / name).check()
    monkeypatch.setattr(language, "find_spec", lambda _: None)
    with pytest.raises(Failure, match=r'lid\.bin: a fastText model needs fastText: pip install "mtnlg-data\[fast'):
        Extract(language_model=path).check()
