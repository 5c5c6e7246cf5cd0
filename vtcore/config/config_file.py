"""Reads a file of options: TOML, or YAML when its name says so.

Does not: know options, beyond that the file is one mapping of them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from vtcore.errors import ConfigError

YAML_SUFFIXES = (".yaml", ".yml")
"""Names that end so are YAML, vLLM's `--config` format; all others are TOML."""


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
        ConfigError: One sentence, beginning with the file: it cannot be read, is not of its format, names a
            key twice, or is no mapping.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such config file") from None
    except IsADirectoryError:
        raise ConfigError(f"{file}: a directory, not a config file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text at byte {error.start}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{file}: cannot be read: {reason}") from None
    try:
        return _parse_yaml(file, text) if is_yaml(file) else tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply") from None
    except ConfigError:
        raise
    except ValueError as error:
        hint = "; name it FILE.yaml if it is YAML" if not is_yaml(file) else ""
        raise ConfigError(f"{file}: not {'YAML' if is_yaml(file) else 'TOML'}: {error}{hint}") from None


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
        data = yaml.load(text, Loader=Loader)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ConfigError(f"{file}: not YAML: {problem or str(error).splitlines()[0]}{where}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: not a mapping of options at its top level")
    return data
