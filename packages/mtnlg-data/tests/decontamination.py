"""Decontamination of a few documents, for the modules that test it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from shards import run_here, stored_rows, write_shard

from mtnlg_data.decontaminate.cut_planning import plan_cuts
from mtnlg_data.decontaminate.matches import Match, sentence_ends
from mtnlg_data.schema import Document
from mtnlg_data.steps.decontaminate import Decontaminate, DecontaminateSettings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_data.engine import Summary

SMALL = DecontaminateSettings(n=4, minimum=2, common=3, window=3, shortest=4, most_splits=3)


def run(
    folder: Path,
    documents: Sequence[str],
    texts: Sequence[tuple[str, str]] | None,
    config: DecontaminateSettings = SMALL,
    shards: int = 2,
) -> tuple[Summary, list[dict[str, Any]]]:
    """The stage's summary and the remaining documents."""
    rows = [Document(f"d{number}", "web", text, "u", "en", score=0.5) for number, text in enumerate(documents)]
    paths = [folder / f"web-{number:05d}.parquet" for number in range(shards)]
    cuts = np.linspace(0, len(rows), shards + 1).astype(int)
    for number, path in enumerate(paths):
        write_shard(path, rows[cuts[number] : cuts[number + 1]])
    file = None
    if texts:
        file = folder / "texts.jsonl"
        rows_of_tasks = enumerate(texts)
        lines = [json.dumps({"task": task, "id": str(n), "text": text}) + "\n" for n, (task, text) in rows_of_tasks]
        file.write_text("".join(lines), encoding="utf-8")
    step = Decontaminate(config.model_copy(update={"texts": file}))
    summary = run_here(step, paths, folder / "out")
    written = [folder / "out" / path.name if texts else path for path in paths]  # without texts they pass unread
    left = stored_rows(written)
    return summary, left


def cut_at(
    text: str, spans: Sequence[tuple[int, int]], window: int, shortest: int
) -> tuple[list[str], list[tuple[int, int]]]:
    """Pieces kept of a text with matches at these spans, and the matches it is cut for."""
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    around = zip(*(column.tolist() for column in sentence_ends(text, starts, ends, window)), strict=True)
    matches = [Match(*span, 0, *of) for span, of in zip(spans, around, strict=True)]
    kept, cuts = plan_cuts(len(text), matches, shortest)
    return [text[start:end] for start, end in kept], [(cut.match.start, cut.match.end) for cut in cuts]
