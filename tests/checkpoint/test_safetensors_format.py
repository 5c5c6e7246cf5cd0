"""The safetensors format: names, reading by rows, and each way in which files may be broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vtcore.checkpoint.format import InMemoryFormat
from vtcore.checkpoint.safetensors import SafetensorsFormat
from vtcore.checkpoint.shards import INDEX_FILE
from vtcore.errors import CheckpointError, IncompleteCheckpointError, MissingTensorError

A = torch.arange(12, dtype=torch.float32).reshape(4, 3)
B = torch.arange(6, dtype=torch.bfloat16)
SCALAR = torch.tensor(2.5, dtype=torch.float64)
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def write_shards(directory: Path) -> Path:
    save_file({"a": A}, directory / FIRST)
    save_file({"b": B, "s": SCALAR}, directory / SECOND, metadata={"format": "pt"})
    return directory


def write_index(directory: Path, weight_map: object) -> None:
    (directory / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))


def test_shards_give_names_shapes_dtypes_and_equal_data(tmp_path: Path) -> None:
    fmt = SafetensorsFormat(write_shards(tmp_path))
    infos = {n: (i.shape, i.dtype, i.file) for n, i in fmt.names().items()}
    assert infos == {"a": ((4, 3), "F32", FIRST), "b": ((6,), "BF16", SECOND), "s": ((), "F64", SECOND)}
    for name, tensor in (("a", A), ("b", B), ("s", SCALAR)):
        read = fmt.read(name)
        assert read.dtype == tensor.dtype
        assert torch.equal(read, tensor)


def test_a_row_range_is_that_slice(tmp_path: Path) -> None:
    fmt = SafetensorsFormat(write_shards(tmp_path))
    assert torch.equal(fmt.read("a", slice(1, 3)), A[1:3])
    assert torch.equal(fmt.read("b", slice(4, 6)), B[4:6])


def test_reading_goes_on_after_close(tmp_path: Path) -> None:
    fmt = SafetensorsFormat(write_shards(tmp_path))
    first = fmt.read("a")
    fmt.close()
    assert torch.equal(fmt.read("a"), first)


def test_an_absent_name_is_a_missing_tensor(tmp_path: Path) -> None:
    with pytest.raises(MissingTensorError, match="nope"):
        SafetensorsFormat(write_shards(tmp_path)).read("nope")
    with pytest.raises(MissingTensorError, match="nope"):
        InMemoryFormat({"a": A}).read("nope")


def test_a_mapping_in_memory_behaves_as_the_files_do(tmp_path: Path) -> None:
    files = SafetensorsFormat(write_shards(tmp_path))
    memory = InMemoryFormat({"a": A, "b": B, "s": SCALAR})
    assert {n: (i.shape, i.dtype) for n, i in memory.names().items()} == {
        n: (i.shape, i.dtype) for n, i in files.names().items()
    }
    assert torch.equal(memory.read("a", slice(0, 2)), files.read("a", slice(0, 2)))


def test_the_index_decides_which_files_belong(tmp_path: Path) -> None:
    write_shards(tmp_path)
    save_file({"a": A + 1, "stray": A}, tmp_path / "other.safetensors")
    write_index(tmp_path, {"a": FIRST, "b": SECOND, "s": SECOND})
    fmt = SafetensorsFormat(tmp_path)
    assert set(fmt.names()) == {"a", "b", "s"}
    assert torch.equal(fmt.read("a"), A)


def test_a_tensor_the_index_forgot_is_still_offered(tmp_path: Path) -> None:
    write_shards(tmp_path)
    write_index(tmp_path, {"a": FIRST, "b": SECOND})
    assert set(SafetensorsFormat(tmp_path).names()) == {"a", "b", "s"}


def test_a_forgotten_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    save_file({"a": A, "x": A + 1}, tmp_path / "one.safetensors")
    save_file({"b": B, "x": A}, tmp_path / "two.safetensors")
    write_index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    with pytest.raises(CheckpointError, match=r"x is in both one\.safetensors and two\.safetensors"):
        SafetensorsFormat(tmp_path)


def test_the_index_chooses_between_two_copies(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "one.safetensors")
    save_file({"a": A + 1, "b": B}, tmp_path / "two.safetensors")
    write_index(tmp_path, {"a": "two.safetensors", "b": "two.safetensors"})
    assert torch.equal(SafetensorsFormat(tmp_path).read("a"), A + 1)


def test_an_index_naming_an_absent_file_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path)
    write_index(tmp_path, {"a": FIRST, "b": "gone-1.safetensors", "s": "gone-2.safetensors"})
    with pytest.raises(CheckpointError, match=r"lacks 2 weight file\(s\): gone-1\.safetensors, gone-2"):
        SafetensorsFormat(tmp_path)


def test_an_index_naming_a_tensor_its_shard_lacks_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path)
    write_index(tmp_path, {"a": FIRST, "b": FIRST})
    with pytest.raises(CheckpointError, match=f"places tensor b in {FIRST}, .*; fetch the index and"):
        SafetensorsFormat(tmp_path)


@pytest.mark.parametrize(
    "file",
    [
        "../out.safetensors",
        "sub/x.safetensors",
        "..\\x.safetensors",
        "/etc/passwd",
        "..",
        ".safetensors",
        "a\0.safetensors",
        "a\n.safetensors",
        "config.json",
        "",
        3,
        None,
    ],
)
def test_an_index_may_only_name_files_of_its_folder(tmp_path: Path, file: object) -> None:
    write_shards(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    write_index(tmp_path, {"a": file})
    with pytest.raises(CheckpointError, match="file of the same folder"):
        SafetensorsFormat(tmp_path)


@pytest.mark.parametrize("weight_map", [None, {}, ["a"]])
def test_an_index_without_a_weight_map_is_refused(tmp_path: Path, weight_map: object) -> None:
    write_shards(tmp_path)
    write_index(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match="no `weight_map` object"):
        SafetensorsFormat(tmp_path)


def test_an_unparseable_index_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / INDEX_FILE).write_text('{"weight_map": {')
    with pytest.raises(CheckpointError, match=r"index\.json is not valid JSON.*line 1, column 17"):
        SafetensorsFormat(tmp_path)


def test_a_missing_shard_is_noticed_without_an_index(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / FIRST).unlink()
    with pytest.raises(
        CheckpointError, match=rf"lacks 1 weight file\(s\): {FIRST} \(the shards are numbered"
    ):
        SafetensorsFormat(tmp_path)


def test_without_an_index_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "one.safetensors")
    save_file({"a": A}, tmp_path / "two.safetensors")
    with pytest.raises(CheckpointError, match=r"a is in both one\.safetensors and two\.safetensors"):
        SafetensorsFormat(tmp_path)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no \*\.safetensors"):
        SafetensorsFormat(tmp_path)


def test_every_truncation_is_noticed_with_both_byte_counts(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": A, "b": B}, path)
    whole = path.read_bytes()
    header_end = 8 + int.from_bytes(whole[:8], "little")
    for size, needed in ((0, 8), (5, 8), (8, header_end), (40, header_end), (len(whole) - 1, len(whole))):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=f"truncated: it has {size} bytes and needs {needed};"):
            SafetensorsFormat(tmp_path)


def write_raw(path: Path, header: bytes, data: bytes = b"") -> None:
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"not json", "header is not JSON"),
        (b"\xff\xfe", "header is not JSON"),
        (b"[]", "header is not an object"),
        (b'{"a": 3}', "entry of 'a' is malformed"),
        (b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}', "entry of 'a' is malformed"),
        (b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}', "entry of 'a' is malformed"),
        (b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}', "entry of 'a' is malformed"),
        (b'{"a": {"dtype": 32, "shape": [1], "data_offsets": [0, 4]}}', "entry of 'a' is malformed"),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "needs 8 bytes.*gives it 4"),
    ],
)
def test_a_malformed_header_is_refused(tmp_path: Path, header: bytes, message: str) -> None:
    write_raw(tmp_path / "model.safetensors", header, bytes(4))
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFormat(tmp_path)


def test_a_file_of_another_kind_is_no_safetensors_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"<html><body>not here</body></html>")
    with pytest.raises(CheckpointError, match="is not a safetensors file: it claims"):
        SafetensorsFormat(tmp_path)


def test_a_pointer_of_git_lfs_is_an_incomplete_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(IncompleteCheckpointError, match=r"is a pointer of git-lfs.*`git lfs pull`"):
        SafetensorsFormat(tmp_path)


def test_a_file_replaced_after_opening_is_a_checkpoint_error(tmp_path: Path) -> None:
    fmt = SafetensorsFormat(write_shards(tmp_path))
    (tmp_path / FIRST).write_bytes(b"")
    (tmp_path / SECOND).unlink()
    with pytest.raises(CheckpointError, match=f"{FIRST}: cannot read a"):
        fmt.read("a")
    with pytest.raises(CheckpointError, match=f"{SECOND}: cannot read b"):
        fmt.read("b")
