# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data"]
# ///
"""What share of ordinary prose the published rules keep, by language: the same texts in 36 languages.

    python benchmarks/filter_languages.py HELP [--catalogs /usr/share/locale] [--pages 300] [--out FILE] [--chart SVG]

HELP is the help of LibreOffice as Debian's packages libreoffice-help-* install it, usr/share/libreoffice/help: a
folder per language, of pages with equal names (MPL-2.0, not kept here). A document is a page's paragraphs, one a
line; of pages that every language has, those of 1,500 characters or more in English, where they are translated.

Languages without such help are measured on the messages of GTK 3 as Debian installs them (gtk30-properties.mo,
LGPL-2.1): sentences of at least 40 characters, four a line, five lines a document. They are terse, so German and
Russian are measured on them too. Thresholds are the published ones.
"""

from __future__ import annotations

import gettext
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from lxml import html

from mtnlg_data.extract.language import detect_language
from mtnlg_data.filters.decisions import KEPT, DocumentFilter
from mtnlg_data.filters.settings import FilterSettings
from record import picture, run

FAMILIES = ("gopher_repetition", "gopher_quality", "c4", "fineweb")
PARAGRAPHS = "//div[@id='DisplayArea']//*[self::p or self::h1 or self::h2 or self::h3]"
LEAST = 1500  # characters of a page in English
CATALOG, SENTENCE, ENDS = "gtk30-properties.mo", 40, (".", "!", "?", "\u0964", "\u3002")
CATALOGS = ("ar", "bn", "de", "gu", "hi", "hy", "ml", "mr", "my", "ne", "pa", "ru", "ta", "te", "ug")


def read_page(path: Path) -> str:
    """The different paragraphs of a page, one a line."""
    tree = html.fromstring(path.read_bytes(), parser=html.HTMLParser(encoding="utf-8"))
    lines = (" ".join(element.text_content().split()) for element in tree.xpath(PARAGRAPHS))
    return "\n".join(dict.fromkeys(filter(None, lines)))


def read_catalog(path: Path) -> list[str]:
    """Documents of the different sentences of a message catalog."""
    with path.open("rb") as file:
        catalog = vars(gettext.GNUTranslations(file))["_catalog"]
    messages = [text.strip() for key, text in catalog.items() if isinstance(key, str) and key not in {"", text}]
    sentences = [
        text if text.endswith(ENDS) else f"{text}." for text in dict.fromkeys(messages) if len(text) >= SENTENCE
    ]
    lines = [" ".join(sentences[first : first + 4]) for first in range(0, len(sentences), 4)]
    return ["\n".join(lines[first : first + 5]) for first in range(0, len(lines) - 4, 5)]


def choose_pages(folder: Path, languages: list[str], count: int) -> list[str]:
    """Names of pages that every language has, spread over all of them."""
    names = [
        {page.relative_to(folder / language) for page in (folder / language).rglob("*.html")} for language in languages
    ]
    shared = sorted(set.intersection(*names))
    long = [str(name) for name in shared if len(read_page(folder / "en-US" / name)) >= LEAST]
    return long[:: max(1, len(long) // count)][:count]


def compare(texts: list[str], language: str) -> dict[str, Any]:
    """Share kept by each family, and what its rules drop."""
    result = {}
    for family in FAMILIES:
        chosen = DocumentFilter([family], FilterSettings())
        reasons = chosen.decide(
            pa.array(texts, pa.large_string()), [None] * len(texts), [language] * len(texts)
        ).reasons.tolist()
        dropped = Counter(chosen.reasons[reason] for reason in reasons if reason != KEPT)
        result[family] = {"kept": 1 - dropped.total() / len(texts), "dropped": dict(dropped.most_common())}
    return result


def measure(
    help_folder: Path, catalogs: Path = Path("/usr/share/locale"), pages: int = 300, chart: Path | None = None
) -> dict[str, Any]:
    """Filter the same pages in every language, and catalogs of those that have none; ``chart`` is an SVG."""
    languages = sorted(path.name for path in help_folder.iterdir() if (path / "text").is_dir())
    names, corpora = choose_pages(help_folder, languages, pages), {}
    for language in languages:
        texts = [read_page(help_folder / language / page) for page in names]
        code = language.partition("-")[0]
        corpora[language] = [text for text in texts if detect_language(text).code == code]  # others are not translated
    for language in CATALOGS:
        path = catalogs / language / "LC_MESSAGES" / CATALOG
        if path.is_file():
            corpora[f"{language} (messages)"] = read_catalog(path)
    rows = {
        name: {"texts": len(texts)} | compare(texts, name.partition(" ")[0].partition("-")[0])
        for name, texts in corpora.items()
    }
    if chart:
        draw(rows, chart)
    return {"languages": rows}


def draw(rows: dict[str, Any], path: Path) -> None:
    """Draw the share that each family keeps, a row per language."""
    with picture(path, 7, 0.19 * len(rows) + 1) as figure:
        axes = figure.subplots()
        for family, marker in zip(FAMILIES, "osD^", strict=True):
            kept = [100 * row[family]["kept"] for row in rows.values()]
            axes.plot(kept, range(len(rows)), marker, markersize=4, label=family)
        axes.set(yticks=range(len(rows)), yticklabels=list(rows), xlabel="documents kept, %", xlim=(0, 102))
        axes.tick_params(labelsize=8)
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3)
        axes.legend(loc="lower left", fontsize=8, frameon=False)


if __name__ == "__main__":
    run(measure, __doc__)
