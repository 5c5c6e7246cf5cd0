"""Discovery, ownership and look-up of plugins, with real distributions written to a temporary folder.

Does not: touch installed plugins, except to check that their registration stays light.
"""

from __future__ import annotations

import gc
import json
import logging
import re
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import pluggy
import pytest

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.errors import (
    CheckpointError,
    ConfigError,
    DuplicateNameError,
    PluginApiError,
    PluginError,
    PluginLoadError,
    UnsupportedArchError,
    VtcoreError,
)
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.plugins import GROUP, build_registry, registry_for
from vtcore.registry import PluginRegistry

Install = Callable[..., str]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Write a distribution and put it first on the path; returns the name of its module."""

    def write(
        distribution: str, source: str, *, version: str = "1.0", names: tuple[str, ...] = (), module: str = ""
    ) -> str:
        module = module or f"module_{uuid.uuid4().hex}"
        root = tmp_path / uuid.uuid4().hex
        info = root / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = [f"{name} = {module}" for name in names or (distribution,)]
        (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
        (root / f"{module}.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(str(root))
        return module

    return write


def policy_source(name: str, *, api: str = "0.1", implementation: str = "") -> str:
    path = f'"{implementation}"' if implementation else 'f"{__name__}:Policy"'
    return f"""
from vtcore import hookimpl
from vtcore.interfaces.registry_entries import SchedulerPolicyEntry
from vtcore.interfaces.scheduler_policy import SchedulerPolicy

VTCORE_API = {{"scheduler_policies": "{api}"}}

class Policy(SchedulerPolicy):
    pass

@hookimpl
def vtcore_register_scheduler_policies():
    return [SchedulerPolicyEntry(name="{name}", implementation={path})]
"""


def arch_source(*entries: str) -> str:
    return f"""
from vtcore import hookimpl
from vtcore.interfaces.registry_entries import ArchEntry

VTCORE_API = {{"archs": "0.1"}}

@hookimpl
def vtcore_register_archs():
    return [{", ".join(f"ArchEntry({entry}, implementation=__name__ + ':Arch')" for entry in entries)}]
