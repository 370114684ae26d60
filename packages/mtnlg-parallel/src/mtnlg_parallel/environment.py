"""A process's rank and job, from its launcher's environment variables. No other module reads these variables.

    launcher                  rank, world, local rank, ranks on this node           address and port of the job's store
    torchrun                  RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE           MASTER_ADDR MASTER_PORT
    Kubeflow's PyTorchJob     RANK WORLD_SIZE; one rank per pod                     MASTER_ADDR MASTER_PORT
    ours, local and Slurm     as torchrun                                           MASTER_ADDR MASTER_PORT
    Open MPI                  OMPI_COMM_WORLD_{RANK SIZE LOCAL_RANK LOCAL_SIZE}     the user sets MASTER_ADDR, …_PORT
    MVAPICH                   MV2_COMM_WORLD_{RANK SIZE LOCAL_RANK LOCAL_SIZE}      as Open MPI
    MPICH, Intel MPI          PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS     as Open MPI
    Slurm's srun              SLURM_PROCID SLURM_LOCALID SLURM_STEP_TASKS_PER_NODE  or the step's first node and number

The first row whose rank variable is set applies. A single process of MPI or srun is not a rank: the command then starts
its own ranks. This module imports nothing slow, so that ``--help`` may import it.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from mtnlg_model.console import UsageFailure

if TYPE_CHECKING:
    from collections.abc import Mapping

Launcher = Literal["none", "local", "torchrun", "variables", "mpi", "slurm"]
"""Who started this process. "none": no launcher of ranks; "variables": any that sets torch.distributed's variables."""

OPEN: Final = "open"
"""Default secret of the store if none is set."""

_AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"
_STEP_TASKS: Final = "SLURM_STEP_TASKS_PER_NODE"
_SRUN: Final = "srun sets it"
_SECRET: Final = "MTNLG_SECRET"  # noqa: S105  (the variable's name)


class _Names(NamedTuple):
    """Variable names of a family of launchers, and the hint for a missing one."""

    hint: str
    rank: str
    world: str
    local_rank: str
    local_world: str


