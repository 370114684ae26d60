"""The script of a Slurm job: options, command, and what cannot stand in it. tests/test_curation_slurm.py runs one."""

from __future__ import annotations

import shlex
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from command_line import command

from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.engine import slurm
from mtnlg_data.engine.slurm import job_script, submit

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = '"; touch x; #$(touch y)\\'


def options_of(script: str) -> set[str]:
    return {line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH ")}


def test_site_options_add_replace_or_remove_ours() -> None:
    ours = options_of(job_script([], [], None, out="o"))
    sites = options_of(job_script([], ["--nodes=16", "--mem=500G", "--exclusive=false", "--overcommit"], None, out="o"))
    assert {"no-kill", "requeue", "mem=0", "exclusive", "signal=B:USR1@120"} <= ours
    assert sites == ours - {"mem=0", "exclusive"} | {"nodes=16", "mem=500G", "overcommit"}


def test_ray_and_the_command_run_in_the_sites_container_and_slurms_commands_outside() -> None:
    image = "--container-image=/images/mt nlg.sqsh"
    script = job_script(["run"], [], None, out="o", srun=[image])
    (driver,) = (line for line in script.splitlines() if "mtnlg_data.cli" in line)
    step, _, rest = script.partition("\nsrun --no-kill")[2].partition("bash -c ")
    (ray,) = (line for line in shlex.split(rest.partition("\ncluster=")[0])[0].splitlines() if "ray.scripts" in line)
    for line in (driver, ray):
        words = shlex.split(line)
        assert words[:2] == ["srun", "--overlap"]
        assert words[words.index(image) + 1 :][:2] == ["python3", "-m"]
    assert "container" not in step
    with pytest.raises(UsageFailure, match="--srun x: write an option of srun"):
        job_script([], [], None, out="o", srun=["x"])


def node_of(folder: Path, number: int, port: int) -> subprocess.Popen[str]:
    """Run the script of a job's node with a Ray that fails, and commands of Slurm that write ray.log."""
    script = job_script([], [], None, out="o", srun=["--container-image=x"])
    node = shlex.split(script.partition("bash -c ")[2].partition("\ncluster=")[0])[0]
    for name, status in (("scontrol", 0), ("scancel", 0), ("srun", 1)):
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> "$RAY_FOLDER.log"\nexit {status}\n')
        (folder / name).chmod(0o755)
    slurms = {"SLURM_PROCID": str(number), "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_CPUS_ON_NODE": "1"}
    ray = {"RAY_HEAD": "127.0.0.1", "RAY_AT": "", "RAY_FOLDER": f"{folder}/ray", "RAY_PORT": str(port)}
    environment = {**slurms, **ray, "SLURMD_NODENAME": f"n{number + 1}", "PATH": f"{folder}:/usr/bin:/bin"}
    return subprocess.Popen(["/bin/bash", "-c", node], env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("met", [False, True])
def test_node_without_a_head_requeues_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, met: bool) -> None:
    """The first node may be lost before Ray listens; a node whose Ray fails while it does leaves all to others."""
    monkeypatch.setattr(slurm, "HEAD_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        if not met:
            head.close()
        with node_of(tmp_path, 1, port) as process:
            for _ in range(2 * met):  # before Ray starts, and since it has ended
                head.accept()[0].close()
            assert not met or (tmp_path / "ray").is_dir()
            head.close()
            assert process.wait(timeout=60) == 1
    assert (tmp_path / "ray.log").read_text().splitlines()[-1] == "scontrol requeue 7"
    assert not (tmp_path / "ray").exists()


def test_a_head_that_dies_is_named_and_ends_its_step(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with node_of(tmp_path, 0, port) as process:
        assert process.communicate()[1].splitlines()[-1] == "mtnlg-data: Ray's head on n1 ended with status 1"
    assert (tmp_path / "ray.log").read_text().splitlines()[-1] == "scancel 7.0"


@pytest.mark.parametrize(
    ("addresses", "at"),
    [
        (["inet 127.0.0.2/8 scope global", "inet6 fd00::1/64 scope global"], "127.0.0.2:"),
        (["inet6 fe80::1/64 scope link", "inet6 ::1/128 scope host"], "[::1]:"),
    ],
)
def test_the_address_of_an_interface_may_be_ipv6(tmp_path: Path, addresses: list[str], at: str) -> None:
    lines = "\n".join(f"2: ib0    {line}" for line in addresses)
    (tmp_path / "ip").write_text(f"#!/bin/sh\ncase $* in *-4*) grep 'inet ';; *) cat;; esac <<'E'\n{lines}\nE\n")
    (tmp_path / "ip").chmod(0o755)
    start = job_script([], [], "ib0", out="o").partition("\nexport RAY_HEAD")[0] + "\necho $RAY_AT"
    words = ["/bin/bash", "-c", f"PATH={tmp_path}:$PATH TMPDIR={tmp_path}\n{start}"]
    shown = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    assert shown.startswith(at)


def test_the_log_is_in_the_output_unless_that_is_a_url() -> None:
    assert "output=/data/50%%/slurm-%j.log" in options_of(job_script([], [], None, out="/data/50%"))
    assert not [option for option in options_of(job_script([], [], None, out="s3://b/r")) if "output" in option]


def test_one_job_at_a_time_writes_an_output() -> None:
    names = [
        next(option for option in options_of(job_script([], [], None, out=out)) if option.startswith("job-name"))
        for out in ("/data/a", "/data/a", "/data/b")
    ]
    assert names[0] == names[1] != names[2]
    assert "dependency=singleton" in options_of(job_script([], [], None, out="/data/a"))


def test_job_values_are_quoted_for_slurm_and_bash(tmp_path: Path) -> None:
    script = job_script(
        ["run", HOSTILE],
        [f"--comment={HOSTILE}"],
        HOSTILE,
        out=HOSTILE,
        setup=["module() { :; }", "module load python"],
    )
    assert r'''comment="\"; touch x; #$(touch y)\\"''' in options_of(script)
    command = next(line for line in script.splitlines() if "mtnlg_data.cli" in line)
    assert shlex.split(command)[3:5] == ["run", HOSTILE]
    # Up to the first line that starts something, with an `ip` that prints its arguments.
    start = script.partition("\nuntil RAY_PORT")[0].replace("awk", "true").replace("$(ip ", "$(printf '<%s>' ")
    ended = subprocess.run(["/bin/bash", "-c", start], cwd=tmp_path, check=False, capture_output=True)
    assert not ended.stderr
    assert not list(tmp_path.iterdir()), "nothing was touched"
    assert subprocess.run(["/bin/bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_head_port_is_outside_ray_and_ephemeral_ranges() -> None:
    lines = [line for line in job_script([], [], None, out="o").splitlines() if "RAY_PORT=" in line]
    draw = f"RAY_HEAD=127.0.0.1; for _ in $(seq 2000); do {lines[0]}; echo $RAY_PORT; done"
    ports = subprocess.run(["/bin/bash", "-c", draw], check=True, capture_output=True, text=True).stdout.split()
    assert {int(port) // 1000 for port in ports} == set(range(20, 32))


@pytest.mark.parametrize("bad", ["a\n#SBATCH --uid=0", "a\rb", "\x1b[2J", "\u2028"])
def test_a_control_character_never_enters_the_job(bad: str) -> None:
    places: list[dict[str, Any]] = [
        {"arguments": [bad]},
        {"sbatch": [f"--comment={bad}"]},
        {"interface": bad},
        {"setup": [bad]},
        {"srun": [bad]},
    ]
    for place in places:
        with pytest.raises(UsageFailure, match="cannot contain a control character or line break"):
            job_script(**{"arguments": [], "sbatch": [], "interface": None, **place}, out="o")


def test_malformed_slurm_job_is_refused(finished: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401  (the curation that conftest.py runs)
    def refusal(*words: str) -> str:
        with pytest.raises(UsageFailure) as caught:
            command("run", finished.recipe, "--out", "x", *words, catch_exceptions=False)
        return str(caught.value)

    job = ("--engine", "ray", "--launcher", "slurm")
    assert "--sbatch partition=x: write an option of sbatch" in refusal(*job, "--sbatch", "partition=x")
    assert "needs --engine ray and no --ray" in refusal("--launcher", "slurm")
    assert "needs --engine ray and no --ray" in refusal(*job, "--ray", "host:6379")
    assert "go with --launcher slurm" in refusal("--dry-run")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Failure, match="sbatch is not installed here; --dry-run prints the script"):
        submit(script="")


def test_the_job_runs_the_same_command(finished: Any) -> None:  # noqa: ANN401
    words = ["--workers=3", "--keep=last", "--set=exact.kinds=['lines']", "--allow-failures", "--json"]
    run = ["run", str(finished.recipe), "--out=x", "--engine=ray", *words]
    shown = command(*run, "--launcher=slurm", "--sbatch=--nodes=4", "--dry-run").stdout
    (line,) = (line for line in shown.splitlines() if "mtnlg_data.cli" in line)
    assert shlex.split(line)[3:] == [*run, "--ray", "$RAY_AT", "&"]
