"""What mends a plugin that fails: installing it again, or its source, where that is at hand.

Does not: judge plugins; called only once one has failed.
"""

from __future__ import annotations

import json
import traceback
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit

from attrs import frozen

from vtcore.host.installed import pip_command


@frozen
class _LocalSource:
    """The folder a distribution was installed from, and the files that are imported."""

    folder: str
    is_editable: bool
    files: frozenset[str]

    def has(self, file: str) -> bool:
        return file in self.files or (self.is_editable and file.startswith(f"{self.folder}/"))


def remedy_of(name: str, error: BaseException, can_be_imported: bool = False) -> str:
    """A command, or the place to mend.

    Args:
        name: The plugin's distribution.
        error: An error of this project, whose cause is what the plugin raised, if it raised.
        can_be_imported: All of it is there, so that installing the same again mends nothing.
    """
    source = _local_source(name)
    if source is None:
        if can_be_imported:
            return f"{pip_command('install', '-U', name)}, or report it to its authors"
        return pip_command("install", "--force-reinstall", name)
    how = "-e" if source.is_editable else "--force-reinstall"
    install = pip_command("install", how, source.folder)
    cause = error.__cause__
    if isinstance(cause, ModuleNotFoundError):
        return f"mend {source.folder}, or install what it needs: {install}"
    place = _place_of(cause, source) or source.folder
    if source.is_editable:
        return f"mend {place}"
    at = "" if place == source.folder else f" (the fault is at {place})"
    return f"mend {source.folder}{at}, then {install}"


def _local_source(name: str) -> _LocalSource | None:
    """None for what came from an index or an archive. Source: PEP 610, direct_url.json."""
    try:
        installed = distribution(name)
        text = installed.read_text("direct_url.json")
        found = json.loads(text) if text else {}
        if "dir_info" not in found:
            return None
        folder = unquote(urlsplit(found["url"]).path).rstrip("/")
        return _LocalSource(folder, found["dir_info"].get("editable") is True, _files_of(installed))
    # Half a file is as good as none: then the distribution is installed again.
    except (PackageNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _files_of(installed: Distribution) -> frozenset[str]:
    return frozenset(str(installed.locate_file(file)) for file in installed.files or ())


def _place_of(cause: BaseException | None, source: _LocalSource) -> str:
    """FILE:LINE of the innermost line of the plugin's own that led to the fault; "" if there is none."""
    if cause is None:
        return ""
    if isinstance(cause, SyntaxError) and cause.filename:
        return f"{cause.filename}:{cause.lineno}"
    frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if source.has(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
