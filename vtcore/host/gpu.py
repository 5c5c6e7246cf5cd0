"""Which NVIDIA GPUs are here, and why they cannot be used when they cannot.

Does not: choose a device, hold memory on one, or ask torch anything where there is no device file.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from attrs import field, frozen

from vtcore.host.installed import pip_command

_DEVICE_FILE = re.compile(r"nvidia\d+")
_CONTROL_FILES = ("nvidiactl", "nvidia-uvm")
"""Opened by every CUDA program beside the device's own file. Source: NVIDIA driver README, chapter 6."""

MIN_CAPABILITY = (8, 0)
"""Older GPUs have no bfloat16 matrix products, and Triton compiles for none of them."""

_CONTAINER = "start the container with its GPU option (--gpus all)"


@frozen
class GpuFacts:
    """What an engine must know before it chooses a device.

    Args:
        names: One per GPU that this process may see; empty where there is none, or all are hidden.
        problem: Why none of them can be used, one sentence; None when one can, or there is none.
        remedy: What mends it; "" without a problem.
        unusable: Number of a GPU that cannot be used beside others that can -> why.
    """

    names: tuple[str, ...] = ()
    problem: str | None = None
    remedy: str = ""
    unusable: Mapping[int, str] = field(factory=dict)

    @property
    def first_usable(self) -> int | None:
        """Number of the first GPU that can be used; None when none can."""
        numbers = () if self.problem is not None else range(len(self.names))
        return next((number for number in numbers if number not in self.unusable), None)


@frozen
class GpuFiles:
    """What the NVIDIA driver shows in the file system.

    Args:
        devices: Device files, one per GPU.
        names: Of the GPUs that the driver knows; a container may see these and no device file.
        missing: Control files that are not there.
        denied: Device and control files that this user may not open.
    """

    devices: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()


@frozen
class CudaFacts:
    """What torch says.

    Args:
        torch_error: Why torch cannot be imported; None when it can.
        built_for: CUDA version of the torch build; None for a build without CUDA.
        error: Why CUDA cannot be initialised, in torch's words; None when it can.
        names: Of the GPUs that torch sees.
        unsupported: Number of a GPU that this torch has no kernels for -> its name and capability.
        too_old: The same for a GPU below `MIN_CAPABILITY` that torch itself still serves.
    """

    torch_error: str | None = None
    built_for: str | None = None
    error: str | None = None
    names: tuple[str, ...] = ()
    unsupported: Mapping[int, str] = field(factory=dict)
    too_old: Mapping[int, str] = field(factory=dict)

    @property
    def num_usable(self) -> int:
        """GPUs that neither torch nor Triton refuses."""
        return len(self.names) - len(self.unsupported) - len(self.too_old)


def probe_gpus(hidden: bool, root: Path = Path("/")) -> GpuFacts:
    """Look for GPUs. Without a device file this costs a folder listing; with one, torch is asked.

    Args:
        hidden: Whether the user hid all GPUs (`Environment.gpus_hidden`); they then count as absent.
        root: Where `dev` and `proc` lie.
    """
    files = read_gpu_files(root)
    if hidden or not files.devices:
        return GpuFacts()
    return judge_gpus(files, read_cuda())


def read_gpu_files(root: Path = Path("/")) -> GpuFiles:
    """Read what the driver shows; everything empty where no driver is loaded."""
    dev, proc = root / "dev", root / "proc/driver/nvidia/gpus"
    present = {path.name for path in dev.glob("nvidia*")}
    devices = sorted(filter(_DEVICE_FILE.fullmatch, present))
    names = [_model(file) for file in sorted(proc.glob("*/information"))]
    wanted = [*devices, *_CONTROL_FILES] if devices else []
    return GpuFiles(
        devices=tuple(str(dev / name) for name in devices),
        names=tuple(names),
        missing=tuple(str(dev / name) for name in wanted if name not in present),
        denied=tuple(
            str(dev / name)
            for name in wanted
            if name in present and not os.access(dev / name, os.R_OK | os.W_OK)
        ),
    )


def _model(information: Path) -> str:
    """The line "Model: ...". Source: NVIDIA driver README, chapter 23, /proc/driver/nvidia/gpus."""
    try:
        lines = information.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = [value.strip() for key, _, value in (line.partition(":") for line in lines) if key == "Model"]
    return models[0] if models else "NVIDIA GPU"


def read_cuda() -> CudaFacts:
    """Import torch and initialise CUDA; makes no context on a device."""
    try:
        torch = import_module("torch")
        # A folder of that name in the working directory imports too, and has none of this.
        built_for: str | None = torch.version.cuda
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return CudaFacts(torch_error=f"{type(error).__name__}: {error}")
    if built_for is None:
        return CudaFacts()
    with warnings.catch_warnings():
        # Torch also warns of what it raises below.
        warnings.simplefilter("ignore")
        try:
            torch.cuda.init()
            count = torch.cuda.device_count()
            names = tuple(torch.cuda.get_device_name(i) for i in range(count))
            built = torch.cuda.get_arch_list()
            found = [torch.cuda.get_device_capability(i) for i in range(count)]
        # Broken drivers have been seen to raise almost anything.
        except Exception as error:
            return CudaFacts(built_for=built_for, error=_first_sentence(str(error) or type(error).__name__))
    unsupported, too_old = sort_gpus(names, found, built)
    return CudaFacts(built_for=built_for, names=names, unsupported=unsupported, too_old=too_old)


