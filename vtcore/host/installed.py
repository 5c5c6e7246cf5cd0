"""Which plugins the installed distributions announce.

Does not: import a plugin, or parse more of a distribution's metadata than its name and version: a hundred
of them are read at every start.
"""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path

from attrs import frozen

from vtcore.registry import PluginInfo, Problem, distribution_key

GROUP = "vtcore.plugins"
"""Entry-point group in which plugin modules are announced."""

_METADATA_FILES = ("METADATA", "PKG-INFO")
"""Source: PyPA, Recording installed projects; setuptools' egg-info folders."""


@frozen
class _Found:
    """One distribution that announces plugins."""

    name: str
    version: str
    points: tuple[EntryPoint, ...]
    folder: str

    @property
    def sort_key(self) -> str:
        return distribution_key(self.name)


def pip_command(*arguments: str) -> str:
    """The shell command that runs pip of this very interpreter."""
    return shlex.join([sys.executable, "-m", "pip", *arguments])


def name_and_version(distribution: Distribution) -> tuple[str, str] | None:
    """Read a distribution's name and version from the head of its metadata.

    `distribution.metadata` parses all of it, description included, which costs more than all else here.

    Returns:
        None for half-removed metadata, which has no name or no version.
    """
    for file in _METADATA_FILES:
        text = distribution.read_text(file)
        if not text:
            continue
        head: dict[str, str] = {}
        for line in text.split("\n\n", 1)[0].splitlines():
            key, _, value = line.partition(":")
            head.setdefault(key.lower(), value.strip())
        if head.get("name") and head.get("version"):
            return head["name"], head["version"]
    return None


def announced_plugins() -> tuple[list[tuple[EntryPoint, PluginInfo]], list[Problem]]:
    """All announced plugins, sorted by distribution and name.

    Of one distribution's metadata the first on the path counts, as for imports; a differing second one is a
    problem.
    """
    first: dict[str, _Found] = {}
    stale: dict[tuple[str, str], Problem] = {}
    unreadable: list[Problem] = []
    for distribution in distributions():
        try:
            found = _read(distribution)
        # Text that is no UTF-8, and lines of entry points that have no equals sign.
        except (ValueError, TypeError) as error:
            unreadable.append(_unreadable(distribution, error))
            continue
        if found is None:
            continue
        seen = first.setdefault(found.sort_key, found)
        if (found.version, found.points) != (seen.version, seen.points):
            stale[found.sort_key, found.version] = _stale(seen, found)
    plugins = [
        (
            point,
            PluginInfo(plugin=point.name, distribution=found.name, version=found.version, source=point.value),
        )
        for found in sorted(first.values(), key=lambda found: found.sort_key)
        for point in found.points
    ]
    return plugins, [*unreadable, *stale.values()]


def _read(distribution: Distribution) -> _Found | None:
    # Most distributions announce nothing; the text tells so without being parsed.
    if GROUP not in (distribution.read_text("entry_points.txt") or ""):
        return None
    points = tuple(sorted(distribution.entry_points.select(group=GROUP), key=lambda point: point.name))
    named = name_and_version(distribution) if points else None
    if named is None:
        return None
    return _Found(*named, points, str(Path(str(distribution.locate_file("")))))


def _unreadable(distribution: Distribution, error: Exception) -> Problem:
    folder = str(getattr(distribution, "_path", distribution.locate_file("")))
    message = f"the metadata in {folder} cannot be read, so its plugins, if it has any, are not seen"
    return Problem(
        plugin=Path(folder).name,
        distribution=Path(folder).name.split("-")[0],
        version="",
        message=f"{message} ({type(error).__name__}: {error})",
        remedy=f"uninstall that distribution and install it again, or remove {folder}",
    )


def _stale(used: _Found, other: _Found) -> Problem:
    return Problem(
        plugin=other.points[0].name,
        distribution=other.name,
        version=other.version,
        message=f"{other.name} has two different installations on the path, {used.version} (used) in "
        f"{used.folder} and {other.version} in {other.folder}; uninstall it and install it once",
        remedy=f"{pip_command('uninstall', '-y', other.name)}, until pip finds none, then "
        f"{pip_command('install', other.name)}",
    )
