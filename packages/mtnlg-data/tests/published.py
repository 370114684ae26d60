"""Samples of the published formats with content of our own, in the layout of the folder of real ones.

``write_samples`` makes crawl files (of Common Crawl, of a crawl with addresses in ``<>``, and malformed ones), article
pages, mended and broken texts, near duplicates with their true pairs, and a tokenizer in GPT-2's two files.
"""

from __future__ import annotations

import gzip
import json
import random
from typing import TYPE_CHECKING

from small_corpus import member, page, paragraph, record, text
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

if TYPE_CHECKING:
    from pathlib import Path

GERMAN = "Der alte Hafen wurde für die Menschen der Stadt gebaut, und so ist er auch heute noch ein Teil von ihr. " * 8
BROKEN = [
    "schÃ¶n &amp; gut",
    "itâ€™s “quoted” and ﬁne",
    "a\x00b\x1b[31mc",
    "\uff26\uff35\uff2c\uff2c width",
    "plain text",
    "cafe\u0301 na\u0131ve",
]


def write_samples(folder: Path) -> Path:
    """Write all samples below ``folder``; returns it."""
    for name in ("web/malformed", "extraction/html", "near_duplicates", "gpt2"):
        (folder / name).mkdir(parents=True)
    _write_crawls(folder / "web")
    _write_malformed(folder / "web" / "malformed")
    for number in range(28):
        path = folder / "extraction" / "html" / f"{number:02d}.html.gz"
        path.write_bytes(gzip.compress(_article(number).encode(), mtime=0))
    rows = [{"text": f"{broken} {text(number)}"} for number, broken in enumerate(BROKEN)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "web" / "cc_en_head-0091.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    _write_near_duplicates(folder / "near_duplicates")
    _write_bpe(folder / "gpt2")
    return folder


def _write_crawls(folder: Path) -> None:
    """A crawl with the records that surround each page, one with addresses in ``<>``, and one of a single page."""
    records = [record(b"software: ours\r\n", kind="warcinfo", http="")]
    for number in range(16):
        url = f"https://example.org/{number}"
        body = page(GERMAN if number % 4 == 3 else text(number)).encode()
        http = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nX-Crawler-Content-Length: 9"
        records.append(record(b"", url, kind="request", http="GET / HTTP/1.1\r\nHost: example.org"))
        records.append(record(body, url, http=http))
        records.append(record(b"fetchTimeMs: 9\r\n", url, kind="metadata", http=""))
    (folder / "commoncrawl_16.warc.gz").write_bytes(b"".join(map(member, records)))
    pages = [record(_article(number).encode(), f"<http://example.org/{number}>") for number in range(22)]
    (folder / "dolma-0000.warc.gz").write_bytes(b"".join(map(member, pages)))
    (folder / "whirlwind.warc.gz").write_bytes(member(record(page(text(99)).encode())))


def _write_malformed(folder: Path) -> None:
    """Files of one page: sound, cut, of wrong lengths, compressed in itself; and one without a page."""
    body = page(text(50)).encode()
    http = "HTTP/1.1 200 OK\r\nContent-Type: text/html"
    files = {
        "example.warc.gz": member(record(body)),
        "clipped.warc.gz": member(record(body))[:-40],
        "example-trunc.warc": record(body, length=len(body) + 300) + record(b"", kind="request", http="GET / HTTP/1.1"),
        "example-resource.warc.gz": member(
            record(body, kind="resource", http="").replace(b"application/http; msgtype=resource", b"text/html")
        ),
        "example-bad-non-chunked.warc.gz": member(
            record(gzip.compress(body), http=f"{http}\r\nContent-Encoding: gzip")
        ),
        "example-wrong-chunks.warc.gz": member(record(body, http=f"{http}\r\nContent-Length: 9999")),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _article(number: int) -> str:
    """An article among a menu, teasers, a table, comments and a footer, each at times in unusual markup."""
    rng = random.Random(number)
    parts = [f"<p>{paragraph(rng)} <a href=/{part}>{paragraph(rng)[:30]}</a></p>" for part in range(3)]
    odd = [
        "<p>An unclosed paragraph<p>and another<br><br>after two breaks",
        "<table><tr><td>1<td>2<tr><td colspan=2>of the total</table>",
        "<select><option>one<option>two</select><textarea>not <b>bold</textarea>",
        f"<blockquote>{paragraph(rng)}<div>in a div</blockquote>",
        "<script>var a = '</p>';</script><style>p { }</style><noscript>Turn it on.</noscript>",
        f"<pre>{paragraph(rng)}\n  indented</pre><h2>A heading</h2><h3>And one below</h3>",
        "<ul>" + "".join(f"<li><a href=/{word}>{word}</a>" for word in ("one", "two", "three")) + "</ul>",
    ]
    body = "\n".join([f"<h1>Of number {number}</h1>", *parts, odd[number % 7], *parts[:1], odd[(number + 3) % 7]])
    head = f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{number}</title></head>"
    return f"{head}<body><nav><a href=/>Home</a> | <a href=/a>About</a></nav>{body}<footer>&copy; 2020</footer></body>"


def _write_near_duplicates(folder: Path) -> None:
    """A hundred articles; of every tenth a copy with few words changed stands among them, and is a true pair."""
    rng, lines, pairs = random.Random(1), [], []
    for number in range(100):
        words = [f"w{rng.randrange(5000)}" for _ in range(400)]
        lines.append(f"t{number} {' '.join(words)}")
        if number % 10 == 0:
            words[rng.randrange(400)] = "changed"
            lines.append(f"t{number + 1000} {' '.join(words)}")
            pairs.append(f"t{number} t{number + 1000}")
    rng.shuffle(lines)
    (folder / "articles_1000.train").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "articles_1000.truth").write_text("\n".join(pairs) + "\n", encoding="utf-8")


def _write_bpe(folder: Path) -> None:
    """GPT-2's two files: the ids of tokens, the end token last, and the merges after a line with their version."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(vocab_size=400, initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator([text(number) for number in range(9)], trainer)
    vocabulary, merges = tokenizer.model.save(str(folder))
    ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    ids["<|endoftext|>"] = len(ids)
    (folder / "encoder.json").write_text(json.dumps(ids), encoding="utf-8")
    (folder / "merges.txt").rename(folder / "vocab.bpe")
    (folder / "vocab.json").unlink()
    assert (vocabulary, merges) == (str(folder / "vocab.json"), str(folder / "merges.txt"))
