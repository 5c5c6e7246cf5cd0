"""The plugin lock: which distribution, version, entry point and path serve each name, as data with a digest.

Two processes with equal options run the same plugins exactly if their locks are equal, so a child is given
its parent's lock and checks it against what it resolves itself.

Does not: choose, install or import anything.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any

from attrs import asdict, field, fields_dict, frozen

from vtcore.errors import PluginLockError
from vtcore.registry import PluginRegistry

LOCK_FORMAT = 1
"""Of the JSON form; a lock of another one is refused."""


@frozen(kw_only=True, order=True)
class LockedRow:
    """Who serves one name.

    Args:
        kind: As in `HOOK_POINTS`.
        name: Registry name.
        distribution: Its pip name; of a single file, the path.
        version: The distribution's; "" for a file.
        plugin: Name of the entry point; of a file, its stem.
        source: The entry point's value; of a file, the path.
        implementation: "package.module:Class".
    """

    kind: str
    name: str
    distribution: str
    version: str
    plugin: str
    source: str
    implementation: str

    @property
    def key(self) -> tuple[str, str]:
        """What has one owner."""
        return self.kind, self.name

    @property
    def owner(self) -> str:
        """Distribution and version, for messages."""
        return f"{self.distribution} {self.version}".rstrip()


def _sorted_rows(rows: Iterable[LockedRow]) -> tuple[LockedRow, ...]:
    return tuple(sorted(rows))


@frozen(kw_only=True)
class PluginLock:
    """All rows of a registry.

    Args:
        rows: Sorted by kind and name, each (kind, name) once; in whatever order they are given.
    """

    rows: tuple[LockedRow, ...] = field(converter=_sorted_rows)

    def digest(self) -> str:
        """sha256 (hex) over the rows as canonical JSON; two processes compare it."""
        text = json.dumps([asdict(row) for row in self.rows], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> str:
        """The lock as a JSON object: `format`, `digest` and `rows`."""
        content = {"format": LOCK_FORMAT, "digest": self.digest(), "rows": [asdict(row) for row in self.rows]}
        return json.dumps(content, indent=2)

    @classmethod
    def from_json(cls, text: str) -> PluginLock:
        """Read what `to_json` wrote; strict, so that nothing damaged is taken for a lock.

        Raises:
            PluginLockError: It is no JSON object of this form, has a key twice or one more, names a (kind,
                name) twice, or its digest is not that of its rows.
        """
        try:
            content = json.loads(text, object_pairs_hook=_once)
        # Deep nesting ends in a RecursionError.
        except (ValueError, RecursionError) as error:
            raise _unreadable(f"it is no JSON ({error})") from error
        if not isinstance(content, dict) or set(content) != {"format", "digest", "rows"}:
            raise _unreadable("it must be an object with format, digest and rows, and nothing else")
        if type(content["format"]) is not int or content["format"] != LOCK_FORMAT:
            raise _unreadable(f"$.format is {content['format']!r}; this vtcore reads {LOCK_FORMAT}")
        if not isinstance(content["rows"], list):
            raise _unreadable(f"$.rows is {content['rows']!r}, not a list")
        rows = [_row(f"$.rows[{index}]", row) for index, row in enumerate(content["rows"])]
        lock = cls(rows=tuple(rows))
        for one, two in zip(lock.rows, lock.rows[1:], strict=False):
            if one.key == two.key:
                raise _unreadable(f"{one.kind} {one.name!r} is there twice")
        if content["digest"] != lock.digest():
            raise _unreadable("its digest is not that of its rows: it was edited or cut short")
        return lock


def lock_of(registry: PluginRegistry) -> PluginLock:
    """Everything that a registry offers, with its owners."""
    sources = {(info.distribution, info.plugin): info.source for info in registry.plugins}
    rows = [
        LockedRow(
            kind=kind,
            name=registered.entry.name,
            distribution=registered.distribution,
            version=registered.version,
            plugin=registered.plugin,
            source=sources[registered.distribution, registered.plugin],
            implementation=registered.entry.implementation,
        )
        for kind, registered in registry.entries
    ]
    return PluginLock(rows=tuple(rows))


def lock_differences(lock: PluginLock, registry: PluginRegistry) -> tuple[str, ...]:
    """One sentence for each row that differs, sorted by kind and name; none if all are equal."""
    locked = {row.key: row for row in lock.rows}
    found = {row.key: row for row in lock_of(registry).rows}
    sentences = []
    for key in sorted(locked.keys() | found.keys()):
        kind, name = key
        if key not in found:
            sentences.append(f"{kind} {name!r}: in the lock (of {locked[key].owner}), not here")
        elif key not in locked:
            sentences.append(f"{kind} {name!r}: here (of {found[key].owner}), not in the lock")
        elif locked[key] != found[key]:
            sentences.append(f"{kind} {name!r}: {_changes(locked[key], found[key])}")
    return tuple(sentences)


def check_lock(lock: PluginLock, registry: PluginRegistry) -> None:
    """Refuse plugins that are not those of the lock.

    Raises:
        PluginLockError: Rows differ; the message names each and how.
    """
    differences = lock_differences(lock, registry)
    if differences:
        number = len({row.key for row in (*lock.rows, *lock_of(registry).rows)})
        raise PluginLockError(
            f"the plugins differ from the lock in {len(differences)} of {number} rows: "
            f"{'; '.join(differences)}; install what the lock names, or write it anew with "
            f"`vtcore plugins lock --out FILE`"
        )


def _changes(locked: LockedRow, found: LockedRow) -> str:
    """What differs; of another distribution, only that, for the rest follows from it."""
    if locked.distribution != found.distribution:
        return f"of {locked.owner} in the lock, of {found.owner} here"
    pairs = [(name, getattr(locked, name), getattr(found, name)) for name in fields_dict(LockedRow)]
    return ", ".join(
        f"{name} {was or 'none'} in the lock, {now or 'none'} here" for name, was, now in pairs if was != now
    )


def _unreadable(reason: str) -> PluginLockError:
    return PluginLockError(
        f"this is no plugin lock: {reason}; write one with `vtcore plugins lock --out FILE`"
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key is there twice")
    return content


def _row(path: str, row: object) -> LockedRow:
    expected = fields_dict(LockedRow)
    if not isinstance(row, dict) or set(row) != set(expected):
        raise _unreadable(f"{path} must be an object with {', '.join(expected)}, and nothing else")
    for name, value in row.items():
        if not isinstance(value, str) or not (value or name == "version"):
            raise _unreadable(f"{path}.{name} is {value!r}, not a text")
    if not re.fullmatch(r"[^:]+:[^:]+", row["implementation"]):
        raise _unreadable(f"{path}.implementation is {row['implementation']!r}, not a dotted path")
    return LockedRow(**row)
