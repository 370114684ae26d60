# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "charset-normalizer==3.5.3", "resiliparse==2.0.1"]
# ///
"""Pages that declare no encoding: how many each detector decodes to the text that was encoded, and its milliseconds.

    python benchmarks/charsets.py [--pages 30] [--messages /usr/share/locale] [--chart SVG] [--out FILE]

Pages of 16 encodings are made of translated messages that the system has (.mo files), of each length; and, as most of
the web is so, pages of English with a few signs of Windows-1252, which a detector should leave alone. Right is a page
whose text is equal, character by character. ``mtnlg_data`` is ``decode_html``, with all that it does to any page.
"""

from __future__ import annotations

import gettext
import random
import re
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import charset_normalizer
import webencodings
from resiliparse.parse.encoding import detect_encoding

from mtnlg_data.extract.charset import decode_html
from record import picture, run

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

LENGTHS = (200, 500, 1000, 2000, 5000, 20_000)
LANGUAGES = {
    "windows-1250": ["cs", "pl", "hu"],
    "iso-8859-2": ["cs", "pl", "hu"],
    "windows-1251": ["ru", "uk", "bg"],
    "koi8-r": ["ru"],
    "windows-1252": ["de", "fr", "es", "sv"],
    "iso-8859-7": ["el"],
    "windows-1254": ["tr"],
    "windows-1255": ["he"],
    "windows-1256": ["ar", "fa"],
    "windows-1257": ["lt", "lv"],
    "windows-874": ["th"],
    "shift_jis": ["ja"],
    "euc-jp": ["ja"],
    "gbk": ["zh_CN"],
    "big5": ["zh_TW"],
    "euc-kr": ["ko"],
}
SIGNS = bytes.fromhex("a9 ae a3 b0 bd 92 93 94 96 97 95 85 a7 d7 b7 bb ab 99 80 b1 b2 b5 b6").decode("cp1252")
#: Names of Python and of uchardet that the web does not know.
NAMES = {
    "big5hkscs": "big5",
    "cp874": "windows-874",
    "cp932": "shift_jis",
    "cp949": "euc-kr",
    "euc-jis-2004": "euc-jp",
    "gb18030": "gbk",
    "shift-jis-2004": "shift_jis",
    "uhc": "euc-kr",
}
MESSAGE = re.compile(r"[^%<{\\]{30,}")


@cache
def messages(folder: Path, language: str) -> Sequence[str]:
    """Return the messages of a language that are prose, white space collapsed."""
    texts: dict[str, None] = {}
    for path in sorted((folder / language / "LC_MESSAGES").glob("*.mo")):
        catalog: dict[object, object] = {}
        with path.open("rb") as file, suppress(UnicodeDecodeError):  # of other encodings than it says
            catalog = vars(gettext.GNUTranslations(file))["_catalog"]
        for source, message in catalog.items():
            if source and isinstance(message, str) and message != source and MESSAGE.fullmatch(message):
                text = " ".join(message.split())
                if sum(c.isalpha() or c == " " for c in text) > 0.85 * len(text):
                    texts[text] = None
    return sorted(texts)


def codec(label: str) -> str:
    """Return Python's codec for an encoding of the web, a superset where the web reads one."""
    encoding = webencodings.lookup(NAMES.get(label, label))
    name = "" if encoding is None else str(encoding.codec_info.name)
    return "gb18030" if name == "gbk" else name


def page(folder: Path, encoding: str, number: int, length: int) -> bytes:
    """Return page ``number`` of so many characters of text in an encoding."""
    rng = random.Random(f"{encoding} {number} {length}")
    languages = LANGUAGES[encoding]
    texts, parts = messages(folder, languages[number % len(languages)]), [""]
    while sum(map(len, parts)) < length:
        text = rng.choice(texts)
        parts.append(text if text == text.encode(codec(encoding), "ignore").decode(codec(encoding)) else "")
    return html(" ".join(parts)[:length]).encode(codec(encoding))


