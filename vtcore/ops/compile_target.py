"""GPUs that kernels can be compiled for where none is.

Does not: compile, or run anything: the driver here knows its target's name and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attrs import frozen

from vtcore.errors import ConfigError
from vtcore.suggest import did_you_mean

TARGETS: tuple[str, ...] = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
"""NVIDIA's compute capabilities, major and minor, that Triton 3.6 and the ptxas in it compile for and that
have bfloat16 in hardware. Source: CUDA C++ Programming Guide, compute capabilities."""

_WARP_SIZE = 32
"""Source: CUDA C++ Programming Guide, hardware multithreading."""


def check_target(target: str) -> None:
    """Refuse what is no target.

    Raises:
        ConfigError: It is none of `TARGETS`.
    """
    if target not in TARGETS:
        raise ConfigError(f"--target: no GPU target {target!r}{did_you_mean(target, TARGETS)}")


@contextmanager
def compiling_for(target: str) -> Iterator[None]:
    """Inside, Triton takes `target` for the machine's GPU; nothing can be launched.

    Args:
        target: One of `TARGETS`.

    Raises:
        ConfigError: It is none of them.
    """
    check_target(target)
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    capability = int(re.sub(r"\D", "", target))
    # The property would look for a real GPU and fail where there is none.
    before = driver._active
    driver.set_active(_TargetDriver(target, GPUTarget("cuda", capability, _WARP_SIZE)))
    try:
        yield
    finally:
        driver.set_active(before)


@frozen
class _TargetDriver:
    """What `JITFunction.run` asks of a driver before a launch. Source: triton 3.6, runtime/jit.py.

    Args:
        name: Stands for the device's number, which keys a kernel's variants in memory: they must not be
            taken for those of a real device.
        target: Triton's GPUTarget.
    """

    name: str
    target: Any

    def get_current_device(self) -> str:
        return self.name

    def get_current_stream(self, device: str) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self.target
