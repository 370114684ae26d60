"""The command ``mtnlg-model``. Only commands that need torch import it; ``info`` and ``inspect`` do not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from rich.table import Table

from mtnlg_model.checkpoint.chat_files import sampling_defaults
from mtnlg_model.checkpoint.manifest import read_manifest, resolve_checkpoint
from mtnlg_model.convert.config_json import read_config, read_object

from .config import STATE_BYTES_PER_PARAMETER, ModelConfig
from .console import UsageFailure, application, output, print_json, print_text, progress, run, say
from .families import PRESETS, references
from .local_paths import LocalPaths
from .settings import validate

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

app = application("mtnlg-model", "The MT-NLG 530B decoder at any size: figures, generation, checkpoints, conversion.")
app.info.cls = LocalPaths

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Folder = Annotated[
    Path, typer.Argument(metavar="CHECKPOINT", help="A step-N folder, or a folder of them or a run (takes the newest).")
]
Prompts = Annotated[
    list[str] | None,
    typer.Option(help="Text to continue; repeatable. Empty begins a document; - or no text reads standard input."),
]
MOST: Final = 1 << 20
"""Largest number of GPUs or sequences that a command accepts; no model or run has more."""
Seconds = Annotated[float | None, typer.Option(min=1e-9, max=1e9, help="Seconds per iteration, for TFLOP/s per GPU.")]

FORMULAS: Final = {"model_72": "model, 72-coefficient", "hardware_96": "hardware, 96-coefficient"}
MIB, MB = 1 << 20, 1_000_000


@app.command()
def info(
    target: Annotated[str, typer.Argument(metavar="PRESET|CHECKPOINT", help=f"{', '.join(PRESETS)}, or a folder.")],
    batch: Annotated[int, typer.Option(min=1, max=MOST, help="Sequences per iteration.")] = 1,
    iteration_seconds: Seconds = None,
    gpus: Annotated[int | None, typer.Option(min=1, max=MOST, help="Number of GPUs, for TFLOP/s per GPU.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a model's parameters, FLOPs and memory.

    The paper's run on 280 nodes: mtnlg-model info mt-nlg-530b --batch 1920 --iteration-seconds 60.1 --gpus 2240
    """
    if (iteration_seconds is None) != (gpus is None):
        raise UsageFailure("info: TFLOP/s per GPU needs both --iteration-seconds and --gpus")
    config = _config_of(target)
    figures = _figures(config, batch)
    if iteration_seconds is not None and gpus is not None:
        flops = figures["flops"]["iteration"]
        figures["tflops_per_gpu"] = {name: flops[name] / iteration_seconds / gpus / 1e12 for name in FORMULAS}
    if as_json:
        print_json({"name": target, **figures})
    else:
        _print_figures(target, config, figures)