"""


def module_of(source: str, name: str = "") -> ModuleType:
    module = ModuleType(name or f"extra_{uuid.uuid4().hex}")
    exec(textwrap.dedent(source), module.__dict__)
    return module


def registry_of(*sources: str, owners: Mapping[str, str] | None = None) -> PluginRegistry:
    return build_registry(extra=[module_of(source) for source in sources], entry_points=False, owners=owners)


def test_the_cores_own_entries_come_through_the_same_hooks() -> None:
    registry = build_registry(entry_points=False)
    assert set(registry.kv_cache_specs) == {"full_attention", "recurrent_state"}
    assert registry.policy("fcfs").distribution == "vtcore"
    assert registry.archs == {}
    assert issubclass(registry.load(registry.policy("fcfs")), SchedulerPolicy)


def test_an_installed_plugin_is_found_with_its_owner(install: Install) -> None:
    module = install("fair-share", policy_source("fair"), version="2.3", names=("fair_entry",))
    registered = build_registry(allow=["fair_entry"]).policy("fair")
    assert (registered.distribution, registered.version, registered.plugin) == (
        "fair-share",
        "2.3",
        "fair_entry",
    )
    assert registered.entry.implementation == f"{module}:Policy"


def test_plugins_are_ordered_by_distribution_and_name_whatever_the_path_order(install: Install) -> None:
    empty = "from vtcore import hookimpl\nVTCORE_API = {'archs': '0.1'}\n"
    empty += "@hookimpl\ndef vtcore_register_archs():\n    return ()\n"
    install("b-dist", empty, names=("z", "m"))
    install("a-dist", empty, names=("q",))
    install("c-dist", empty, names=("a",))
    infos = build_registry(allow=["a", "m", "q", "z"]).plugins
    assert [info.plugin for info in infos] == ["builtin", "q", "m", "z", "a"]


def test_a_broken_plugin_nobody_asked_for_is_one_warning_and_one_problem(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("broken-dist", "import does_not_exist_anywhere")
    install("good-dist", policy_source("good"))
    with caplog.at_level(logging.WARNING):
        registry = build_registry()
    [record] = [r for r in caplog.records if "broken-dist" in r.getMessage()]
    assert "does_not_exist_anywhere" in record.getMessage()
    [problem] = [p for p in registry.problems if p.distribution == "broken-dist"]
    assert (problem.plugin, problem.version) == ("broken-dist", "1.0")
    assert "good" in registry.policies


def test_a_broken_plugin_in_the_allow_list_stops_with_all_that_is_needed(install: Install) -> None:
    install("broken-dist", "import does_not_exist_anywhere", version="3.1", names=("wanted",))
    with pytest.raises(PluginLoadError, match=r"'wanted' of broken-dist 3\.1.*ModuleNotFoundError") as caught:
        build_registry(allow=["wanted"])
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_plugin_that_exits_while_imported_does_not_end_the_process(install: Install) -> None:
    install("exiting-dist", "import sys; sys.exit(7)")
    with pytest.raises(PluginLoadError, match="SystemExit: 7"):
        build_registry(allow=["exiting-dist"])


def test_a_broken_plugin_stops_whoever_names_it_later(install: Install) -> None:
    install("vtcore-some-model", "raise RuntimeError('half installed')", names=("entry",))
    registry = build_registry()
    with pytest.raises(PluginLoadError, match="half installed"):
        registry.arch_for({"model_type": "some_model"})
    with pytest.raises(PluginLoadError, match="half installed"):
        registry.policy("entry")
    with pytest.raises(ConfigError, match=r"installed but broken: .*half installed"):
        registry.policy("unheard_of")


def test_two_distributions_with_one_name_are_refused_and_the_line_in_the_message_settles_it(
    install: Install,
) -> None:
    install("first-dist", policy_source("fair"))
    install("second-dist", policy_source("fair"))
    allow = ["first-dist", "second-dist"]
    with pytest.raises(DuplicateNameError, match=r"first-dist 1\.0 and by second-dist 1\.0") as caught:
        build_registry(allow=allow)
    found = re.search(r"plugin_owners=(\{.*?\})", str(caught.value))
    assert found is not None
    owners = json.loads(found.group(1))
    assert build_registry(allow=allow, owners=owners).policy("fair").distribution == "first-dist"
    owners = {"scheduler_policy:fair": "Second_Dist"}
    assert build_registry(allow=allow, owners=owners).policy("fair").distribution == "second-dist"


def test_a_name_of_the_core_can_be_claimed_only_by_choice(install: Install) -> None:
    install("other-fcfs", policy_source("fcfs"))
    with pytest.raises(DuplicateNameError, match=r"vtcore .* and by other-fcfs"):
        build_registry(allow=["other-fcfs"])
    registry = build_registry(allow=["other-fcfs"], owners={"scheduler_policy:fcfs": "other-fcfs"})
    assert registry.policy("fcfs").distribution == "other-fcfs"


def test_one_distribution_claiming_a_name_twice_is_refused(install: Install) -> None:
    install("twice-dist", policy_source("fair"), names=("one", "two"))
    with pytest.raises(DuplicateNameError, match=r"twice by twice-dist 1\.0, by plugins 'one' and 'two'"):
        build_registry(allow=["one", "two"])


def test_one_architecture_string_has_one_owner() -> None:
    sources = [arch_source(f"name='{name}', architectures=['ForX'], model_types=['x']") for name in "ab"]
    modules = [module_of(source, name) for source, name in zip(sources, ("dist_a", "dist_b"), strict=True)]
    with pytest.raises(DuplicateNameError, match="architecture 'ForX'"):
        build_registry(extra=modules, entry_points=False)
    owners = {"architecture:ForX": "dist_b", "model_type:x": "dist_a"}
    registry = build_registry(extra=modules, entry_points=False, owners=owners)
    assert registry.arch_for({"architectures": ["ForX"]}).entry.name == "b"
    assert registry.arch_for({"model_type": "x"}).entry.name == "a"


def test_an_owner_line_that_matches_nothing_is_an_error() -> None:
    module = module_of(policy_source("fair"), "fair_module")
    owners = {"scheduler_policy:fiar": "fair_module", "scheduler_policy:fair": "fair_modul"}
    with pytest.raises(ConfigError) as caught:
        build_registry(extra=[module], entry_points=False, owners=owners)
    one, two = caught.value.problems
    assert one.startswith("$.plugin_owners.scheduler_policy:fiar:")
    assert "did you mean 'scheduler_policy:fair'" in one
    assert "did you mean 'fair-module'" in two


def test_names_in_allow_and_block_lists_that_match_nothing_are_errors(install: Install) -> None:
    install("good-dist", policy_source("good"))
    with pytest.raises(ConfigError) as caught:
        build_registry(allow=["good-dits"], block=["nothing-like-it-xyz"])
    assert "did you mean 'good-dist'" in caught.value.problems[0]
    assert "'nothing-like-it-xyz'" in caught.value.problems[1]


def test_an_empty_allow_list_loads_no_installed_plugin(install: Install) -> None:
    install("good-dist", policy_source("good"))
    assert [info.plugin for info in build_registry(allow=()).plugins] == ["builtin"]


def test_a_blocked_plugin_is_not_even_imported(install: Install) -> None:
    module = install("good-dist", policy_source("good"))
    registry = build_registry(block=["good-dist"])
    assert "good" not in registry.policies
    assert module not in sys.modules


def test_options_and_environment_reach_the_registry(install: Install, tmp_path: Path) -> None:
    install("good-dist", policy_source("good"))
    install("bad-dist", policy_source("bad"))
    file = tmp_path / "mine.py"
    file.write_text(policy_source("good"))
    options = UserOptions(plugin_files=(str(file),), plugin_owners={"scheduler_policy:good": str(file)})
    registry = registry_for(
        options, Environment(plugins=("good-dist", "bad-dist"), plugins_block=("bad-dist",))
    )
    assert registry.policy("good").distribution == str(file)
    assert [info.plugin for info in registry.plugins] == ["builtin", "good-dist", "mine"]


@pytest.mark.parametrize(
    ("api", "outdated"), [("0.2", "-U vtcore"), ("7.0", "-U vtcore"), ("0.0", "-U old-dist")]
)
def test_a_plugin_for_another_hook_version_is_told_what_to_upgrade(
    install: Install, api: str, outdated: str
) -> None:
    install("old-dist", policy_source("fair", api=api))
    with pytest.raises(PluginApiError) as caught:
        build_registry(allow=["old-dist"])
    message = str(caught.value)
    assert "'old-dist' of old-dist 1.0" in message
    assert f"version {api} of the hook vtcore_register_scheduler_policies" in message
    assert message.endswith(f"{sys.executable} -m pip install {outdated}")


@pytest.mark.parametrize(
    "line", ["", "VTCORE_API = {}", "VTCORE_API = '0.1'", "VTCORE_API = {'archs': '0.1'}"]
)
def test_a_plugin_must_say_for_which_version_it_was_written(line: str) -> None:
    source = policy_source("fair").replace('VTCORE_API = {"scheduler_policies": "0.1"}', line)
    with pytest.raises(PluginApiError, match=r'add VTCORE_API = \{"scheduler_policies": "0.1"\}'):
        registry_of(source)


def test_a_hook_version_that_is_no_version_is_refused() -> None:
    with pytest.raises(PluginApiError, match=r"'one', not \"MAJOR\.MINOR\""):
        registry_of(policy_source("fair", api="one"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "vtcore_register_scheduler_policies",
            "vtcore_register_scheduler_polices",
            "did you mean 'vtcore_reg",
        ),
        ("@hookimpl", "", "vtcore_register_scheduler_policies is not marked"),
        ("_policies():", "_policies(surprise):", "surprise"),
        ("return [", "return 3 #", "failed: TypeError"),
        ("return [", "return ['x'] #", "returned 'x'; each item must be a SchedulerPolicyEntry"),
        ('name="fair"', 'name="two words"', "name is 'two words', not a word"),
        (
            "return [",
            "raise KeyError('lost') #",
            "vtcore_register_scheduler_policies failed: KeyError: 'lost'",
        ),
    ],
)
def test_a_plugin_that_breaks_the_rules_of_a_hook_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(PluginLoadError) as caught:
        registry_of(policy_source("fair").replace(old, new))
    assert message in str(caught.value)


def test_a_plugin_without_any_hook_is_refused() -> None:
    with pytest.raises(PluginLoadError, match="it registers nothing; define one of vtcore_register_archs"):
        registry_of("VTCORE_API = {}")


def test_a_single_file_plugin_registers_and_loads(tmp_path: Path) -> None:
    file = tmp_path / "my policy.py"
    file.write_text(policy_source("mine"))
    registry = build_registry(entry_points=False, files=[file])
    cls = registry.load(registry.policy("mine"))
    assert issubclass(cls, SchedulerPolicy)
    assert registry.policy("mine").distribution == str(file)


def test_two_files_of_one_stem_stay_apart(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        files.append(tmp_path / name / "same.py")
        files[-1].write_text(policy_source(name))
    registry = build_registry(entry_points=False, files=files)
    one, two = (registry.load(registry.policy(name)) for name in ("one", "two"))
    assert one is not two


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("absent.py", None, "no such file"),
        ("plugin.txt", "", "not a .py file"),
        ("bad.py", "def (", "SyntaxError"),
    ],
)
def test_a_bad_plugin_file_is_a_typed_error(
    tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    with pytest.raises(PluginLoadError) as caught:
        build_registry(entry_points=False, files=[file])
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("implementation", "message"),
    [
        ("vtcore.no_such_module:Policy", "ModuleNotFoundError"),
        ("vtcore.suggest:NoSuchName", "AttributeError"),
        (
            "vtcore.suggest:did_you_mean",
            "is not a subclass of vtcore.interfaces.scheduler_policy.SchedulerPolicy",
        ),
        ("vtcore.errors:VtcoreError", "is not a subclass of"),
    ],
)
def test_an_implementation_that_cannot_be_used_is_named_with_its_owner(
    implementation: str, message: str
) -> None:
    registry = registry_of(policy_source("fair", implementation=implementation))
    with pytest.raises(PluginLoadError) as caught:
        registry.load(registry.policy("fair"))
    assert f"cannot import {implementation}" in str(caught.value) or implementation in str(caught.value)
    assert "scheduler_policy fair (extra_" in str(caught.value)
    assert message in str(caught.value)


def test_an_incomplete_arch_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    file = tmp_path / "incomplete.py"
    file.write_text(
        arch_source("name='half', model_types=['half']")
        + "from vtcore.interfaces.model_arch import ModelArch\nclass Arch(ModelArch):\n    pass\n"
    )
    registry = build_registry(entry_points=False, files=[file])
    with pytest.raises(PluginLoadError, match=r"lacks __init__, build, cache_specs, .*; define them"):
        registry.load(registry.arch_for({"model_type": "half"}))


def test_a_cache_spec_whose_kind_differs_from_its_entry_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "spec.py"
    file.write_text("""
