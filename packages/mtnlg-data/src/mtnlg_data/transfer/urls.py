"""URLs of fsspec (s3://, gs://, az://, hf://, https://, file://): their file systems, and what their drivers raise.

A string from the command line or a recipe is parsed once (``location``, ``FilePath``), to a ``Url`` or a path of this
machine. Credentials come from where a driver looks for them (environment, profile, the machine's role), never from a
URL, since URLs are printed and recorded.
"""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from typing_extensions import TypeAliasType

from mtnlg_data.console import Failure, IoFailure, UsageFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    T = TypeVar("T")

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://.+", re.DOTALL)
USER_AND_PASSWORD = re.compile(r"[^:]+://[^/@]*:[^/]*@")
#: URL scheme → the extra of this package that installs its driver.
EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "az"),
    **dict.fromkeys(("http", "https"), "http"),
    "hf": "hf",
}
#: Errors of drivers that mean the same as ``FileNotFoundError`` and ``PermissionError`` but are not subclasses of them.
NOT_THERE = {"ResourceNotFoundError"}
DENIED = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "DefaultCredentialsError",
    "ClientAuthenticationError",
    "GatedRepoError",
}
DENIED_STATUSES, GONE_STATUSES = {401, 403}, {404, 410}
STATUS_KEYS = ("status", "status_code", "code")  # of aiohttp, Azure, gcsfs
for _library in ("gcsfs", "stamina"):  # else they print what they raise, and what they repeat
    logging.getLogger(_library).addHandler(logging.NullHandler())
MAX_ATTEMPTS, MAX_WAIT_SECONDS = 6, 60.0
NOTHING = "no such file, folder or bucket"
LONGEST_REASON = 200  # characters


class Url(str):
    """A URL, with the operations of a path that both kinds of ``Location`` share."""

    __slots__ = ()

    def __truediv__(self, below: str | Path) -> Url:
        """The URL of ``below`` in this folder."""
        return Url("/".join([self.rstrip("/"), *PurePosixPath(below).parts]))

    @property
    def name(self) -> str:
        """The last part."""
        return self.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> Url:
        """The folder that it is in."""
        return Url(self.rstrip("/").rpartition("/")[0])

    def with_name(self, name: str) -> Url:
        """The URL of this name in the same folder."""
        return self.parent / name


Location = TypeAliasType("Location", Path | Url)  # help shows its name


class _PathOrUrl:
    """Annotates the type of a setting so that a URL is kept as a ``Url``."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        """Let pydantic parse everything except URLs."""
        from pydantic_core import core_schema  # noqa: PLC0415  (which --help does not wait for)

        def read(given: Any, read_path: Callable[[Any], Path]) -> Location:  # noqa: ANN401
            return Url(given) if isinstance(given, str) and URL.fullmatch(given) else read_path(given)

        text = core_schema.to_string_ser_schema()
        return core_schema.no_info_wrap_validator_function(read, handler(source), serialization=text)


#: A setting that names a file: in a recipe a path or a URL; in a step that reads it a path of this machine, to which
#: ``Step.localize`` has copied the file.
FilePath = Annotated[Path, _PathOrUrl()]


def location(place: str | Path) -> Location:
    """Parse a string as a URL or a path."""
    return Url(place) if isinstance(place, str) and URL.fullmatch(place) else Path(place)


def located(given: str | Path, folder: Location) -> Location:
    """Parse a string as a URL or a path; a relative path starts at ``folder``."""
    place = location(given)
    return place if isinstance(place, Url) or place.is_absolute() else folder / place


def local_only(given: str | Path) -> Path:
    """A path of this machine. Raises ``UsageFailure`` for a URL, where only files of this machine can be read."""
    place = location(given)
    if isinstance(place, Url):
        raise UsageFailure(f"{place}: only a local copy is read here: mtnlg-data fetch {place} --out FOLDER")
    return place


def connect(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it.

    Raises ``UsageFailure`` for an unknown scheme, a driver that is not installed, and credentials in the URL.
    """
    scheme = url.partition("://")[0]
    _check_no_secrets(url, scheme)
    from fsspec.core import url_to_fs  # noqa: PLC0415  (only who gives a URL waits for fsspec)
    from fsspec.registry import known_implementations, registry  # noqa: PLC0415

    if scheme not in {*known_implementations, *registry}:
        near = get_close_matches(scheme, [*EXTRAS, "file"], n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}://? " if near else ""
        raise UsageFailure(f"{url}: unknown scheme {scheme!r}; {hint}such as s3, gs, az, hf, https")
    try:
        system, path = url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        extra = EXTRAS.get(scheme)
        way_out = f"pip install 'mtnlg-data[{extra}]'" if extra else first_line(error)
        raise UsageFailure(f"{url}: its driver is not installed: {way_out}") from None
    except Exception as error:  # noqa: BLE001  (drivers raise anything, for instance for want of credentials)
        raise Failure(f"{url}: {_reason(error)}") from None
    if EXTRAS.get(scheme) == "s3":
        system.retries = 1  # botocore repeats requests, and so do we; s3fs would multiply the time until we give up
    return system, str(path)


