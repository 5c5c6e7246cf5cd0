"""The pytest plugin of `vtcore[testing]`: fixtures, the skipping of rules that are too new, and the report.

Found by pytest through its entry point in every environment that has vtcore, so it imports no torch until a
fixture is used. Does not: collect anything that is no `ConformanceKit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from vtcore.llm import LLM
    from vtcore.registry import PluginRegistry
    from vtcore.testing.kit import ConformanceKit

_PROPERTY = "vtcore_kit"
"""Under this name a row of the report travels with pytest's own, between workers too."""

# Rules assert; the failing values belong into the message.
for _name in (
    "alone",
    "arch_checkpoint",
    "arch_logits",
    "arch_precision",
    "arch_schedules",
    "arch_subject",
    "invariants",
    "kv_cache_kit",
    "kv_cache_lives",
    "policy_kit",
    "schedules",
):
    pytest.register_assert_rewrite(f"vtcore.testing.{_name}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--vtcore-report`."""
    parser.getgroup("vtcore").addoption(
        "--vtcore-report",
        metavar="FILE",
        type=Path,
        help="write what the conformance kits showed, by class and rule, as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Name the kits' marker, and collect rows for the report where the session's results come together."""
    config.addinivalue_line("markers", "gpu: needs a CUDA device; the kits skip such rules elsewhere")
    path = config.getoption("--vtcore-report")
    if path is not None and getattr(config, "workerinput", None) is None:
        config.pluginmanager.register(_Report(path), "vtcore-report")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a rule that came after the version a plugin is written for; note what is run."""
    kit = _kit_of(item)
    if kit is None:
        return
    from vtcore.testing.kit_report import describe

    name = getattr(item, "originalname", None) or item.name
    if name not in {rule.name for rule in kit.rules()}:
        return
    where = item.nodeid.rpartition("::")[0]
    item.user_properties.append((_PROPERTY, describe(kit, where, name)))
    if reason := kit.rule(name).skipped:
        pytest.skip(reason)


def _kit_of(item: pytest.Item) -> type[ConformanceKit] | None:
    owner = getattr(item, "cls", None)
    # A class without one of these has never imported the kit, so nor need this.
    if owner is None or getattr(owner, "declared_api", None) is None:
        return None
    from vtcore.testing.kit import ConformanceKit

    return owner if issubclass(owner, ConformanceKit) else None


class _Report:
    """Gathers rows from the reports of all workers.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The call decides; a failing setup or teardown fails the rule, a skipping setup skips it."""
        row = dict(report.user_properties).get(_PROPERTY)
        if not isinstance(row, dict):
            return
        known = self.rows.setdefault(report.nodeid, {**row, "outcome": "passed", "reason": ""})
        if report.failed:
            known["outcome"], known["reason"] = "failed", _last_line(report)
        elif report.skipped:
            known["outcome"], known["reason"] = "skipped", _skip_reason(report)

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        from vtcore.testing.kit_report import write_report

        write_report(self.path, self.rows.values())


def _last_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    message = str(crash.message) if crash is not None else str(report.longrepr)
    return message.splitlines()[0] if message else ""


def _skip_reason(report: pytest.TestReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


@pytest.fixture(scope="session")
def vtcore_registry() -> PluginRegistry:
    """A registry with the core's own plugins alone; what is installed beside them does not leak in."""
    from vtcore.plugins import build_registry

    return build_registry(entry_points=False)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_checkpoint(arch, *modules)`: a directory with a random "tiny" checkpoint, made once a session.

    `arch` is the registry name, `modules` are the plugin modules that offer it (a directory is remembered by
    arch and modules). Tests share it, so none may write there.
    """
    made: dict[tuple[str, ...], Path] = {}

    def make(arch: str, *modules: ModuleType) -> Path:
        from vtcore.cli.make_checkpoint import make_checkpoint
        from vtcore.plugins import build_registry

        key = (arch, *(module.__name__ for module in modules))
        if key not in made:
            out = tmp_path_factory.mktemp("vtcore") / arch
            make_checkpoint(arch, "tiny", out, registry=build_registry(modules, entry_points=False))
            made[key] = out
        return made[key]

    return make


@pytest.fixture
def engine_factory() -> Iterator[Callable[..., LLM]]:
    """`engine_factory(model, *modules, **options)`: an `LLM` on a registry of the core and `modules` alone.

    All that a test makes are closed at its end.
    """
    from vtcore.plugins import build_registry
    from vtcore.testing.registry_llm import RegistryLLM

    with ExitStack() as stack:

        def make(model: str | Path, *modules: ModuleType, **options: Any) -> LLM:
            registry = build_registry(modules, entry_points=False)
            return stack.enter_context(RegistryLLM(registry, model=str(model), **options))

        yield make
