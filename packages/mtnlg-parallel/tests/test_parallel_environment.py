"""What each launcher's environment says of a rank, and what is said where it says too little or contradicts itself."""

from pathlib import Path
from typing import Any

import pytest
from small_runs import recipe_of

import mtnlg_parallel
from mtnlg_model.console import Failure
from mtnlg_parallel.environment import Environment, EnvironmentFailure, read_environment, this_rank

Variables = dict[str, str]
MASTER = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
PYTORCHJOB = {**MASTER, "RANK": "1", "WORLD_SIZE": "4"}
TORCHRUN = {**PYTORCHJOB, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
TORCHRUN |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
MPI_PARTS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
OPEN_MPI, MVAPICH = (
    {**MASTER, **dict(zip([f"{family}_COMM_WORLD_{part}" for part in MPI_PARTS], "3412", strict=True))}
    for family in ("OMPI", "MV2")
)
MPICH = {**MASTER, "PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
BATCH = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "7"}
STEP = {**BATCH, "SLURM_STEP_ID": "3", "SLURM_STEP_NODELIST": "n[07-09,11],m3", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1"}
SRUN = {**STEP, "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURMD_NODENAME": "n09"}
MPI: dict[str, Any] = {"launcher": "mpi", "rank": 3, "world": 4, "local_rank": 1, "local_world": 2}
TASK: dict[str, Any] = {"launcher": "slurm", "rank": 5, "world": 7, "local_rank": 1, "local_world": 2, "node": "n09"}
NONE = {"launcher": "none", "rank": 0, "world": 1, "local_rank": 0, "local_world": 1, "port": 0}
HAND = {"launcher": "variables", "rank": 1, "world": 4}


@pytest.mark.parametrize(
    ("variables", "fields"),
    [
        ({}, NONE),
        (TORCHRUN, {"launcher": "torchrun", "local_rank": 1, "local_world": 2, "agent_store": True, "restarts": 2}),
        (TORCHRUN | {"TORCHELASTIC_MAX_RESTARTS": "5"}, {"max_restarts": 5, "nodes": 2, "is_restart": True}),
        (PYTORCHJOB, {**HAND, "local_rank": 0, "local_world": 1, "address": "job-master-0", "port": 23456}),
        (PYTORCHJOB | {"LOCAL_RANK": "1"}, {**HAND, "local_rank": 1, "local_world": 4, "nodes": 1}),
        (PYTORCHJOB | {"LOCAL_WORLD_SIZE": "1"}, {**HAND, "local_rank": 0, "local_world": 1, "nodes": 4}),
        (TORCHRUN | {"MTNLG_PARENT": "9", "MTNLG_SECRET": "5e"}, {"launcher": "local", "parent": 9, "secret": "5e"}),
        (TORCHRUN | SRUN | OPEN_MPI, {"launcher": "torchrun", "rank": 1, "job": "77", "port": 23456}),
        (OPEN_MPI, MPI),
        (MVAPICH, MPI),
        (MPICH, MPI),
        (OPEN_MPI | SRUN, MPI),  # srun starts a daemon of mpirun on each node
        (MPICH | {"PMI_RANK": "0", "PMI_SIZE": "1"}, NONE),
        (BATCH, NONE),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": "1"}, NONE),
        (SRUN, {**TASK, "address": "n07", "port": 17703, "agent_store": False, "secret": "open", "job": "77"}),
        (SRUN | {"PMI_RANK": "5", "PMI_SIZE": "7"}, TASK),  # by --mpi=pmi2
        (SRUN | MASTER | {"SLURM_LAUNCH_NODE_IPADDR": "10.1.1.1"}, {"port": 23456, "launch_address": "10.1.1.1"}),
        (SRUN | {"SLURM_RESTART_COUNT": "1", "MTNLG_JOB": "70"}, {"is_restart": True, "first_job": "70"}),
    ],
)
def test_a_launchers_environment_gives(variables: Variables, fields: dict[str, Any]) -> None:
    environment = read_environment(variables)
    assert {name: getattr(environment, name) for name in fields} == fields


def without(variables: Variables, name: str) -> Variables:
    return {key: value for key, value in variables.items() if key != name}


@pytest.mark.parametrize(
    ("variables", "variable", "value"),
    [
        ({"RANK": "0"}, "WORLD_SIZE", None),
        (without(PYTORCHJOB, "MASTER_ADDR"), "MASTER_ADDR", None),
        (without(PYTORCHJOB, "MASTER_PORT"), "MASTER_PORT", None),
        (PYTORCHJOB | {"MASTER_PORT": "65536"}, "MASTER_PORT", "65536"),
        (PYTORCHJOB | {"RANK": "4"}, "RANK", "4"),
        (PYTORCHJOB | {"RANK": "-1"}, "RANK", "-1"),
        (PYTORCHJOB | {"RANK": "one"}, "RANK", "one"),
        (PYTORCHJOB | {"WORLD_SIZE": "0"}, "WORLD_SIZE", "0"),
        (
            PYTORCHJOB | {"LOCAL_RANK": "2"},
            "LOCAL_RANK",
            "2",
        ),  # of several nodes, of unsaid sizes
        (PYTORCHJOB | {"LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK", None),
        (TORCHRUN | {"LOCAL_RANK": "2"}, "LOCAL_RANK", "2"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "5"}, "LOCAL_WORLD_SIZE", "5"),
        (TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "x"}, "TORCHELASTIC_RESTART_COUNT", "x"),
        (without(OPEN_MPI, "MASTER_ADDR"), "MASTER_ADDR", None),
        (without(OPEN_MPI, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE", None),
        (without(MVAPICH, "MV2_COMM_WORLD_LOCAL_RANK"), "MV2_COMM_WORLD_LOCAL_RANK", None),
        (without(MPICH, "MPI_LOCALNRANKS"), "MPI_LOCALNRANKS", None),
        (BATCH | {"SLURM_PROCID": "1"}, "SLURM_STEP_TASKS_PER_NODE", None),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "2x3"}, "SLURM_STEP_TASKS_PER_NODE", "2x3"),
        (without(SRUN, "SLURM_NODEID"), "SLURM_NODEID", None),
        (SRUN | {"SLURM_NODEID": "4"}, "SLURM_NODEID", "4"),
        (SRUN | {"SLURM_PROCID": "7"}, "SLURM_PROCID", "7"),
        (without(SRUN, "SLURM_LOCALID"), "SLURM_LOCALID", None),
        (without(SRUN, "SLURM_STEP_NODELIST"), "MASTER_ADDR", None),
    ],
)
def test_a_missing_or_contradictory_variable_is_named(variables: Variables, variable: str, value: str | None) -> None:
    with pytest.raises(EnvironmentFailure) as caught:
        read_environment(variables)
    assert (caught.value.variable, caught.value.value) == (variable, value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("parent", [0, 9])
def test_rank_reads_launcher_variables(parent: int) -> None:
    place = Environment(rank=3, world=4, local_rank=1, local_world=2, address="n1", port=5, restarts=2, parent=parent)
    read = read_environment(place.variables() | {"SLURMD_NODENAME": ""})
    assert read.variables() == place.variables()
    assert read.launcher == ("local" if parent else "variables")


def test_process_without_launcher_variables_is_not_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(EnvironmentFailure) as caught:
        this_rank()
    assert (caught.value.variable, caught.value.value) == ("RANK", None)


def test_train_is_a_rank_of_the_launcher_that_started_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in PYTORCHJOB.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Failure, match="layout tp=1,pp=1,dp=1 has 1 ranks, but WORLD_SIZE = 4"):
        mtnlg_parallel.train(recipe_of(), tmp_path, tmp_path / "out")
    assert not list(tmp_path.iterdir())
