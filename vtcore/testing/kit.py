"""What the conformance kits share: rules with the API minor they came in, and overriding with a reason.

Does not: state a rule, or import pytest; `vtcore.testing.pytest_plugin` skips and reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, ModuleType
from typing import Any, ClassVar, TypeVar

from attrs import frozen

from vtcore import builtin
from vtcore.hookspecs import HOOK_VERSIONS, parse_hook_version
from vtcore.plugins import build_registry
from vtcore.registry import PluginRegistry
from vtcore.suggest import did_you_mean

FunctionT = TypeVar("FunctionT", bound=Callable[..., None])
"""A test method."""

_SINCE = "vtcore_kit_since"
_OVERRIDES = "vtcore_kit_overrides"


def since(version: str) -> Callable[[FunctionT], FunctionT]:
    """Mark a kit's rule with the version of its hook in which it came, "MAJOR.MINOR".

    A plugin that declares an older one in `VTCORE_API` need not keep it: the rule is skipped there.
    """

    def mark(function: FunctionT) -> FunctionT:
        setattr(function, _SINCE, version)
        return function

    return mark


def overrides(reason: str) -> Callable[[FunctionT], FunctionT]:
    """Mark a test of an author's class that takes the place of a kit's rule.

    Args:
        reason: Why the rule as it stands does not fit; it goes into the report.

    Raises:
        ValueError: The reason is empty.
    """
    if not reason.strip():
        raise ValueError('@overrides("") gives no reason; say why the kit\'s rule does not fit')

    def mark(function: FunctionT) -> FunctionT:
        setattr(function, _OVERRIDES, reason)
        return function

    return mark


@frozen(kw_only=True)
class KitRule:
    """One rule as one class keeps it.

    Args:
        name: The test method.
        since: Version of the hook in which the rule came.
        overridden: Why the class has a test of its own in its place; None where it has not.
        skipped: Why the rule does not hold for the class's plugin; None where it does.
    """

    name: str
    since: str
    overridden: str | None = None
    skipped: str | None = None


class ConformanceKit:
    """Subclass a kit under a name that starts with `Test`, in a module that pytest collects.

    Attributes:
        hook: Key of the kit's hook in `HOOK_VERSIONS`.
        plugin: The author's plugin module, with `VTCORE_API` and hooks; None where a kit needs none.
        extra_plugins: Modules of other plugins that this one needs.
    """

    hook: ClassVar[str]
    plugin: ClassVar[ModuleType | None] = None
    extra_plugins: ClassVar[tuple[ModuleType, ...]] = ()
    _made: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._made = {}
        known = _rules_of(cls.__mro__[1:])
        for name in known:
            if _mark(getattr(cls, name), _SINCE) is None and _mark(getattr(cls, name), _OVERRIDES) is None:
                raise TypeError(
                    f"{cls.__qualname__}.{name} takes the place of a rule of the conformance kit without a "
                    f'reason; write @overrides("why") above it (from vtcore.testing.kit), or rename it'
                )
        for name, value in vars(cls).items():
            if _mark(value, _OVERRIDES) is not None and name not in known:
                raise TypeError(
                    f"{cls.__qualname__}.{name} is marked @overrides, but the kit has no rule of that name"
                    f"{did_you_mean(name, known)}"
                )

    @classmethod
    def rules(cls) -> tuple[KitRule, ...]:
        """Every rule of the kit, by name."""
        return tuple(cls.rule(name) for name in sorted(_rules_of(cls.__mro__)))

    @classmethod
    def rule(cls, name: str) -> KitRule:
        """One rule.

        Raises:
            KeyError: The kit has none of that name.
        """
        version = str(_mark(_rules_of(cls.__mro__)[name], _SINCE))
        reason = _mark(getattr(cls, name), _OVERRIDES)
        declared = cls.declared_api()
        skipped = None
        if parse_hook_version(version) > parse_hook_version(declared):
            skipped = f"the rule came with {cls.hook} {version}, the plugin is written for {declared}"
        return KitRule(name=name, since=version, overridden=reason, skipped=skipped)

    @classmethod
    def kit_name(cls) -> str:
        """Name of the kit's class that an author subclasses."""
        return next(c.__name__ for c in cls.__mro__ if c.__module__.startswith("vtcore.testing."))

    @classmethod
    def declared_api(cls) -> str:
        """Version of the kit's hook that the plugin is written for; without a plugin, the core's."""
        declared: Mapping[str, str] = getattr(cls.plugin, "VTCORE_API", {})
        return declared.get(cls.hook, HOOK_VERSIONS[cls.hook].current)

    @classmethod
    def registry(cls) -> PluginRegistry:
        """The core's own plugins, the author's and `extra_plugins`; nothing else that is installed."""
        found: PluginRegistry = cls.once(
            "registry", lambda: build_registry(extra=cls.modules(), entry_points=False)
        )
        return found

    @classmethod
    def modules(cls) -> tuple[ModuleType, ...]:
        """The plugin's and `extra_plugins`; the core's own is in every registry anyway."""
        named = (*cls.extra_plugins, cls.plugin)
        return tuple(module for module in named if module is not None and module is not builtin)

    @classmethod
    def once(cls, name: str, make: Callable[[], Any]) -> Any:
        """Make something once for all tests of the class."""
        if name not in cls._made:
            cls._made[name] = make()
        return cls._made[name]


def failing_rules(kit: type[ConformanceKit], only: Iterable[str] | None = None) -> dict[str, str]:
    """Run rules without pytest, as the tests of a kit do.

    Args:
        kit: An author's class.
        only: Names of rules; None is all.

    Returns:
        Name -> the error's class and message, of those that fail.
    """
    failed = {}
    for name in sorted(_rules_of(kit.__mro__)) if only is None else only:
        try:
            getattr(kit(), name)()
        except (Exception, SystemExit) as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


def _rules_of(classes: tuple[type, ...]) -> dict[str, FunctionType]:
    """The rules that classes state, by name."""
    return {
        name: value
        for owner in reversed(classes)
        for name, value in vars(owner).items()
        if isinstance(value, FunctionType) and _mark(value, _SINCE) is not None
    }


def _mark(value: object, mark: str) -> Any:
    return getattr(value, mark, None)
