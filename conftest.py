"""Settings that every test shares: determinism, threads, and memory that is never zero by luck.

Does not: hold fixtures of one area; those lie beside their tests.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# Examples derive from the test's own code, so CI and home see the same failure; `explore` draws new ones.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("ci"), derandomize=False)
settings.load_profile("ci")

# Workers of pytest-xdist share the cores; more threads than cores make every test slower.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)

# Triton reads it while kernels are made, that is while test modules are imported.
_is_interpreting = os.environ.get("TRITON_INTERPRET") == "1"
_KERNELS = {"kernels": True, "kernel_compile": False}
"""Folder below a tests/ -> whether its tests need Triton's interpreter on, or off."""

_poisoning = True


def _poisoned(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap an allocator of uninitialized memory so that floating-point results hold NaN."""

    @functools.wraps(allocate)
    def wrapper(*args: object, **kwargs: object) -> torch.Tensor:
        tensor = allocate(*args, **kwargs)
        if _poisoning and tensor.is_floating_point() and tensor.itemsize >= 2:
            with torch.no_grad():
                tensor.fill_(float("nan"))
        return tensor

    return wrapper


@pytest.fixture(scope="session", autouse=True)
def poisoned_empty() -> Iterator[None]:
    """`torch.empty` and its kin hold NaN, so that a read before the first write shows."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
            patch.setattr(owner, name, _poisoned(getattr(owner, name)))
        yield


@contextlib.contextmanager
def _without_poison() -> Iterator[None]:
    global _poisoning
    _poisoning = False
    try:
        yield
    finally:
        _poisoning = True


@pytest.fixture
def plain_empty() -> Iterator[None]:
    """Switches the poison off, for tests that count or time operations."""
    with _without_poison():
        yield


@pytest.fixture(scope="session", autouse=True)
def bfloat16_in_the_interpreter() -> Iterator[None]:
    """Kernels that are interpreted compute with bfloat16 as a GPU does."""
    if not _is_interpreting:
        yield
        return
    import numpy as np

    from vtcore.testing.triton_interpreter import bfloat16_made_right

    # Infinities and their differences raise no warning on a GPU.
    with bfloat16_made_right(), np.errstate(all="ignore"):
        yield


def _needs_interpreter(path: Path) -> bool | None:
    """Whether tests there need the interpreter on or off; None if they are no tests of kernels."""
    pairs = zip(path.parts, path.parts[1:], strict=False)
    return next((_KERNELS[name] for parent, name in pairs if parent == "tests" and name in _KERNELS), None)


def pytest_report_header() -> str:
    """Say which of the kernels' tests this run can make."""
    how = "interpreted" if _is_interpreting else "compiled, not interpreted (make test-kernels does both)"
    return f"triton kernels: {how}"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out tests of kernels that this run cannot make; `make test-kernels` makes both runs.

    With a GPU the tests of the interpreter's run compare real kernels.
    """
    needed = _needs_interpreter(collection_path)
    if needed is None:
        return None
    is_other = needed != _is_interpreting and not (needed and torch.cuda.is_available())
    return is_other or importlib.util.find_spec("triton") is None or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of kernels, and skip what needs a CUDA device where there is none."""
    for item in items:
        if _needs_interpreter(item.path) is not None:
            item.add_marker("kernels")
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
