"""What a recipe names, opened before anything runs: files of the sources, task texts, models, lists, the tokenizer.

A stage may begin hours after its run. So all that the stages will read beside documents is read here once, by what they
read it with: lists in their first lines, all else whole.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from mtnlg_data.console import MISTAKES, Failure, Failures, IoFailure, error_line
from mtnlg_data.decontaminate.ngrams import check_task_texts
from mtnlg_data.filters.lists import check_list
from mtnlg_data.filters.settings import check_rules, list_paths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mtnlg_data.recipe import Recipe
    from mtnlg_data.sources import SourceFile


class Inputs(NamedTuple):
    """What a curation reads: the files of every source, sources in order, and the file of task texts."""

    files: list[SourceFile]
    texts: Path | None


def check_inputs(recipe: Recipe) -> Inputs:
    """Open what the recipe names; returns its files.

    Raises ``Failures`` with a line for each mistake, and at once an ``IoFailure``, which another attempt may not meet.
    """
    mistakes: list[str] = []
    files: list[SourceFile] = []
    texts: Path | None = None
    for name in recipe.sources:
        with _collected(mistakes):
            files += recipe.source_files(name)
    with _collected(mistakes):
        if (texts := recipe.texts_file()) is not None:
            check_task_texts(texts)
    with _collected(mistakes):
        recipe.resolved_extract.check_model()
    with _collected(mistakes):
        recipe.resolved_clean.check_model()
    with _collected(mistakes):
        recipe.resolved_quality.check(recipe.curated)
    for path in list_paths(recipe.filter):
        with _collected(mistakes):
            check_list(recipe.local_file(path))
    with _collected(mistakes):
        check_rules(recipe.filter, recipe.filters.values())
    with _collected(mistakes):
        recipe.resolved_tokenize.check()
    if mistakes:
        raise Failures("\n".join(dict.fromkeys(mistakes)))
    return Inputs(files, texts)


@contextmanager
def _collected(mistakes: list[str]) -> Iterator[None]:
    """Add what is wrong to the mistakes, instead of raising it."""
    try:
        yield
    except IoFailure:
        raise
    except (Failure, *MISTAKES) as error:
        mistakes.append(error_line(error))
