"""Shared by the benchmarks: command line, conditions of a measurement, rounds, ratios with spread, result file."""

from __future__ import annotations

import gc
import inspect
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from mtnlg_data.schema import Document

NVIDIA_SMI_FIELDS = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "temperature.gpu")


def run(measure: Callable[..., Mapping[str, Any]], doc: str | None, *packages: str) -> None:
    """Run a benchmark as a command: print what ``measure`` returns, with the conditions, and write it to ``--out``.

    ``packages`` are those that only its child processes import, whose versions are recorded too.

    The parameters of ``measure`` are the command line: without a default a path, with one an option of its kind, of
    several values where it is a tuple, a path where it is None.
    """
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    given: list[str] = []
    for word, parameter in inspect.signature(measure).parameters.items():
        default, option = parameter.default, f"--{word.replace('_', '-')}"
        if default is parameter.empty:
            given.append(word)
            parser.add_argument(word, type=Path, nargs="*" if parameter.kind is parameter.VAR_POSITIONAL else 1)
        elif isinstance(default, bool):
            parser.add_argument(option, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(option, type=type(default[0]), nargs="+", default=default)
        else:
            parser.add_argument(option, type=Path if default is None else type(default), default=default)
    parser.add_argument("--out", type=Path)
    options = vars(parser.parse_args())
    out, about = options.pop("out"), conditions()
    paths = [path for word in given for path in options.pop(word)]
    result = dict(measure(*paths, **options))
    about |= {"load_average_after": round(os.getloadavg()[0], 1), "versions": versions(*packages)}
    text = json.dumps({**result, **about}, indent=2) + "\n"
    print(text, end="")
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    if result.get("differ") or result.get("failures"):
        sys.exit(1)


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of these packages, and of all of which this process has imported a module."""
    found = {}
    for name in sorted({*packages, *(module for module in sys.modules if "." not in module)}):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def conditions() -> dict[str, Any]:
    """Return date, Python, cores, and the load before measuring: call it first.

    Processes that a benchmark starts keep what they compile, which is not to be measured.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_average_before": round(os.getloadavg()[0], 1),
    }


def gpu() -> dict[str, Any]:
    """Return the GPU that torch uses, its driver and current clocks, and versions of what compiles for it.

    A package that is not installed, as when sources are imported from the path, has none.
    """
    import torch  # noqa: PLC0415  (most benchmarks do without)

    about: dict[str, Any] = {"device": "cpu", "triton": None} | versions("triton", "mtnlg-parallel")
    if not torch.cuda.is_available():
        return about
    device = torch.cuda.get_device_properties(0)
    about |= {
        "device": device.name,
        "capability": f"{device.major}.{device.minor}",
        "memory_bytes": device.total_memory,
        "multiprocessors": device.multi_processor_count,
        "cuda": torch.version.cuda,
    }
    if shutil.which("nvidia-smi"):
        query = [f"--query-gpu={','.join(NVIDIA_SMI_FIELDS)}", f"--id=GPU-{device.uuid}", "--format=csv,noheader"]
        answer = subprocess.run(["nvidia-smi", *query], capture_output=True, text=True, check=False)  # noqa: S607  (its path differs)
        about |= dict(zip(NVIDIA_SMI_FIELDS, answer.stdout.strip().split(", "), strict=False))
    return about


def time_rounds(
    sides: Mapping[str, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.process_time,
    out: Path | None = None,
) -> dict[str, list[float]]:
    """Return each side's seconds in every round; a round runs all sides, in alternating order.

    The default clock is CPU time, so that other work on the machine costs neither side. What a side writes to ``out``
    is removed: it would fill memory that no other has freed, which takes the kernel longer.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in sorted(sides, reverse=bool(number % 2)):
            started = clock()
            sides[name]()
            seconds[name].append(clock() - started)
            if out:
                shutil.rmtree(out, ignore_errors=True)
    return seconds


def time_on_shard(
    sides: Mapping[str, Callable[[Path, Path], Any]], documents: Sequence[Document], rounds: int, scratch: Path
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Return CPU seconds and results of sides that work on a Parquet file of documents, in/web-00000.parquet.

    They get its path and that of a folder to write into. Before, all run once on a few hundred documents, which imports
    and compiles what the first use needs.
    """
    from mtnlg_data.document import write_documents  # noqa: PLC0415  (most benchmarks do without)

    out, results, seconds = scratch / "out", dict[str, Any](), dict[str, list[float]]()

    def run_side(name: str, shard: Path) -> None:
        results[name] = sides[name](shard, out)

    for folder, part, times in (("small", documents[:600], 1), ("in", documents, rounds)):
        shard = scratch / folder / "web-00000.parquet"
        write_documents(shard, part)
        gc.freeze()  # no side is to look through the corpus and what the others have imported
        seconds = time_rounds({name: partial(run_side, name, shard) for name in sides}, times, cpu_seconds, out)
    return seconds, results


def cpu_seconds() -> float:
    """Return CPU seconds of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def articles(path: Path) -> list[str]:
    """Return the texts of a file of articles, one a line after its id, as articles_1000.train."""
    return [line.partition(" ")[2] for line in path.read_text(encoding="utf-8").splitlines()]


def megabytes_of(texts: Iterable[str]) -> float:
    """Return the size of texts in UTF-8."""
    return sum(len(text.encode(errors="replace")) for text in texts) / 1e6


@contextmanager
def picture(path: Path, width: float, height: float) -> Iterator[Any]:
    """Give an empty figure of matplotlib, and write it as an SVG, of the same bytes each time."""
    import matplotlib as mpl  # noqa: PLC0415  (slow, for pictures alone)
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        yield (figure := Figure((width, height), layout="constrained"))
        figure.savefig(path, metadata={"Date": None})


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> list[float]:
    """Return theirs over ours, round by round."""
    return [their / our for their, our in zip(theirs, ours, strict=True)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, least and most: the form of every ratio."""
    figures = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: round(figure, 5) for name, figure in figures.items()}


def rates(megabytes: float, seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return each side's megabytes per second, by the median of its rounds."""
    return {name: round(megabytes / statistics.median(rounds), 2) for name, rounds in seconds.items()}