def _check_no_secrets(url: str, scheme: str) -> None:
    """Raise ``UsageFailure`` for a URL with a password or a signature, without repeating it."""
    if USER_AND_PASSWORD.match(url):
        what = "a password"
    elif scheme in {"http", "https"} and "?" in url:
        what = "a query, which may be a signature,"
    else:
        return
    raise UsageFailure(
        f"{scheme}://…: {what} in a URL would be printed and recorded; "
        "give credentials as the driver takes them: environment, profile, or role of the machine"
    )


class TransientError(Exception):
    """A failed attempt that may succeed when repeated."""


@contextmanager
def driver_errors(url: str) -> Iterator[None]:
    """Convert errors of a driver to ``TransientError``, or to ``Failure`` if another attempt would fail too."""
    try:
        yield
    except (Failure, TransientError):
        raise
    except Exception as raised:  # noqa: BLE001  (drivers raise anything)
        cause = raised.__cause__  # fsspec's HTTP driver takes any failure to look a file up for one that is not there
        is_http = isinstance(cause, TimeoutError) or type(cause).__module__.startswith("aiohttp")
        error = cause if cause is not None and isinstance(raised, FileNotFoundError) and is_http else raised
        if isinstance(error, FileNotFoundError) or type(error).__name__ in NOT_THERE or _status(error) in GONE_STATUSES:
            raise Failure(f"{url}: {NOTHING}") from None
        if isinstance(error, (ValueError, TypeError, NotImplementedError)):
            raise Failure(f"{url}: {_reason(error)}") from error
        if _is_denied(error):
            raise Failure(
                f"{url}: access denied: {first_line(error)}; "
                "credentials come from the environment, the profile or the role of the machine"
            ) from None
        raise TransientError(_reason(error)) from error


def persist(action: Callable[[], T], url: str) -> T:
    """Return the result of an action on a URL, retrying transient errors. Raises ``Failure`` if it never succeeds."""
    import stamina  # noqa: PLC0415  (only who gives a URL waits for it)

    try:
        attempts = stamina.retry_context(TransientError, attempts=MAX_ATTEMPTS, timeout=None, wait_max=MAX_WAIT_SECONDS)
        for attempt in attempts:
            with attempt, driver_errors(url):
                return action()
    except TransientError as error:
        raise IoFailure(f"{url}: {error}, {MAX_ATTEMPTS} times; run the same command again") from error
    raise AssertionError


def _status(error: BaseException) -> object:
    """The HTTP status in a driver's error."""
    return next((status for key in STATUS_KEYS if (status := getattr(error, key, None)) is not None), None)


def _is_denied(error: BaseException) -> bool:
    by_gcsfs = type(error) is OSError and str(error).startswith("Forbidden: ")
    named = isinstance(error, PermissionError) or type(error).__name__ in DENIED
    return by_gcsfs or named or _status(error) in DENIED_STATUSES


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the beginning of a long one."""
    return str(error).partition("\n")[0][:LONGEST_REASON]
