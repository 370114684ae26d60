"""The stage ``filter``: its command, its state, and the recipes that it refuses."""

from __future__ import annotations

import json
import re
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import small_corpus as corpus
from command_line import command, invoke
from filter_reference import PROSE
from test_filters import OWN_RULES

from mtnlg_data import Local, curate, load_recipe
from mtnlg_data.console import Failure

if TYPE_CHECKING:
    from pathlib import Path


def write_jsonl(path: Path, texts: list[str]) -> None:
    rows = [{"id": f"doc-{n}", "text": text, "url": f"https://site{n}.com/"} for n, text in enumerate(texts)]
    corpus.write_jsonl(path, rows)


def test_filter_command_counts_drops_by_rule(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in.jsonl", [f"{PROSE} Mail: a{n}@b.org" for n in range(5)] + ["so\nso\nso\n", PROSE[:50]])
    options = ["--out", tmp_path / "out", "--gopher-fewest-words", 30]
    invoke("filter", tmp_path / "in.jsonl", "--rules", "gopher_duplicate_lines,gopher_quality,pii_email", *options)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    rules = {entry["rule"]: entry for entry in summary["filters"]}
    assert {name: rules[name]["count"] for name in ("gopher_duplicate_lines", "gopher_fewest_words", "pii_email")} == {
        "gopher_duplicate_lines": 1,
        "gopher_fewest_words": 1,
        "pii_email": 5,
    }
    assert rules["gopher_fewest_words"]["threshold"] == 30
    assert "gopher_top_3_gram" not in rules
    shard = tmp_path / "out" / "documents-00000.parquet"
    texts = pq.read_table(shard)["text"].to_pylist()
    assert texts == [f"{PROSE} Mail: email@example.com"] * 5
    page = (tmp_path / "out" / "report.html").read_text()
    assert "gopher fewest words" in page
    assert "dropped as gopher duplicate lines" in page
    dropped = pq.read_table(tmp_path / "out" / "dropped" / shard.name).select(["id", "reason"]).to_pydict()
    assert dropped == {"id": ["doc-5", "doc-6"], "reason": ["gopher_duplicate_lines", "gopher_fewest_words"]}


def test_the_stage_runs_again_where_a_list_has_changed(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in.jsonl", [PROSE, PROSE + PROSE])
    for blocked, kept in (
        ("site0.com", [PROSE + PROSE]),
        ("site1.com", [PROSE]),
        ("site2.com", [PROSE, PROSE + PROSE]),
    ):
        (tmp_path / "domains").write_text(blocked)
        options = ["--rules", "url", "--domain-files", tmp_path / "domains", "--out", tmp_path / "out"]
        invoke("filter", tmp_path / "in.jsonl", *options)
        assert pq.read_table(tmp_path / "out" / "documents-00000.parquet")["text"].to_pylist() == kept


def test_thresholds_are_chosen_after_the_rules_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{PROSE} {{ {n} }} Mail: a{n}@b.org\n" * (1 + n % 3) for n in range(40)]
    write_jsonl(tmp_path / "in.jsonl", [*texts, "so\nso\nso\n", PROSE[:50], "---", "Javascript."])
    command = ["filter", tmp_path / "in.jsonl", "--rules", "gopher_repetition,gopher_quality,c4,fineweb,pii_email"]
    command.append("--out")
    thresholds = [[], ["--gopher-fewest-words", 90, "--fineweb-line-punctuation", 0.9], ["--gopher-top-3-gram", 0.01]]
    for number, options in enumerate(thresholds):
        invoke(*command, tmp_path / str(number), *options)
    values = tmp_path / "noted" / "values" / "documents-00000.parquet"
    for number, options in enumerate(thresholds):
        invoke(*command, tmp_path / "noted", "--annotate", *options)
        for name in ("documents-00000.parquet", "dropped/documents-00000.parquet"):
            plain, noted = (tmp_path / folder / name for folder in (str(number), "noted"))
            assert noted.read_bytes() == plain.read_bytes()
        monkeypatch.setattr("mtnlg_data.filters.decisions.DocumentFilter.measure", None)  # not again
    table = pq.read_table(values)
    assert table.num_rows == len(texts) + 4
    assert {"id", "gopher_fewest_words", "c4_fewest_sentences", "fineweb_newlines", "pii_email"} <= {
        *table.column_names
    }
    (words,) = table.filter(pc.field("id") == f"doc-{len(texts) + 1}")["gopher_fewest_words"].to_pylist()
    assert words == len(PROSE[:50].split())
    page = (tmp_path / "noted" / "report.html").read_text()
    assert "Values of gopher fewest words" in page
    assert 'class="cut"' in page


def test_values_of_a_source_without_documents(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in.jsonl", [PROSE])
    write_jsonl(tmp_path / "none.jsonl", [" "])
    inputs = (tmp_path / "none.jsonl", f"sound={tmp_path / 'in.jsonl'}")
    (tmp_path / "own.py").write_text(OWN_RULES)
    rules = f"gopher_quality,gopher_repetition,c4,fineweb,pii,{tmp_path / 'own.py'}:shouting"
    invoke("filter", *inputs, "--rules", rules, "--annotate", "--out", tmp_path / "out")
    names = [pq.read_schema(path).names for path in sorted((tmp_path / "out" / "values").glob("*.parquet"))]
    assert names[0] == names[1] != ["id"]


def test_values_need_ids_that_differ(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in.jsonl", [PROSE])
    (tmp_path / "in.jsonl").write_text((tmp_path / "in.jsonl").read_text() * 2)
    with pytest.raises(Failure, match="1 have the id of another"):
        invoke("filter", tmp_path / "in.jsonl", "--rules", "fineweb", "--annotate", "--out", tmp_path / "out")


def test_long_shards_are_filtered_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{PROSE} {n}" * (1 + n % 3) for n in range(40)]
    write_jsonl(tmp_path / "in.jsonl", [*texts, "gone\ngone"])
    for size in (1, 1000, 1 << 20):
        monkeypatch.setattr("mtnlg_data.text.arrays.BYTES_AT_A_TIME", size)
        options = ["--rules", "gopher_duplicate_lines", "--out", tmp_path / str(size)]
        invoke("filter", tmp_path / "in.jsonl", *options)
        assert pq.read_table(tmp_path / str(size) / "documents-00000.parquet")["text"].to_pylist() == texts


def test_unknown_rule_error_lists_known_rules(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in.jsonl", [PROSE])
    done = command("filter", tmp_path / "in.jsonl", "--rules", "gofer", "--out", tmp_path / "o")
    assert re.search(r"gofer: no such rule; .*url, gopher_repetition", str(done.exception))


def test_url_rules_need_a_list_of_their_own(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in.jsonl", [PROSE])
    command = ["filter", tmp_path / "in.jsonl", "--rules", "url", "--out", tmp_path / "out"]
    (tmp_path / "list.txt").write_text("word\n")
    for rule, option in (("url", "--bad-word-files"), ("url_word", "--domain-files")):
        command[3] = rule
        with pytest.raises(Failure, match=r"url rules without a list; give one: .*url_word reads filter\.word_files"):
            invoke(*command, option, tmp_path / "list.txt")
    invoke(*command, "--word-files", tmp_path / "list.txt")


def test_a_recipe_names_rules_in_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_RULES)
    write_jsonl(tmp_path / "in.jsonl", ["Stop!", "Stop! Now!", "Go!"])
    (tmp_path / "data.toml").write_text("""
steps = ["extract", "filter"]
[sources.web]
kind = "jsonl"
paths = ["in.jsonl"]
filters = ["own.py:shouting"]
[filter.own]
exclamations = 1
""")
    recipe = load_recipe(tmp_path)
    with closing(Local(2)) as engine:
        summary = curate(recipe, tmp_path / "out", engine)
    (effect,) = summary["filters"]
    assert (effect["rule"], effect["threshold"], effect["count"]) == ("exclamations", 1, 1)
    (shard,) = (tmp_path / "out" / recipe.folders["filter"]).glob("*.parquet")
    assert pq.read_table(shard)["text"].to_pylist() == ["Stop!", "Go!"]
    assert load_recipe(tmp_path / "out" / "recipe.toml").step("filter").key("web") == recipe.step("filter").key("web")
