"""The recipe: its defaults, and that every mistake is one line before any work."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import get_origin

import pytest
from command_line import invoke

from mtnlg_data.commands.setting_options import Leaf, leaves
from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.recipe import load_recipe, own_factories, recipe_schema
from mtnlg_data.sources.corpus import CORPUS, DATASETS
from mtnlg_data.steps.clean import PAGE_RULES, TEXT_RULES
from mtnlg_data.transfer.snapshot import fetch_snapshot

ROOT = Path(__file__).parents[3]

GOOD = """
[sources.books]
kind = "jsonl"
paths = ["books/*.jsonl"]
weight = 0.4
curated = true

[sources.crawl]
kind = "warc"
paths = ["crawl/**/*.warc.gz"]
weight = 0.6
filtered = true

[tokenize]
vocabulary = 400
"""


def write(folder: Path, content: str = GOOD) -> Path:
    (folder / "data.toml").write_text(content)
    return folder


def names(folder: Path, *patterns: str) -> list[str]:
    """Files of a source with these paths."""
    recipe = load_recipe(write(folder), [f"sources.books.paths={[*patterns]}"])
    return [file.name for file in recipe.source_files("books")]


# --- the corpus ------------------------------------------------------------------------------------------------------


def test_the_corpus_is_the_papers() -> None:
    assert len(CORPUS) == len(DATASETS) == 15
    assert sum(dataset.tokens for dataset in CORPUS) == pytest.approx(338.6, abs=0.01)
    assert sum(dataset.weight for dataset in CORPUS) == pytest.approx(1, abs=1e-9)
    assert sum(dataset.subset is not None for dataset in CORPUS) == 11


@pytest.mark.parametrize(
    ("keys", "said"), [("", ""), ("message = 'json'", "messages of books"), ("message = 'json'\nchat = true", "")]
)
def test_messages_that_become_text_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: str, said: str
) -> None:
    load_recipe(write(tmp_path, GOOD.replace("curated = true", f"curated = true\n{keys}")))
    assert ("chat = true learn answers only" in (err := capsys.readouterr().err)) == bool(said)
    assert said in err


def test_paper_dataset_name_sets_weight_and_subset(tmp_path: Path) -> None:
    names = [dataset.name for dataset in CORPUS]
    tables = "".join(f'[sources.{name}]\nkind = "pile"\npaths = ["x"]\n' for name in names)
    recipe = load_recipe(write(tmp_path, f"{tables}[tokenize]\nvocabulary = 400\n"))
    assert list(recipe.sources) == names, "the order is the priority"
    assert recipe.step("tokenize").weights == {dataset.name: dataset.weight for dataset in CORPUS}
    assert recipe.sources["Wikipedia"].reader.model_dump()["subset"] == "Wikipedia (en)"
    assert "whitespace" in recipe.sources["ArXiv"].rules
    assert "whitespace" not in recipe.sources["GitHub"].rules


# --- defaults --------------------------------------------------------------------------------------------------------


def test_defaults_by_kind_and_overrides(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path), ["quality.alpha=9", "sources.books.rules=['short']"])
    assert recipe.step("quality").settings.alpha == 9
    assert recipe.sources["crawl"].rules == list(PAGE_RULES)
    assert recipe.sources["books"].rules == ["short"]
    assert load_recipe(write(tmp_path)).sources["books"].rules == list(TEXT_RULES)
    with pytest.raises(UsageFailure, match="--set quality: expected key=value"):
        load_recipe(write(tmp_path), ["quality"])
    assert (recipe.step("quality").filtered, recipe.step("quality").curated) == (["crawl"], ["books"])


def test_a_recipe_that_windows_wrote_is_read(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path))
    (tmp_path / "data.toml").write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load_recipe(tmp_path).dump() == recipe.dump()


def test_the_recipe_of_the_530b_run_names_all_fifteen() -> None:
    recipe = load_recipe(ROOT / "recipes" / "mt-nlg-530b")
    assert list(recipe.sources) == [dataset.name for dataset in CORPUS]
    assert recipe.step("quality").filtered == [dataset.name for dataset in CORPUS if dataset.name.startswith("CC-20")]
    for dataset in CORPUS:
        source = recipe.sources[dataset.name]
        keys = source.reader.model_dump()
        assert (keys.get("subset"), source.weight) == (dataset.subset, dataset.weight)
        assert str(keys.get("snapshot")).endswith(dataset.name[2:]) == dataset.name.startswith("CC-20")


def test_a_snapshot_gives_the_files_fetched_so_far(tmp_path: Path) -> None:
    places = [f"segments/1/warc/CC-MAIN-{n}.warc.gz" for n in (3, 1, 2)]
    crawl = tmp_path / "mirror" / "crawl-data" / "CC-MAIN-2020-50"
    for place in places:
        (crawl / place).parent.mkdir(parents=True, exist_ok=True)
        (crawl / place).write_bytes(place.encode())
    listing = "".join(f"crawl-data/CC-MAIN-2020-50/{place}\n" for place in places)
    (crawl / "warc.paths.gz").write_bytes(gzip.compress(listing.encode()))
    table = 'kind = "warc"\npaths = ["crawl/**/*.warc.gz"]'
    assert table in GOOD
    recipe = load_recipe(write(tmp_path, GOOD.replace(table, 'snapshot = "raw"')))
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "x.jsonl").touch()
    with pytest.raises(Failure, match=r"raw: no file here yet; mtnlg-data fetch SNAPSHOT --out .*raw fetches"):
        recipe.files()
    fetch_snapshot("CC-MAIN-2020-50", tmp_path / "raw", str(tmp_path / "mirror"), files=2)
    assert [file.name for file in recipe.files()[1:]] == places[:2], "in the order of the listing"
    assert recipe.sources["crawl"].rules == list(PAGE_RULES)


def test_paths_are_relative_to_the_recipe_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipes" / "own").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    recipe = write(tmp_path / "recipes" / "own") / "data.toml"
    monkeypatch.chdir(tmp_path)
    for given in (recipe, recipe.parent, recipe.relative_to(tmp_path), recipe.parent.relative_to(tmp_path)):
        assert load_recipe(given).input == recipe.parent
    monkeypatch.chdir(recipe.parent)
    assert load_recipe(Path("data.toml")).input == load_recipe(Path()).input == recipe.parent
    assert Path(load_recipe(recipe, ["input=../../elsewhere"]).input).samefile(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    assert load_recipe(recipe, folder=Path("elsewhere")).input == tmp_path / "elsewhere"


@pytest.mark.parametrize("start", ["", "file://"])
def test_wildcards_skip_hidden_files(tmp_path: Path, start: str) -> None:
    served, folder = tmp_path / "served", tmp_path / ".cache"
    for name in ("a.jsonl", "b.jsonl"):
        served.mkdir(exist_ok=True)
        (served / name).write_text('{"text": "one"}\n')
    invoke("fetch", f"file://{served}", "--out", folder)
    assert {path.name for path in folder.iterdir()} == {".lock", ".fetched.jsonl", "a.jsonl", "b.jsonl"}

    place = f"{start}{folder}" if start else ".cache"
    assert names(tmp_path, f"{place}/*") == names(tmp_path, f"{place}/**/*") == ["a.jsonl", "b.jsonl"]
    assert names(tmp_path, f"{place}/.fetched.jsonl") == [".fetched.jsonl"]
    with pytest.raises(Failure, match=r"no such file|only hidden files there"):
        names(tmp_path, f"{place}/*.lock")


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("weight = 0.6", "weight = 0.7", ["sum to 1.1, not to 1", "books 0.4", "crawl 0.7"]),
        ("weight = 0.6", "weight = '0.6'", ["sources.crawl.weight", "'0.6'", "number"]),
        ("weight = 0.6", "weight = nan", ["sources.crawl.weight"]),
        ("weight = 0.6\n", "", ["sources.crawl.weight", "missing"]),
        ("weight = 0.6", "wieght = 0.6", ["sources.crawl: wieght", "unknown key", "did you mean weight?"]),
        ('kind = "warc"', 'kind = "arc"', ["sources.crawl: kind = 'arc'", "did you mean warc?", "warc, jsonl, pile"]),
        ('kind = "warc"', 'kind = "warc"\nsubset = "Books3"', ["subset = 'Books3': unknown key", "keys of kind warc"]),
        ('paths = ["books/*.jsonl"]', "paths = []", ["sources.books.paths"]),
        ('paths = ["books/*.jsonl"]\n', "", ["sources.books", "either paths or a snapshot"]),
        ('paths = ["books/*.jsonl"]', 'snapshot = "x"', ["sources.books", "snapshot = 'x': unknown key"]),
        ('paths = ["books/*.jsonl"]', 'paths = "books"', ["sources.books.paths = 'books'", 'as in paths = ["books"]']),
        ('paths = ["books/*.jsonl"]', "paths = true", ["sources.books.paths", 'as in paths = ["name"]']),
        ("curated = true", "curated = false", ["crawl has filtered = true, but no source has curated = true"]),
        ("filtered = true", "filtered = true\ncurated = true", ["both curated and filtered"]),
        ("curated = true", 'curated = true\nrules = ["tidy"]', ["sources.books.rules.0", "'tidy'", "'whitespace'"]),
        ("[sources.crawl]", '[sources."../crawl"]', ["../crawl"]),
        ("[sources.crawl]", "[source.crawl]", ["source", "unknown key", "did you mean sources?"]),
        ("vocabulary = 400", "", ["vocabulary"]),
        ("[tokenize]", "[quality]\nalpha = 0\n[tokenize]", ["quality.alpha = 0", "greater than 0"]),
        (
            "[tokenize]",
            "[quality]\nseed = 4294967296\n[tokenize]",
            ["quality.seed = 4294967296", "less than 4294967296"],
        ),
        ("vocabulary = 400", "vocabulary = 2147483648", ["tokenize.vocabulary = 2147483648", "less than 2147483648"]),
        ("[tokenize]", "[extract]\nlargest = 1.5\n[tokenize]", ["extract.largest = 1.5"]),
        ("[tokenize]", "[tokenize", ["not TOML"]),
    ],
)
def test_every_mistake_is_one_line_with_file_and_key(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    assert old in GOOD
    with pytest.raises(UsageFailure) as raised:
        load_recipe(write(tmp_path, GOOD.replace(old, new)))
    message = str(raised.value)
    assert message.startswith(f"{tmp_path / 'data.toml'}: ")
    assert all(word in message for word in words), message
    assert "\n" not in message or all(line.startswith(str(tmp_path)) for line in message.splitlines())


def test_many_mistakes_and_long_values_are_cut(tmp_path: Path) -> None:
    text = GOOD + "".join(f"[t{number}]\n" for number in range(30_000)) + f"long = {'x' * 10**6!r}\n"
    with pytest.raises(UsageFailure, match=r"29980 more mistakes$") as raised:
        load_recipe(write(tmp_path, text))
    assert len(str(raised.value).splitlines()) == 21
    with pytest.raises(UsageFailure, match="unknown key") as raised:
        load_recipe(write(tmp_path, f"[t]\nlong = {'x' * 10**6!r}\n{GOOD}"))
    assert len(str(raised.value)) < 1000


INTEGERS = [
    leaf
    for leaf in leaves(recipe_schema(own_factories(), own_factories()))
    if re.search(r"\bint\b", str(leaf.field.annotation))
]


@pytest.mark.parametrize("leaf", INTEGERS, ids=lambda leaf: ".".join(leaf.path))
def test_no_integer_of_a_recipe_is_beyond_64_bits(tmp_path: Path, leaf: Leaf) -> None:
    key = ".".join(leaf.path)
    for number in (1 << 63, -(1 << 63) - 1, 10**30):
        value = f"{{books = {number}}}" if get_origin(leaf.type) is dict else str(number)
        with pytest.raises(UsageFailure, match=rf"data\.toml: {key}[.: ].*(64 bits|less than|greater than)") as raised:
            load_recipe(write(tmp_path), [f"{key}={value}"])
        assert str(number) in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_signature_has_a_length_that_memory_can_hold(tmp_path: Path) -> None:
    load_recipe(write(tmp_path), ["deduplicate.bands=450", "deduplicate.rows=20"])  # RefinedWeb's
    with pytest.raises(UsageFailure, match=r"deduplicate: bands = 20 times rows = 4000 .* more than 65536"):
        load_recipe(write(tmp_path), ["deduplicate.rows=4000"])


def test_missing_inputs_and_two_files_of_one_name_are_failures(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path), ["texts=none.jsonl"])
    with pytest.raises(Failure, match=r"books/\*\.jsonl: no such file \(source books\); paths start at /"):
        recipe.files()
    for pattern in ("", ".", "..", "/", str(tmp_path)):
        with pytest.raises(Failure, match=r"a folder \(source books\); give a pattern of its files, such as \*\.jsonl"):
            load_recipe(tmp_path, [f"sources.books.paths=['{pattern}']"]).files()
    with pytest.raises(Failure, match=r"books/\*\*\*/a: not a valid pattern \(source books\): Invalid pattern"):
        load_recipe(tmp_path, ["sources.books.paths=['books/***/a']"]).files()
    with pytest.raises(Failure, match=r"none\.jsonl: no such file of task texts"):
        recipe.step("decontaminate").check()
    for name in ("a/x.jsonl", "b/x.jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    twice = load_recipe(tmp_path, ["sources.books.paths=['a/*.jsonl', 'b/*.jsonl']"])
    with pytest.raises(Failure, match=r"b/x\.jsonl: .*a/x\.jsonl of source books has the same name"):
        twice.files()
    with pytest.raises(Failure, match="no such recipe"):
        load_recipe(tmp_path / "nowhere")


def test_symlinked_folder_under_double_star_is_refused(tmp_path: Path) -> None:
    for name in ("own/a/b/x.jsonl", "else/y.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    for link in ("own/a/linked", "own/.hidden"):
        (tmp_path / link).symlink_to(tmp_path / "else")

    for pattern in ("own/**/*.jsonl", "own/**/b/*.jsonl", "o*/**/*.jsonl", "own/a/**"):
        with pytest.raises(Failure, match=r"own/a/linked: a link to a folder, .*\(source books\); give it and"):
            names(tmp_path, pattern)
    assert names(tmp_path, "own/a/b/**/*.jsonl", "own/a/linked/**/*.jsonl") == ["x.jsonl", "y.jsonl"]
    assert names(tmp_path, "own/a/*/*.jsonl") == ["b/x.jsonl", "linked/y.jsonl"]


@pytest.mark.parametrize("start", ["", "file://{}/"])
def test_a_file_that_two_patterns_of_a_source_match_is_refused(tmp_path: Path, start: str) -> None:
    (tmp_path / "own/a").mkdir(parents=True)
    (tmp_path / "own/a/x.jsonl").touch()
    (tmp_path / "own/y.jsonl").symlink_to("a/x.jsonl")

    begin = start.format(tmp_path)
    with pytest.raises(
        Failure,
        match=r"own/a/x\.jsonl: source books reads it as a/x\S* by \S*own/\*\*/x\S* and as x\S* by \S*own/a/",
    ):
        names(tmp_path, f"{begin}own/**/x.jsonl", f"{begin}own/a/*.jsonl")
    if not start:
        with pytest.raises(Failure, match=r"reads it as \S+ by own/\*\*/\S+ and as \S+ by own/\*\*/"):
            names(tmp_path, "own/**/*.jsonl")
    assert names(tmp_path, f"{begin}own/a/*.jsonl", f"{begin}own/a/x.jsonl") == ["x.jsonl"]


def test_the_folder_of_a_recipe_may_have_brackets_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "[2026]"
    (folder / "books").mkdir(parents=True)
    (folder / "books" / "a.jsonl").write_text('{"text": "one"}\n')
    recipe = load_recipe(write(folder, GOOD.replace("crawl/**/*.warc.gz", "books/*")))
    assert [(file.source, file.name) for file in recipe.files()] == [("books", "a.jsonl"), ("crawl", "a.jsonl")]
