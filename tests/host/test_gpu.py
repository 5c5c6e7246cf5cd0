"""Which GPUs are found in a file system, and why they cannot be used, without a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from attrs import evolve

from vtcore.host import gpu
from vtcore.host.gpu import (
    CudaFacts,
    GpuFacts,
    GpuFiles,
    has_kernels,
    judge_gpus,
    probe_gpus,
    read_gpu_files,
    sort_gpus,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with one GPU and a loaded driver."""
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / "dev" / name).touch()
    folder = tmp_path / "proc/driver/nvidia/gpus/0000:18:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\n")
    return tmp_path


def test_device_files_and_models_are_read(root: Path) -> None:
    assert read_gpu_files(root) == GpuFiles(devices=(str(root / "dev/nvidia0"),), names=("NVIDIA H200",))


def test_control_files_alone_are_no_gpu(root: Path) -> None:
    (root / "dev/nvidia0").unlink()
    assert read_gpu_files(root) == GpuFiles(names=("NVIDIA H200",))


def test_missing_control_files_are_named(root: Path) -> None:
    (root / "dev/nvidia-uvm").unlink()
    assert read_gpu_files(root).missing == (str(root / "dev/nvidia-uvm"),)


def test_an_unreadable_model_still_counts(root: Path) -> None:
    [file] = (root / "proc").glob("**/information")
    file.write_text("IRQ: 42\n")
    assert read_gpu_files(root).names == ("NVIDIA GPU",)


def test_without_a_device_file_nothing_is_asked_of_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom vtcore.host.gpu import GpuFacts, probe_gpus\n"
        f"assert probe_gpus(False, Path({str(tmp_path)!r})) == GpuFacts()\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_hidden_gpus_count_as_absent(root: Path) -> None:
    assert probe_gpus(True, root) == GpuFacts()


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch without CUDA")
def test_a_gpu_beside_this_torch_without_cuda_is_a_problem_with_a_remedy(root: Path) -> None:
    facts = probe_gpus(False, root)
    assert facts.names == ("NVIDIA H200",)
    assert facts.problem == (
        "1 GPU (NVIDIA H200) cannot be used, because the installed torch was built without CUDA"
    )
    assert f"{sys.executable} -m pip install --force-reinstall torch" in facts.remedy


FILES = GpuFiles(devices=("/dev/nvidia0", "/dev/nvidia1"), names=("NVIDIA H200", "NVIDIA H200"))
BUILT = CudaFacts(built_for="12.8")
OLD_DRIVER = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by "
    "downloading and installing a new version from the URL"
)


@pytest.mark.parametrize(
    ("files", "cuda", "problem", "remedy"),
    [
        (FILES, CudaFacts(torch_error="OSError: x"), "torch cannot be imported: OSError: x", "pip install"),
        (FILES, CudaFacts(), "built without CUDA", "CUDA build"),
        (
            FILES,
            evolve(BUILT, error=OLD_DRIVER),
            "too old for torch's CUDA 12.8",
            "upgrade the NVIDIA driver",
        ),
        (FILES, evolve(BUILT, error="Found no NVIDIA driver on your system"), "libcuda", "--gpus all"),
        (FILES, evolve(BUILT, error="CUDA unknown error"), "CUDA unknown error", "nvidia-smi"),
        (FILES, BUILT, "torch sees no GPU", "CUDA_VISIBLE_DEVICES"),
        (
            evolve(FILES, denied=("/dev/nvidia0",)),
            evolve(BUILT, error="no"),
            "this user may not open /dev/nvidia0",
            "group",
        ),
        (
            evolve(FILES, missing=("/dev/nvidia-uvm",)),
            evolve(BUILT, error="no"),
            "/dev/nvidia-uvm is missing",
            "nvidia-modprobe",
        ),
        (
            FILES,
            evolve(BUILT, names=("OLD",), unsupported={0: "OLD (compute capability 6.1)"}),
            "no kernels for OLD",
            "torch build",
        ),
        (
            FILES,
            evolve(BUILT, names=("V100",), too_old={0: "V100 (compute capability 7.0)"}),
            "need compute capability 8.0, which is more than V100 (compute capability 7.0) has",
            "device cpu",
        ),
        (
            FILES,
            evolve(BUILT, names=("V100", "OLD"), too_old={0: "V100 (7.0)"}, unsupported={1: "OLD (6.1)"}),
            "no kernels for OLD (6.1), and kernels for a GPU need compute capability 8.0",
            "torch's install page; take a newer GPU",
        ),
    ],
)
def test_each_reason_has_its_sentence_and_remedy(
    files: GpuFiles, cuda: CudaFacts, problem: str, remedy: str
) -> None:
    facts = judge_gpus(files, cuda)
    assert facts.names
    assert facts.problem is not None
    assert problem in facts.problem
    assert remedy in facts.remedy


