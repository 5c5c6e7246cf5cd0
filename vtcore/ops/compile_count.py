"""Counts the kernels that Triton had to make ready, so that an engine can say that none came while serving.

Does not: import triton before somebody starts to count, or compile.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

_log = logging.getLogger(__name__)
_count: Counter[str] = Counter()
"""Of this process: "readied" and, of those, "built" and "late"."""
_is_serving = False


def start_counting() -> None:
    """Count from here on, an engine being about to start; hooks that were set before keep being called."""
    from triton import knobs

    global _is_serving
    _is_serving = False

    if not _is_ours(knobs.runtime.jit_post_compile_hook):
        knobs.runtime.jit_post_compile_hook = _Readied(knobs.runtime.jit_post_compile_hook)
    if not _is_ours(knobs.compilation.listener):
        knobs.compilation.listener = _Compiled(knobs.compilation.listener)


def num_compiles() -> int:
    """Kernel variants made ready in this process since counting started, from source or from the disk cache.

    Both hold up a step that waits for them, so after warm-up this number must stand still.
    """
    return _count["readied"]


def serving_begins() -> None:
    """From here on, until an engine starts, no kernel should have to be made ready: each warns."""
    global _is_serving
    _is_serving = True


def num_late() -> int:
    """Kernel variants made ready in this process while an engine served: a step waited for each."""
    return _count["late"]


def num_built() -> int:
    """Of all that Triton was asked for, the variants compiled from source: they were in no cache."""
    return _count["built"]


class _Readied:
    """Triton's `jit_post_compile_hook`. Source: triton 3.6, runtime/jit.py, JITFunction._do_compile."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, **event: Any) -> Any:
        _count["readied"] += 1
        if _is_serving:
            _count["late"] += 1
            kernel = getattr(event.get("fn"), "name", "unknown")
            _log.warning("kernel %s was made ready while serving; its op's warm-up did not need it", kernel)
        return None if self.before is None else self.before(**event)


class _Compiled:
    """Triton's `compilation.listener`, which threads of a pool call too. Source: triton 3.6, compile()."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, **event: Any) -> None:
        if not event["cache_hit"]:
            _count["built"] += 1
        if self.before is not None:
            self.before(**event)


def _is_ours(hook: Any) -> bool:
    return isinstance(hook, _Readied | _Compiled)
