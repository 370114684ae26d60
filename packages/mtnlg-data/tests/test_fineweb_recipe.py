"""recipes/fineweb puts the published rules together, and runs from a WARC file to tokens; filters off leave nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import small_corpus as corpus
from shards import curate_here

from mtnlg_data import load_recipe
from mtnlg_data.filters.rules import choose, own_families

RECIPE = Path(__file__).parents[3] / "recipes" / "fineweb"


def test_fineweb_recipe_has_the_published_rules_in_order() -> None:
    recipe = load_recipe(RECIPE)
    chosen = choose(recipe.sources["crawl"].filters)
    rules = tuple(rule.name for one in chosen for rule in one.family.rules if rule.name in one.asked)
    every = [rule.name for family in own_families() for rule in family.rules]
    without = {"c4_bad_words", "c4_terminal_punctuation", "pii_phone"}
    assert rules == tuple(name for name in every if name not in without)
    extract, filters, dedup = (recipe.step(name).settings for name in ("extract", "filter", "deduplicate"))
    assert (dedup.bands, dedup.rows, dedup.shingle_length) == (14, 8, 5)
    assert (extract.method, extract.min_language_score) == ("trafilatura", 0.65)
    assert (filters.c4_fewest_words, filters.c4_fewest_sentences) == (3, 5)


WORDS = """\
harbour morning nobody ships return wind north carried rain smell along wall first could tell news many people
would have laughed another this they followed after and the with that from their before because village mountain
river always never found little garden window letter answer question winter summer bread water story children
teacher doctor market street bridge horse island captain forest light evening silence music paper colour family
brother sister father mother country
"""


def prose(number: int) -> str:
    """A page of its own: five paragraphs of sentences of English words."""
    draw, words = random.Random(number), WORDS.split()
    sentences = [f"The {' '.join(draw.choices(words, k=10))} to be of {draw.choice(words)}." for _ in range(20)]
    return "\n\n".join(" ".join(sentences[n : n + 4]) for n in range(0, 20, 4))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A crawl of our own, and lists of blocked addresses."""
    contents = [prose(n) for n in range(30)]
    contents[1] += "\n\nWrite to someone@town.org or to the machine at 8.8.4.4 of ours."
    contents[2] += "\n\nPlease enable JavaScript to see all of this page."
    contents[3] = "\n\n".join([prose(3).partition("\n")[0]] * 5)
    contents[4] = contents[0].replace("harbour", "port")
    contents[5] += "\n\nfunction go() { return 1; } and so on"
    german = "Der alte Bürgermeister ging zum Hafen hinunter und erzählte niemandem davon, bis der Regen kam. "
    contents[6] = "\n\n".join(german * 4 for _ in range(4))
    urls = [f"https://site{n}.example.org/page" for n in range(30)]
    urls[7], urls[8] = "https://www.blocked.net/", "https://site8.example.org/casino"
    pages = [corpus.record(corpus.page(content).encode(), url) for content, url in zip(contents, urls, strict=True)]
    (tmp_path / "raw" / "blocked").mkdir(parents=True)
    (tmp_path / "raw" / "crawl.warc.gz").write_bytes(b"".join(map(corpus.member, pages)))
    for name, entries in {
        "domains.gz": "blocked.net",
        "urls.gz": "",
        "words.txt": "casino",
        "soft-words.txt": "bet",
    }.items():
        content = f"{entries}\n".encode()
        (tmp_path / "raw" / "blocked" / name).write_bytes(corpus.member(content) if name.endswith(".gz") else content)
    (tmp_path / "raw" / "blocked" / "subwords.txt").write_text("freepills\n")
    text = (RECIPE / "data.toml").read_text(encoding="utf-8")
    text = text.replace('snapshot = "raw/CC-MAIN-2023-50"', 'kind = "warc"\npaths = ["raw/*.warc.gz"]')
    text = text.replace('language_model = "raw/lid.176.bin"', "").replace('tokenizer = "gpt2"', "vocabulary = 300")
    (tmp_path / "data.toml").write_text(text, encoding="utf-8")
    return tmp_path


def test_fineweb_runs_from_a_warc_file_to_tokens(folder: Path) -> None:
    pytest.importorskip("trafilatura")
    summary = curate_here(folder / "data.toml", folder / "data")
    stages = {stage["name"]: stage for stage in summary["stages"]}
    reasons = {name: stage["sources"]["crawl"]["dropped"] for name, stage in stages.items()}
    assert stages["extract"]["documents_out"] == 29  # all but the German one
    assert reasons["filter"] == {
        "url_domain": 1,
        "url_word": 1,
        "c4_fewest_sentences": 1,  # trafilatura has removed its repeated paragraphs
        "c4_curly_bracket": 1,
    }
    assert reasons["deduplicate"] == {"duplicate": 1}
    rules = {rule["rule"]: rule["count"] for rule in summary["filters"]}
    assert {name: rules[name] for name in ("c4_javascript", "pii_email", "pii_ip")} == dict.fromkeys(
        ("c4_javascript", "pii_email", "pii_ip"), 1
    )
    texts = pq.read_table(folder / "data" / "03-filter" / "crawl-00000.parquet")["text"].to_pylist()
    assert "Write to email@example.com or to the machine at 22.214.171.124 of ours." in texts[1]
    assert "JavaScript" not in texts[2]
    assert summary["tokens"]["crawl"]["documents"] == 24

    # Without filters the stage takes back what it left, and nothing else changes its place.
    again = curate_here(folder / "data.toml", folder / "data", "sources.crawl.filters=[]")
    assert [stage["name"] for stage in again["stages"]] == [name for name in stages if name != "filter"]
    assert not [*(folder / "data" / "03-filter").glob("*.parquet")]


def test_unfiltered_sources_pass_unread(tmp_path: Path) -> None:
    corpus.write_jsonl(tmp_path / "a.jsonl", [{"text": prose(n)} for n in range(20)])
    corpus.write_jsonl(tmp_path / "b.jsonl", [{"text": f"{prose(n)} mail@town.org"} for n in range(100, 120)])
    sources = [f'[sources.{name}]\nkind = "jsonl"\npaths = ["{name}.jsonl"]\nweight = 0.5\n' for name in "ab"]
    (tmp_path / "data.toml").write_text(f"tokenize.vocabulary = 300\n{''.join(sources)}")
    curate_here(tmp_path / "data.toml", tmp_path / "data")
    assert not (tmp_path / "data" / "03-filter").exists()
    summary = curate_here(tmp_path / "data.toml", tmp_path / "data", 'sources.b.filters=["pii", "gopher_quality"]')
    shards = sorted(path.name for path in (tmp_path / "data" / "03-filter").glob("*.parquet"))
    assert shards == ["b-00000.parquet"]
    (stage,) = [stage for stage in summary["stages"] if stage["name"] == "filter"]
    assert {name: counts["documents_out"] for name, counts in stage["sources"].items()} == {"a": 20, "b": 20}
    texts = pq.read_table(tmp_path / "data" / "04-deduplicate" / "b-00000.parquet")["text"].to_pylist()
    assert all(text.endswith(" email@example.com") for text in texts)
