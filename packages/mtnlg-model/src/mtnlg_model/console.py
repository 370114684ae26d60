"""Shared behavior of all commands: exit status, one-line errors, progress, JSON output, terminals.

Names, texts and errors may come from files of anyone, so nothing is printed but through this module: `printable` keeps
control characters from the terminal and from logs, and `output` parses no markup.

A failed command prints one line on stderr and exits with status 2 if the command line or the recipe is wrong, 74 if a
disk or a network file system failed (full, I/O error), else 1. ``--debug`` adds the traceback. A command whose output
nobody reads exits with 141. ``mtnlg_data`` and ``mtnlg_model`` must not import one another, so each has a copy of this
file; a test keeps the copies byte-equal.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
import traceback
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import ConsoleOptions, RenderableType

INTERRUPTED = 130
NOT_FOR_OTHERS = 0o027  # umask: what a command writes, its group may read and nobody else
SECONDS_BETWEEN_LINES = 10.0
MAY_BE_EMPTY = {"--prompt", "--system"}


class Failure(Exception):  # noqa: N818  (a message for a person, seldom a bug)
    """Ends the command with this one line and exit status 1. The message names the value, the place and the way out."""

    exit_status = 1


class Failures(Failure):
    """Several failures, a line each."""


class UsageFailure(Failure):
    """The command line or a recipe is wrong. Exit status 2; nothing was started."""

    exit_status = 2


class IoFailure(Failure):
    """A disk is full or a file system fails: the same command may work later. Exit status 74, sysexits.h's EX_IOERR."""

    exit_status = 74


MISTAKES = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
"""Classes of ``OSError`` that running the same command again would raise again: a wrong path, no permission."""
MISTAKEN_PATHS = {errno.ENAMETOOLONG, errno.ELOOP}
"""Error numbers of further such errors, which have no exception class of their own."""


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
    _replace_unusable_streams()
    with suppress(AttributeError):  # as stderr's: a locale may lack what names and texts have
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    os.umask(os.umask(NOT_FOR_OTHERS) | NOT_FOR_OTHERS)
    end = [*sys.argv, "--"].index("--")
    options = sys.argv[1:end]
    _flags.debug, _flags.quiet = "--debug" in options, "--quiet" in options
    arguments = [a for a in options if a not in {"--debug", "--quiet"}] + sys.argv[end:]
    status = _exit_status(
        lambda: app(args=_given(arguments) or ["--help"], prog_name=app.info.name, standalone_mode=False)
    )
    _replace_unusable_streams()
    sys.exit(status)


def _replace_unusable_streams() -> None:
    """Discard what is written to stdout or stderr if it is closed, on a full disk, or a pipe without a reader.

    Python would flush the rest again when it exits, fail, and exit with its own status.
    """
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except (AttributeError, OSError):  # None, if it is closed
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115


def _given(arguments: list[str]) -> list[str]:
    """The words of a command line. Raises ``UsageFailure`` for one that is empty, as of a variable that is not set."""
    for before, word in zip(["", *arguments], arguments, strict=False):
        option, equals, value = word.partition("=") if word.startswith("--") else (before, "=", word)
        if equals and not value and option not in MAY_BE_EMPTY:
            raise UsageFailure(f"{option}: the value is empty" if option.startswith("-") else "an argument is empty")
    return arguments


def _exit_status(command: Callable[[], int | None]) -> int:
    """Run ``command``, report its failure in one line, and return the exit status, which may be its result."""
    name = sys.argv[0].rsplit("/", 1)[-1]
    try:
        with foreign_data("internal error"):
            status = command() or 0
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # of click or rich: nobody reads stdout
            return 141  # as of a command that SIGPIPE ends
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception as error:  # noqa: BLE001  (the outermost level: report one line)
        if _flags.debug:
            _write(printable(traceback.format_exc(), keep="\n"))
        status = error_status(error)
        several = status == UsageFailure.exit_status or isinstance(error, Failures)
        lines = "\n" if several else ""  # one for each mistake
        _write(f"{name}: {printable(error_line(error), keep=lines)}\n")
        return status
    if status == INTERRUPTED:  # typer's status for Ctrl-C
        _write(f"{name}: interrupted; run the same command again to continue\n")
    return status


