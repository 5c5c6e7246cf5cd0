"""The only reader of environment variables.

Does not: apply what it reads; the values travel as data from here on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from attrs import asdict, frozen

from vtcore.errors import ConfigError
from vtcore.suggest import did_you_mean

PREFIX = "VTCORE_"
"""Every variable that begins so is vtcore's and must be known."""

NAMES: tuple[str, ...] = ("VTCORE_PLUGINS", "VTCORE_PLUGINS_BLOCK", "VTCORE_PREFIX_CACHING_HASH_SEED")
"""The variables that exist; docs/plugins.md and docs/glossary.md say what each means."""


@frozen(kw_only=True)
class Environment:
    """What the environment said.

    Args:
        plugins: Entry-point names that may load; None (unset) allows all, () (set but empty) none.
        plugins_block: Entry-point names that are not loaded.
        prefix_caching_hash_seed: Text that seeds the root of the block-hash chain, so that processes agree;
            None (unset or empty) leaves it to the core.
    """

    plugins: tuple[str, ...] | None = None
    plugins_block: tuple[str, ...] = ()
    prefix_caching_hash_seed: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The values as JSON types, for another process."""
        return asdict(self)


def read_environment(environ: Mapping[str, str] = os.environ) -> Environment:
    """Read vtcore's variables.

    Args:
        environ: Where to look.

    Raises:
        ConfigError: A variable of vtcore's prefix is unknown, or a list has an empty or repeated item.
    """
    problems = [
        f"{name}: no such environment variable{did_you_mean(name, NAMES)}"
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in NAMES
    ]
    lists: dict[str, tuple[str, ...] | None] = {}
    for name in ("VTCORE_PLUGINS", "VTCORE_PLUGINS_BLOCK"):
        text = environ.get(name)
        items = tuple(item.strip() for item in text.split(",")) if text and text.strip() else ()
        if "" in items or len(set(items)) < len(items):
            problems.append(f"{name}: {text!r} has an empty or repeated item; write names between commas")
        lists[name] = None if text is None else items
    if problems:
        raise ConfigError(*problems)
    return Environment(
        plugins=lists["VTCORE_PLUGINS"],
        plugins_block=lists["VTCORE_PLUGINS_BLOCK"] or (),
        prefix_caching_hash_seed=environ.get("VTCORE_PREFIX_CACHING_HASH_SEED") or None,
    )
