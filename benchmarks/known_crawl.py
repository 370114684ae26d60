"""A crawl whose duplicates are known: WARC files of documentation, with exact copies, near copies and templated pages.

    page        frame of its host (head, menu, footer) around main text
    main text   paragraphs of the documentation that is installed here, drawn anew for every original

What page n is follows from (seed, n) alone, so files are made in constant memory:

    original    begins a family of its own
    exact       main text of an earlier family, in the frame of another host
    near        the same with a share of its words replaced
    template    the paragraphs of one template, and some of its own

A copy draws its family log-uniformly over all earlier pages, so family r has copies in proportion to 1 / r (Zipf): of a
million pages, one in 57 is a copy of the first. The truth, each page's family, stands in a table beside each file.
"""

from __future__ import annotations

import html
import random
import re
import sysconfig
import zlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lxml.html
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

CHANGES = (0.005, 0.01, 0.015, 0.02, 0.03, 0.05)  # shares of words: Jaccard similarities of about 0.95 to 0.63
FIRST, TEMPLATE_FAMILY = 0, -1
SHINGLE = 5  # words
HOSTS = 257
MENU = 60  # links of a host's menu
#: The standard library, the packages beside it, and the distribution's HTML.
DOCUMENTATION = (*(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")), Path("/usr/share/doc"))
TRIPLE_QUOTED = re.compile(r'"""(.{100,}?)"""', re.DOTALL)
WORD = re.compile(r"\w+")


def paragraphs(folders: Iterable[Path] = DOCUMENTATION) -> list[str]:
    """Distinct paragraphs of prose of the documentation in these folders: docstrings and HTML."""
    unique: dict[str, None] = {}
    for path in sorted({path for folder in folders for kind in ("*.py", "*.html") for path in folder.rglob(kind)}):
        content = path.read_text(encoding="utf-8", errors="ignore") if path.is_file() else ""
        for text in _html_paragraphs(content) if path.suffix == ".html" else _docstring_paragraphs(content):
            words = text.split()
            prose = len(words) >= 20 and sum(map(str.isalpha, words)) > 0.6 * len(words)
            if prose:
                unique[" ".join(words)] = None
    return list(unique)


def _docstring_paragraphs(code: str) -> Iterator[str]:
    for text in TRIPLE_QUOTED.findall(code):
        yield from re.split(r"\n\s*\n", text)


def _html_paragraphs(page: str) -> Iterator[str]:
    tree = lxml.html.document_fromstring(b"<body>" + page.encode())  # which takes an empty page too
    yield from (paragraph.text_content() for paragraph in tree.iter("p"))


class Page(NamedTuple):
    """What a page is: the truth about it."""

    number: int
    family: int  # the page that is its original, or ``TEMPLATE_FAMILY``
    changed: float  # share of words replaced


class KnownCrawl:
    """The pages of a crawl, by number."""

    def __init__(self, pool: Sequence[str], seed: int = 1) -> None:
        self._pool = [html.escape(text, quote=False).encode() for text in pool]
        self._seed = seed
        self._template = self._draw(TEMPLATE_FAMILY).choices(self._pool, k=12)

    @cached_property
    def _frames(self) -> list[tuple[bytes, bytes]]:
        return [self._frame(host) for host in range(HOSTS)]

    @cached_property
    def _words(self) -> list[bytes]:
        return sorted({word for text in self._pool[:5000] for word in text.split() if word.isalpha()})

    def _draw(self, *names: int) -> random.Random:
        return random.Random(hash((self._seed, *names)))  # of whole numbers: the same in every process

    def page(self, number: int) -> Page:
        """What page ``number`` is."""
        draw = self._draw(number, 0)
        turn = draw.random()
        if number == FIRST or turn < 0.62:
            return Page(number, number, 0.0)
        if turn < 0.65:
            return Page(number, TEMPLATE_FAMILY, 0.0)
        family = int((number + 1) ** draw.random()) - 1
        while family and self._draw(family, 0).random() >= 0.62:
            family -= 1
        return Page(number, family, 0.0 if turn < 0.79 else draw.choice(CHANGES))

    def main(self, page: Page) -> list[bytes]:
        """The main text of a page: paragraphs, escaped for HTML."""
        if page.family == TEMPLATE_FAMILY:
            draw = self._draw(page.number, 1)
            return [*self._template, *draw.choices(self._pool, k=draw.randint(1, 4))]
        draw = self._draw(page.family, 1)
        pieces = draw.choices(self._pool, k=min(60, 5 + int(draw.expovariate(0.12))))
        return self._change(pieces, page) if page.changed else pieces

    def _change(self, pieces: list[bytes], page: Page) -> list[bytes]:
        draw = self._draw(page.number, 2)
        words = b" <p> ".join(pieces).split(b" ")
        places = [place for place, word in enumerate(words) if word.isalpha()]
        for place in draw.sample(places, round(page.changed * len(words)) or 1):
            words[place] = draw.choice(self._words)
        return b" ".join(words).split(b" <p> ")

    def html(self, page: Page) -> bytes:
        """The page itself."""
        before, after = self._frames[self._draw(page.number, 3).randrange(HOSTS)]
        return b"%b<p>%b</p>%b" % (before, b"</p>\n<p>".join(self.main(page)), after)

    def _frame(self, host: int) -> tuple[bytes, bytes]:
        draw = self._draw(host, 4)
        titles = [b" ".join(draw.choice(self._pool).split()[:4]) for _ in range(MENU)]
        links = [b'<li class="menu-item"><a href="/page/%d">%b</a></li>\n' % item for item in enumerate(titles)]
        style = b"".join(b".block-%d { margin: %dpx; color: #%06x }\n" % (n, n, n * host) for n in range(40))
        script = b"".join(b'window.settings["option-%d"] = %d;\n' % (n, n * host) for n in range(40))
        head = b'<meta charset="utf-8"><title>%b</title><style>%b</style><script>%b</script>' % (
            titles[0],
            style,
            script,
        )
        menu = b'<div class="menu"><ul>%b</ul></div>' % b"".join(links[: MENU * 2 // 3])
        before = b'<!DOCTYPE html><html lang="en"><head>%b</head><body>%b<div class="main">' % (head, menu)
        foot = b'</div><div class="footer"><ul>%b</ul>Copyright</div></body></html>' % b"".join(links[MENU * 2 // 3 :])
        return before, foot


def warc_record(page: bytes, number: int, kind: str = "text/html; charset=utf-8") -> bytes:
    """A page as a gzipped WARC record."""
    block = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n\r\n%b" % (kind.encode(), page)
    head = (
        "WARC/1.0\r\nWARC-Type: response\r\nWARC-Date: 2021-01-15T00:00:00Z\r\n"
        f"WARC-Record-ID: <urn:uuid:00000000-0000-4000-8000-{number:012d}>\r\n"
        f"WARC-Target-URI: https://docs.example/{number}\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return packer.compress(b"%b%b\r\n\r\n" % (head.encode(), block)) + packer.flush()


def shingles(text: str) -> set[tuple[str, ...]]:
    """The runs of ``SHINGLE`` words of a text, by a definition independent of the package's hashes."""
    words = WORD.findall(text.lower())
    return set(zip(*(words[start:] for start in range(SHINGLE)), strict=False)) or {tuple(words)}


def jaccard(one: set[Any], other: set[Any]) -> float:
    """Jaccard similarity of two sets."""
    return len(one & other) / len(one | other)


def write_file(folder: Path, crawl: KnownCrawl, number: int, pages: int) -> int:
    """Write file ``number`` of ``pages`` pages and its truth; return the bytes of its HTML."""
    path, table = folder / "crawl" / f"{number:06d}.warc.gz", folder / "truth" / f"{number:06d}.parquet"
    for each in (path, table):
        each.parent.mkdir(parents=True, exist_ok=True)
    families, size = [], 0
    with path.open("wb") as file:
        for page in map(crawl.page, range(number * pages, (number + 1) * pages)):
            body = crawl.html(page)
            file.write(warc_record(body, page.number))
            size += len(body)
            families.append(page.family)
    pq.write_table(pa.table({"family": families}), table)
    return size


def mean_page_bytes(crawl: KnownCrawl) -> float:
    """Mean size of a page, from the first ones."""
    return sum(len(crawl.html(crawl.page(number))) for number in range(300)) / 300
