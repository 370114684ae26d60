"""Select the paragraphs of a page's main content by a logistic regression over eighteen features.

The features use only tags, lengths and positions: no class or id, whose words add 0.2 points of F1, and no words of the
text, so that the weights hold in any language. *Prose* is text that reads like sentences: paragraphs outside menus,
footers, sidebars and dialogs that are long, or that are not short and end like a sentence. The *container* is the
innermost block element with half of the page's prose.

The paragraphs that maximize the expected F1 under the predicted probabilities are kept. They are those above a
threshold specific to the page (Lipton, Elkan and Narayanaswamy, "Thresholding Classifiers to Maximize F1 Score", 2014),
which is low on a page where little is certain.

benchmarks/extraction_quality.py fits the weights to two thirds of the pages of two benchmarks and measures on the
others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.text.compiled import jit

from .boilerplate import join
from .html_tags import BLOCK, KILL, MARK_TAGS, ROLE_TAGS, tag_table
from .language import ENGLISH, text_length
from .paragraphs import CHARACTERS, ELEMENT, FIRST_MARKED, LAST, LINKED

if TYPE_CHECKING:
    from mtnlg_data.array_types import Bools, Float64s, Int32s, Int64s

    from .paragraphs import Page

    Features = Float64s

#: jusText's roles of tags, extended by the block tags of HTML 5 and by tags whose content is not shown as text.
ROLES = tag_table(
    ROLE_TAGS
    | {
        BLOCK: f"{ROLE_TAGS[BLOCK]} address article aside details dialog figcaption figure footer header hgroup hr "
        "main menu nav ol section summary tbody",
        KILL: f"{ROLE_TAGS[KILL]} audio canvas iframe map noscript object svg template video",
    }
)
#: Minimum length of prose, in characters of English: of a paragraph that ends like a sentence, and of any other.
SENTENCE_LENGTH, PROSE_LENGTH = 40, 100
SENTENCE_ENDS = [*map(ord, '.!?…。！？:"”»')]  # noqa: RUF001
#: Weight of each feature of a paragraph. Features are in [0, 1], except the logarithm of a length.
WEIGHTS = {
    "is inside the container": 0.94,
    "share of the page's prose in the element above its own": 0.88,
    "share of the page's prose in the element above that": 1.06,
    "share in links": -0.64,
    "mean share in links, with two paragraphs on each side": -0.82,
    "place on the page, in characters": -1.15,
    "logarithm of the characters in the element above its own": 0.15,
    "follows a lesser heading": 0.69,
    "is not before the first h1; a half on pages without": 1.13,
    "is outside main, on pages with one": -1.28,
    "is outside articles, on pages with some": -0.57,
    "in nav or menu": -0.29,
    "in footer": -1.06,
    "in aside": -0.61,
    "in header": -0.17,
    "in form": -0.87,
    "in table": 0.58,
    "in figcaption": -2.56,
}
BIAS = -1.85
NAV, FOOTER, ASIDE, HEADER, FORM, TABLE, CAPTION, DIALOG, H1, HEADING, MAIN, ARTICLE = (
    1 << MARK_TAGS.index(tags)
    for tags in (
        *("menu nav", "footer", "aside", "header", "form", "table", "figcaption", "dialog"),
        *("h1", "h2 h3 h4 h5 h6", "main", "article"),
    )
)
NOT_PROSE = NAV | FOOTER | ASIDE | DIALOG
MARKED = np.array([NAV, FOOTER, ASIDE, HEADER, FORM, TABLE, CAPTION])
AROUND = 2  # paragraphs


def main_content(page: Page, language: str = ENGLISH) -> str:
    """The paragraphs of the main content, separated by blank lines; read the page with ``ROLES`` and ``layout``."""
    if not page.columns.size:
        return ""
    scores = np.array([*WEIGHTS.values()]) @ features(page, language) + BIAS
    return join(page, best_expected_f1(1 / (1 + np.exp(-scores)), page.columns[CHARACTERS]))


def features(page: Page, language: str = ENGLISH) -> Features:
    """The features of each paragraph, [WEIGHTS, paragraphs]."""
    columns = page.columns
    low, high = (text_length(None, length, language) for length in (SENTENCE_LENGTH, PROSE_LENGTH))
    lengths = columns[CHARACTERS]
    is_prose = (lengths >= high) | ((lengths >= low) & np.isin(columns[LAST], SENTENCE_ENDS))
    prose = (lengths - columns[LINKED]) * (is_prose & (columns[FIRST_MARKED] & NOT_PROSE == 0))
    return _features(lengths, columns[LINKED], columns[FIRST_MARKED], prose, columns[ELEMENT], page.parents)


def best_expected_f1(probabilities: Features, lengths: Int64s) -> Bools:
    """Which paragraphs to keep for the best expected F1, counted in characters."""
    order = np.argsort(-probabilities, kind="stable")
    expected = np.cumsum((probabilities * lengths)[order])
    best = np.argmax(expected / (np.cumsum(lengths[order]) + expected[-1]))
    kept: Bools = probabilities >= probabilities[order[best]]
    return kept


@jit
def _features(  # noqa: PLR0917  (columns)
    lengths: Int64s,
    linked: Int64s,
    marks: Int64s,
    prose: Int64s,
    elements: Int64s,
    parents: Int32s,
) -> Features:
    count = len(lengths)
    characters_in, prose_in = np.zeros(len(parents), np.int64), np.zeros(len(parents), np.int64)
    h1, on_page = count, 0
    for k in range(count):
        characters_in[elements[k]] += lengths[k]
        prose_in[elements[k]] += prose[k]
        on_page |= marks[k]
        if marks[k] & H1:
            h1 = min(h1, k)
    for k in range(len(parents) - 1, 0, -1):
        characters_in[parents[k]] += characters_in[k]
        prose_in[parents[k]] += prose_in[k]
    container, inside = 0, np.zeros(len(parents), np.bool_)
    for k in range(len(parents)):
        if 2 * prose_in[k] >= prose_in[0]:
            container = k
    for k in range(len(parents)):
        inside[k] = k == container or (k > container and inside[parents[k]])
    features = np.zeros((11 + len(MARKED), count))
    before, shares = 0, linked / lengths
    for k in range(count):
        above = max(parents[elements[k]], 0)
        features[0, k] = inside[elements[k]]
        features[1, k] = prose_in[above] / (prose_in[0] + 1)
        features[2, k] = prose_in[max(parents[above], 0)] / (prose_in[0] + 1)
        features[3, k] = shares[k]
        features[4, k] = shares[max(k - AROUND, 0) : k + AROUND + 1].mean()
        features[5, k] = (before + lengths[k] / 2) / characters_in[0]
        features[6, k] = np.log1p(characters_in[above])
        features[7, k] = k > 0 and marks[k - 1] & HEADING > 0
        features[8, k] = k >= h1 if on_page & H1 else 0.5
        features[9, k] = (on_page & ~marks[k] & MAIN) > 0
        features[10, k] = (on_page & ~marks[k] & ARTICLE) > 0
        for row in range(len(MARKED)):
            features[11 + row, k] = (marks[k] & MARKED[row]) > 0
        before += lengths[k]
    return features