@pytest.mark.parametrize("denied", [(), ("/dev/nvidia1",)])
def test_gpus_that_torch_sees_are_no_problem_and_go_by_its_names(denied: tuple[str, ...]) -> None:
    files = evolve(FILES, denied=denied)
    assert judge_gpus(files, evolve(BUILT, names=("NVIDIA H200",))) == GpuFacts(("NVIDIA H200",))


def test_one_usable_gpu_among_unsupported_ones_is_no_problem() -> None:
    cuda = evolve(BUILT, names=("OLD", "NEW"), unsupported={0: "OLD (compute capability 6.1)"})
    facts = judge_gpus(FILES, cuda)
    assert facts.problem is None
    assert facts.unusable == {0: "the installed torch has no kernels for OLD (compute capability 6.1)"}
    assert facts.first_usable == 1
    cuda = evolve(cuda, names=("OLD", "V100", "NEW"), too_old={1: "V100 (compute capability 7.0)"})
    facts = judge_gpus(FILES, cuda)
    assert facts.problem is None
    assert "need compute capability 8.0" in facts.unusable[1]
    assert facts.first_usable == 2
    assert GpuFacts().first_usable is None
    assert GpuFacts(("OLD",), "it cannot be used").first_usable is None


@pytest.mark.parametrize(
    ("capability", "built", "expected"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((9, 0), ["sm_80", "sm_86"], False),
        ((8, 9), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((12, 0), ["sm_90", "compute_90"], True),
        ((6, 1), ["sm_75", "compute_120"], False),
        ((9, 0), ["sm_90a"], True),
        ((12, 1), ["sm_120"], True),
        ((9, 0), ["gfx90a"], False),
    ],
)
def test_binary_code_serves_its_major_version_and_ptx_all_later_ones(
    capability: tuple[int, int], built: list[str], expected: bool
) -> None:
    assert has_kernels(capability, built) is expected


def test_a_gpu_is_usable_unsupported_by_torch_or_too_old_for_triton() -> None:
    names = ("H200", "A100", "V100", "P40")
    unsupported, too_old = sort_gpus(names, [(9, 0), (8, 0), (7, 0), (6, 1)], ["sm_70", "sm_80", "sm_90"])
    assert unsupported == {3: "P40 (compute capability 6.1)"}
    assert too_old == {2: "V100 (compute capability 7.0)"}


def test_a_torch_that_cannot_be_imported_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    error = gpu.read_cuda().torch_error
    assert error is not None
    assert error.startswith("ModuleNotFoundError: import of torch halted")


@pytest.mark.gpu
def test_the_gpu_of_this_machine_is_usable() -> None:
    facts = probe_gpus(False)
    assert facts.problem is None
    assert facts.names[0] == torch.cuda.get_device_name(0)


@pytest.mark.parametrize("source", ["raise SystemExit(3)", "class P(BaseException): ...\nraise P", ""])
def test_a_torch_that_is_none_or_ends_the_program_is_a_fact(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch")
    assert gpu.read_cuda().torch_error is not None
