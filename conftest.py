"""Settings that every test shares: determinism, threads, and memory that is never zero by luck.

Does not: hold fixtures of one area; those lie beside their tests.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a CUDA device where there is none."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