from vtcore import hookimpl
from vtcore.interfaces.kv_cache_spec import KVCacheSpec, Whole
from vtcore.interfaces.registry_entries import KVCacheSpecEntry

VTCORE_API = {"kv_cache_specs": "0.1"}

class Spec(KVCacheSpec):
    kind = "latent"
    lifetime = Whole()
    rollback = frozenset({"overwrite"})
    def tensors(self, k_max):
        return {}
    def max_units(self, num_tokens, max_query, lookahead):
        return 1

@hookimpl
def vtcore_register_kv_cache_specs():
    return [
        KVCacheSpecEntry(name=name, implementation=f"{__name__}:Spec") for name in ("latent", "other")
    ]
""")
    registry = build_registry(entry_points=False, files=[file])
    assert registry.load(registry.kv_cache_spec("latent")).kind == "latent"
    with pytest.raises(PluginLoadError, match="has kind 'latent'; it must equal the entry's name"):
        registry.load(registry.kv_cache_spec("other"))
    with pytest.raises(PluginError, match="did you mean 'latent'"):
        registry.kv_cache_spec("latnet")


def test_an_arch_is_found_by_architecture_before_model_type() -> None:
    registry = registry_of(
        arch_source(
            "name='a', architectures=['ForA'], model_types=['ta']",
            "name='b', architectures=['ForB'], model_types=['tb']",
        )
    )
    assert registry.arch_for({"architectures": ["ForB"], "model_type": "ta"}).entry.name == "b"
    assert registry.arch_for({"architectures": ["Unknown", "ForA"], "model_type": "tb"}).entry.name == "a"
    assert registry.arch_for({"architectures": ["Unknown"], "model_type": "tb"}).entry.name == "b"
    assert registry.arch_for({"architectures": None, "model_type": "ta"}).entry.name == "a"


def test_an_unsupported_arch_says_what_is_installed_and_makes_up_no_package() -> None:
    registry = registry_of(arch_source("name='a', architectures=['ForA']"))
    with pytest.raises(UnsupportedArchError) as caught:
        registry.arch_for({"architectures": ["ForNew"], "model_type": "new_model"})
    message = str(caught.value)
    assert "['ForNew'], model_type 'new_model'" in message
    assert "serves ForA" in message
    assert "docs/howto/add-a-model.md" in message
    assert "pip install" not in message
    assert "vtcore-new" not in message


def refusals_of(registry: PluginRegistry, name: str) -> list[str]:
    """What whoever wants `name` is told, asking for an arch, a policy, a cache kind or a source."""
    found = []
    for ask in (
        lambda: registry.arch_for({"model_type": name}),
        lambda: registry.policy(name),
        lambda: registry.kv_cache_spec(name),
        lambda: registry.checkpoint_source(name),
    ):
        with pytest.raises(VtcoreError) as caught:
            ask()
        found.append(str(caught.value))
    return found


def test_a_plugin_that_is_left_out_is_named_to_whoever_misses_something(install: Install) -> None:
    install("fair-dist", policy_source("fair"), version="1.0")
    install("other-dist", policy_source("other"), version="1.0")
    for sentence in refusals_of(build_registry(allow=["other-dist"]), "fair"):
        assert (
            "plugin 'fair-dist' of fair-dist 1.0 is installed, but VTCORE_PLUGINS leaves it out" in sentence
        )
        assert "other-dist 1.0 is" not in sentence
    for sentence in refusals_of(build_registry(block=["fair-dist"]), "fair"):
        assert (
            "plugin 'fair-dist' of fair-dist 1.0 is installed, but VTCORE_PLUGINS_BLOCK leaves it out"
            in sentence
        )
    assert build_registry().left_out == ()


def test_of_many_that_are_left_out_the_namesake_comes_first_and_the_rest_is_counted(install: Install) -> None:
    for name in ("a", "b", "c", "vtcore-fair"):
        install(name, policy_source(name), version="1.0")
    registry = build_registry(allow=())
    assert {str(one.plugin.plugin) for one in registry.left_out} >= {"a", "b", "c", "vtcore-fair"}
    for sentence in refusals_of(registry, "fair"):
        first = sentence.index("plugin 'vtcore-fair'")
        assert sentence.count("leaves it out") == 3
        assert first < sentence.index("leaves it out")
        assert f"{len(registry.left_out) - 3} more are left out" in sentence


@pytest.mark.parametrize("config", [{"architectures": "ForA"}, {"architectures": [1]}, {"model_type": 3}])
def test_a_config_with_wrong_types_is_a_checkpoint_error(config: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: (architectures|model_type) is"):
        registry_of().arch_for(config)


def test_a_mistyped_policy_gets_a_guess() -> None:
    with pytest.raises(ConfigError, match=r"^\$\.scheduling_policy: 'fcsf' .*did you mean 'fcfs'"):
        registry_of().policy("fcsf")


def test_equal_metadata_twice_is_silent_and_different_metadata_is_reported(install: Install) -> None:
    source = policy_source("fair")
    module = install("fair-dist", source, version="1.0")
    install("Fair_Dist", source, version="1.0", module=module, names=("fair-dist",))
    assert not [p for p in build_registry(allow=["fair-dist"]).problems if "air" in p.distribution]
    install("fair-dist", source, version="0.9")
    registry = build_registry(allow=["fair-dist"])
    assert registry.policy("fair").version == "0.9"
    [problem] = [p for p in registry.problems if "two different installations" in p.message]
    assert "0.9 (used)" in problem.message
    assert problem.error is None


def test_a_registry_cannot_be_changed() -> None:
    registry = build_registry(entry_points=False)
    with pytest.raises(TypeError):
        registry.policies["mine"] = registry.policy("fcfs")  # type: ignore[index]


def test_nothing_of_pluggy_outlives_the_build() -> None:
    registry = registry_of(policy_source("fair"))
    gc.collect()
    # type(), because isinstance() asks the deprecated proxies that other packages leave in memory.
    managers = [o for o in gc.get_objects() if issubclass(type(o), pluggy.PluginManager)]
    alive = [manager for manager in managers if manager.project_name == "vtcore"]
    assert registry.policies
    assert alive == []


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_installed_plugin_registers_with_torch_and_triton_blocked() -> None:
    modules = sorted({point.module for point in entry_points(group=GROUP)})
    assert modules
    run_python(
        "import sys; sys.modules.update(torch=None, triton=None)\n"
        "from importlib import import_module\n"
        f"for name in {modules!r}: import_module(name)\n"
        "from vtcore.plugins import build_registry\n"
        "assert not [p.message for p in build_registry().problems if p.error], build_registry().problems\n"
    )


def test_importing_vtcore_and_listing_plugins_import_no_implementation() -> None:
    out = run_python(
        "import sys, vtcore\n"
        "assert not {'torch', 'pluggy', 'triton'} & set(sys.modules)\n"
        "vtcore.hookimpl\n"
        "from vtcore.cli.main import main\n"
        "assert main(['plugins', 'list', '--json']) == 0\n"
        "print('----'); print(*sys.modules)\n"
    )
    listing, _, loaded = out.partition("----")
    listed = json.loads(listing)
    modules = set(loaded.split())
    assert not {"torch", "triton", "safetensors", "tokenizers"} & modules
    implementations = {entry["implementation"].partition(":")[0] for entry in listed["entries"]}
    assert implementations
    assert not implementations & modules


def test_a_plugin_that_fails_in_registration_taints_none_asked_after_it(install: Install) -> None:
    wrong = policy_source("aaa").replace("@hookimpl\n", "@hookimpl(specname='vtcore_register_nothing')\n")
    install("aaa-dist", wrong)
    install("bbb-dist", policy_source("bbb"))
    registry = build_registry(allow=["aaa-dist", "bbb-dist"], keep_going=True)
    assert registry.policy("bbb").distribution == "bbb-dist"
    [problem] = [p for p in registry.problems if p.plugin == "aaa-dist"]
    assert "vtcore_register_nothing" in problem.message
    assert "aaa" not in registry.policies


def test_keeping_on_gives_a_contested_name_to_the_first_and_reports_the_second() -> None:
    modules = [module_of(policy_source("fair"), name) for name in ("dist_a", "dist_b")]
    registry = build_registry(extra=modules, entry_points=False, keep_going=True)
    assert registry.policy("fair").distribution == "dist_a"
    [problem] = registry.problems
    assert (problem.distribution, problem.name) == ("dist_b", "fair")
    assert isinstance(problem.error, DuplicateNameError)


def test_a_registered_plugin_says_for_which_hook_versions_it_was_written() -> None:
    [builtin, mine] = registry_of(policy_source("fair")).plugins
    assert mine.api == {"scheduler_policies": "0.1"}
    assert builtin.api["kv_cache_specs"]
