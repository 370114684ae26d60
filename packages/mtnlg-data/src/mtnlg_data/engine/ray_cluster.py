"""The Ray engine: workers of a Ray cluster, over a folder that all machines share.

Anyone who can connect to a Ray cluster can run code on it, and its answers are unpickled here. So a cluster is joined
only if its address is given, never because it happens to run. Without an address Ray is started on this machine: on
loopback alone, with its sockets, logs and token in a private folder of this user (decision 0031).

Ray carries tasks to workers and summaries back; documents go through the shared folder. Data that all tasks of a call
share is in Ray's object store once. Tasks are submitted as workers become free, two for each CPU that the cluster has
at the time, so machines that join get work, and an autoscaler sees that there is work. A task whose worker or machine
dies is run again elsewhere, which is safe: tasks write temporary files and rename them.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import os
import secrets
import time
from contextlib import ExitStack
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from mtnlg_data.console import Failure, UsageFailure, say
from mtnlg_data.transfer.urls import first_line

from .local import ONE_THREAD, TASKS_PER_WORKER
from .tasks import run_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .tasks import Summary, Task

OBJECT_STORE_BYTES = 100_000_000  # Ray's minimum is 75 MiB; only tasks and summaries pass through it
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # send nothing anywhere
    "RAY_task_oom_retries": "3",  # Ray's default is to retry for ever
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # report the first error, as with any engine
}
PACKAGE = Path(__file__).parents[1]
SECONDS_BETWEEN_LOOKS = 5.0  # between queries for the machines of the cluster
RETRIES = 3  # of a task whose worker or machine died; machines that are taken away with notice do not count
TOKEN = secrets.token_hex(32)  # one per process, since Ray remembers the first that it reads


class Ray:
    """An engine on the cluster at ``address``, else at RAY_ADDRESS, or else on one started here with ``workers`` CPUs.

    On a joined cluster, ``workers`` limits the number of tasks at a time; None uses all machines. Raises
    ``UsageFailure`` for the address "auto", by which Ray would join whatever cluster it finds, and ``Failure`` if no
    cluster answers.
    """

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
        self._is_own = not address
        self._most = workers if address else None
        self._run = self._ray.remote(_run_on_machine)
        self._next_look = 0.0
        self._announced: set[int] = set()

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        self._ray.shutdown()
        self._private.close()

    def imap(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Summary]]:
        """Yield tasks as they finish. Raises ``Failure`` where the workers of a task keep dying."""
        waiting = iter(tasks)
        shared = self._ray.put((Path.cwd(), _package_digest()))
        running: dict[Any, Task] = {}
        try:
            while True:
                free = self._most_at_a_time() - len(running)
                running.update((self._submit(shared, task), task) for task in islice(waiting, max(0, free)))
                if not running:
                    return
                for reference in self._finished(list(running)):
                    task = running.pop(reference)
                    yield task, self._result(reference, task)
        finally:
            for reference in running:
                self._ray.cancel(reference)

    def _most_at_a_time(self) -> int:
        """Limit on submitted tasks: more than the cluster can run at once, so that no worker waits."""
        if time.monotonic() >= self._next_look:
            machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            self._cpus = int(sum(machine.get("CPU", 0) for machine in machines))
            self._largest_memory = int(max((machine.get("memory", 0) for machine in machines), default=0))
            self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
        return self._most or TASKS_PER_WORKER * max(1, self._cpus)

    def _submit(self, shared: Any, task: Task) -> Any:  # noqa: ANN401  (ray.ObjectRef)
        memory = task.memory
        if memory > self._largest_memory:
            if self._is_own:  # no other machine will come
                memory = self._largest_memory
            elif memory not in self._announced:
                say(f"{task.output}: needs a machine with {memory / 1e9:.1f} GB; no machine of the cluster has that")
                self._announced.add(memory)
        return self._run.options(num_cpus=1, memory=memory, max_retries=RETRIES).remote(shared, task)

    def _finished(self, running: list[Any]) -> list[Any]:
        """All finished tasks; if none has finished, the first to finish before the machines are queried again."""
        done, _ = self._ray.wait(running, num_returns=len(running), timeout=0)
        return done or self._ray.wait(running, timeout=SECONDS_BETWEEN_LOOKS)[0]  # type: ignore[no-any-return]

    def _result(self, reference: Any, task: Task) -> Summary:  # noqa: ANN401  (ray.ObjectRef)
        errors = self._ray.exceptions
        try:
            return cast("Summary", self._ray.get(reference))
        except errors.RayTaskError as error:
            if not isinstance(error.cause, errors.RayError):
                raise error.cause from None
            raise Failure(f"{task.output}: {first_line(error.cause)}") from None
        except errors.RayError as error:
            raise Failure(f"{task.output}: its worker died repeatedly: {first_line(error)}") from None


def _join(address: str, options: dict[str, Any]) -> Any:  # noqa: ANN401  (the module ray)
    """Join a cluster; Ray looks for its token in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH and ~/.ray/auth_token."""
    ray = _import()
    try:
        ray.init(address, **options)
    except (ConnectionError, ValueError, ray.exceptions.RayError) as error:
        line = first_line(error)
        raise Failure(f"--ray {address}: {line}; check the address and Ray's token") from None
    return ray


def _import() -> Any:  # noqa: ANN401  (the module ray)
    """Import Ray, once its settings are in the environment, which it reads only at import."""
    import ray  # noqa: PLC0415

    ray._private.worker._worker_logs_enabled = False  # noqa: SLF001  (it prints of workers that died on stdout)
    return ray


def _start(private: Path, workers: int | None, options: dict[str, Any]) -> Any:  # noqa: ANN401  (the module ray)
    """Start Ray on this machine for this user alone; ``private`` is a folder of mode 0700."""
    token = private / "token"
    token.touch(0o600)
    token.write_text(TOKEN, encoding="ascii")
    os.environ.pop("RAY_AUTH_TOKEN", None)
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's only switch for loopback, on Linux too
    ray = _import()
    # A folder within the private one, since Ray gives everybody access to its own.
    options |= {"object_store_memory": OBJECT_STORE_BYTES, "_temp_dir": str(private / "ray")}
    ray.init("local", num_cpus=workers, include_dashboard=False, **options)
    node = ray.util.get_node_ip_address()
    if not ipaddress.ip_address(node).is_loopback:
        ray.shutdown()
        raise Failure(f"Ray listens on {node}, not on this machine alone: it was imported before --engine ray began")
    return ray


@cache
def _package_digest() -> str:
    """Digest of this package's code, since the driver's code reads what a worker's code returns."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE)}".encode() + path.read_bytes())
    return digest.hexdigest()


def _run_on_machine(shared: tuple[Path, str], task: Task) -> Summary:
    """Run a task in the driver's working directory, so that its relative paths mean the same files."""
    folder, digest = shared
    machine = os.uname().nodename
    if _package_digest() != digest:
        raise Failure(f"{machine}: has another version of mtnlg-data than the machine that started the run")
    try:
        os.chdir(folder)
    except OSError as error:
        raise Failure(f"{folder}: {error.strerror} on {machine}; Ray needs a folder that all machines share") from None
    return run_task(task)