@app.command()
def generate(  # noqa: PLR0917  (typer passes options by name)
    checkpoint: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="A step-N folder, a folder of them or a run, or a Hugging Face folder."),
    ],
    prompt: Prompts = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Prompts are a user's messages, by the model's template.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="With --chat: the system message.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Maximum number of new tokens.")] = 100,
    temperature: Annotated[
        float | None,
        typer.Option(help="0 is greedy decoding; default of this and the next four: the model's."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the fewest tokens whose probability reaches p.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Sample from the tokens with at least p of the likeliest one's probability.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Divides the logits of tokens that already occur.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; repeatable.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Random seed; or one per prompt.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …; auto uses a GPU if there is one.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Continue a prompt, or answer it, and stream the text. Several prompts run as one batch."""
    from mtnlg_model.convert.huggingface import open_weights  # noqa: PLC0415  (torch)
    from mtnlg_model.generation import generate as generation  # noqa: PLC0415  (torch)
    from mtnlg_model.generation.sampling import Sampling, row_seeds  # noqa: PLC0415  (torch)

    from .chat import Chat  # noqa: PLC0415  (loaded where needed)
    from .tokenizer import Tokenizer  # noqa: PLC0415  (as above)

    prompt = [sys.stdin.read() if text == "-" else text for text in prompt or ["-"]]
    seeds = seed or [0]
    if len(seeds) not in {1, len(prompt)}:
        raise UsageFailure(f"generate: {len(seeds)} seeds for {len(prompt)} prompts; give one, or one per prompt")
    if system is not None and not chat:
        raise UsageFailure("generate: --system needs --chat")
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seeds[0]}
    options["repetition_penalty"] = repetition_penalty
    opened = open_weights(checkpoint)
    settings = {key: value for key, value in options.items() if value is not None}
    sampling = validate(sampling_defaults(opened.directory) | settings, Sampling, "generate")
    unused = [name for name, value in settings.items() if value and name not in {"temperature", "repetition_penalty"}]
    if unused and not sampling.temperature:
        say(f"greedy: --{unused[0].replace('_', '-')} has no effect without --temperature above 0")
    drawn_by = [row_seeds(each, 1)[0] for each in seeds] if len(seeds) > 1 else None
    tokenizer = Tokenizer(opened.tokenizer_path)
    encoded = [tokenizer.encode_prompt(text) for text in prompt]
    if chat:
        before = [] if system is None else [{"role": "system", "content": system}]
        chats = [[*before, {"role": "user", "content": text}] for text in prompt]
        template = Chat.read([opened.directory])
        encoded = [tokenizer.encode(template.render(messages)) for messages in chats]
    generation.check_prompts(encoded, opened.config)  # before one of them is printed
    dtype, torch_device = _dtype_and_device(device)
    decoder = opened.decoder(dtype, torch_device)
    if len(prompt) == 1 and torch_device.type == "cpu":
        generation.use_column_major_weights(decoder)
    room = opened.config.sequence - max(map(len, encoded)) + 1
    if tokens > room:
        of_prompt = " of the longest prompt" if len(prompt) > 1 else ""
        say(f"at most {room} new tokens: then the context of {opened.config.sequence}{of_prompt} is full")
    if len(prompt) == 1 and not as_json:
        print_text("" if chat else prompt[0])
        for piece in generation.stream_text(decoder, tokenizer, encoded[0], tokens, sampling, stop or ()):
            print_text(piece)
        print_text("\n")
        return
    texts = generation.complete(decoder, tokenizer, encoded, tokens, sampling, stop or (), drawn_by)
    if as_json:
        print_json([{"prompt": before, "completion": text} for before, text in zip(prompt, texts, strict=True)])
    else:
        printed = [text if chat else before + text for before, text in zip(prompt, texts, strict=True)]
        print_text("\n\n".join(printed) + "\n")


@app.command()
def verify(checkpoint: Folder) -> None:
    """Verify the checksum of every file of a checkpoint."""
    from mtnlg_model.checkpoint.reader import Checkpoint  # noqa: PLC0415  (torch)

    opened = Checkpoint.open(checkpoint)
    total = sum(file.bytes for file in read_manifest(opened.directory).files.values())
    with progress("verify", -(-total // MIB), "MiB") as advance:
        opened.verify(lambda size: advance(-(-size // MIB)))
    say(f"{opened.directory}: all checksums match, {total / MB:.1f} MB")


@app.command()
def inspect(
    checkpoint: Folder,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a checkpoint's configuration, progress, files and tensors."""
    directory = resolve_checkpoint(checkpoint)
    manifest = read_manifest(directory)
    listed: dict[str, Any] = {
        name: {
            "shape": list(entry.shape),
            "slots": {kind: {"dtype": slot.dtype, "pieces": len(slot.pieces)} for kind, slot in entry.slots.items()},
        }
        for name, entry in manifest.tensors.items()
    }
    summary = manifest.model_dump(mode="json", include={"config", "progress", "optimizer_steps"})
    if as_json:
        files = manifest.model_dump(mode="json", include={"files"})
        print_json({"directory": str(directory), **summary, "digest": manifest.digest, **files, "tensors": listed})
        return
    size = sum(file.bytes for file in manifest.files.values())
    rows = {
        "directory": str(directory),
        # As JSON, which escapes terminal control characters of an untrusted manifest.
        **{key: json.dumps(value) for part in ("config", "progress") for key, value in summary[part].items()},
        "optimizer steps": str(manifest.optimizer_steps),
        "digest": manifest.digest,
        "files": f"{len(manifest.files)}, {size / MB:.1f} MB",
        "tensors": f"{len(listed)}, {manifest.config.parameters:,} parameters",
    }
    _print_rows(rows)
    for name, each in listed.items() if tensors else ():
        line = ", ".join(f"{kind} {slot['dtype']} in {slot['pieces']}" for kind, slot in each["slots"].items())
        print_text(f"{name} {each['shape']}: {line}\n")


@app.command()
def export(
    checkpoint: Folder,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder; must not exist.")],
    family: Annotated[str | None, typer.Option(help="Family to export to, if several have this decoder.")] = None,
) -> None:
    """Export the weights of a checkpoint as a Hugging Face folder, of the family that has its decoder."""
    from mtnlg_model.checkpoint.reader import Checkpoint  # noqa: PLC0415  (torch)
    from mtnlg_model.convert.huggingface import export_huggingface  # noqa: PLC0415  (torch)

    opened = Checkpoint.open(checkpoint)
    model = export_huggingface(opened, folder, family=family)
    say(f"{folder}: {model}, {opened.config.unpadded.parameters:,} parameters")


@app.command(
    "import",
    help=f"""Import weights, without optimizer state, as a checkpoint.

    DIR is a Hugging Face folder with safetensors ({", ".join(references())}), a Megatron-LM torch_dist checkpoint
    (iter_*, with .metadata), or a Megatron-DeepSpeed pipeline checkpoint (global_step*, with layer_*.pt). Pickles are
    read as data and never executed.
    """,
)
def import_(  # noqa: PLR0917  (typer passes options by name)
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to import, of one of the three formats.")],
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="New folder; must not exist.")],
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json to add; Hugging Face folders mostly have their own.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="JSON file with the run's arguments, if a Megatron checkpoint lacks them.")
    ] = None,
    vocabulary_multiple: Annotated[
        int, typer.Option(min=1, max=MOST, help="Pad a Hugging Face vocabulary to a multiple of this, such as tp.")
    ] = 1,
    sequence: Annotated[int | None, typer.Option(min=1, help="Limit a Hugging Face model's context.")] = None,
    family: Annotated[
        str | None, typer.Option(help="Family of a Hugging Face folder, as package.module:name or file.py:name.")
    ] = None,
) -> None:
    """Import a folder of one of three formats."""
    from mtnlg_model.convert.huggingface import import_huggingface  # noqa: PLC0415  (torch)

    from .convert import deepspeed, torch_dist  # noqa: PLC0415  (torch)

    tokenizer = tokenizer and tokenizer.resolve()  # named by the user, unlike a link in the folder
    of_hugging_face = {"vocabulary-multiple": vocabulary_multiple > 1, "sequence": sequence, "family": family}
    is_megatron = torch_dist.is_torch_dist(folder)
    if is_megatron or deepspeed.is_deepspeed(folder):
        kind = "a Megatron-LM checkpoint" if is_megatron else "a DeepSpeed checkpoint"
        _refuse(folder, kind, of_hugging_face)
        if tokenizer is None:
            raise UsageFailure(f"{folder}: {kind} has no tokenizer; give --tokenizer FILE")
        read = torch_dist.import_torch_dist if is_megatron else deepspeed.import_deepspeed
        imported = read(folder, checkpoint, tokenizer, arguments=read_object(config) if config else None)
    else:
        _refuse(folder, "a Hugging Face folder", {"config": config})
        options: dict[str, Any] = {"sequence": sequence, "family": family, "tokenizer": tokenizer}
        imported = import_huggingface(folder, checkpoint, vocabulary_multiple=vocabulary_multiple, **options)
    say(f"{checkpoint}: {imported.parameters:,} parameters")


def main() -> NoReturn:
    """Run the command."""
    run(app)


def _refuse(folder: Path, kind: str, options: Mapping[str, object]) -> None:
    if unsupported := [f"--{name}" for name, value in options.items() if value]:
        raise UsageFailure(f"{folder}: {kind} takes no {', '.join(unsupported)}")


def _config_of(target: str) -> ModelConfig:
    if target in PRESETS:
        return PRESETS[target]
    if not Path(target).is_dir():
        raise UsageFailure(f"{target}: not a preset or a folder; presets are {', '.join(PRESETS)}")
    if (Path(target) / "config.json").exists():
        return read_config(Path(target))
    return read_manifest(resolve_checkpoint(Path(target))).config


def _figures(config: ModelConfig, batch: int) -> dict[str, Any]:
    iteration = {"model_72": config.model_flops(batch), "hardware_96": config.hardware_flops(batch)}
    tokens = batch * config.sequence
    per_parameter = sum(STATE_BYTES_PER_PARAMETER.values())
    return {
        "config": config.model_dump(mode="json"),
        "parameters": config.parameters,
        "parameters_by_part": config.parameters_by_part,
        "batch": batch,
        "flops": {"token": {name: flops / tokens for name, flops in iteration.items()}, "iteration": iteration},
        "state_bytes": {
            "parts_per_parameter": STATE_BYTES_PER_PARAMETER,
            "per_parameter": per_parameter,
            "total": per_parameter * config.parameters,
        },
        "kv_bytes_per_token": config.kv_bytes_per_token,
    }


def _print_figures(target: str, config: ModelConfig, figures: dict[str, Any]) -> None:
    shape = f"{config.layers} layers, hidden {config.hidden}, {config.heads} heads of {config.head_size}"
    rows = {target: f"{shape}, sequence {config.sequence}, vocabulary {config.vocabulary}"}
    rows["parameters"] = f"{config.parameters:,}"
    rows |= {f"  {part}": f"{count:,}" for part, count in config.parameters_by_part.items()}
    for name, formula in FORMULAS.items():
        token, iteration = (figures["flops"][per][name] for per in ("token", "iteration"))
        rows[f"FLOPs, {formula}"] = f"{token:.4e} per token, {iteration:.5e} per iteration of {figures['batch']}"
    for name, rate in figures.get("tflops_per_gpu", {}).items():
        rows[f"TFLOP/s per GPU, {FORMULAS[name]}"] = f"{rate:.1f}"
    state = figures["state_bytes"]
    rows["model state"] = f"{state['per_parameter']} bytes per parameter, {state['total'] / 1e9:,.1f} GB"
    rows |= {f"  {part}": f"{size} bytes per parameter" for part, size in STATE_BYTES_PER_PARAMETER.items()}
    rows["key-value cache (16 bit)"] = f"{config.kv_bytes_per_token:,} bytes per token"
    _print_rows(rows)


def _print_rows(rows: dict[str, str]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows.items():
        table.add_row(label, value)
    output().print(table)


def _dtype_and_device(device: str) -> tuple[torch.dtype | None, torch.device]:
    """The dtype to compute in (None: as stored) and the device."""
    import torch  # noqa: PLC0415

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        probe = torch.zeros(1, device=device)
        probe.tolist()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise UsageFailure(f"--device {device}: {reason}; use cpu, cuda or auto") from None
    # CPUs multiply fp32 many times faster than 16-bit numbers.
    return (torch.float32 if probe.is_cpu else None), probe.device
