"""An untrusted checkpoint: every forgery and every damage is one `CheckpointError`, and nothing outside is read."""

import copy
import json
import os
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load

from mtnlg_model.checkpoint.manifest import SLOTS, CheckpointError, Layout, Progress
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.checkpoint.tensor_file import TensorFile
from mtnlg_model.checkpoint.writer import CheckpointWriter, publish
from mtnlg_model.config import ModelConfig

pytestmark = pytest.mark.usefixtures("no_gigabytes")
MUTATIONS = settings.get_profile("mutations")
CONFIG = ModelConfig(layers=1, hidden=4, heads=2, sequence=3, vocabulary=5)
NAME = "layers.0.mlp.up.weight"
Manifest = dict[str, Any]


def build(directory: Path, tokenizer: Path) -> Path:
    """A small checkpoint with optimizer state, two writers, boxes and flat ranges."""
    writers = [CheckpointWriter(directory, 1, name) for name in ("a", "b")]
    for name, shape in CONFIG.parameter_shapes().items():
        for slot in SLOTS:
            tensor = torch.randn(shape).to(torch.bfloat16 if slot == "weight" else torch.float32)
            half = shape[0] // 2
            for writer, cut in zip(writers, (slice(0, half), slice(half, None)), strict=True):
                piece = tensor[cut]
                if slot == "master":
                    middle = piece.numel() // 2
                    writer.add(name, shape, slot, (cut,), piece.flatten()[:middle], (0, middle)) if middle else None
                    writer.add(name, shape, slot, (cut,), piece.flatten()[middle:], (middle, piece.numel()))
                else:
                    writer.add(name, shape, slot, (cut,), piece)
    for writer in writers:
        writer.close()
    progress = Progress(step=1, samples=2, tokens=3, loss=1.5, stream="f00d", layout=Layout(), extra={"note": "x"})
    return publish(directory, 1, ["a", "b"], CONFIG, progress, tokenizer)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: Path) -> Path:
    return build(tmp_path_factory.mktemp("whole"), tokenizer_path)


def read_manifest(checkpoint: Path) -> Manifest:
    content: Manifest = json.loads((checkpoint / "manifest.json").read_text())
    return content


def seal(checkpoint: Path, content: Manifest) -> None:
    """Write a manifest with a correct checksum, as a forger would."""
    content.pop("checksum", None)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["checksum"] = xxhash.xxh3_128_hexdigest(text.encode())
    (checkpoint / "manifest.json").write_text(json.dumps(content))


def read_everything(checkpoint: Path) -> None:
    opened = Checkpoint.open(checkpoint)
    for name in opened.names:
        for slot in opened.slots(name):
            assert opened.tensor(name, slot=slot).shape == opened.shape(name)
    opened.verify()


def pieces(content: Manifest, slot: str = "weight") -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = content["tensors"][NAME]["slots"][slot]["pieces"]
    return entries


def parent(content: Manifest, path: str) -> tuple[Any, Any]:
    """What holds the field of ``path``, such as ``config/layers``, and its key there; * stands for `NAME`."""
    *way, last = [NAME if part == "*" else int(part) if part.isdigit() else part for part in path.split("/")]
    place: Any = content
    for part in way:
        place = place[part]
    return place, last


def change(path: str, value: object) -> Callable[[Manifest], None]:
    def forge(content: Manifest) -> None:
        place, last = parent(content, path)
        place[last] = value

    return forge


def drop(path: str) -> Callable[[Manifest], None]:
    def forge(content: Manifest) -> None:
        place, last = parent(content, path)
        del place[last]

    return forge


def list_file(name: str) -> Callable[[Manifest], None]:
    return lambda content: content["files"].update({name: {"bytes": 1, "checksum": "0" * 32}})


def huge(content: Manifest) -> None:
    """Everything consistent, and a million times larger than the files."""
    content["config"]["hidden"] <<= 20
    fixed = {"embedding.token.weight": 5, "embedding.position.weight": 3}
    for name, entry in content["tensors"].items():
        entry["shape"] = [size if size == fixed.get(name) else size << 20 for size in entry["shape"]]
        weight = entry["slots"]["weight"]
        weight["pieces"] = [{**weight["pieces"][0], "box": [[0, size] for size in entry["shape"]]}]
        entry["slots"] = {"weight": weight}