def _write(text: str) -> None:
    """Write to stderr, which may be a log on a full disk: a failed write must not end a command."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def error_status(error: Exception) -> int:
    """The exit status of a command that this error ends."""
    if isinstance(error, OSError) and error.errno not in {None, *MISTAKEN_PATHS} and not isinstance(error, MISTAKES):
        return IoFailure.exit_status
    return int(getattr(error, "exit_status", getattr(error, "exit_code", 1)))


def error_line(error: Exception) -> str:
    """The line that a command prints for the error that ends it."""
    if hasattr(error, "exit_status"):  # a Failure of either copy of this module
        return str(error)
    if hasattr(error, "format_message"):  # the command line is wrong
        return f"{error.format_message().replace('Value error, ', '')} (--help lists the options)"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"internal error: {type(error).__name__}: {error} (--debug shows where)"


@contextmanager
def foreign_data(place: object) -> Iterator[None]:
    """Raise ``Failure``, naming ``place``, for errors that a file may cause beside a reader's own.

    These are nesting too deep for Python, and a panic of a Rust library, which is no ``Exception``.
    """
    try:
        yield
    except RecursionError as error:
        raise Failure(f"{place}: nested too deeply to be read") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise Failure(f"{place}: a library gave up on it: {error}") from error


def printable(text: str, keep: str = "") -> str:
    """The text with every character escaped that is not printable, except those of ``keep``."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def say(message: str) -> None:
    """Print one line on stderr, unless --quiet."""
    if not _flags.quiet:
        _write(f"{printable(message)}\n")


def print_text(text: str) -> None:
    """Write text to stdout: into a file or a pipe as it is, on a terminal without control characters."""
    sys.stdout.write(printable(text, keep="\n\t") if sys.stdout.isatty() else text)
    sys.stdout.flush()


def print_json(value: Any) -> None:  # noqa: ANN401  (any JSON value)
    """Print a value as JSON on stdout, for ``--json``."""
    text = json.dumps(value, indent=2, ensure_ascii=sys.stdout.encoding not in {"utf-8", "UTF-8"})
    print_text("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text) + "\n")


class _Output(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text, keep="\n"), style)


def output(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """A console for tables and lines with names from anywhere: no markup, no emoji codes, no control characters."""
    return _Output(stderr=stderr, soft_wrap=soft_wrap, highlight=False, markup=False, emoji=False)


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
        named, noted = (TextColumn(f"{{task.{part}}}", markup=False) for part in ("description", "fields[note]"))
        columns = (named, BarColumn(), MofNCompleteColumn(), TextColumn(unit), TextColumn("{task.fields[rate]}"))
        times = (TimeElapsedColumn(), TimeRemainingColumn(), noted)
        bars = Progress(*columns, *times, console=output(stderr=True))
        task = bars.add_task(label, total=total, note="", rate="")
        started = time.monotonic()

        def advance(n: int, note: str = "") -> None:
            rate = (bars.tasks[task].completed + n) / max(1e-9, time.monotonic() - started)
            bars.update(task, advance=n, note=note, rate=f"{rate:,.2f}/s")

        bars.start()
        try:
            yield advance
        finally:
            with suppress(OSError):  # the terminal may be gone
                bars.stop()
    else:
        yield _plain_lines(label, total, unit)


def _silent(n: int, note: str = "") -> None:
    del n, note


def _plain_lines(label: str, total: int, unit: str) -> Advance:
    """Print a line every ten seconds and one at the end; none if the end comes before the first line is due."""
    started = last_line = time.monotonic()
    done = 0

    def advance(n: int, note: str = "") -> None:
        nonlocal done, last_line
        done += n
        now = time.monotonic()
        if now - last_line >= SECONDS_BETWEEN_LINES or (done >= total and last_line > started):
            last_line = now
            rate = done / (now - started)
            pace = f", {rate:,.2f}/s, {(total - done) / rate:.0f} s left" if done else ""
            say(f"{label}: {done}/{total} {unit}{pace}; {note}".rstrip("; "))

    return advance
