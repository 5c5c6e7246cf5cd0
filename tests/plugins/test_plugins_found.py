"""Which plugins are found, in which order, and who owns a contested name; the distributions are real.

Does not: touch installed plugins, except to check that their registration stays light.
"""

from __future__ import annotations

import gc
import json
import logging
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pluggy
import pytest
from plugin_sources import Install, arch_source, module_of, policy_source, registry_of

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.errors import (
    ConfigError,
    DuplicateNameError,
    PluginLoadError,
)
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.plugins import GROUP, build_registry, registry_for


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
