"""The Ray engine: workers of a Ray cluster, over a folder that all machines share.

Who can speak to a Ray cluster can run code on it, and what it answers is unpickled here. So a cluster is joined only by
an address that was given, never one that happens to run. Without an address Ray is started on this machine: on loopback
alone, with its sockets and logs in a folder of this user's, and with a token that lies there (decision 0097).

Ray carries units to workers and summaries back; documents go through the folder. A worker that dies with its machine is
replaced and its unit run again, which is safe: a unit writes aside and renames.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from mtnlg_data.console import Failure, UsageFailure

from .local import ONE_THREAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .units import Summary, U

OBJECT_STORE_BYTES = 100_000_000  # Ray's minimum is 75 MiB; only units and summaries pass through it
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # send nothing anywhere
    "RAY_task_oom_retries": "3",  # Ray's default is to retry for ever
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # report the first error, as with any engine
}
TOKEN = secrets.token_hex(32)  # one a process, since Ray remembers the first that it reads


class Ray:
    """An engine on the cluster at ``address``, else at RAY_ADDRESS, or else on one started here with ``workers`` CPUs.

    Raises ``UsageFailure`` for the address "auto", by which Ray would join whatever cluster it finds, and ``Failure``
    where no cluster answers.
    """

    task = (0, 1)

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        address = address or os.environ.get("RAY_ADDRESS")
        if address in {"auto", "local"}:
            raise UsageFailure(f"--ray {address}: no address; give HOST:PORT of your cluster, or leave it out")
        for name, value in RAY_SETTINGS.items():
            os.environ.setdefault(name, value)
        options: dict[str, Any] = {
            "runtime_env": {"env_vars": ONE_THREAD},
            "log_to_driver": False,
            "logging_level": logging.ERROR,
        }
        with ExitStack() as stack:
            if address:
                self._ray = _join(address, options)
            else:
                self._ray = _start(Path(stack.enter_context(TemporaryDirectory())), workers, options)
            self._private = stack.pop_all()
        self.workers = workers or int(self._ray.cluster_resources().get("CPU", 1))
        self._run = self._ray.remote(_run_in_folder)

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        self._ray.shutdown()
        self._private.close()

    def imap(self, function: Callable[[U], Summary], units: Iterable[U]) -> Iterator[tuple[U, Summary]]:
        """Yield units as they finish. Raises ``Failure`` where the workers of a unit keep dying."""
        waiting = iter(units)
        folder = Path.cwd()
        running = {self._run.remote(folder, function, unit): unit for unit in islice(waiting, self.workers)}
        try:
            while running:
                (done,), _ = self._ray.wait(list(running))
                unit = running.pop(done)
                summary = self._result(done, unit)
                running.update({self._run.remote(folder, function, next_): next_ for next_ in islice(waiting, 1)})
                yield unit, summary
        finally:
            for reference in running:
                self._ray.cancel(reference)

    def _result(self, reference: Any, unit: U) -> Summary:  # noqa: ANN401  (ray.ObjectRef)
        errors = self._ray.exceptions
        try:
            return cast("Summary", self._ray.get(reference))
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.RayError as error:
            line = str(error).partition("\n")[0]
            raise Failure(f"{unit.output}: its worker died again and again: {line}") from None


def _join(address: str, options: dict[str, Any]) -> Any:  # noqa: ANN401  (the module ray)
    """Join a cluster; Ray looks for its token in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH and ~/.ray/auth_token."""
    import ray  # noqa: PLC0415  (see _start)

    try:
        ray.init(address, **options)
    except (ConnectionError, ValueError, ray.exceptions.RayError) as error:
        line = str(error).partition("\n")[0]
        raise Failure(f"--ray {address}: {line}; is the address right, and its token where Ray looks for it?") from None
    return ray


def _start(private: Path, workers: int | None, options: dict[str, Any]) -> Any:  # noqa: ANN401  (the module ray)
    """Start Ray on this machine for this user alone; ``private`` is a folder of mode 0700."""
    token = private / "token"
    token.touch(0o600)
    token.write_text(TOKEN, encoding="ascii")
    os.environ.pop("RAY_AUTH_TOKEN", None)
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's only switch for loopback, on Linux too
    import ray  # noqa: PLC0415  (reads the environment when it is imported)

    # A folder within the private one, since Ray opens its own to everybody.
    options |= {"object_store_memory": OBJECT_STORE_BYTES, "_temp_dir": str(private / "ray")}
    ray.init("local", num_cpus=workers, include_dashboard=False, **options)
    node = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    if not ipaddress.ip_address(node).is_loopback:
        ray.shutdown()
        raise Failure(f"Ray listens on {node}, not on this machine alone: it was imported before --engine ray began")
    return ray


def _run_in_folder(folder: Path, function: Callable[[U], Summary], unit: U) -> Summary:
    """Run a unit in the driver's working directory, so that its relative paths mean the same files."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise Failure(f"{folder}: {error.strerror} on {os.uname().nodename}; Ray needs a folder that all see") from None
    return function(unit)