def western_page(folder: Path, sign: str, number: int, length: int) -> bytes:
    """Return English with one, three or eight words that end in a sign."""
    rng = random.Random(f"{sign} {number} {length}")
    texts, words = messages(folder, "en_GB"), [""]
    while sum(map(len, words)) < length:
        words += rng.choice(texts).encode("ascii", "ignore").decode().split()
    for place in rng.choices(range(len(words)), k=(1, 3, 8)[number % 3]):
        words[place] += sign
    return html(" ".join(words)).encode("cp1252")


def html(text: str) -> str:
    """Return a page without a declaration."""
    head = f"<!DOCTYPE html><html><head><title>{text[:30]}</title><style>body {{ margin: 0 }}</style></head>"
    return f'{head}<body><div class="main"><h1>{text[:30]}</h1>\n<p>{text}</p></div></body></html>'


def named(page: bytes, name: str | None) -> str:
    """Decode by the name that a detector gives; in Windows-1252 where it gives none of the web."""
    return page.decode(codec((name or "").lower().replace("_", "-")) or "cp1252", "replace")


def by_charset_normalizer(page: bytes) -> str:
    """Decode by charset-normalizer."""
    best = charset_normalizer.from_bytes(page).best()
    return named(page, best.encoding if best else None)


DETECTORS: dict[str, Callable[[bytes], str]] = {
    "mtnlg_data": lambda page: decode_html(page, None),
    "resiliparse": lambda page: named(page, detect_encoding(page, html5_compatible=False)),
    "charset-normalizer": by_charset_normalizer,
}


def compare(pages: dict[str, list[bytes]]) -> dict[str, dict[str, object]]:
    """Return the share of pages that each detector reads right, the wrong ones' by kind, and milliseconds per page."""
    pairs = {kind: [(each, each.decode(codec(kind))) for each in of_kind] for kind, of_kind in pages.items()}
    count, table = sum(map(len, pairs.values())), {}
    for name, detect in DETECTORS.items():
        started = time.process_time()
        wrong = {kind: sum(detect(each) != text for each, text in of_kind) for kind, of_kind in pairs.items()}
        seconds = time.process_time() - started
        table[name] = {
            "right": round(1 - sum(wrong.values()) / count, 4),
            "milliseconds": round(1000 * seconds / count, 3),
            "wrong": {kind: round(number / len(pairs[kind]), 3) for kind, number in wrong.items() if number},
        }
    return table


def western_pages(folder: Path, count: int) -> Iterator[bytes]:
    """Yield pages of English with each sign, of three lengths."""
    for sign in SIGNS:
        for number in range(count):
            yield western_page(folder, sign, number, (300, 3000, 20_000)[number // 3 % 3])


def draw(tables: Collection[dict[str, Any]], path: Path) -> None:
    """Draw the share of pages that each detector reads right, a row per encoding."""
    with picture(path, 6, 3.6) as figure:
        axes = figure.subplots()
        for name, marker in zip(DETECTORS, "ox+", strict=True):
            wrong = [sum(table[name]["wrong"].get(code, 0) for table in tables) / len(tables) for code in LANGUAGES]
            axes.plot([100 * (1 - share) for share in wrong], range(len(wrong)), marker, fillstyle="none", label=name)
        axes.set(yticks=range(len(LANGUAGES)), yticklabels=list(LANGUAGES), xlabel="pages decoded to their text, %")
        axes.tick_params(labelsize=8)
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3)
        axes.legend(loc="lower left", fontsize=8, frameon=False)


def measure(pages: int = 30, messages: Path = Path("/usr/share/locale"), chart: Path | None = None) -> dict[str, Any]:
    """Decode pages of every encoding and length, and English with signs; ``chart`` is an SVG."""
    by_length = {
        length: compare({code: [page(messages, code, n, length) for n in range(pages)] for code in LANGUAGES})
        for length in LENGTHS
    }
    if chart:
        draw(by_length.values(), chart)
    return {
        "by_length": by_length,
        "english_with_signs": compare({"windows-1252": list(western_pages(messages, 9))}),
        "pages": pages,
    }


if __name__ == "__main__":
    run(measure, __doc__)
