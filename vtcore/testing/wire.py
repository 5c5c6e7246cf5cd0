"""Plain data through msgpack and back, as another process would receive it.

Does not: define a protocol; it proves that every class of the seam is plain data. Needs `msgpack`, a test
dependency.
"""

from __future__ import annotations

from typing import TypeVar

from cattrs.preconf.msgpack import make_converter

_converter = make_converter()
T = TypeVar("T")
"""Any class of vtcore.interfaces.batch."""


def through_msgpack(value: T) -> T:
    """`value`, packed and unpacked; equal to it or the class is no plain data."""
    return _converter.loads(_converter.dumps(value), type(value))
