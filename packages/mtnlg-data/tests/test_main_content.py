"""Main content: the paragraphs of an article, a listing, a forum or a table are kept, and nothing around them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_data import BoilerplateSettings
from mtnlg_data.extract.main_content import best_expected_f1
from mtnlg_data.extract.text import extract_text

SENTENCES = ["The harbour was quiet, and nobody in the town could say since when it had been so. " * 2] * 4
MENU = "".join(f'<li><a href="/{name}">{name}</a></li>' for name in ("Home", "News", "Sports", "Contact", "About us"))
JAPANESE = ["町の古い港はいつも静かで、いつからそうなのか誰にも分からなかった。" * 2] * 4


def page(content: str, *, modern: bool) -> str:
    """A page with this content amid menus, links and a footer, by the tags of HTML 5 or by <div> alone."""
    nav, main, aside, footer = ("nav", "main", "aside", "footer") if modern else ("div",) * 4
    around = f"<{aside}><h4>Related</h4><ul>{MENU}</ul></{aside}>"
    return (
        f"<!doctype html><html><head><title>Title</title></head><body><{nav}><ul>{MENU}</ul></{nav}><{main}>"
        f"{content}</{main}>{around}<{footer}><p>Copyright 2026. All rights reserved.</p><ul>{MENU}</ul></{footer}>"
    )


def paragraphs(texts: list[str]) -> str:
    """These texts, each a <p>."""
    return "".join(f"<p>{text}</p>" for text in texts)


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize(
    ("content", "kept", "language"),
    [
        (f"<h1>Title</h1>{paragraphs(SENTENCES)}", SENTENCES, "en"),
        (f"<h1>Title</h1><article><h2>Harbours</h2>{paragraphs(SENTENCES)}</article>", ["Harbours", *SENTENCES], "en"),
        (f"<h1>港</h1>{paragraphs(JAPANESE)}", JAPANESE, "ja"),
        (f"<h1>T</h1>{paragraphs(SENTENCES)}<pre>a = 1\n  b</pre>{paragraphs(SENTENCES)}", ["a = 1\n  b"], "en"),
        (
            f"<h1>T</h1>{paragraphs(SENTENCES)}<table><tr><td>Depth<td>12 m<tr><td>Ships<td>3</table><p>{SENTENCES[0]}",
            ["Depth", "12 m", "Ships", "3"],
            "en",
        ),
    ],
)
def test_main_content_excludes_boilerplate(content: str, kept: list[str], language: str, modern: bool) -> None:
    text, reason = extract_text("main", page(content, modern=modern), BoilerplateSettings(), language)
    assert reason is None
    assert {each.strip() for each in kept} <= set(text.split("\n\n"))
    assert not {"Home", "Sports", "Copyright 2026. All rights reserved."} & set(text.split("\n\n"))


@pytest.mark.parametrize("html", ["", "<p>", "<html><body></body></html>", "<nav>Menu"])
def test_pages_with_little_text_are_read(html: str) -> None:
    text, reason = extract_text("main", html, BoilerplateSettings(), "en")
    assert text in {"", "Menu"}
    assert (reason == "empty") == (not text)


@given(st.lists(st.tuples(st.floats(0.01, 0.99), st.integers(1, 9)), min_size=1, max_size=8))
def test_the_kept_paragraphs_have_the_best_expected_f1(drawn: list[tuple[float, int]]) -> None:
    probabilities, lengths = np.array([each for each, _ in drawn]), np.array([each for _, each in drawn])

    def expected(kept: np.ndarray) -> float:
        return float(
            2 * (probabilities * lengths)[kept].sum() / (lengths[kept].sum() + (probabilities * lengths).sum())
        )

    subsets = (np.array([number >> k & 1 for k in range(len(drawn))], bool) for number in range(1 << len(drawn)))
    assert expected(best_expected_f1(probabilities, lengths)) >= max(map(expected, subsets)) - 1e-9
