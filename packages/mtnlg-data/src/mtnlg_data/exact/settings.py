"""What repeats are searched, and how long they are; the defaults are those of the publications.

documents   equal texts, whatever their white space (Dolma: Soldaini et al. 2024, arXiv 2402.00159)
lines       equal lines, whatever their case and the white space around them (C4: Raffel et al. 2020, JMLR 21/140, by
            the code that made it: tensorflow/datasets, c4_utils.remove_duplicate_text)
substrings  passages of 50 tokens and more that occur twice (Lee et al. 2022, arXiv 2107.06499)
"""

from __future__ import annotations

from typing import Literal

from mtnlg_data.settings import Settings, setting

Kind = Literal["documents", "lines", "substrings"]
TokenUnit = Literal["word", "character"]


class ExactSettings(Settings):
    """Which repeats are removed; of each the copy in the best source stays, there the one of the lowest key's hash."""

    kinds: tuple[Kind, ...] = setting(
        (), "What stays once: documents (equal but for white space), lines (but for case), substrings."
    )
    shortest_line: int = setting(
        30, "Shorter lines may recur (C4 has none of under five words by then).", unit="characters", ge=1
    )
    substring_unit: TokenUnit = setting(
        "word", "Tokens of a substring: runs of letters and digits, and of each mark; or every character but space."
    )
    substring_length: int = setting(50, "Tokens from which on a passage may not recur (Lee et al.: 50).", ge=2)
    shortest: int = setting(
        200, "Documents that have lost lines or substrings, and are shorter now, are dropped.", unit="characters", ge=1
    )
    alarm_share: float = setting(
        0.5, "Say so where a source loses a larger share of its documents.", unit="share", keyed=False, ge=0, le=1
    )
