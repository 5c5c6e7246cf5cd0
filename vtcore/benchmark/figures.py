"""One measured number beside its bound, with every sample that it was taken from.

Does not: measure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen


@frozen(kw_only=True)
class Figure:
    """One cell of a report.

    Args:
        value: From the shortest of the repeated times, in `unit`: what disturbs a run only makes it longer.
        samples: One for each repetition, in `unit`, in the order of measurement.
        unit: "ms" or "s" (lower is better) or "tok/s" (higher is better).
        roof: The best that the device's measured ceilings allow, in `unit`; None where nothing bounds it.
        details: What else belongs to the cell, JSON types.
    """

    value: float
    samples: tuple[float, ...]
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
            "value": short(self.value),
            "unit": self.unit,
            "roof": None if self.roof is None else short(self.roof),
            "share": None if self.share is None else short(self.share),
            "samples": [short(one) for one in self.samples],
            **self.details,
        }


def short(number: float) -> float:
    """To six digits."""
    return float(f"{number:.6g}")
