"""One measured number beside its bound, with every sample that it was taken from; how far a run has come.

Does not: measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import define, field, frozen


@frozen(kw_only=True)
class Figure:
    """One cell of a report.

    Args:
        value: From the shortest of the repeated times, in `unit`: what disturbs a run only makes it longer.
            None where the times cannot be told from noise.
        samples: One for each repetition, in `unit`, in the order of measurement; None as in `value`.
        unit: "ms" or "s" (lower is better) or "tok/s" (higher is better).
        roof: The best that the device's measured ceilings allow, in `unit`; None where nothing bounds it.
        details: What else belongs to the cell, JSON types.
    """

    value: float | None
    samples: tuple[float | None, ...]
    unit: str
    roof: float | None = None
    details: Mapping[str, Any] = field(factory=dict)

    @property
    def share(self) -> float | None:
        """Part of the bound that was reached, 1 at best."""
        if self.roof is None or not self.value:
            return None
        return self.value / self.roof if self.unit == "tok/s" else self.roof / self.value

    def as_json(self) -> dict[str, Any]:
        """JSON types; numbers to six digits."""
        return {
            "value": None if self.value is None else short(self.value),
            "unit": self.unit,
            "roof": None if self.roof is None else short(self.roof),
            "share": None if self.share is None else short(self.share),
            "samples": [None if one is None else short(one) for one in self.samples],
            **self.details,
        }


@define
class Progress:
    """How far a benchmark has come, told as it goes.

    Args:
        say: Told of each cell as it begins.
        say_interrupted: Told of an interrupt, and how far it let the benchmark come.
        total: Cells that were asked for.
        done: Cells that are measured.
        is_interrupted: Whether the rest is not measured any more.
    """

    say: Callable[[str], object]
    say_interrupted: Callable[[KeyboardInterrupt, str], object]
    total: int
    done: int = 0
    is_interrupted: bool = False

    @contextmanager
    def measuring(self, names: Sequence[str]) -> Iterator[None]:
        """Inside, these cells are measured; an exception leaves them out of `done`."""
        self.say(f"measuring {' and '.join(names)} ...")
        yield
        self.done += len(names)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, an interrupt ends the measuring, and what is done is kept.

        Raises:
            KeyboardInterrupt: Nothing is done, or it is not the first one.
        """
        was_interrupted = self.is_interrupted
        try:
            yield
        except KeyboardInterrupt as error:
            self.interrupt(error)
            if was_interrupted or not self.done:
                raise

    def interrupt(self, error: KeyboardInterrupt) -> None:
        """Note an interrupt; the first one is told."""
        if not self.is_interrupted:
            self.is_interrupted = True
            self.say_interrupted(error, f"{self.done} of {self.total} cells measured")


def short(number: float) -> float:
    """To six digits."""
    return float(f"{number:.6g}")
