"""Tuned files are read once, refused with the reason where they are unusable; rules serve without them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch

from vtcore.errors import ConfigError
from vtcore.ops import compile_target, tuned
from vtcore.ops.linear import plan as linear_plan
from vtcore.ops.linear.plan import OP, ROWS, ByRow, ByTile, bucket, parse_entry, plans
from vtcore.ops.tuned import DEFAULT_DEVICE, file_name, tuned_entries

PACKAGE, GPU = "package_with_tuned_files", "Some GPU 9000/B"
LIBRARY: dict[str, Any] = {
    "dtype": "bfloat16",
    "n": 48,
    "k": 64,
    "m": 4,
    "kernel": "library",
    "us": 2.5,
    "library_us": 2.5,
}
BY_ROW = LIBRARY | {"kernel": "rows", "config": {"columns": 4, "depth": 64, "num_warps": 4}, "m": 1}
BY_TILE = LIBRARY | {
    "kernel": "tiles",
    "config": {"rows": 16, "columns": 8, "depth": 32, "parts": 3, "num_warps": 4, "num_stages": 3},
    "m": 8,
}

Write = Callable[[str], None]


def forget() -> None:
    for cached in (tuned_entries, plans, linear_plan._tuned):
        cached.cache_clear()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes the file of `GPU` in a package of its own, which then serves the op `linear`."""
    folder = tmp_path / PACKAGE / "tuned"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        linear_plan, "tuned_entries", lambda _, device, op: tuned_entries(PACKAGE, device, op)
    )

    def written(text: str) -> None:
        (folder / "Some_GPU_9000_B.json").write_text(text, "utf-8")
        forget()

    forget()
    yield written
    sys.modules.pop(PACKAGE, None)
    forget()


def text_of(*entries: Any, **others: Any) -> str:
    return json.dumps({"device": GPU, "made": {}, "entries": {OP: list(entries)}} | others)


def test_entries_decide_and_counts_between_follow_the_next_larger(write: Write) -> None:
    write(text_of(BY_ROW, LIBRARY, BY_TILE))
    found = plans(GPU, "bfloat16", 48, 64)
    assert found[1] == ByRow(columns=4, depth=64, num_warps=4)
    assert found[4] is None
    assert found[8] == ByTile(rows=16, columns=8, depth=32, parts=3, num_warps=4, num_stages=3)
    assert found[2] is found[64] is None
    assert [bucket(rows) for rows in (1, 3, 5, 64, 65)] == [1, 4, 8, 64, None]


def test_a_shape_or_gpu_without_entries_follows_the_rule(write: Write) -> None:
    write(text_of(BY_TILE))
    for gpu in (GPU, "no such GPU"):
        narrow, wide = plans(gpu, "bfloat16", 1024, 300), plans(gpu, "bfloat16", 2048, 300)
        assert [rows for rows in ROWS if narrow[rows]] == [1, 2, 4]
        assert [rows for rows in ROWS if wide[rows]] == [1, 2]
        assert narrow[1] == ByRow(columns=4, depth=512, num_warps=4)
        assert not any(plans(gpu, "float32", 1024, 300).values())


