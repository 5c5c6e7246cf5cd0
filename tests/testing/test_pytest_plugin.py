"""pytest finds the plugin by itself: skips, the report (also of workers), fixtures, and a light import."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from vtcore import LLM, SamplingParams
from vtcore.errors import UnsupportedArchError
from vtcore.hookspecs import HOOK_VERSIONS
from vtcore.registry import PluginRegistry

AUTHORS_TESTS = '''
from types import ModuleType

from vtcore.testing.kit import ConformanceKit, overrides, since


class Kit(ConformanceKit):
    hook = "kv_cache_specs"

    @since("0.1")
    def test_passes(self):
        """It does."""

    @since("0.1")
    def test_fails(self):
        """It does."""
        one, other = 1, 2
        assert one == other

    @since("0.1")
    def test_elsewhere(self):
        """Replaced."""
        raise AssertionError("never run")

    @since("0.2")
    def test_new(self):
        """Not for all."""
        raise AssertionError("never run")


class TestMine(Kit):
    plugin = ModuleType("attrs")
    plugin.VTCORE_API = {"kv_cache_specs": "0.1"}

    @overrides("the planet is another")
    def test_elsewhere(self):
        pass

    def test_my_own(self):
        pass


class TestPlain:
    def test_nothing_of_the_kit(self):
        pass
'''


@pytest.fixture(scope="module")
def authors_tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("author")
    (directory / "test_mine.py").write_text(AUTHORS_TESTS, encoding="utf-8")
    (directory / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return directory


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_the_report_holds_each_rule_by_class_with_outcome_and_reason(
    authors_tests: Path, tmp_path: Path, workers: tuple[str, ...]
) -> None:
    out = tmp_path / "kit.json"
    result = run_pytest(authors_tests, "--vtcore-report", str(out), *workers)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "1 failed, 4 passed, 1 skipped" in result.stdout
    reason = "the rule came with kv_cache_specs 0.2, the plugin is written for 0.1"
    report: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    rules = {rule["rule"]: rule for rule in report["classes"][0].pop("rules")}
    assert report == {
        "schema": 1,
        "vtcore": version("vtcore"),
        "hooks": {name: hook.current for name, hook in HOOK_VERSIONS.items()},
        "classes": [
            {
                "class": "test_mine.py::TestMine",
                "kit": "ConformanceKit",
                "hook": "kv_cache_specs",
                "plugin": {
                    "module": "attrs",
                    "distribution": "attrs",
                    "version": version("attrs"),
                    "api": {"kv_cache_specs": "0.1"},
                },
            }
        ],
    }
    assert {name: (rule["outcome"], rule["since"]) for name, rule in rules.items()} == {
        "test_passes": ("passed", "0.1"),
        "test_fails": ("failed", "0.1"),
        "test_elsewhere": ("overridden", "0.1"),
        "test_new": ("skipped", "0.2"),
    }
    assert rules["test_elsewhere"]["reason"] == "the planet is another"
    assert rules["test_new"]["reason"] == reason
    assert "1 == 2" in rules["test_fails"]["reason"]
    assert rules["test_passes"]["reason"] == ""


def test_without_the_option_nothing_is_written_and_rules_are_skipped_all_the_same(
    authors_tests: Path,
) -> None:
    before = sorted(authors_tests.iterdir())
    result = run_pytest(authors_tests, "-k", "new", "-p", "no:xdist")
    assert result.returncode == 0
    assert "the plugin is written for 0.1" in result.stdout
    assert [path for path in authors_tests.iterdir() if path.name != "__pycache__"] == [
        path for path in before if path.name != "__pycache__"
    ]


def test_a_class_that_hides_a_rule_stops_the_collection_with_a_sentence(tmp_path: Path) -> None:
    text = AUTHORS_TESTS.replace('    @overrides("the planet is another")\n', "")
    (tmp_path / "test_bad.py").write_text(text, encoding="utf-8")
    result = run_pytest(tmp_path, "-p", "no:xdist")
    assert result.returncode == 2
    assert "TestMine.test_elsewhere takes the place of a rule of the conformance kit" in result.stdout


def test_the_plugin_imports_no_torch_until_it_is_used() -> None:
    code = (
        "import sys, vtcore.testing.pytest_plugin, vtcore.testing.kit_report\n"
        "assert not {'torch', 'hypothesis', 'transformers'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_registry_is_empty_of_all_that_is_installed_beside_the_core(
    vtcore_registry: PluginRegistry,
) -> None:
    assert [info.plugin for info in vtcore_registry.plugins] == ["builtin"]
    assert not vtcore_registry.archs


def test_a_tiny_checkpoint_is_made_once_and_an_engine_runs_it_on_the_plugins_given(
    tiny_checkpoint: Callable[..., Path], engine_factory: Callable[..., LLM]
) -> None:
    plugin = pytest.importorskip("vtcore_qwen3_5_dense.plugin")
    directory = tiny_checkpoint("qwen3_5_dense", plugin)
    assert tiny_checkpoint("qwen3_5_dense", plugin) == directory
    llm = engine_factory(directory, plugin, dtype="float64", max_model_len=64)
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    [output] = llm.generate(["The quick"], params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 3
    with pytest.raises(UnsupportedArchError):
        engine_factory(directory)
