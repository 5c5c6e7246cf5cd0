"""File sizes as people read them.

Does not: measure a disk.
"""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB")


def size_text(num_bytes: int) -> str:
    """Bytes in decimal units, as hubs and disks count them: "61.2 GB"."""
    number, unit = float(num_bytes), 0
    while number >= 1000 and unit < len(_UNITS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.1f} {_UNITS[unit]}" if unit else f"{num_bytes} B"
