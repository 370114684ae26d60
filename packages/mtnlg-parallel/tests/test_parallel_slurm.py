"""The sbatch script: its directives, and the command that it starts."""

import subprocess
from pathlib import Path

import pytest

from mtnlg_model.console import Failure, UsageFailure
from mtnlg_parallel.launch.slurm import script, submit
from mtnlg_parallel.layout import Layout

MT_NLG = Layout(tp=8, pp=35, dp=8)
OUT = Path("/shared/runs/mt nlg")


def header(text: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_the_papers_job_takes_280_nodes_and_is_signalled_before_its_time_limit() -> None:
    options = header(script(MT_NLG, ["recipe.toml"], OUT, ["--time=3-00:00:00", "--exclusive"], ranks_per_node=8))
    assert (options["--nodes"], options["--ntasks-per-node"]) == ("280", "8")
    assert (options["--time"], options["--signal"]) == ("3-00:00:00", "USR1@300")
    assert (options["--requeue"], options["--exclusive"]) == ("", "")


def test_the_script_is_valid_bash_starts_the_command_as_a_rank_and_requeues_an_incomplete_run(tmp_path: Path) -> None:
    text = script(Layout(dp=2), ["it's.toml", "--out", str(OUT)], OUT, [], ranks_per_node=8)
    path = tmp_path / "train.sbatch"
    path.write_text(text)
    assert subprocess.run(["/bin/bash", "-n", str(path)], check=False).returncode == 0
    calls = tmp_path / "calls"
    stubs = f"""
    scontrol() {{ case $1 in show) echo first;; requeue) echo "requeued $2" >> {calls};; esac; }}
    srun() {{
        shift; printf '%s|' "$MASTER_ADDR" "$WORLD_SIZE" > {calls}; SLURM_PROCID=1 SLURM_LOCALID=0 "$@" >> {calls}
    }}
    exec() {{ printf '%s|' "$RANK" "$LOCAL_RANK" "${{@:2}}"; }}
    export -f exec; SLURM_NTASKS=2; SLURM_JOB_ID=7; SLURM_JOB_NODELIST=x
    """
    subprocess.run(["/bin/bash", "-c", stubs + text], check=True)
    assert calls.read_text() == f"first|2|1|0|-m|mtnlg_parallel.cli|train|it's.toml|--out|{OUT}|requeued 7\n"


def test_a_job_that_cannot_be_submitted_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageFailure, match="--ranks-a-node 3 does not divide the 2240 ranks"):
        script(MT_NLG, [], OUT, [], ranks_per_node=3)
    with pytest.raises(UsageFailure, match="--sbatch partition=x: write an option of sbatch"):
        script(MT_NLG, [], OUT, ["partition=x"], ranks_per_node=8)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Failure, match=r"train.sbatch is written, but sbatch is not installed here"):
        submit(MT_NLG, [], tmp_path, [], ranks_per_node=8)
    assert (tmp_path / "train.sbatch").exists()
