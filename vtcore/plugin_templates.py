"""Fills the templates of new plugins: for each kind a complete distribution, as texts by path.

Markers look like @@NAME@@ and stand for one value each. A template's path lacks nothing but what archives and
globs skip: `dot-` stands for a leading dot, `package` for the package, `.tmpl` at the end is dropped.

Does not: write files, judge names or import what it fills.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

from attrs import frozen

import vtcore
from vtcore.hookspecs import HOOK_VERSIONS

_FOLDER = "templates"
_SHARED = "common"
_SUFFIX = ".tmpl"
_MARKER = re.compile(r"@@(\w*)@@")


@frozen(kw_only=True)
class TemplateKind:
    """What differs between the kinds beside their own files.

    Args:
        point: The registry's word for the kind, as in `HookPoint.kind`.
        api: The hook's key in a plugin's `VTCORE_API`.
        about: For --help: what is written.
        description: The distribution's, in its pyproject.toml.
        dependencies: Of the plugin beside vtcore, with floors.
        testing: Of its tests beside vtcore's kit, with floors.
    """

    point: str
    api: str
    about: str
    description: str
    dependencies: tuple[str, ...] = ()
    testing: tuple[str, ...] = ()


KINDS: Mapping[str, TemplateKind] = {
    "arch": TemplateKind(
        point="arch",
        api="archs",
        about="a model architecture; the example is a plain decoder",
        description="A model architecture for vtcore",
        dependencies=("attrs>=23.2", "torch>=2.9"),
        # The oldest whose Llama config has `rope_parameters` is 5.0; the floor is the one that is tested.
        testing=("transformers>=5.2",),
    ),
    "kv-spec": TemplateKind(
        point="kv_cache_spec",
        api="kv_cache_specs",
        about="a kind of KV-cache spec; the example is a sliding window",
        description="A kind of KV-cache spec for vtcore",
        dependencies=("attrs>=23.2",),
    ),
    "policy": TemplateKind(
        point="scheduler_policy",
        api="scheduler_policies",
        about="a scheduler policy; the example admits by deadline",
        description="A scheduler policy for vtcore",
        dependencies=("attrs>=23.2",),
    ),
}
"""Kinds that can be started, by the word the command takes. Floors: vtcore's own pyproject.toml."""


def distribution_name(name: str) -> str:
    """Folder and pip name: "vtcore-my-policy" for "my-policy" and "my_policy"."""
    return f"vtcore-{name.replace('_', '-')}"


def entry_name(name: str) -> str:
    """Registry and entry-point name: "my_policy"."""
    return name.replace("-", "_")


def fill_templates(kind: str, name: str) -> Mapping[str, str]:
    """All files of a new plugin.

    Args:
        kind: A key of `KINDS`.
        name: The author's word, of lower-case letters, digits, dashes and underscores.

    Returns:
        Path inside the distribution's folder, with slashes -> text; sorted.

    Raises:
        ValueError: A template has a marker without a value.
    """
    chosen = KINDS[kind]
    version = vtcore.__version__
    package = f"vtcore_{entry_name(name)}"
    values = {
        "NAME": entry_name(name),
        "DISTRIBUTION": distribution_name(name),
        "PACKAGE": package,
        "API": HOOK_VERSIONS[chosen.api].current,
        "DESCRIPTION": chosen.description,
        "DEPENDENCIES": _listed(*chosen.dependencies, f"vtcore>={version}"),
        "TESTING": _listed(*chosen.testing, f"vtcore[testing]>={version}"),
    }
    found = {
        _target(path, package): fill(template.read_text(encoding="utf-8"), values, path)
        for part in (_SHARED, kind)
        for path, template in _walk(files("vtcore.data").joinpath(_FOLDER, part))
    }
    return dict(sorted(found.items()))


def fill(text: str, values: Mapping[str, str], path: str) -> str:
    """Put values in place of markers.

    Args:
        text: Of a template.
        values: Marker without its @@ -> value.
        path: The template's, for the error.

    Raises:
        ValueError: A marker has no value.
    """

    def value_of(marker: re.Match[str]) -> str:
        if marker[1] not in values:
            raise ValueError(f"template {path}: marker {marker[0]} has no value")
        return values[marker[1]]

    return _MARKER.sub(value_of, text)


def _listed(*requirements: str) -> str:
    return ", ".join(f'"{requirement}"' for requirement in requirements)


def _walk(folder: Traversable, above: str = "") -> Iterator[tuple[str, Traversable]]:
    for item in folder.iterdir():
        path = f"{above}{item.name}"
        if item.is_dir():
            yield from _walk(item, f"{path}/")
        elif item.name.endswith(_SUFFIX):
            yield path, item


def _target(path: str, package: str) -> str:
    parts = [re.sub(r"^dot-", ".", part) for part in path.removesuffix(_SUFFIX).split("/")]
    return "/".join(package if part == "package" else part for part in parts)
