"""Which plugins are refused, and what someone gets or is told who chooses something by name or checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_sources import Install, arch_source, policy_source, registry_of

from vtcore.errors import (
    CheckpointError,
    ConfigError,
    PluginError,
    PluginLoadError,
    UnsupportedArchError,
    VtcoreError,
)
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.plugins import build_registry
from vtcore.registry import PluginRegistry


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


def test_a_registry_cannot_be_changed() -> None:
    registry = build_registry(entry_points=False)
    with pytest.raises(TypeError):
        registry.policies["mine"] = registry.policy("fcfs")  # type: ignore[index]
