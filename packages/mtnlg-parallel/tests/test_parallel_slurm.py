"""The sbatch script: its directives, the command that it starts, and what follows when the ranks have failed."""

from __future__ import annotations

import shlex
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pytest

from mtnlg_data.console import Failure
from mtnlg_data.console import UsageFailure as DataUsageFailure
from mtnlg_model.console import UsageFailure
from mtnlg_model.families import preset
from mtnlg_model.settings import dump
from mtnlg_parallel.launch import run
from mtnlg_parallel.launch.run import TrainingRun
from mtnlg_parallel.launch.slurm import Job, script_of_ranks, submit, training_script
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.record.run_dir import RunState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MT_NLG = {"tp": 8, "pp": 35, "dp": 8}
SUMMARY = "summary.json"


def recipe_of(layout: dict[str, int], **slurm: Any) -> Recipe:  # noqa: ANN401  (a table of TOML)
    sections = {
        "model": {"preset": "mt-nlg-530b"},
        "layout": layout,
        "train": {"samples": 64, "batch": 64, "lr": 1e-4, "decay": 64, "checkpoint_every": 1},
        "slurm": slurm,
    }
    return Recipe.model_validate(sections, strict=False)


def job_of(
    recipe: Recipe, out: Path, sbatch: Sequence[str] = (), ranks: int = 8, device: Literal["auto", "cpu"] = "auto"
) -> Job:
    return Job("mtnlg-parallel train", out, recipe.layout, recipe.slurm, sbatch, (), ranks, device)


def script(recipe: Recipe, words: list[str], out: Path, *job: Any, **options: Any) -> str:  # noqa: ANN401  (as job_of)
    return training_script(job_of(recipe, out, *job), words, **options)


