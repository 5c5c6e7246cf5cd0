"""Compares the list of vLLM's flags in `vtcore/data/vllm_serve_flags.toml` with a copy of vLLM's sources.

Does not: import or run vLLM; flags are read from syntax trees. Run it by hand when a new vLLM is out:
`python tools/vllm_flags.py DIR` with DIR the folder `vllm` of an unpacked sdist; `--list` prints the flags.

Source: vLLM 0.32.0 makes `vllm serve`'s flags in `engine/arg_utils.py` (one `add_argument` each, form by the
config class's annotation) and in `entrypoints/launchers/cli_args.py` (one flag per field of `FrontendArgs`).
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).parent.parent / "vtcore/data/vllm_serve_flags.toml"
ENGINE_FILE = "engine/arg_utils.py"
# Older versions keep it below openai/.
SERVE_FILES = ("entrypoints/launchers/cli_args.py", "entrypoints/openai/cli_args.py")
FRONTEND_CLASSES = ("BaseFrontendArgs", "FrontendArgs")
HAND_MADE = {
    # Its type is set apart from the annotation.
    "spec_method": "one",
    "allowed_origins": "json",
    "allowed_methods": "json",
    "allowed_headers": "json",
    "middleware": "one",
    "device_ids": "one",
}
"""Flags whose form the source sets in statements of its own."""

DICTS = {"dict", "HfOverrides", "MultiModalDummyOptions"}
"""Types whose values are JSON objects on the command line."""


class Flag(NamedTuple):
    """A flag: what follows it, and its other spellings."""

    takes: str
    short: tuple[str, ...]


def class_fields(trees: list[ast.Module]) -> dict[str, dict[str, str]]:
    """Class -> field -> annotation as text."""
    found: dict[str, dict[str, str]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name] = {
                    item.target.id: ast.unparse(item.annotation)
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                }
    return found


def takes_of(annotation: str, classes: dict[str, dict[str, str]]) -> str:
    """What follows a flag whose field is annotated so."""
    words = {node.id for node in ast.walk(ast.parse(annotation)) if isinstance(node, ast.Name)}
    if {"bool", "str"} <= words:
        return "optional"
    if any(word.endswith(("Config", "ConfigArgs")) and word in classes for word in words):
        return "json"
    if "bool" in words:
        return "bool"
    if words & DICTS:
        return "json"
    return "many" if words & {"list", "tuple", "set"} else "one"


def engine_flags(tree: ast.Module, classes: dict[str, dict[str, str]]) -> Iterator[tuple[str, Flag]]:
    """The flags of `add_argument` calls in methods and functions that make `vllm serve`'s parser."""
    makers = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in {"add_cli_args", "make_arg_parser"}
    ]
    for maker in makers:
        configs: dict[str, str] = {}
        for node in ast.walk(maker):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                for call in ast.walk(node.value):
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "get_kwargs":
                        configs[node.targets[0].id] = ast.unparse(call.args[0])
        for node in ast.walk(maker):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".add_argument"):
                names = [str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)]
                longs = [name for name in names if name.startswith("--")]
                if longs:
                    others = tuple(name for name in names if name != longs[0])
                    yield longs[0][2:].replace("-", "_"), Flag(_form(node, configs, classes), others)


def _form(call: ast.Call, configs: dict[str, str], classes: dict[str, dict[str, str]]) -> str:
    action = next((ast.unparse(k.value) for k in call.keywords if k.arg == "action"), "")
    if "BooleanOptionalAction" in action:
        return "bool"
    if "store_true" in action:
        return "none"
    for keyword in call.keywords:
        if keyword.arg is not None:
            continue
        for node in ast.walk(keyword.value):
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) in configs:
                fields = classes.get(configs[ast.unparse(node.value)], {})
                return takes_of(fields.get(ast.literal_eval(node.slice), "str"), classes)
        if ast.unparse(keyword.value) == "logging_config_kwargs":
            return "json"
    return "one"


def flags_of(source: Path) -> dict[str, Flag]:
    """All flags of `vllm serve`, by name with underscores."""
    paths = [source / ENGINE_FILE, *(source / file for file in SERVE_FILES if (source / file).is_file())]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    configs = [
        ast.parse(path.read_text(encoding="utf-8")) for path in sorted((source / "config").glob("*.py"))
    ]
    classes = class_fields(trees + configs)
    found = {name: flag for tree in trees for name, flag in engine_flags(tree, classes)}
    for name in FRONTEND_CLASSES:
        for field, annotation in classes.get(name, {}).items():
            found[field] = Flag(takes_of(annotation, classes), ())
    for name, takes in HAND_MADE.items():
        if name in found:
            found[name] = found[name]._replace(takes=takes)
    return dict(sorted(found.items()))


def compare(found: dict[str, Flag], data: dict[str, dict[str, object]]) -> list[str]:
    """One line per difference between vLLM's flags and the data file's."""
    lines = [f"lacks --{name.replace('_', '-')}" for name in found if name not in data]
    lines += [f"in excess: {name}" for name in data if name not in found]
    for name, flag in found.items():
        listed = data.get(name, {})
        if listed and listed["takes"] != flag.takes:
            lines.append(f"{name}: takes {flag.takes}, listed as {listed['takes']}")
        if listed and set(flag.short) - set(_texts(listed.get("short"))):
            lines.append(f"{name}: also written {', '.join(flag.short)}")
    return lines


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def main() -> int:
    """Print the differences; 1 when there are some."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("source", type=Path, metavar="DIR", help="the folder `vllm` of vLLM's sources")
    parser.add_argument("--list", action="store_true", help="print every flag found, instead of comparing")
    args = parser.parse_args()
    found = flags_of(args.source)
    if args.list:
        for name, flag in found.items():
            print(name, flag.takes, *flag.short)
        return 0
    tables = tomllib.loads(DATA.read_text(encoding="utf-8"))
    listed = {
        name: entry for kind, table in tables.items() if kind != "sentences" for name, entry in table.items()
    }
    lines = compare(found, listed)
    print("\n".join(lines) or f"{len(found)} flags, all listed")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
