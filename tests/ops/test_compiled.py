"""Ctrl-C while kernels are compiled: what has begun ends, what waits is given up. Compiling itself is tested
with the kernels."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vtcore.ops.compiled import compile_launches
from vtcore.ops.launch import Launch

pytest.importorskip("triton")


class Kernel:
    """What `compile_launches` asks of a jitted function; compiling it calls `work`."""

    params: tuple[Any, ...] = ()
    __name__ = "kernel"

    def __init__(self, number: int, work: Callable[[int], None]) -> None:
        self.fn, self.work = number, work

    def warmup(self, *args: Any, grid: tuple[int, ...], **constants: Any) -> Any:
        from triton.runtime._async_compile import active_mode

        mode = active_mode.get()
        assert mode is not None
        return mode.submit(self.fn, self._compile, lambda kernel: None)

    def _compile(self) -> Any:
        self.work(self.fn)
        return SimpleNamespace(hash=str(self.fn))


def launches(count: int, work: Callable[[int], None]) -> list[Launch]:
    return [Launch(Kernel(number, work), (1,), (), {}) for number in range(count)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield tmp_path
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_gives_up_what_has_not_begun(cache: Path) -> None:
    begun: list[int] = []
    ended: list[int] = []
    waits = threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        if number == 1:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            # Long enough for the main thread to give up what is queued.
            waits.wait(0.5)
        ended.append(number)

    with pytest.raises(KeyboardInterrupt) as caught:
        compile_launches(launches(40, work), target="sm_90", num_threads=1)
    assert str(caught.value) == f"2 of 40 kernels are compiled and kept in {cache}"
    assert begun == ended == [0, 1]
    # The next start compiles the rest.
    done = compile_launches(launches(40, ended.append), target="sm_90", num_threads=2)
    assert len(done.kernels) == 40


def test_an_interrupt_while_kernels_are_handed_over_waits_for_none_of_them(cache: Path) -> None:
    begun: list[int] = []
    has_begun, goes_on = threading.Event(), threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        has_begun.set()
        goes_on.wait(60)

    class Breaks(Kernel):
        def warmup(self, *args: Any, grid: tuple[int, ...], **constants: Any) -> Any:
            assert has_begun.wait(60)
            threading.Timer(0.2, goes_on.set).start()
            raise KeyboardInterrupt

    wanted = [*launches(5, work), Launch(Breaks(5, work), (1,), (), {}), *launches(9, work)[6:]]
    with pytest.raises(KeyboardInterrupt, match=r"^1 of 9 kernels are compiled and kept in "):
        compile_launches(wanted, target="sm_90", num_threads=1)
    assert begun == [0]