def test_the_file_is_read_once(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(text_of(BY_ROW))
    reads = []

    def files(package: str) -> Any:
        reads.append(package)
        return resources.files(package)

    monkeypatch.setattr(tuned, "files", files)
    for _ in range(3):
        for width in (48, 64):
            plans(GPU, "bfloat16", width, 64)
    assert reads == [PACKAGE]


BAD_FILES = {
    "{": "is no JSON",
    "[]": "holds list, not exactly",
    text_of(more=1): r"holds \['device', 'entries', 'made', 'more'\], not exactly",
    text_of(device="Another GPU"): "was measured on 'Another GPU', not on 'Some GPU 9000/B'",
    text_of(entries=[]): r"\$\.entries\.linear is no list",
    text_of(entries={OP: {}}): r"\$\.entries\.linear is no list",
    text_of(3): r"\$\.entries\.linear is no list",
    text_of(BY_ROW, BY_ROW): "entry 1 .* repeats the shape",
    text_of(BY_ROW, BY_TILE | {"m": 3}): "entry 1 of linear tuned for Some GPU 9000/B is unusable: m is 3",
}


@pytest.mark.parametrize(("text", "message"), BAD_FILES.items(), ids=BAD_FILES.values())
def test_an_unusable_file_is_refused_with_the_remedy(write: Write, text: str, message: str) -> None:
    write(text)
    with pytest.raises(ConfigError, match=f"{message}.*; measure it anew"):
        plans(GPU, "bfloat16", 1, 1)


def changed(entry: Mapping[str, Any], **config: Any) -> dict[str, Any]:
    return {**entry, "config": entry["config"] | config}


BAD_ENTRIES = [
    (LIBRARY | {"kernel": "cubes"}, "kernel is 'cubes', not one of library, rows, tiles"),
    (LIBRARY | {"kernel": ["rows"]}, r"kernel is \['rows'\]"),
    (LIBRARY | {"config": {}}, "the entry holds .*'config'.*, not exactly"),
    ({key: value for key, value in LIBRARY.items() if key != "us"}, "the entry holds"),
    (LIBRARY | {"dtype": "float16"}, "dtype is 'float16', not one of bfloat16, float32"),
    (LIBRARY | {"m": 5}, "m is 5, not one of 1, 2, 4"),
    (LIBRARY | {"n": 0}, "n is 0, not a whole number from 1"),
    (LIBRARY | {"k": 64.0}, "k is 64.0, not a whole number"),
    (LIBRARY | {"us": 0}, "us is 0, not a time above 0"),
    (LIBRARY | {"library_us": "fast"}, "library_us is 'fast'"),
    (BY_ROW | {"config": [4, 64, 4]}, r"config is \[4, 64, 4\], not an object"),
    (changed(BY_ROW, rows=2), "config holds"),
    (changed(BY_ROW, depth=96), "config.depth is 96, not a power of two"),
    (changed(BY_TILE, columns=4), "config.columns is 4, not a whole number from 8 to 256"),
    (changed(BY_TILE, parts=0), "config.parts is 0, not a whole number from 1 to 32"),
]


@pytest.mark.parametrize(("entry", "message"), BAD_ENTRIES, ids=[message for _, message in BAD_ENTRIES])
def test_an_illegal_entry_is_named(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_entry(entry)


def test_the_packaged_entries_are_legal_and_name_what_was_fastest() -> None:
    entries = tuned_entries("vtcore.ops", DEFAULT_DEVICE, OP)
    assert entries
    for entry in entries:
        is_own = parse_entry(entry) is not None
        assert entry["us"] < entry["library_us"] if is_own else entry["us"] == entry["library_us"]
        assert plans(DEFAULT_DEVICE, entry["dtype"], entry["n"], entry["k"])[entry["m"]] == parse_entry(entry)


def test_the_target_of_every_measured_gpu_is_known() -> None:
    folder = resources.files("vtcore.ops").joinpath("tuned")
    measured = {json.loads(file.read_text("utf-8"))["device"] for file in folder.iterdir()}
    assert measured == tuned.TARGETS.keys()
    assert set(tuned.TARGETS.values()) <= set(compile_target.TARGETS)
    assert all(map(tuned.has_file, measured))


def see(monkeypatch: pytest.MonkeyPatch, name: str | None, capability: tuple[int, int] = (0, 0)) -> None:
    """As if torch saw that GPU, or none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: name is not None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    tuned._current_name.cache_clear()


@pytest.fixture
def _own_gpu() -> Iterator[None]:
    yield
    tuned._current_name.cache_clear()


@pytest.mark.usefixtures("_own_gpu")
@pytest.mark.parametrize(
    ("here", "target", "named", "device"),
    [
        (None, "sm_90", None, "NVIDIA H200"),
        (None, "sm_80", None, "sm_80"),
        (("NVIDIA H100", (9, 0)), "sm_90", None, "NVIDIA H100"),
        (("NVIDIA A100", (8, 0)), "sm_90", None, "NVIDIA H200"),
        (("NVIDIA A100", (8, 0)), "sm_80", None, "NVIDIA A100"),
        (("NVIDIA H200", (9, 0)), "sm_80", None, "sm_80"),
        (("NVIDIA H200", (9, 0)), "sm_90", "NVIDIA H100", "NVIDIA H100"),
        (None, "sm_90", "NVIDIA H200", "NVIDIA H200"),
    ],
)
def test_plans_for_a_target_are_those_of_a_gpu_of_it(
    here: tuple[str, tuple[int, int]] | None,
    target: str,
    named: str | None,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    see(monkeypatch, *(here or (None,)))
    assert tuned.choose_device(target, named) == device


@pytest.mark.usefixtures("_own_gpu")
def test_among_several_measured_gpus_of_a_target_none_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    see(monkeypatch, None)
    monkeypatch.setattr(tuned, "TARGETS", {"NVIDIA H200": "sm_90", "NVIDIA H20": "sm_90"})
    assert not tuned.has_file(tuned.choose_device("sm_90", None))
    assert tuned.choose_device("sm_90", "NVIDIA H20") == "NVIDIA H20"


def test_a_named_gpu_of_another_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="'NVIDIA H200' is sm_90, not the sm_80 of --target"):
        tuned.choose_device("sm_80", "NVIDIA H200")


def test_another_gpu_serves_inside_and_the_own_one_again_outside() -> None:
    before = tuned.device_name()
    with tuned.tuned_for("NVIDIA Y"):
        assert tuned.device_name() == "NVIDIA Y"
    assert tuned.device_name() == before


def test_names_of_files_hold_neither_spaces_nor_slashes() -> None:
    assert file_name("NVIDIA A/B 1") == "NVIDIA_A_B_1.json"
