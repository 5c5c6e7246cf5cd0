"""Kernels that come while an engine serves are counted and named."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="counts triton's kernels")

from triton import knobs

from vtcore.ops.compile_count import num_compiles, num_late, serving_begins, start_counting


@pytest.fixture(autouse=True)
def _hooks_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", None)
    monkeypatch.setattr(knobs.compilation, "listener", None)


def make_ready(name: str) -> None:
    """As triton does when a kernel's variant is first launched."""
    hook = knobs.runtime.jit_post_compile_hook
    assert hook is not None
    hook(fn=SimpleNamespace(name=name))


def test_only_kernels_while_serving_are_late_and_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    start_counting()
    before, late = num_compiles(), num_late()
    make_ready("early")
    assert (num_compiles() - before, num_late() - late) == (1, 0)
    serving_begins()
    make_ready("own.late_kernel")
    assert (num_compiles() - before, num_late() - late) == (2, 1)
    start_counting()
    make_ready("of the next engine's start")
    assert num_late() - late == 1
    assert [record.getMessage() for record in caplog.records] == [
        "kernel own.late_kernel was made ready while serving; its op's warm-up did not need it"
    ]
