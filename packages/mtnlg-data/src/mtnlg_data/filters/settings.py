"""Thresholds of the rules; the defaults are those of the publications."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  (pydantic reads the annotations)
from typing import Literal

from mtnlg_data.settings import Settings, setting

GOPHER_STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
#: As FineWeb has them. The addresses answered no ping when its authors drew them.
EMAILS = ("email@example.com", "firstname.lastname@example.org")
IPS = ("22.214.171.124", "126.96.36.199", "188.8.131.52", "184.108.40.206", "220.127.116.11", "18.104.22.168")
#: Fields that name files; their rules are in ``lists.py`` in this order.
LIST_FIELDS = ("domain_files", "address_files", "word_files", "soft_word_files", "substring_files", "bad_word_files")


class FilterSettings(Settings):
    """Thresholds of the rules that a source names in its key ``filters``; others have no effect."""

    words: Literal["unicode", "whitespace"] = setting(
        "unicode",
        "What a word is for the rules of Gopher and FineWeb: unicode, runs of letters and digits with the marks inside "
        "them (don't, 3.5), and runs of another mark; whitespace, what stands between white space.",
    )
    stop_words: tuple[str, ...] = setting(
        GOPHER_STOP_WORDS, "Words of which gopher_stop_words wants some; give those of the language of the documents."
    )
    domain_files: tuple[Path, ...] = setting(
        (), "For url_domain: files of blocked domains, one a line (plain or .gz); subdomains of each are blocked too."
    )
    address_files: tuple[Path, ...] = setting((), "For url_address: files of blocked URLs, one a line (plain or .gz).")
    word_files: tuple[Path, ...] = setting((), "For url_word: files of words, one of which in a URL blocks it.")
    soft_word_files: tuple[Path, ...] = setting(
        (), "For url_soft_words: files of words, of which url_soft_words in a URL block it."
    )
    substring_files: tuple[Path, ...] = setting(
        (), "For url_substring: files of character sequences that block a URL wherever they stand in it."
    )
    bad_word_files: tuple[Path, ...] = setting((), "For c4_bad_words: files of words, one of which drops a document.")
    url_soft_words: int = setting(2, "Soft words that block a URL (RefinedWeb: 2).", unit="words", ge=1)
    gopher_duplicate_paragraphs: float = setting(
        0.30, "Most paragraphs that repeat an earlier one (Gopher: 0.30).", unit="share", ge=0, le=1
    )
    gopher_duplicate_paragraph_characters: float = setting(
        0.20, "Most characters in such paragraphs (Gopher: 0.20).", unit="share", ge=0, le=1
    )
    gopher_duplicate_lines: float = setting(
        0.30, "Most lines that repeat an earlier one (Gopher: 0.30).", unit="share", ge=0, le=1
    )
    gopher_duplicate_line_characters: float = setting(
        0.20, "Most characters in such lines (Gopher: 0.20).", unit="share", ge=0, le=1
    )
    gopher_top_2_gram: float = setting(
        0.20, "Most characters in the most frequent 2-gram of words (Gopher: 0.20).", unit="share", ge=0
    )
    gopher_top_3_gram: float = setting(
        0.18, "Most characters in the most frequent 3-gram (Gopher: 0.18).", unit="share", ge=0
    )
    gopher_top_4_gram: float = setting(
        0.16, "Most characters in the most frequent 4-gram (Gopher: 0.16).", unit="share", ge=0
    )
    gopher_duplicate_5_grams: float = setting(
        0.15, "Most characters in repeated 5-grams (Gopher: 0.15).", unit="share", ge=0, le=1
    )
    gopher_duplicate_6_grams: float = setting(
        0.14, "Most characters in repeated 6-grams (Gopher: 0.14).", unit="share", ge=0, le=1
    )
    gopher_duplicate_7_grams: float = setting(
        0.13, "Most characters in repeated 7-grams (Gopher: 0.13).", unit="share", ge=0, le=1
    )
    gopher_duplicate_8_grams: float = setting(
        0.12, "Most characters in repeated 8-grams (Gopher: 0.12).", unit="share", ge=0, le=1
    )
    gopher_duplicate_9_grams: float = setting(
        0.11, "Most characters in repeated 9-grams (Gopher: 0.11).", unit="share", ge=0, le=1
    )
    gopher_duplicate_10_grams: float = setting(
        0.10, "Most characters in repeated 10-grams (Gopher: 0.10).", unit="share", ge=0, le=1
    )
    gopher_fewest_words: int = setting(50, "Fewest words of a document (Gopher: 50).", unit="words", ge=0)
    gopher_most_words: int = setting(100_000, "Most words of a document (Gopher: 100,000).", unit="words", ge=1)
    gopher_shortest_mean_word: float = setting(3.0, "Least mean length of words (Gopher: 3).", unit="characters", ge=0)
    gopher_longest_mean_word: float = setting(
        10.0, "Greatest mean length of words (Gopher: 10).", unit="characters", ge=0
    )
    gopher_hashes: float = setting(0.1, "Most hash signs per word (Gopher: 0.1).", unit="per word", ge=0)
    gopher_ellipses: float = setting(0.1, "Most ellipses per word (Gopher: 0.1).", unit="per word", ge=0)
    gopher_bullet_lines: float = setting(
        0.9, "Most lines that begin with a bullet point (Gopher: 0.9).", unit="share", ge=0, le=1
    )
    gopher_ellipsis_lines: float = setting(
        0.3, "Most lines that end with an ellipsis (Gopher: 0.3).", unit="share", ge=0, le=1
    )
    gopher_alphabetic_words: float = setting(0.8, "Fewest words with a letter (Gopher: 0.8).", unit="share", ge=0, le=1)
    gopher_stop_words: int = setting(2, "Fewest different stop words (Gopher: 2).", unit="words", ge=0)
    c4_longest_word: int = setting(
        1000, "Longest word of a line that is kept (C4's code: 1000).", unit="characters", ge=1
    )
    c4_fewest_words: int = setting(5, "Fewest words of a line that is kept (C4: 5).", unit="words", ge=0)
    c4_fewest_sentences: int = setting(
        3, "Fewest sentences of a document, in the lines that are kept (C4: 3).", unit="sentences", ge=0
    )
    fineweb_line_punctuation: float = setting(
        0.12, "Fewest lines that end with a sentence's punctuation (FineWeb: 0.12).", unit="share", ge=0, le=1
    )
    fineweb_short_lines: float = setting(
        0.67, "Most lines of at most fineweb_short_line characters (FineWeb: 0.67).", unit="share", ge=0, le=1
    )
    fineweb_short_line: int = setting(30, "Length of a short line (FineWeb: 30).", unit="characters", ge=0)
    fineweb_duplicate_line_characters: float = setting(
        0.1, "Most characters in repeated lines (FineWeb's paper: 0.1, its script: 0.01).", unit="share", ge=0, le=1
    )
    fineweb_newlines: float = setting(0.3, "Most line ends per word (FineWeb's script: 0.3).", unit="per word", ge=0)
    pii_email: tuple[str, ...] = setting(
        EMAILS, "What takes the place of e-mail addresses, in turn within a document (FineWeb's two).", min_length=1
    )
    pii_ip: tuple[str, ...] = setting(
        IPS,
        "What takes the place of public IP addresses, in turn (FineWeb's six, which answered no ping).",
        min_length=1,
    )
    pii_phone: tuple[str, ...] = setting(
        ("|||PHONE_NUMBER|||",), "What takes the place of phone numbers, in turn (Dolma's).", min_length=1
    )
    alarm_share: float = setting(
        0.8,
        "Say so where the rules drop a larger share of a source's documents.",
        unit="share",
        keyed=False,
        ge=0,
        le=1,
    )
