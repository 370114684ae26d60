"""Find the files of a source: those that its patterns match, here or at URLs, named by path below a fixed folder."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from mtnlg_data.console import Failure
from mtnlg_data.transfer.url_files import RemoteFile, fixed_parts, list_files
from mtnlg_data.transfer.urls import Url, located

from .reader import all_readers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from mtnlg_data.transfer.urls import Location

#: Files without rows beside the .arrow of ``datasets.Dataset.save_to_disk``, and what ``map`` has cached there.
DATA_SET = "state.json"
NOT_ROWS = (DATA_SET, "dataset_info.json", "cache-*.arrow")
SPLITS = "dataset_dict.json"  # above the folders of the splits


def is_hidden(name: str) -> bool:
    """Whether a file or one of its folders is hidden, as are the files that a command keeps beside those it fetched."""
    return any(part.startswith(".") for part in name.split("/"))


def name_below(path: Path, base: Path) -> str:
    """The path below ``base`` for the ids of documents; bytes of a file name that are not UTF-8 are escaped."""
    return path.relative_to(base).as_posix().encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def check_regular(path: Path) -> None:
    """Raise ``Failure`` for a path that is no file and would be skipped silently: a folder, pipe or broken symlink."""
    if not path.is_file():
        dead, kind = path.is_symlink() and not path.exists(), "a folder" if path.is_dir() else "a pipe or device"
        raise Failure(f"{path}: {'a broken symlink' if dead else kind}, not a file; remove it from the input")


def kinds_of_files(names: Collection[str]) -> dict[str, str | None]:
    """The kind of reader for each file in a folder, by the patterns of all readers; None if none matches.

    Hidden files and manifests of other files are left out, and so is ``NOT_ROWS`` in the folder of a data set.
    """
    readers = [*reversed(all_readers().items())]  # those of other packages first
    of_arrow = {Path(name).parent for name in names if _matches(name, ["*.arrow"])}
    data_sets = {folder for folder in of_arrow if (folder / DATA_SET).as_posix() in names}
    kinds = {
        name: next((kind for kind, reader in readers if _matches(name, reader.patterns)), None)
        for name in names
        if not (is_hidden(name) or (Path(name).parent in data_sets and _matches(Path(name).name, NOT_ROWS)))
        if not (data_sets and Path(name).name == SPLITS)
    }
    manifests = {f"{name}.json" for name, kind in kinds.items() if kind is not None}
    return {name: kind for name, kind in kinds.items() if name not in manifests}


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name.lower(), pattern) for pattern in patterns)


def matching_files(source: str, patterns: Sequence[str], folder: Location) -> dict[str, Path | RemoteFile]:
    """The files that match, by their path below the pattern's fixed folder; hidden ones only if it names them.

    Raises ``Failure`` for a pattern that matches no file, and for files that would be read twice or share an id.
    """
    files: dict[str, Path | RemoteFile] = {}
    matched: dict[str, tuple[str, str]] = {}  # name and pattern of each file, by where it really is
    for pattern in patterns:
        place = located(pattern, folder)
        if isinstance(place, Url):
            matches: Mapping[str, Path | RemoteFile] = _matches_at(place, source)
        else:
            matches = _matches_here(source, pattern, folder if isinstance(folder, Path) else Path())
        for name, path in matches.items():
            origin = path.url if isinstance(path, RemoteFile) else str(path.resolve())
            first, by = matched.setdefault(origin, (name, pattern))
            if first != name:
                raise Failure(
                    f"{path}: source {source} reads it as {first} by {by} and as {name} by {pattern}; let only one "
                    "of them match it"
                )
            if str(files.setdefault(name, path)) != str(path):
                raise Failure(f"{path}: {files[name]} of source {source} has the same name; rename one of the two")
    return files


def _matches_here(source: str, pattern: str, folder: Path) -> dict[str, Path]:
    """The files on this machine that match a pattern, by name."""
    base, full_pattern = folder.joinpath(*fixed_parts(Path(pattern).parts)), folder / pattern
    if full_pattern.is_dir():
        raise Failure(f"{full_pattern}: a folder (source {source}); give a pattern of its files, such as *.jsonl")
    inner = str(full_pattern.relative_to(base))
    try:
        matches, links = list(base.glob(inner)), _passed_links(base, inner)
    except ValueError as error:
        raise Failure(f"{full_pattern}: not a valid pattern (source {source}): {error}") from None
    if not full_pattern.suffix:  # such as own/**, which matches folders on the way
        matches = [path for path in matches if not path.is_dir()]
    if not is_hidden(inner):
        matches, links = ([p for p in paths if not is_hidden(name_below(p, base))] for paths in (matches, links))
    if links:
        raise Failure(
            f"{links[0]}: a link to a folder, which ** does not follow (source {source}); give it and the folders "
            "beside it in patterns of their own"
        )
    if not matches:
        raise Failure(f"{full_pattern}: no such file (source {source}); paths start at {folder}, --input takes another")
    for path in matches:
        check_regular(path)
    return {name_below(path, base): path for path in matches}


def _matches_at(url: str, source: str) -> dict[str, RemoteFile]:
    """The files at a URL, by name."""
    listed = list_files(url)
    seen = {name: file for name, file in listed.items() if not is_hidden(name) or url.endswith(f"/{name}")}
    if not seen:
        raise Failure(f"{url}: only hidden files there (source {source})")
    return seen


def _passed_links(base: Path, pattern: str) -> list[Path]:
    """Symlinks to folders that a ``**`` of the pattern reaches but does not follow."""
    parts = Path(pattern).parts
    if "**" not in parts:
        return []
    met = "/".join((*parts[: parts.index("**")], "**", "*", ""))
    return [folder for folder in base.glob(met) if folder.is_symlink()]
