"""Reads a file of options: TOML, or YAML or JSON when its name says so.

Does not: know options, beyond that the file is one mapping of them.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vtcore.errors import ConfigError

YAML_SUFFIXES = (".yaml", ".yml")
"""Names that end so are YAML, vLLM's `--config` format."""
JSON_SUFFIX = ".json"
"""A name that ends so is JSON; all others are TOML."""


MAX_BYTES = 2**20
"""Longest file that is read; real ones have some hundred bytes, and /dev/zero has no end."""

MAX_NODES = 100_000
"""Most values of a YAML file with each alias counted as what it stands for: nine lines can make a billion."""


def is_yaml(file: str | Path) -> bool:
    """Whether the name says YAML."""
    return Path(file).suffix.lower() in YAML_SUFFIXES


def read_config_file(file: str | Path) -> dict[Any, Any]:
    """Read the top level of a file of options.

    Args:
        file: Where it is; a relative path starts at the working directory.

    Returns:
        Keys and values as the format has them. An empty file has none.

    Raises:
        ConfigError: One sentence, beginning with the file: it cannot be read, is too long, is not of its
            format, names a key twice, or is no mapping.
    """
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        # Some editors put a byte order mark first, which TOML has no word for.
        text = content.decode("utf-8-sig") if len(content) <= MAX_BYTES else ""
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such config file") from None
    except IsADirectoryError:
        raise ConfigError(f"{file}: a directory, not a config file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text at byte {error.start}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{file}: cannot be read: {reason}") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{file}: longer than {MAX_BYTES} bytes, which no file of options is")
    form, parse = _form_of(file)
    try:
        return parse(file, text)
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply") from None
    except ConfigError:
        raise
    except ValueError as error:
        hint = "; name it FILE.yaml if it is YAML, FILE.json if it is JSON" if form == "TOML" else ""
        raise ConfigError(f"{file}: not {form}: {error}{hint}") from None


def _form_of(file: str | Path) -> tuple[str, Callable[[str | Path, str], dict[Any, Any]]]:
    """The format that a name says, and its reader."""
    if is_yaml(file):
        return "YAML", _parse_yaml
    if Path(file).suffix.lower() == JSON_SUFFIX:
        return "JSON", _parse_json
    return "TOML", lambda _, text: tomllib.loads(text)


def _parse_json(file: str | Path, text: str) -> dict[Any, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"the key {twice!r} is given twice")
        return mapping

    data = json.loads(text, object_pairs_hook=unique)
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: not a mapping of options at its top level")
    return data


def _parse_yaml(file: str | Path, text: str) -> dict[Any, Any]:
    # Here, because most starts read no YAML.
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """The safe loader, which by itself lets the last of two equal keys win."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value!r} is given twice", problem_mark=key.start_mark
                    )
                seen.add(str(key.value))
            mapping: dict[Any, Any] = super().construct_mapping(node, deep)
            return mapping

    try:
        # Loader is a SafeLoader: no tag makes an object of any class.
        loader = Loader(text)
        node = loader.get_single_node()
        if node is not None and _num_nodes(node, {}) > MAX_NODES:
            raise ConfigError(
                f"{file}: with its aliases written out it has more than {MAX_NODES} values; write fewer"
            )
        data = None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ConfigError(f"{file}: not YAML: {problem or str(error).splitlines()[0]}{where}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: not a mapping of options at its top level")
    return data


def _num_nodes(node: Any, known: dict[int, int]) -> int:
    """Values below a YAML node, aliases counted as what they stand for.

    One that contains itself counts more than `MAX_NODES`.

    Args:
        known: id of a node -> its count; filled on the way.
    """
    if id(node) not in known:
        # Met again before it is counted, it is inside of itself.
        known[id(node)] = MAX_NODES
        items = node.value if isinstance(node.value, list) else ()
        parts = (part for item in items for part in (item if isinstance(item, tuple) else (item,)))
        known[id(node)] = 1 + sum(_num_nodes(part, known) for part in parts)
    return known[id(node)]
