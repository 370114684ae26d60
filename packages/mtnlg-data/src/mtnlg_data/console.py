"""Shared behavior of all commands: exit status, one-line errors, progress, JSON output.

A failed command prints one line on stderr and exits with status 2 if the command line or the recipe is wrong, 74 if a
disk or a network file system failed (full, I/O error), else 1. ``--debug`` adds the traceback. ``mtnlg_data`` and
``mtnlg_model`` must not import one another, so each has a copy of this file; a test keeps the copies byte-equal.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INTERRUPTED = 130
SECONDS_BETWEEN_LINES = 10.0


class Failure(Exception):  # noqa: N818  (a message for a person, seldom a bug)
    """Ends the command with this one line and exit status 1. The message names the value, the place and the way out."""

    exit_status = 1


class UsageFailure(Failure):
    """The command line or a recipe is wrong. Exit status 2; nothing was started."""

    exit_status = 2


class IoFailure(Failure):
    """A disk is full or a file system fails: the same command may work later. Exit status 74, sysexits.h's EX_IOERR."""

    exit_status = 74


MISTAKES = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
"""Kinds of ``OSError`` that the same command meets again: a wrong path, or no permission."""


@dataclass
class _Flags:
    debug: bool = False
    quiet: bool = False


_flags = _Flags()


def application(package: str, summary: str) -> typer.Typer:
    """A typer application with the shared options: --version, --debug, --quiet."""
    app = typer.Typer(
        name=package,
        help=summary,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def _shared(
        _version: Annotated[
            bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
        ] = False,
        _debug: Annotated[bool, typer.Option("--debug", help="Show the traceback on failure.")] = False,
        _quiet: Annotated[bool, typer.Option("--quiet", help="Print errors and results only.")] = False,
    ) -> None:
        pass

    return app


def _show_version(context: typer.Context, requested: bool) -> None:
    if requested:
        package = str(context.find_root().info_name)
        typer.echo(f"{package} {version(package)}")
        raise typer.Exit


def run(app: typer.Typer) -> NoReturn:
    """Run the application on ``sys.argv`` and exit with its status. --debug and --quiet are accepted anywhere."""
    arguments = sys.argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    _flags.debug, _flags.quiet = "--debug" in arguments[:end], "--quiet" in arguments[:end]
    arguments = [a for a in arguments[:end] if a not in {"--debug", "--quiet"}] + arguments[end:]
    sys.exit(_exit_status(lambda: app(args=arguments, prog_name=app.info.name)))


def _exit_status(command: Callable[[], object]) -> int:
    """Run ``command``, report its failure in one line, and return the exit status."""
    name = sys.argv[0].rsplit("/", 1)[-1]
    try:
        command()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if status == INTERRUPTED:  # typer's status for Ctrl-C
            sys.stderr.write(f"{name}: interrupted; run the same command again to continue\n")
        return status
    except Exception as error:  # noqa: BLE001  (the outermost level: report one line)
        if _flags.debug:
            traceback.print_exc()
        sys.stderr.write(f"{name}: {_escape_controls(error_line(error))}\n")
        return error_status(error)
    return 0


def error_status(error: Exception) -> int:
    """The exit status of a command that this error ends."""
    if isinstance(error, OSError) and error.errno and not isinstance(error, MISTAKES):
        return IoFailure.exit_status
    return getattr(error, "exit_status", 1)


def error_line(error: Exception) -> str:
    """The line that a command prints for the error that ends it."""
    if hasattr(error, "exit_status"):  # a Failure of either copy of this module
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"internal error: {type(error).__name__}: {error} (--debug shows where)"


def _escape_controls(text: str) -> str:
    """Escape terminal control characters, which may come from an untrusted file."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def say(message: str) -> None:
    """Print one line on stderr, unless --quiet."""
    if not _flags.quiet:
        Console(stderr=True, highlight=False, soft_wrap=True).print(message, markup=False)


def print_json(value: Any) -> None:  # noqa: ANN401  (any JSON value)
    """Print a value as JSON on stdout, for ``--json``."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


class Advance(Protocol):
    """Callback of `progress`: ``n`` more units are done; ``note``, such as a loss, is shown beside the rate."""

    def __call__(self, n: int, note: str = "") -> None:
        """Report ``n`` more units done."""


@contextmanager
def progress(label: str, total: int, unit: str = "") -> Iterator[Advance]:
    """Show units done, rate and time left: a bar on a terminal, else a plain line every ten seconds."""
    if _flags.quiet:
        yield _silent
    elif sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
        times = (TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
        with Progress(*columns, TextColumn("{task.fields[rate]}"), *times, console=Console(stderr=True)) as bars:
            task = bars.add_task(label, total=total, note="", rate="")
            started = time.monotonic()

            def advance(n: int, note: str = "") -> None:
                rate = (bars.tasks[task].completed + n) / max(1e-9, time.monotonic() - started)
                bars.update(task, advance=n, note=note, rate=f"{rate:.1f}/s")

            yield advance
    else:
        yield _plain_lines(label, total, unit)


def _silent(n: int, note: str = "") -> None:
    del n, note


def _plain_lines(label: str, total: int, unit: str) -> Advance:
    """A line every ten seconds and one at the end; none at all if the end comes before the first line is due."""
    started = last_line = time.monotonic()
    done = 0

    def advance(n: int, note: str = "") -> None:
        nonlocal done, last_line
        done += n
        now = time.monotonic()
        if now - last_line >= SECONDS_BETWEEN_LINES or (done >= total and last_line > started):
            last_line = now
            rate = done / (now - started)
            left = (total - done) / rate if rate else 0.0
            say(f"{label}: {done}/{total} {unit} {rate:.1f}/s, {left:.0f} s left {note}".rstrip())

    return advance