WEIGHT = "tensors/*/slots/weight"
FIRST, SECOND = f"{WEIGHT}/pieces/0", f"{WEIGHT}/pieces/1"
FLAT = "tensors/*/slots/master/pieces/1/flat"
FORGERIES: dict[str, tuple[Callable[[Manifest], None], str]] = {
    "a file name that climbs": (change(f"{FIRST}/file", "../../secret"), r"pieces\.0\.file = '../../secret'"),
    "a file that is not listed": (change(f"{FIRST}/file", "c.safetensors"), "c.safetensors is not listed in files"),
    "a listed file that climbs": (list_file("x/../y"), r"files\.x/\.\./y"),
    "a listed file that is not there": (list_file("gone"), "gone: No such file"),
    "an entry that is not there": (change(f"{FIRST}/key", "other"), "'other': no such entry"),
    "an entry of another piece": (lambda c: pieces(c)[0].update(key=pieces(c)[1]["key"]), "no such entry"),
    "a box outside the shape": (change(f"{SECOND}/box", [[8, 17], [0, 4]]), r"\[8:17,0:4\] is not inside shape"),
    "a box of too few axes": (change(f"{FIRST}/box", [[0, 8]]), r"box \[0:8\] is not inside shape \[16, 4\]"),
    "an overlap": (change(f"{SECOND}/box", [[7, 16], [0, 4]]), r"boxes \[0:8,0:4\] and \[7:16,0:4\] overlap"),
    "a gap": (change(f"{SECOND}/box", [[9, 16], [0, 4]]), "4 of 64 elements are missing"),
    "a missing piece": (drop(FIRST), "32 of 64 elements are missing"),
    "no pieces": (change(f"{WEIGHT}/pieces", []), "pieces = .*: Tuple should have at least 1 item"),
    "the same piece twice": (lambda c: pieces(c).append(pieces(c)[0]), "is used twice"),
    "a flat range outside its box": (change(FLAT, [16, 33]), "flat range 16:33 is not inside box"),
    "a flat gap": (change(FLAT, [17, 32]), "elements 16:17 of box .* are missing"),
    "a flat overlap": (change(FLAT, [15, 32]), "elements 15:16 of box .* are present twice"),
    "another dtype than the file's": (change(f"{WEIGHT}/dtype", "F16"), "is BF16 .* where the manifest says F16"),
    "another shape": (change("tensors/*/shape", [4, 16]), r"shape \[4, 16\] where config has \[16, 4\]"),
    "absurdly many layers": (change("config/layers", 10**12), "tensors: 16 where config has 12000000000004"),
    "a model a million times larger": (huge, "bytes cannot hold pieces of"),
    "heads that do not divide": (change("config/heads", 3), "heads = 3 does not divide hidden = 4"),
    "a missing tensor": (drop("tensors/final_norm.bias"), "tensors: 15 where config has 16"),
    "a missing weight": (drop(WEIGHT), "weight is missing"),
    "half an optimizer": (drop("tensors/*/slots/exp_avg"), "only some tensors have exp_avg and exp_avg_sq"),
    "no tokenizer": (drop("files/tokenizer.json"), r"files: tokenizer\.json is missing"),
    "a length too short": (change("files/a.weights-0.safetensors/bytes", 5), "5 bytes cannot hold pieces"),
    "a length that is not the file's": (
        change("files/tokenizer.json/bytes", 1 << 60),
        "bytes where manifest.json says",
    ),
    "another checksum": (change("files/tokenizer.json/checksum", "0" * 32), "checksum differs from manifest.json"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_every_forgery_is_a_one_line_error_that_names_it(whole: Path, tmp_path: Path, forgery: str) -> None:
    checkpoint = tmp_path / "step-1"
    shutil.copytree(whole, checkpoint)
    forge, message = FORGERIES[forgery]
    content = read_manifest(checkpoint)
    forge(content)
    seal(checkpoint, content)
    with pytest.raises(CheckpointError, match=message) as error:
        read_everything(checkpoint)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(checkpoint))


def test_links_are_not_followed_and_pipes_not_waited_for(whole: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "a.weights-0.safetensors", "manifest.json"):
        for make in (lambda path: path.symlink_to(whole / path.name), os.mkfifo):
            checkpoint = tmp_path / "step-1"
            shutil.copytree(whole, checkpoint)
            (checkpoint / name).unlink()
            make(checkpoint / name)
            with pytest.raises(CheckpointError, match=r"not a regular file|no manifest\.json in it"):
                read_everything(checkpoint)
            shutil.rmtree(checkpoint)


def header_of(file: Path) -> tuple[dict[str, Any], bytes]:
    content = file.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    return header, content[8 + length :]


HEADERS: dict[str, tuple[object, str]] = {
    "an offset outside the file": (
        {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]},
        "outside 8 bytes",
    ),
    "offsets backwards": ({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}, "offsets 8:0 outside"),
    "a negative offset": ({"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}, "header: "),
    "a shape that is not its bytes": ({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}, "does not take 8 bytes"),
    "a shape beyond any number": (
        {"dtype": "F32", "shape": [1 << 61, 1 << 61], "data_offsets": [0, 8]},
        "does not take",
    ),
    "no shape": ({"dtype": "F32", "data_offsets": [0, 8]}, "header: "),
    "a list": ([1, 2], "header: "),
}


@pytest.mark.parametrize("forgery", HEADERS)
def test_a_forged_header_is_refused(tmp_path: Path, forgery: str) -> None:
    entry, message = HEADERS[forgery]
    header = json.dumps({"x": entry}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(CheckpointError, match=message):
        TensorFile(tmp_path / "x.safetensors")


def test_a_file_cut_short_under_a_reader_is_an_error(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "step-1")
    opened = Checkpoint.open(tmp_path / "step-1")
    opened.tensor(NAME)
    file = tmp_path / "step-1" / "b.weights-0.safetensors"
    os.truncate(file, file.stat().st_size - 200)
    with pytest.raises(CheckpointError, match="the file ends within this entry"):
        [opened.tensor(name) for name in opened.names]
    with pytest.raises(CheckpointError, match="bytes where manifest"):
        Checkpoint.open(tmp_path / "step-1").tensor(NAME)


VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20),
    st.sampled_from([-1, 2**31, 2**61, 2**63, 2**64, 10**30, 1e308, -0.0]),
    st.sampled_from(["", "..", "/", "F32", "BF16", "weight", "a.weights-0.safetensors", "\u202e", "x" * 300]),
    st.just([]),
    st.just({}),
)


def draw_field(data: st.DataObject, content: Manifest) -> tuple[Any, Any]:
    """A field or item somewhere in the manifest: what holds it, and its key there."""
    place: Any = content
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = keys[data.draw(st.integers(0, len(keys) - 1))]
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.integers(0, 3)) == 0:
            return place, key
        place = inner


