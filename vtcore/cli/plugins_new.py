"""`vtcore plugins new KIND NAME`: writes a complete plugin into the current directory, ready to install.

Does not: install it, or touch anything that is already there.
"""

from __future__ import annotations

import argparse
import keyword
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vtcore.cli.engine_flags import add_plugin_flags, given_from_args
from vtcore.cli.own_stdout import others_print_to_stderr
from vtcore.errors import ConfigError, HostError, UsageError
from vtcore.host.installed import pip_command
from vtcore.host.plugin_checks import look_at_plugins
from vtcore.plugin_templates import KINDS, distribution_name, entry_name, fill_templates
from vtcore.registry import PluginRegistry, distribution_key
from vtcore.suggest import did_you_mean

MAX_NAME_CHARS = 30
"""Longest NAME; the lines of the templates that hold it stay within 110 characters."""

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_YAML_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
"""Words that a YAML file of options reads as no text. Source: YAML 1.1, types bool and null."""
_OWN_WORDS = frozenset({"vtcore", "test", "tests", "testing", "auto", "none", "default"})
"""Words that mean something else to whoever reads them in an option or a list."""


def add_new_parser(actions: Any) -> None:
    """Add `plugins new KIND NAME`."""
    kinds = "; ".join(f"{word}: {kind.about}" for word, kind in KINDS.items())
    parser = actions.add_parser(
        "new",
        help="write a new plugin into the current directory",
        description="Write the distribution vtcore-NAME, with a working example and its tests, into a folder "
        "of that name in the current directory.",
    )
    parser.add_argument("kind", metavar="KIND", help=kinds)
    parser.add_argument(
        "name",
        metavar="NAME",
        help=f"lower-case letters, digits, single dashes or underscores; at most {MAX_NAME_CHARS} characters",
    )
    add_plugin_flags(parser)


def run_new(args: argparse.Namespace) -> int:
    """Write the plugin and print the next three commands."""
    problems = [*_kind_problems(args.kind), *_name_problems(args.name)]
    if problems:
        raise UsageError(*problems)
    given = given_from_args(args)
    with others_print_to_stderr():
        registry, _ = look_at_plugins(given.options, given.environment)
    _refuse_owned(args.kind, args.name, registry)
    folder = distribution_name(args.name)
    contents = fill_templates(args.kind, args.name)
    write_folder(Path(folder), contents)
    print(f"{folder}: {len(contents)} files")
    print("next:")
    print(f'  python -m pip install -e "./{folder}[test]"')
    print(f"  vtcore plugins show {entry_name(args.name)}")
    print(f"  python -m pytest {folder}")
    return 0


def write_folder(folder: Path, contents: Mapping[str, str]) -> None:
    """Write all files, or nothing.

    Args:
        folder: Must not exist; its parent must.
        contents: Path inside the folder, with slashes -> text.

    Raises:
        ConfigError: The folder exists.
        HostError: It cannot be written.
    """
    try:
        # `exists` would follow a link that leads nowhere.
        if folder.is_symlink() or folder.exists():
            raise ConfigError(
                f"NAME: {folder} exists here and is not overwritten; give another name, move it away, or "
                f"work in another directory"
            )
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
            made = Path(scratch) / folder.name
            for path, text in contents.items():
                file = made / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8", newline="\n")
            made.rename(folder)
    except OSError as error:
        raise HostError(
            f"{folder} cannot be written into the current directory: {error.strerror or error}; mend that or "
            f"work in another directory"
        ) from error


def _kind_problems(kind: str) -> Iterator[str]:
    if kind not in KINDS:
        yield f"KIND: {kind!r} is no kind of plugin that can be started{did_you_mean(kind, KINDS)}"


def _name_problems(name: str) -> Iterator[str]:
    if name != "vtcore" and (bare := re.sub(r"^vtcore[-_]", "", name)) != name:
        yield f"NAME: {name!r} begins with vtcore, which is added by itself; give {bare!r}"
    elif not _NAME.fullmatch(name):
        yield (
            f"NAME: {name[:80]!r} cannot name a package; it must begin with a lower-case letter and go on "
            f"with lower-case letters and digits, in words joined by single dashes or underscores"
        )
    elif len(name) > MAX_NAME_CHARS:
        yield f"NAME: {name[:80]!r} has {len(name)} characters; give at most {MAX_NAME_CHARS}"
    elif keyword.iskeyword(name) or name in _YAML_WORDS | _OWN_WORDS:
        yield f"NAME: {name!r} is a reserved word; give another, or add to it ({name}-plugin)"


def _refuse_owned(kind: str, name: str, registry: PluginRegistry) -> None:
    """What is installed keeps its names: two owners of one would stop every start.

    Raises:
        ConfigError: An installed plugin has the name, or an installed distribution the distribution's.
    """
    distribution, entry, point = distribution_name(name), entry_name(name), KINDS[kind].point
    owners = {registered.entry.name: registered for k, registered in registry.entries if k == point}
    taken = owners.get(entry)
    if taken is None and kind == "arch" and entry in registry.model_types:
        taken = owners[registry.model_types[entry]]
    if taken is not None:
        raise ConfigError(
            f"NAME: {point} {entry!r} is already offered by {taken}, plugin {taken.plugin!r}; give another "
            f"name"
        )
    with suppress(PackageNotFoundError):
        raise ConfigError(
            f"NAME: {distribution} {version(distribution)} is installed, and a new one would replace it; "
            f"give another name, or first {pip_command('uninstall', distribution)}"
        )
    for left_out in registry.left_out:
        if distribution_key(entry) in left_out.names:
            raise ConfigError(f"NAME: {left_out}; give another name")
