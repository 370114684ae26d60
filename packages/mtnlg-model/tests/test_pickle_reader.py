"""Pickles and torch.save files read as data: plain values come back, calls are recorded and never executed.

`tests/fuzz` mutates them.
"""

import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtnlg_model.console import Failure
from mtnlg_model.convert import pickle_reader
from mtnlg_model.convert.pickle_reader import Global, Record
from mtnlg_model.convert.torch_file import TorchFile

HERE = Path("x.pkl")
KEYS = st.integers(1 - pickle_reader.LARGEST_KEY, pickle_reader.LARGEST_KEY - 1)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | KEYS, inner),
    max_leaves=8,
)


@settings(max_examples=50)
@given(value=PLAIN, protocol=st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_plain_values_round_trip(value: object, protocol: int) -> None:
    assert pickle_reader.read(pickle.dumps(value, protocol), HERE) == value


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_classes_stay_names_and_calls_stay_records(tmp_path: Path, protocol: int) -> None:
    class_, path, ordered = pickle_reader.read(pickle.dumps((OrderedDict, tmp_path, OrderedDict(a=1)), protocol), HERE)
    assert class_ == Global("collections", "OrderedDict")
    assert path.is_a(type(tmp_path).__module__, "PosixPath")  # pathlib._local in Python 3.13
    assert Path(*path.arguments) == tmp_path
    assert ordered.is_a("collections", "OrderedDict")
    assert ordered.items == {"a": 1}


def test_nothing_runs(tmp_path: Path, malice: object) -> None:
    record = pickle_reader.read(pickle.dumps([malice]), HERE)[0]
    assert (record.what.name, record.arguments) == ("mkdir", (str(tmp_path / "ran"),))
    assert not (tmp_path / "ran").exists()


def test_a_key_whose_hash_could_take_forever_is_refused() -> None:
    # t = (); 200 times t = (t, t); {t: None}
    raw = b"\x80\x02}(" + b")" + b"q\x00h\x00\x86" * 200 + b"Nu."
    with pytest.raises(Failure, match="a tuple as a key"):
        pickle_reader.read(raw, HERE)


def test_views_of_any_storage_part_are_read(tmp_path: Path) -> None:
    base = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    saved = OrderedDict(
        whole=base,
        turned=base.T,
        cut=base[1:3, 2:4],
        half=torch.ones(3, dtype=torch.bfloat16),
        parameter=torch.nn.Parameter(torch.ones(2)),
        nothing=torch.empty(0, 3),
        one=torch.tensor(1.5),
    )
    torch.save(saved, tmp_path / "x.pt")
    content = (tmp_path / "x.pt").read_bytes()
    (tmp_path / "several").write_bytes(b"before" + content + b"after")
    for file in (TorchFile(tmp_path / "x.pt"), TorchFile(tmp_path / "several", 6, len(content))):
        assert file.content.keys() == saved.keys()
        for name, view in file.content.items():
            assert torch.equal(file.tensor(view), saved[name]), name
            assert file.tensor(view).is_contiguous()
    torch.save({"whole": torch.ones(2, dtype=torch.long), "step": 3}, tmp_path / "y.pt")
    other = TorchFile(tmp_path / "y.pt").content
    assert (type(other["whole"]), other["step"]) == (Record, 3)


@pytest.mark.usefixtures("no_gigabytes")
@pytest.mark.parametrize(
    "tensor",
    [torch.ones(1).expand(1 << 40), torch.ones(8).as_strided((8, 8), (1, 0)), torch.ones(1).expand(1 << 30, 1 << 31)],
)
def test_a_tensor_larger_than_its_storage_is_refused(tmp_path: Path, tensor: torch.Tensor) -> None:
    torch.save(tensor, tmp_path / "x.pt")
    file = TorchFile(tmp_path / "x.pt")
    with pytest.raises(Failure, match=r"x\.pt: storage 0: \d+ bytes are too few for a tensor of \["):
        file.tensor(file.content)


@pytest.mark.usefixtures("no_gigabytes")
@pytest.mark.parametrize("entry", ["data.pkl", "data/0"])
def test_a_compressed_entry_is_refused(tmp_path: Path, entry: str) -> None:
    torch.save(torch.zeros(100_000), tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as whole, zipfile.ZipFile(tmp_path / "y.pt", "w") as bomb:
        for info in whole.infolist():
            kind = zipfile.ZIP_DEFLATED if info.filename.endswith(entry) else zipfile.ZIP_STORED
            bomb.writestr(info.filename, whole.read(info), kind)
    with pytest.raises(Failure, match=f"{entry} is compressed or misplaced"):
        (file := TorchFile(tmp_path / "y.pt")).tensor(file.content)