@settings(MUTATIONS)
@given(data=st.data())
def test_any_change_to_a_manifest_is_refused_or_harmless(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """One to three fields changed, removed or doubled, and the checksum computed again."""
    checkpoint = _scratch(whole, tmp_path_factory)
    content = read_manifest(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        place, last = draw_field(data, content)
        how = data.draw(st.sampled_from(["change", "remove", "double"]))
        if how == "change":
            place[last] = data.draw(VALUES)
        elif how == "remove":
            del place[last]
        elif isinstance(place, list):
            place.append(copy.deepcopy(place[last]))
        else:
            place[f"{last}2"] = copy.deepcopy(place[last])
    seal(checkpoint, content)
    with suppress(CheckpointError):
        read_everything(checkpoint)


@settings(MUTATIONS)
@given(data=st.data())
def test_any_damage_to_a_file_is_found(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A bit flipped, a byte range overwritten, an end cut off or added: in any file, the manifest too."""
    checkpoint = _scratch(whole, tmp_path_factory)
    name = data.draw(st.sampled_from(sorted(path.name for path in whole.iterdir())))
    before = (whole / name).read_bytes()
    place = data.draw(st.integers(0, len(before) - 1))
    after = data.draw(
        st.sampled_from(
            [
                before[:place] + bytes([before[place] ^ 1 << place % 8]) + before[place + 1 :],
                before[:place] + b"\0" * 8 + before[place + 8 :],
                before[:place],
                before + before[place:],
            ]
        )
    )
    (checkpoint / name).write_bytes(after)
    try:
        read_everything(checkpoint)
    except CheckpointError:
        pass
    else:
        # White space of the manifest may change; nothing else.
        assert after == before or (name == "manifest.json" and json.loads(after) == json.loads(before))
    (checkpoint / name).write_bytes(before)


def _scratch(whole: Path, factory: pytest.TempPathFactory) -> Path:
    """The checkpoint in a folder of its own, as it was but for what one example does to it."""
    path = factory.getbasetemp() / "scratch"
    if not path.exists():
        shutil.copytree(whole, path)
    shutil.copyfile(whole / "manifest.json", path / "manifest.json")
    return path


ENTRY = '"{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}'


@pytest.mark.parametrize(
    "entries",
    [
        [("x", 8, 0, 8), ("x", 8, 0, 8)],
        [("x", 8, 0, 8), ("y", 4, 4, 8)],
        [("x", 4, 0, 4), ("y", 2, 6, 8)],
        [("x", 4, 4, 8)],
        [("x", 4, 0, 4)],
    ],
    ids=["a key twice", "overlap", "hole", "hole before", "hole behind"],
)
def test_files_that_safetensors_refuses_are_refused(tmp_path: Path, entries: list[tuple[str, int, int, int]]) -> None:
    header = f"{{{','.join(ENTRY.format(*entry) for entry in entries)}}}".encode()
    content = struct.pack("<Q", len(header)) + header + bytes(8)
    if len({name for name, *_ in entries}) == len(entries):  # of one that is there twice the library takes the last
        with pytest.raises(SafetensorError):
            load(content)
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError):
        TensorFile(tmp_path / "x.safetensors")
