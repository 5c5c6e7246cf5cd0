"""The import rules and bans of docs/architecture.md, read from the syntax trees of all sources.

Does not: import what it judges. Each rule is also shown one planted offence that it must find.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from attrs import frozen

ROOT = Path(__file__).parent.parent
MAX_LINES = 400
MAX_KERNEL_LINES = 500

PLUGIN_MAY_IMPORT = (
    "vtcore",
    "vtcore.interfaces",
    "vtcore.layers",
    "vtcore.testing",
    "vtcore.errors",
    "vtcore.kv_cache.specs",
)
"""From `vtcore` itself only `hookimpl`; from own ops/ also `vtcore.ops`."""

LIGHT = (
    "vtcore/__init__.py",
    "vtcore/builtin.py",
    "vtcore/checkpoint/hub.py",
    "vtcore/checkpoint/hub_errors.py",
    "vtcore/checkpoint/json_file.py",
    "vtcore/checkpoint/locate.py",
    "vtcore/checkpoint/shards.py",
    "vtcore/checkpoint/sizes.py",
    "vtcore/checkpoint/source.py",
    "vtcore/cli/doctor.py",
    "vtcore/cli/engine_flags.py",
    "vtcore/cli/explain.py",
    "vtcore/cli/flag_words.py",
    "vtcore/cli/main.py",
    "vtcore/cli/parser.py",
    "vtcore/cli/plugins.py",
    "vtcore/cli/plugins_new.py",
    "vtcore/cli/pull.py",
    "vtcore/cli/simulate.py",
    "vtcore/cli/workload_flags.py",
    "vtcore/config/",
    "vtcore/errors.py",
    "vtcore/hookspecs.py",
    "vtcore/host/",
    "vtcore/interfaces/",
    "vtcore/ownership.py",
    "vtcore/plugin_templates.py",
    "vtcore/plugins.py",
    "vtcore/registry.py",
    "vtcore/scheduling/",
    "vtcore/simulation/",
    "vtcore/suggest.py",
)
"""What must be usable where torch is not; so must each plugin's plugin.py."""

HEAVY = ("torch", "triton")


@frozen
class Source:
    """One source file: its path from the root, and its text."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def is_core(self) -> bool:
        return self.path.startswith("vtcore/")


def all_sources() -> list[Source]:
    files = [*ROOT.glob("vtcore/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]
    return [Source(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")) for file in sorted(files)]


def declared_dependencies(plugin: str) -> set[str]:
    """Import names of the distributions that a plugin's pyproject.toml depends on."""
    project = tomllib.loads((ROOT / "plugins" / plugin / "pyproject.toml").read_text())["project"]
    names = [dependency.split(">")[0].split("=")[0].strip() for dependency in project["dependencies"]]
    return {name.replace("-", "_") for name in names}