def sort_gpus(
    names: Sequence[str], capabilities: Sequence[tuple[int, int]], built: Sequence[str]
) -> tuple[dict[int, str], dict[int, str]]:
    """Find the GPUs that cannot be used.

    Args:
        names, capabilities: Of every GPU.
        built: As `torch.cuda.get_arch_list` gives it.

    Returns:
        `CudaFacts.unsupported` and `CudaFacts.too_old`.
    """
    unsupported, too_old = {}, {}
    for number, (name, (major, minor)) in enumerate(zip(names, capabilities, strict=True)):
        shown = f"{name} (compute capability {major}.{minor})"
        if not has_kernels((major, minor), built):
            unsupported[number] = shown
        elif (major, minor) < MIN_CAPABILITY:
            too_old[number] = shown
    return unsupported, too_old


def has_kernels(capability: tuple[int, int], built: Iterable[str]) -> bool:
    """Whether a torch build has code for a GPU.

    Binary code runs on the same major version from its minor version on, PTX on everything newer.
    Source: CUDA C++ Programming Guide, Application Compatibility.

    Args:
        capability: Of the GPU, (major, minor).
        built: As `torch.cuda.get_arch_list` gives it: "sm_90", "compute_90".
    """
    for word in built:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", word)
        if match is None:
            continue
        kind, major, minor = match[1], int(match[2]), int(match[3])
        if (major, minor) <= capability and (kind == "compute" or major == capability[0]):
            return True
    return False


def judge_gpus(files: GpuFiles, cuda: CudaFacts) -> GpuFacts:
    """Turn what was read into a verdict.

    Args:
        files: With at least one device file.
        cuda: What torch says of the same machine.
    """
    names = cuda.names or files.names or ("NVIDIA GPU",) * len(files.devices)
    gpus = f"{len(names)} GPU{'s' if len(names) > 1 else ''} ({', '.join(dict.fromkeys(names))})"
    if cuda.torch_error is not None:
        return GpuFacts(
            names,
            f"{gpus} cannot be used, because torch cannot be imported: {cuda.torch_error}",
            pip_command("install", "--force-reinstall", "torch"),
        )
    if cuda.built_for is None:
        return GpuFacts(
            names,
            f"{gpus} cannot be used, because the installed torch was built without CUDA",
            f"install a CUDA build, by the line that torch's install page gives for the driver's CUDA "
            f"version, for instance {pip_command('install', '--force-reinstall', 'torch')}",
        )
    if not cuda.names:
        return GpuFacts(names, *_why_not(gpus, files, cuda))
    if cuda.num_usable:
        unusable = {number: no_kernels_for(gpu) for number, gpu in cuda.unsupported.items()}
        unusable |= {number: too_old_for_kernels(gpu) for number, gpu in cuda.too_old.items()}
        return GpuFacts(names, unusable=unusable)
    problems, remedies = [], []
    if cuda.unsupported:
        problems.append(no_kernels_for(*cuda.unsupported.values()))
        remedies.append("install a torch build that has, by torch's install page")
    if cuda.too_old:
        problems.append(too_old_for_kernels(*cuda.too_old.values()))
        remedies.append("take a newer GPU, or device cpu")
    return GpuFacts(names, ", and ".join(problems), "; ".join(remedies))


def no_kernels_for(*gpus: str) -> str:
    """Why GPUs of `CudaFacts.unsupported` cannot be used."""
    return f"the installed torch has no kernels for {', '.join(gpus)}"


def too_old_for_kernels(*gpus: str) -> str:
    """Why GPUs of `CudaFacts.too_old` cannot be used."""
    least = ".".join(map(str, MIN_CAPABILITY))
    return f"kernels for a GPU need compute capability {least}, which is more than {', '.join(gpus)} has"


def _why_not(gpus: str, files: GpuFiles, cuda: CudaFacts) -> tuple[str, str]:
    error = cuda.error or "torch sees no GPU"
    if files.denied:
        return (
            f"{gpus} cannot be used, because this user may not open {', '.join(files.denied)}",
            "add the user to the group that owns these files, or ask the administrator for access",
        )
    if files.missing:
        return (
            f"{gpus} cannot be used, because {', '.join(files.missing)} is missing ({error})",
            f"load the driver (nvidia-modprobe -u -c=0), or {_CONTAINER}",
        )
    if "too old" in error or "insufficient" in error:
        return (
            f"{gpus} cannot be used, because the driver is too old for torch's CUDA {cuda.built_for}: "
            f"{error}",
            f"upgrade the NVIDIA driver, or install a torch built for a CUDA below {cuda.built_for}",
        )
    if "no NVIDIA driver" in error:
        return (
            f"{gpus} cannot be used, because libcuda is not found: {error}",
            f"install the driver's user-space libraries, or {_CONTAINER}",
        )
    return (
        f"{gpus} cannot be used: {error}",
        "see whether nvidia-smi works, and whether CUDA_VISIBLE_DEVICES names a GPU that is there",
    )


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[a-z)])\. |\n", text.strip(), maxsplit=1)[0].rstrip(".")
