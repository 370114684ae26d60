"""The command line, as a user runs it."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mtnlg_model import cli
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.convert.huggingface import export_huggingface
from mtnlg_model.generation.generate import complete
from mtnlg_model.generation.sampling import Sampling
from mtnlg_model.tokenizer import Tokenizer

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def mtnlg_model(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run a line of ``mtnlg-model``, {} being the next value, in a folder of its own; its status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def command(line: str, *values: object) -> tuple[int, str, str]:
        rest = map(str, values)
        words = [next(rest) if word == "{}" else word for word in shlex.split(line)]
        monkeypatch.setattr(sys, "argv", ["mtnlg-model", *words, *rest])
        with pytest.raises(SystemExit) as end:
            cli.main()
        captured = capfd.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return command


@pytest.mark.parametrize(
    ("seconds", "gpus", "published"), [(60.1, 2240, 125.7), (50.2, 2800, 120.4), (44.4, 3360, 113.5)]
)
def test_info_gives_the_papers_three_runs(mtnlg_model: Command, seconds: float, gpus: int, published: float) -> None:
    line = f"info mt-nlg-530b --batch 1920 --iteration-seconds {seconds} --gpus {gpus}"
    status, out, _ = mtnlg_model(line, "--json")
    result = json.loads(out)
    assert status == 0
    assert round(result["tflops_per_gpu"]["hardware_96"], 1) == published
    assert result["parameters"] == 529_600_819_200
    assert result["state_bytes"]["per_parameter"] == 20
    assert result["state_bytes"]["total"] == 20 * 529_600_819_200
    assert result["kv_bytes_per_token"] == 2 * 105 * 20480 * 2
    expected = {"model_72": 1.27010e19, "hardware_96": 1.69264e19}  # derived by hand
    assert result["flops"]["iteration"] == pytest.approx(expected, rel=1e-5)
    assert f"{published:.1f}" in mtnlg_model(line)[1]


def test_info_and_inspect_import_no_torch(checkpoint_path: Path) -> None:
    for arguments in (["info", "mt-nlg-530b"], ["info", str(checkpoint_path)], ["inspect", str(checkpoint_path)]):
        code = "import sys\nfrom mtnlg_model import cli\ntry: cli.main()\nfinally: assert 'torch' not in sys.modules"
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], check=False, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr


def test_info_of_a_checkpoint_is_that_of_its_configuration(mtnlg_model: Command, checkpoint_path: Path) -> None:
    _, out, _ = mtnlg_model("info --json", checkpoint_path)
    config = Checkpoint.open(checkpoint_path).config
    assert json.loads(out)["parameters"] == config.parameters
    for place in checkpoint_path.parents[:2]:  # the folder of checkpoints, and the run's
        assert mtnlg_model("info --json", place)[1].partition(",")[2] == out.partition(",")[2]


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        ("info gpt5", 2, "gpt5: not a preset or a folder; presets are mt-nlg-530b, dense-350m"),
        ("info tiny --gpus 8", 2, "info: TFLOP/s per GPU needs both --iteration-seconds and --gpus"),
        (
            f"info tiny --batch 1{'0' * 400}",
            2,
            "'--batch': Input should be less than or equal to 1048576",
        ),
        (f"info tiny --gpus 1{'0' * 400} --iteration-seconds 1", 2, "Invalid value for '--gpus': "),
        ("info tiny --gpus 1 --iteration-seconds inf", 2, "Invalid value for '--iteration-seconds': "),
        ("info ..", 1, "..: not a checkpoint: no manifest.json in it"),
        ("generate {} --prompt a --temperature -1", 2, "generate: temperature = -1.0: "),
        ("generate {} --prompt a --device abacus", 2, "--device abacus: "),
        ("generate {} --prompt a --device cuda:99", 2, "--device cuda:99: "),
        ("generate {} --prompt a --device meta", 2, "--device meta: Cannot copy out of meta tensor; no data!"),
        (
            "generate {} --prompt a\udcff",
            1,
            "'a\\udcff': not Unicode: it has half of a surrogate pair",
        ),
        (f"generate {{}} --prompt a --seed {1 << 43}", 2, "generate: seed = 8796093022208: "),
        (f"generate {{}} --prompt {'a' * 200}", 1, "prompt 0 has 200 tokens; the model reads 48"),
        ("verify nowhere", 1, "nowhere: not a checkpoint: no such folder"),
        ("export {} .", 1, ".: exists already; remove it or name another"),
        (
            "generate . --prompt a --seed 1 --seed 2",
            2,
            "generate: 2 seeds for 1 prompts; give one",
        ),
        ("generate . --prompt a --system b", 2, "generate: --system needs --chat"),
        ("import . there --config x", 2, ".: a Hugging Face folder takes no --config"),
        (f"import . there --vocabulary-multiple {10**12}", 2, "value for '--vocabulary-multiple': "),
        ("import . there", 1, "config.json: No such file or directory; is it a Hugging Face folder?"),
    ],
)
def test_every_mistake_is_one_line(
    mtnlg_model: Command, checkpoint_path: Path, words: str, status: int, line: str
) -> None:
    exit_status, out, err = mtnlg_model(words, *[checkpoint_path] * words.count("{}"))
    assert (exit_status, out) == (status, "")
    assert line in err
    assert "Traceback" not in err
    assert err.count("\n") == 1


def test_generate_streams_the_completed_text(mtnlg_model: Command, checkpoint_path: Path) -> None:
    checkpoint = Checkpoint.open(checkpoint_path)
    tokenizer, sampling = Tokenizer(checkpoint.tokenizer_path), Sampling(temperature=1.0, top_k=50, seed=3)
    line = "generate {} --prompt 'the fox' --tokens 30 --temperature 1.0 --top-k 50 --seed 3"
    expected = complete(checkpoint.decoder(), tokenizer, ["the fox"], 30, sampling)[0]
    assert mtnlg_model(line, checkpoint_path)[:2] == (0, f"the fox{expected}\n")
    stop = expected[len(expected) // 2 :][:3]
    stopped = mtnlg_model(line, checkpoint_path, "--stop", stop)[1]
    assert stopped == f"the fox{expected[: expected.index(stop)]}\n"


@pytest.mark.parametrize("option", ["--top-p 0.9", "--top-k 5", "--min-p 0.1", "--seed 7"])
def test_generate_names_options_that_greedy_decoding_ignores(
    mtnlg_model: Command, checkpoint_path: Path, option: str
) -> None:
    line = f"generate {{}} --prompt fox --tokens 2 {option}"
    said = f"greedy: {option.partition(' ')[0]} has no effect without --temperature above 0\n"
    assert mtnlg_model(line, checkpoint_path)[2] == said
    assert mtnlg_model(f"{line} --temperature 1", checkpoint_path)[2] == ""


def test_generate_reads_a_hugging_face_folder_in_place(
    mtnlg_model: Command, checkpoint_path: Path, tmp_path: Path
) -> None:
    prompt = ("--prompt", "the fox", "--tokens", "9")
    export_huggingface(Checkpoint.open(checkpoint_path), tmp_path / "theirs")
    expected = mtnlg_model("generate", checkpoint_path, *prompt)
    assert mtnlg_model("generate", tmp_path / "theirs", *prompt) == expected
    (tmp_path / "theirs" / "tokenizer.json").unlink()
    status, _, error = mtnlg_model("generate", tmp_path / "theirs", *prompt)
    assert status == 1
    assert "theirs: no tokenizer.json; make one: python -c" in error


def test_generate_takes_several_prompts_at_once(mtnlg_model: Command, checkpoint_path: Path) -> None:
    result = json.loads(mtnlg_model("generate {} --prompt the --prompt '' --tokens 5 --json", checkpoint_path)[1])
    assert [row["prompt"] for row in result] == ["the", ""]
    alone = mtnlg_model("generate {} --prompt the --tokens 5", checkpoint_path)[1]
    assert alone == "the" + result[0]["completion"] + "\n"


def test_seed_per_prompt_matches_separate_generation(mtnlg_model: Command, checkpoint_path: Path) -> None:
    line = "generate {} --tokens 9 --temperature 1 --min-p 0.001 --json"
    both = json.loads(mtnlg_model(f"{line} --prompt the --prompt 'a fox' --seed 8 --seed 3", checkpoint_path)[1])
    for row, (prompt, seed) in zip(both, (("the", "8"), ("a fox", "3")), strict=True):
        alone = mtnlg_model(line, checkpoint_path, "--prompt", prompt, "--seed", seed)[1]
        assert json.loads(alone) == [row]


def test_generate_says_where_the_context_cuts_a_text(mtnlg_model: Command, checkpoint_path: Path) -> None:
    command = "generate {} --prompt fox --tokens"
    length = len(Tokenizer(Checkpoint.open(checkpoint_path).tokenizer_path).encode("fox"))
    room = 48 - length + 1
    line = f"at most {room} new tokens: then the context of 48 is full\n"
    assert mtnlg_model(command, checkpoint_path, room)[2] == ""
    status, out, err = mtnlg_model(command, checkpoint_path, room + 1)
    assert (status, out[:3], err) == (0, "fox", line)
    _, out, err = mtnlg_model(f"{command} 400 --json", checkpoint_path)
    assert ([row["prompt"] for row in json.loads(out)], err) == (["fox"], line)
    _, _, err = mtnlg_model(f"{command} 400 --prompt ''", checkpoint_path)
    assert err == line.replace("48", "48 of the longest prompt")


@pytest.mark.parametrize("command", ["verify {}", "export {} hf", "generate {} --prompt fox --tokens 2"])
def test_no_command_uses_a_checkpoint_with_a_flipped_bit(
    mtnlg_model: Command, checkpoint_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for pattern, at in (("*.safetensors", -5), ("tokenizer.json", 0)):
        file = next(checkpoint_path.glob(pattern))
        sound = file.read_bytes()
        place = sound.index(b"\n") if at == 0 else len(sound) + at  # JSON may have a tab there
        file.write_bytes(sound[:place] + bytes([sound[place] ^ 3]) + sound[place + 1 :])
        status, _, err = mtnlg_model(command, checkpoint_path)
        assert (status, f"{file}: checksum differs from manifest.json" in err) == (1, True)
        assert not (tmp_path / "hf").exists()
        file.write_bytes(sound)
    assert mtnlg_model(command, checkpoint_path)[0] == 0


def test_inspect_lists_tensors(mtnlg_model: Command, checkpoint_path: Path) -> None:
    result = json.loads(mtnlg_model("inspect --json", checkpoint_path)[1])
    assert result["progress"]["samples"] == 10
    assert result["digest"] == Checkpoint.open(checkpoint_path).digest
    slots = {"weight": {"dtype": "F32", "pieces": 1}}
    assert result["tensors"]["layers.1.mlp.up.weight"] == {"shape": [128, 32], "slots": slots}
    out = mtnlg_model("inspect --tensors", checkpoint_path)[1]
    assert "layers.1.mlp.up.weight [128, 32]: weight F32 in 1\n" in out


def test_info_counts_a_folder_of_hugging_face_and_import_pads_it(
    mtnlg_model: Command, checkpoint_path: Path, tmp_path: Path
) -> None:
    mtnlg_model("export {} folder", checkpoint_path)
    counted = json.loads(mtnlg_model("info folder --json")[1])
    assert counted["parameters"] == Checkpoint.open(checkpoint_path).config.parameters
    _, _, err = mtnlg_model("import folder padded --vocabulary-multiple 128")
    config = Checkpoint.open(tmp_path / "padded").config
    assert (config.vocabulary, config.tokens) == (384, 320)
    assert f"padded: {config.parameters:,} parameters" in err
    _, _, err = mtnlg_model("export padded again")
    assert f"again: GPT2LMHeadModel, {counted['parameters']:,} parameters" in err


def test_import_tells_the_kinds_of_folders_apart(mtnlg_model: Command, tmp_path: Path, tokenizer_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / ".metadata").touch()
    status, _, err = mtnlg_model("import dist out")
    assert (status, "dist: a Megatron-LM checkpoint has no tokenizer; give --tokenizer FILE" in err) == (2, True)
    status, _, err = mtnlg_model("import dist out --sequence 8 --vocabulary-multiple 8")
    assert (status, "dist: a Megatron-LM checkpoint takes no --vocabulary-multiple, --sequence" in err) == (2, True)
    status, _, err = mtnlg_model("import dist out --tokenizer", tokenizer_path)
    assert (
        status,
        "dist/.metadata: not a pickle that can be read as data: pickle exhausted before seeing STOP" in err,
    ) == (1, True)
    (tmp_path / "pipe").mkdir()
    (tmp_path / "pipe" / "layer_01-model_00-model_states.pt").touch()
    status, _, err = mtnlg_model("import pipe out")
    assert (status, "a DeepSpeed checkpoint has no tokenizer; give --tokenizer FILE" in err) == (2, True)
    status, _, err = mtnlg_model("import pipe out --tokenizer", tokenizer_path)
    assert (status, "not a torch.save file, or damaged" in err) == (1, True)