def registered_names() -> dict[str, set[str]]:
    """Texts in the entries of the core's own plugin ("core") and of the in-tree plugins ("plugins")."""
    found: dict[str, set[str]] = {"core": set(), "plugins": set()}
    files = {"core": [ROOT / "vtcore/builtin.py"], "plugins": [*ROOT.glob("plugins/*/src/*/plugin.py")]}
    for owner, paths in files.items():
        for path in paths:
            for call in calls(ast.parse(path.read_text())):
                for keyword in call.keywords:
                    if keyword.arg in {"name", "architectures", "model_types"}:
                        found[owner] |= texts(keyword.value)
    return found


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def texts(tree: ast.AST) -> set[str]:
    return {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes outside `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from runtime_nodes(node)


def imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str | None]]:
    """(module, imported name or None) of each import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from ((node.module or "", alias.name) for alias in node.names)


def within(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def interfaces_import_only_interfaces(source: Source) -> list[str]:
    if not source.path.startswith("vtcore/interfaces/"):
        return []
    return [
        module
        for module, _ in imports(runtime_nodes(source.tree))
        if within(module, ["vtcore"]) and not within(module, ["vtcore.interfaces", "vtcore.errors"])
    ]


def light_modules_import_no_torch(source: Source) -> list[str]:
    is_registration = source.path.startswith("plugins/") and source.path.endswith("/plugin.py")
    if not is_registration and not source.path.startswith(LIGHT):
        return []
    return [module for module, _ in imports(runtime_nodes(source.tree)) if within(module, HEAVY)]


def core_imports_no_plugin(source: Source) -> list[str]:
    if not source.is_core:
        return []
    return [module for module, _ in imports(ast.walk(source.tree)) if module.startswith("vtcore_")]


def plugins_import_only_the_public_part(source: Source) -> list[str]:
    if source.is_core:
        return []
    _, plugin, _, package, *rest = source.path.split("/")
    wrong = []
    for module, name in imports(ast.walk(source.tree)):
        if module == "vtcore":
            if name != "hookimpl":
                wrong.append(f"vtcore.{name}")
        elif within(module, ["vtcore.ops"]):
            if rest[0] != "ops":
                wrong.append(module)
        elif within(module, ["vtcore"]):
            if not within(module, PLUGIN_MAY_IMPORT[1:]):
                wrong.append(module)
        elif module.startswith("vtcore_"):
            known = {package, *declared_dependencies(plugin)}
            wrong += [module] if module.split(".")[0] not in known else []
    return wrong


def the_environment_is_read_in_one_file(source: Source) -> list[str]:
    if source.path == "vtcore/config/env.py":
        return []
    names = {"environ", "getenv", "environb", "putenv"}
    nodes = list(ast.walk(source.tree))
    read = [node.attr for node in nodes if isinstance(node, ast.Attribute) and node.attr in names]
    return read + [name for module, name in imports(nodes) if module == "os" and name in names]


def nothing_calls_float(source: Source) -> list[str]:
    return [
        f"line {call.lineno}"
        for call in calls(source.tree)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "float" and not call.args
    ]


def nothing_asks_hasattr(source: Source) -> list[str]:
    return [
        f"line {call.lineno}"
        for call in calls(source.tree)
        if isinstance(call.func, ast.Name) and call.func.id == "hasattr"
    ]


def no_pickle_and_no_remote_code(source: Source) -> list[str]:
    banned = ["pickle", "cloudpickle", "dill", "marshal", "shelve"]
    wrong = [module for module, _ in imports(ast.walk(source.tree)) if within(module, banned)]
    for call in calls(source.tree):
        name = ast.unparse(call.func)
        if name in {"eval", "exec", "torch.load", "torch.save"}:
            wrong.append(name)
        wrong += ["trust_remote_code" for keyword in call.keywords if keyword.arg == "trust_remote_code"]
    return wrong


def core_compares_with_no_registered_name(source: Source) -> list[str]:
    if not source.is_core:
        return []
    names = registered_names()
    every = names["core"] | names["plugins"]
    wrong = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Compare | ast.MatchValue):
            wrong += [f"line {node.lineno}: {name}" for name in sorted(texts(node) & every)]
        elif isinstance(node, ast.Constant) and node.value in names["plugins"]:
            wrong.append(f"line {node.lineno}: {node.value}")
    return wrong


def files_stay_short(source: Source) -> list[str]:
    limit = MAX_KERNEL_LINES if source.path.endswith("/triton.py") else MAX_LINES
    lines = source.text.count("\n")
    return [f"{lines} lines, at most {limit}"] if lines > limit else []


def modules_say_what_they_do_not(source: Source) -> list[str]:
    if not source.text.strip():
        return []
    doc = ast.get_docstring(source.tree) or ""
    wrong = [] if doc.split("\n\n")[0].strip().endswith((".", ":")) else ["first sentence"]
    return wrong if "Does not" in doc else [*wrong, "Does not"]


def classes_are_named_by_what_they_are(source: Source) -> list[str]:
    banned = ("Manager", "Helper", "Utils", "Util", "Impl")
    return [
        node.name
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and (node.name.endswith(banned) or node.name.startswith("Base"))
    ]


Rule = Callable[[Source], list[str]]
CORE = "vtcore/engine/x.py"
PLUGIN = "plugins/qwen3_5_dense/src/vtcore_qwen3_5_dense/x.py"
PLANTED: Mapping[Rule, tuple[tuple[str, str], ...]] = {
    interfaces_import_only_interfaces: (
        ("vtcore/interfaces/x.py", "def f():\n    from vtcore.layers import dtypes"),
    ),
    light_modules_import_no_torch: (
        ("vtcore/interfaces/x.py", "import torch.nn"),
        ("vtcore/config/x.py", "def f():\n    import torch"),
        ("plugins/a/src/vtcore_a/plugin.py", "from triton import jit"),
    ),
    core_imports_no_plugin: ((CORE, "from vtcore_qwen3_5_dense.arch import Arch"),),
    plugins_import_only_the_public_part: (
        (PLUGIN, "from vtcore import LLM"),
        (PLUGIN, "import vtcore"),
        (PLUGIN, "from vtcore.ops.rope import rope"),
        (PLUGIN, "from vtcore.kv_cache.pool import Pool"),
        (PLUGIN, "from vtcore_other.gdn import gdn"),
    ),
    the_environment_is_read_in_one_file: (
        (CORE, "import os\nx = os.environ['A']"),
        (CORE, "from os import getenv"),
        (PLUGIN, "import os\nos.getenv('A')"),
    ),
    nothing_calls_float: ((PLUGIN, "y = x.float()"),),
    nothing_asks_hasattr: ((CORE, "hasattr(x, 'y')"),),
    no_pickle_and_no_remote_code: (
        (CORE, "import pickle"),
        (CORE, "torch.load(f)"),
        (CORE, "eval('1')"),
        (CORE, "load(x, trust_remote_code=False)"),
    ),
    core_compares_with_no_registered_name: (
        (CORE, "ok = kind == 'full_attention'"),
        (CORE, "ok = name in ('fcfs', 'other')"),
        (CORE, "match x:\n    case 'fcfs':\n        pass"),
    ),
    files_stay_short: ((CORE, "\n" * (MAX_LINES + 1)),),
    modules_say_what_they_do_not: ((CORE, '"""Does something."""'), (CORE, "x = 1")),
    classes_are_named_by_what_they_are: ((CORE, "class PoolManager: ..."), (CORE, "class BasePool: ...")),
}


@pytest.mark.parametrize("rule", PLANTED, ids=lambda rule: rule.__name__)
def test_the_sources_keep_the_rule(rule: Rule) -> None:
    broken = {source.path: found for source in all_sources() if (found := rule(source))}
    assert broken == {}


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [(rule, path, text) for rule, planted in PLANTED.items() for path, text in planted],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_the_rule_finds_a_planted_offence(rule: Rule, path: str, text: str) -> None:
    assert rule(Source(path, text))


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (light_modules_import_no_torch, "vtcore/interfaces/x.py", "if TYPE_CHECKING:\n    import torch"),
        (plugins_import_only_the_public_part, PLUGIN, "from vtcore import hookimpl"),
        (plugins_import_only_the_public_part, PLUGIN.replace("x.py", "ops/x.py"), "import vtcore.ops.rope"),
        (plugins_import_only_the_public_part, PLUGIN, "from vtcore_qwen3_5_dense.ops import gdn"),
        (nothing_calls_float, CORE, "x = float('nan')"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_the_rule_lets_pass_what_is_allowed(rule: Rule, path: str, text: str) -> None:
    assert rule(Source(path, text)) == []


def test_the_walk_sees_core_and_plugins() -> None:
    paths = {source.path for source in all_sources()}
    assert "vtcore/plugins.py" in paths
    assert any(path.startswith("plugins/") for path in paths)


def test_no_folder_above_a_plugins_package_is_a_package() -> None:
    assert not [
        str(file.relative_to(ROOT))
        for pattern in ("plugins/__init__.py", "plugins/*/__init__.py", "plugins/*/src/__init__.py")
        for file in ROOT.glob(pattern)
    ]