def options_of(text: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH ")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_paper_job_asks_for_280_nodes_and_an_early_signal(tmp_path: Path) -> None:
    options = options_of(script(recipe_of(MT_NLG), ["recipe.toml"], tmp_path, ["--time=3-00:00:00"]))
    assert (options["nodes"], options["ntasks-per-node"], options["gpus-per-node"]) == ("280", "8", "8")
    assert (options["cpus-per-task"], options["mem"], options["exclusive"]) == ("8", "0", "")
    assert (options["time"], options["signal"], options["requeue"]) == ("3-00:00:00", "USR1@300", "")
    on_cpu = options_of(script(recipe_of(MT_NLG), ["recipe.toml"], tmp_path, (), 8, "cpu"))
    assert options.keys() - on_cpu.keys() == {"gpus-per-node"}


def test_options_are_added_replaced_and_removed(tmp_path: Path) -> None:
    sbatch = {"partition": "batch", "account": "nlp", "exclusive": False, "mem": 0, "no-kill": True, "time": ""}
    srun = {"container-image": "/images/mt nlg.sqsh", "wait": 300}
    recipe = recipe_of(MT_NLG, sbatch=sbatch, srun=srun, setup=["module load cuda", "export NCCL_DEBUG=INFO"])
    text = script(recipe, [], tmp_path, ["--partition=long", "--requeue=false", "--gpus-per-node=", "--gres=gpu:8"])
    options = options_of(text)
    assert (options["partition"], options["account"], options["gres"]) == ("long", "nlp", "gpu:8")
    assert (options["mem"], options["no-kill"]) == ("0", "")
    assert not {"exclusive", "time", "requeue", "gpus-per-node"} & options.keys()
    assert (
        text.index("NCCL_DEBUG=WARN") < text.index("\nmodule load cuda\nexport NCCL_DEBUG=INFO\n") < text.index("srun")
    )
    steps = [shlex.split(line) for line in text.splitlines() if "srun --" in line]
    assert all("--container-image=/images/mt nlg.sqsh" in words for words in steps)
    assert "--wait=300" in steps[0]
    assert "python3 -m mtnlg_parallel.cli train" in text, "the container's Python"


STUBS = """
scontrol() {
    if [ "$1" = show ]; then echo first; return; fi
    echo "scontrol $*" >> CALLS
    [ "$(grep -c scontrol CALLS)" -gt AWAY ]
}
sleep() { :; }
sbatch() { echo "sbatch $*" >> CALLS; return SBATCH; }
timeout() { shift; "$@"; }
srun() {
    local options=() end
    while [[ $1 == --* ]]; do options+=("$1"); shift; done
    shift 3
    if [[ $1 == train ]]; then
        echo "$MASTER_PORT $MTNLG_SECRET" >> CALLS.store
        echo "attempt $TORCHELASTIC_RESTART_COUNT at $MASTER_ADDR" \\
            "cores $OMP_NUM_THREADS $SRUN_CPUS_PER_TASK: $*" >> CALLS
    else
        echo "srun ${options[*]} $*" >> CALLS
    fi
    read -r end < ENDS
    sed -i 1d ENDS
    case $end in
        complete) touch SUMMARY; return 0 ;;
        [0-9]*) return "$end" ;;
        *) echo "$end" ;;
    esac
}
"""


def test_elastic_job_takes_the_nodes_whose_ranks_share_a_batch(tmp_path: Path) -> None:
    """A batch of 64 over dp 4, 2 or 1, of two nodes each: three nodes are used as two."""
    text = script(recipe := recipe_of({"tp": 8, "dp": 4}), [], tmp_path, (), 4, fit=recipe.within)
    options = options_of(text)
    assert (options["nodes"], options["mincpus"], options.get("ntasks-per-node")) == ("2-8", "32", None)
    fewer = options_of(script(recipe, [], tmp_path, ["--cpus-per-task=6"], 4, fit=recipe.within))
    assert (fewer["cpus-per-task"], fewer["mincpus"]) == ("6", "24")
    assert "\nin_use=(0 0 2 2 4 4 4 4 8)\n" in text
    assert options_of(script(recipe, [], tmp_path, (), 32, fit=recipe.within))["nodes"] == "1"


def test_elastic_job_takes_no_nodes_too_few_for_the_planner(tmp_path: Path) -> None:
    """ZeRO-1 shards the optimizer's state of 6.7 B parameters over dp."""
    recipe = recipe_of({"dp": 16})
    recipe = recipe.model_copy(update={"model": preset("dense-6.7b")})
    fit = partial(run.fit, TrainingRun(recipe, "", tmp_path, cluster="dgx-a100", elastic=True))
    assert options_of(script(recipe, [], tmp_path, (), 2, fit=fit))["nodes"] == "2-8"
    assert options_of(script(recipe, [], tmp_path, (), 2, fit=recipe.within))["nodes"] == "1-8"
    paper = TrainingRun(recipe_of({"dp": 16}), "", tmp_path, cluster="dgx-a100", elastic=True)
    with pytest.raises(UsageFailure, match="cannot fit"):
        script(recipe, [], tmp_path, fit=partial(run.fit, paper))


def test_scoring_is_requeued_before_its_time_ends(tmp_path: Path) -> None:
    recipe = recipe_of({"tp": 4, "dp": 4}, srun={"container-image": "/x.sqsh"}, setup=["module load cuda"])
    job = job_of(recipe, tmp_path, ["--partition=batch"])._replace(srun=["--mpi=none"], program="mtnlg-eval run")
    text = script_of_ranks(job, "mtnlg_eval.cli", ["run", "it's"])
    options = options_of(text)
    assert (options["signal"], options["nodes"], options["ntasks-per-node"]) == ("B:USR1@300", "2", "8")
    assert text.index("module load cuda") < text.index("trap requeue USR1") < text.index("srun --label")
    (step,) = (shlex.split(line) for line in text.splitlines() if line.startswith("srun"))
    assert {"--nodes=2", "--ntasks=16", "--ntasks-per-node=8", "--container-image=/x.sqsh", "--mpi=none"} <= {*step}
    assert step[-6:] == ["python3", "-m", "mtnlg_eval.cli", "run", "it's", "&"]
    assert job.script == tmp_path / "run.sbatch"


def calls_of(text: str, out: Path, ends: list[str], sbatch_status: int = 0, away: int = 0) -> tuple[int, list[str]]:
    """Run the script with stubs for Slurm's commands: its exit status, and what it called.

    ``ends`` are, in order, the exit status of the agents, or what `mtnlg-parallel restart` prints. slurmctld does not
    answer the first ``away`` requests to requeue.
    """
    calls, end = out / "calls", out / "ends"
    end.write_text("".join(f"{line}\n" for line in ends))
    calls.write_text("")
    stubs = STUBS.replace("SBATCH", str(sbatch_status)).replace("AWAY", str(away))
    for name, path in (("CALLS", calls), ("ENDS", end), ("SUMMARY", out / "summary.json")):
        stubs = stubs.replace(name, shlex.quote(str(path)))
    variables = "SLURM_JOB_ID=10007 SLURM_JOB_NODELIST=x SLURM_CPUS_PER_TASK=8 SLURMD_NODENAME=n1"
    done = subprocess.run(["/bin/bash", "-c", f"export {variables}\n{stubs}\n{text}", "/spool/script"], check=False)
    return done.returncode, calls.read_text().splitlines()


def test_script_runs_agents_until_the_run_ends(tmp_path: Path) -> None:
    out = tmp_path / "mt nlg's"
    out.mkdir()
    text = script(recipe_of({"tp": 2, "dp": 8}), ["it's.toml", "--out", str(out)], out, max_restarts=7)
    assert options_of(text)["nodes"] == "2"

    def attempt(number: int) -> str:
        return f"attempt {number} at first cores 8 64: train it's.toml --out {out} --agent=8"

    one = "srun --overlap --nodes=1 --ntasks=1 --ntasks-per-node=1 --nodelist=n1"
    restart = f"{one} restart {out} --max-restarts 7"
    requeue = "scontrol requeue 10007"
    resubmit = "sbatch --exclude=n2,n3 --dependency=afterany:10007,singleton /spool/script"
    assert calls_of(text, out, ["75"]) == (75, [attempt(0), requeue]), "stopped by a signal"
    assert calls_of(text, out, ["1", "end"]) == (1, [attempt(0), restart])
    assert calls_of(text, out, ["137", "requeue"]) == (137, [attempt(0), restart, requeue])
    assert calls_of(text, out, ["137", "requeue n2,n3"]) == (137, [attempt(0), restart, resubmit])
    refused = calls_of(text, out, ["137", "requeue n2,n3"], sbatch_status=1)
    assert refused == (137, [attempt(0), restart, resubmit, requeue]), "nodes may not submit"
    again = [attempt(0), restart, attempt(1), restart, attempt(2)]
    (out / "calls.store").unlink()
    assert calls_of(text, out, ["137", "restart", "137", "restart", "complete"]) == (0, again)
    stores = [line.split() for line in (out / "calls.store").read_text().splitlines()]
    assert all(10000 <= int(port) < 30000 for port, _ in stores)
    assert len({port for port, _ in stores}) > 1, "not a function of the job's number"
    assert len({secret for _, secret in stores if len(secret) == 32}) == 3, "each attempt has its own"


@pytest.mark.parametrize("verdict", ["1", "137", "Traceback", ""])
def test_undecided_job_is_requeued(verdict: str, tmp_path: Path) -> None:
    text = script(recipe_of({"dp": 2}), [], tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-1.failure").write_text("of an earlier attempt")
    status, calls = calls_of(text, tmp_path, ["137", verdict], away=3)
    assert (status, calls[2:]) == (137, ["scontrol requeue 10007"] * 4)
    assert not list((tmp_path / "logs").iterdir())


def test_nodes_that_the_site_excludes_stay_excluded(tmp_path: Path) -> None:
    text = script(recipe_of({"dp": 2}), [], tmp_path, ["--exclude=n8"])
    _, calls = calls_of(text, tmp_path, ["137", "requeue n2,n3"])
    assert calls[-1].startswith("sbatch --exclude=n2,n3,n8 ")


@pytest.mark.parametrize("bad", ["line\nbreak", "a\x1b[2Kb", "a\u2028b"])
def test_a_control_character_never_enters_the_script(bad: str, tmp_path: Path) -> None:
    layout = {"dp": 2}
    for job in (
        job_of(recipe_of(layout), tmp_path / bad),
        job_of(recipe_of(layout), tmp_path, [f"--account={bad}"]),
        job_of(recipe_of(layout, sbatch={"account": bad}), tmp_path),
        job_of(recipe_of(layout, srun={"container-image": bad}), tmp_path),
        job_of(recipe_of(layout), tmp_path)._replace(srun=[f"--container-image={bad}"]),
        job_of(recipe_of(layout, setup=[bad]), tmp_path),
        job_of(recipe_of(layout), tmp_path),
    ):
        words = [bad] if job == job_of(recipe_of(layout), tmp_path) else []
        with pytest.raises(DataUsageFailure, match="cannot contain a control character or line break"):
            training_script(job, words)
        with pytest.raises(DataUsageFailure, match="cannot contain a control character or line break"):
            script_of_ranks(job, "mtnlg_eval.cli", words)


def test_values_are_quoted_as_slurm_and_bash_read_them(tmp_path: Path) -> None:
    hostile = '"; touch x; #$(touch y)\\'
    recipe = recipe_of({"dp": 2}, sbatch={"comment": hostile}, srun={"container-image": hostile})
    out = tmp_path / "50%j runs"
    out.mkdir()
    text = script(recipe, [hostile], out)
    options = options_of(text)
    assert options["comment"] == r'''"\"; touch x; #$(touch y)\\"'''
    assert options["output"] == f'"{tmp_path}/50%%j runs/slurm-%j.log"', "%j of the folder is no job number"
    _, calls = calls_of(text, out, ["75"])
    assert calls[0].endswith(f"train {hostile} --agent=2")


def test_a_job_that_cannot_be_submitted_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(*sbatch: str, ranks_per_node: int = 8) -> str:
        with pytest.raises((UsageFailure, DataUsageFailure)) as caught:
            script(recipe_of(MT_NLG), [], tmp_path, sbatch, ranks_per_node)
        return str(caught.value)

    assert "--ranks-per-node 3 does not divide the 2240 ranks" in refusal(ranks_per_node=3)
    assert "--sbatch partition=x: write an option of sbatch" in refusal("partition=x")
    assert "--sbatch --pArtition=x: write an option of sbatch" in refusal("--pArtition=x")
    assert "--nodes of sbatch follows from layout" in refusal("--nodes=2")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Failure, match=r"sbatch is not installed here; .*train.sbatch is written"):
        submit(job_of(recipe_of(MT_NLG), tmp_path), "")
    assert (tmp_path / "train.sbatch").exists()


def test_second_job_does_not_touch_a_running_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_work: subprocess.Popen[bytes]
) -> None:
    commands = tmp_path / "commands"
    commands.mkdir()
    (commands / "sbatch").write_text("#!/bin/sh\necho 8\n")
    (commands / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    monkeypatch.setattr(run, "_prepare", lambda *_: RunState(0, 4, complete=False))
    recipe = recipe_of({"dp": 2})
    (tmp_path / "recipe.toml").write_text(dump(recipe))
    faster = recipe.model_copy(update={"train": recipe.train.model_copy(update={"lr": 0.01})})
    before = set(tmp_path.rglob("*"))
    with pytest.raises(UsageFailure, match=r"another run is using this folder.*train.lr was 0.0001 and is 0.01 now"):
        run.submit(TrainingRun(faster, tmp_path, tmp_path), [], 8)
    with pytest.raises(UsageFailure, match=r"another run is using this folder.*--no-resume would delete"):
        run.submit(TrainingRun(recipe, tmp_path, tmp_path, resume=False), [], 8)
    assert set(tmp_path.rglob("*")) == before
    other_place = TrainingRun(recipe_of({"dp": 4}, sbatch={"partition": "long"}), tmp_path, tmp_path)
    run.submit(other_place, [], 8)
    (tmp_path / "train.sbatch").unlink()
    assert set(tmp_path.rglob("*")) == before
    at_work.communicate()
    run.submit(other_place, ["--partition=longer"], 8)
    assert "--partition=longer" in (tmp_path / "train.sbatch").read_text()