_TORCH: Final = _Names("torchrun and Kubeflow set it", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_MPI: Final = (
    _Names("Open MPI sets it", *(f"OMPI_COMM_WORLD_{part}" for part in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))),
    _Names("MVAPICH sets it", *(f"MV2_COMM_WORLD_{part}" for part in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))),
    _Names("mpirun of MPICH and Intel MPI sets it", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


class EnvironmentFailure(UsageFailure):
    """A launcher's variable is missing (``value`` None) or wrong; ``hint`` says who sets it, or what it may be."""

    def __init__(self, variable: str, value: str | None, hint: str) -> None:
        super().__init__(f"{variable} {'is not set' if value is None else f'= {value}'}; {hint}")
        self.variable, self.value, self.hint = variable, value, hint


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A process's place in its job.

    ``restarts``: earlier attempts within this job; ``requeues``: how often Slurm has requeued it. ``job``: Slurm's job
    number; ``first_job``: that of the first job in a chain of jobs that continue each other. ``agent_store``: whether
    the launcher hosts the job's store instead of rank 0. ``parent``: process id of our local launcher.
    """

    launcher: Launcher = "none"
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    address: str = ""
    port: int = 0
    launch_address: str = ""
    agent_store: bool = False
    secret: str = OPEN
    node: str = ""
    job: str = ""
    first_job: str = ""
    restarts: int = 0
    max_restarts: int = 0
    requeues: int = 0
    parent: int = 0

    @property
    def nodes(self) -> int:
        """Number of nodes, or of torchrun's agents."""
        return -(-self.world // self.local_world)

    @property
    def is_restart(self) -> bool:
        """Whether ranks of this job have run before, by the count of torchrun, our Slurm script or Slurm itself."""
        return bool(self.restarts or self.requeues)

    def variables(self) -> dict[str, str]:
        """Environment variables that make a child process this rank."""
        numbers = (self.rank, self.world, self.local_rank, self.local_world)
        variables = {
            **dict(zip(_TORCH[1:], map(str, numbers), strict=True)),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            _AGENT_STORE: str(self.agent_store),
            _SECRET: self.secret,
            "TORCHELASTIC_RESTART_COUNT": str(self.restarts),
        }
        return variables | ({"MTNLG_PARENT": str(self.parent)} if self.parent else {})


def read_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Read a process's place in its job from ``variables``, by default its environment.

    Raises a one-line `EnvironmentFailure` if a launcher's variable is missing, malformed or contradicts another.
    """
    env = os.environ if variables is None else variables
    return _environment(env, _place(env))


def step_nodes() -> int:
    """Number of nodes of the Slurm step that this process runs in."""
    return _number(os.environ, "SLURM_STEP_NUM_NODES", _SRUN, least=1)


def this_node(world: int, local_world: int) -> Environment:
    """The place of the first rank on this node of a Slurm job, for the node's agent, which srun started."""
    env, nodes = os.environ, -(-world // local_world)
    node = _number(env, "SLURM_NODEID", _SRUN, most=nodes - 1)
    here = min(local_world, world - node * local_world)  # an elastic job's last node may have fewer
    ranks = {"rank": node * local_world, "world": world, "local_rank": 0, "local_world": here}
    return replace(_environment(env, {"launcher": "local", **ranks, **_store(env, _SRUN)}), parent=os.getpid())


def _environment(env: Mapping[str, str], place: dict[str, Any]) -> Environment:
    return Environment(
        **place,
        launch_address=env.get("SLURM_LAUNCH_NODE_IPADDR", ""),
        agent_store=env.get(_AGENT_STORE) == "True",
        secret=env.get(_SECRET, OPEN),
        node=env.get("SLURMD_NODENAME") or socket.gethostname(),
        job=env.get("SLURM_JOB_ID", ""),
        first_job=env.get("MTNLG_JOB", ""),
        restarts=_number(env, "TORCHELASTIC_RESTART_COUNT", default=0),
        max_restarts=_number(env, "TORCHELASTIC_MAX_RESTARTS", default=0),
        requeues=_number(env, "SLURM_RESTART_COUNT", default=0),
        parent=_number(env, "MTNLG_PARENT", default=0),
    )


def this_rank() -> Environment:
    """`read_environment` for a process that must be a rank. Raises `EnvironmentFailure` if no launcher started it."""
    environment = read_environment()
    if environment.launcher == "none":
        raise EnvironmentFailure(_TORCH.rank, None, "start the ranks with torchrun, srun or mpirun")
    return environment


def limit_world(world: int) -> bool:
    """Limit the job to the first ``world`` ranks that its launcher started; returns whether this process is one."""
    place = this_rank()
    if place.rank < world:
        os.environ.update(replace(place, world=world, local_world=min(place.local_world, world)).variables())
    return place.rank < world


def _place(env: Mapping[str, str]) -> dict[str, Any]:
    """The rank's numbers and its store's address; empty if no launcher started this process as one of several."""
    if _TORCH.rank in env:
        launcher = "local" if "MTNLG_PARENT" in env else "torchrun" if "TORCHELASTIC_RUN_ID" in env else "variables"
        return {"launcher": launcher, **_ranks(env, _TORCH), **_store(env, _TORCH.hint)}
    is_step = _STEP_TASKS in env or env.get("SLURM_PROCID", "0") != "0"  # a batch script has the number 0 too
    for names in _MPI:
        # srun --mpi=pmi2 sets PMI_RANK but no local rank.
        if names.rank in env and env.get(names.world) != "1" and (names.local_rank in env or not is_step):
            hint = "set it for all ranks, as by mpirun -x"
            return {"launcher": "mpi", **_ranks(env, names), **_store(env, hint)}
    tasks = _tasks(env) if is_step else {"world": 1}
    return {"launcher": "slurm", **tasks, **_store(env, _SRUN)} if tasks["world"] > 1 else {}


def _ranks(env: Mapping[str, str], names: _Names) -> dict[str, int]:
    """Rank numbers from one family's variables. Without torch's local ones: one rank per node, or all on this node."""
    world = _number(env, names.world, names.hint, least=1)
    rank = _number(env, names.rank, most=world - 1)
    several = world if env.get(names.local_rank) == env[names.rank] else 1
    unsaid = several if names is _TORCH else None
    local_world = _number(env, names.local_world, names.hint, unsaid, least=1, most=world)
    alone = 0 if local_world == 1 else None
    local_rank = _number(env, names.local_rank, names.hint, alone, most=local_world - 1)
    return {"rank": rank, "world": world, "local_rank": local_rank, "local_world": local_world}


def _tasks(env: Mapping[str, str]) -> dict[str, int]:
    """Rank numbers from the variables of a Slurm step, whose tasks per node look like ``2(x3),1``."""
    text = env.get(_STEP_TASKS)
    parts = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part, re.ASCII) for part in (text or "").split(",")]
    counts = [count for part in parts if part for count in [int(part[1])] * int(part[2] or 1)]
    if not all(parts):
        raise EnvironmentFailure(_STEP_TASKS, text, _SRUN)
    alike = 0 if len({*counts}) == 1 else None
    node = _number(env, "SLURM_NODEID", _SRUN, alike, most=len(counts) - 1)
    rank = _number(env, "SLURM_PROCID", _SRUN, most=sum(counts) - 1)
    local_rank = _number(env, "SLURM_LOCALID", _SRUN, most=counts[node] - 1)
    return {"rank": rank, "world": sum(counts), "local_rank": local_rank, "local_world": counts[node]}


def _store(env: Mapping[str, str], hint: str) -> dict[str, Any]:
    """Address and port of the rendezvous store; for a Slurm step the first node, and a port by job and step."""
    address, port = env.get("MASTER_ADDR", ""), None
    if hint == _SRUN:
        first = re.sub(r"\[(\d+)[^]]*\]", r"\1", env.get("SLURM_STEP_NODELIST", "")).partition(",")[0]
        address = address or first
        port = 10000 + (100 * _number(env, "SLURM_JOB_ID", hint) + _number(env, "SLURM_STEP_ID", hint)) % 20000
    if not address:
        raise EnvironmentFailure("MASTER_ADDR", env.get("MASTER_ADDR"), f"{hint}; the address of rank 0's machine")
    return {"address": address, "port": _number(env, "MASTER_PORT", hint, port, least=1, most=(1 << 16) - 1)}


def _number(  # noqa: PLR0917  (a number, its bounds, and what to say without one)
    env: Mapping[str, str],
    name: str,
    hint: str = "",
    default: int | None = None,
    least: int = 0,
    most: int = (1 << 63) - 1,
) -> int:
    """Parse a variable as a whole number from ``least`` to ``most``, which follow from the job's other variables."""
    text = env.get(name, "")
    if not text and default is not None:
        return default
    if not text:
        raise EnvironmentFailure(name, None, hint)
    if not text.isdecimal() or not least <= int(text) <= most:
        raise EnvironmentFailure(name, text, f"it is a whole number from {least} to {most} in this job")
    return int(text)
