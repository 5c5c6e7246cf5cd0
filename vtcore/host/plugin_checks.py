"""What is wrong with the installed plugins.

Does not: stop at the first fault, or leave an implementation unimported or a policy unmade: that is where
faults hide.
"""

from __future__ import annotations

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.errors import ConfigError, PluginError, VtcoreError
from vtcore.hookspecs import HOOK_POINTS, HOOK_VERSIONS
from vtcore.host.check import Check
from vtcore.host.plugin_remedy import remedy_of
from vtcore.host.requirements import need_checks, read_needs
from vtcore.interfaces.registry_entries import Entry, SchedulerPolicyEntry
from vtcore.plugins import build_registry, registry_for
from vtcore.registry import PluginInfo, PluginRegistry, Problem, Registered, distribution_key


def look_at_plugins(options: UserOptions, environment: Environment) -> tuple[PluginRegistry, tuple[str, ...]]:
    """Build a registry however much is wrong.

    Returns:
        The registry, without regard to `environment` and owners if those name what is not installed; and what
        they name wrongly.
    """
    try:
        return registry_for(options, environment, keep_going=True), ()
    except ConfigError as error:
        return build_registry(files=options.plugin_files or (), keep_going=True), error.problems


def plugin_checks(options: UserOptions, environment: Environment) -> list[Check]:
    """Judge every plugin: registration, ownership, requirements, the import of each implementation.

    Each scheduler policy is made too, without settings.

    Args:
        options: Only those of plugins are read.
        environment: Which plugins may load.
    """
    registry, wrong = look_at_plugins(options, environment)
    checks = [
        Check("plugin settings", "error", problem, f"mend or unset {problem.split(': ', 1)[0]}")
        for problem in wrong
    ]
    checks += [
        Check(
            f"plugin {problem.plugin}",
            "warning" if problem.error is None else "error",
            problem.message,
            problem.remedy,
        )
        for problem in registry.problems
    ]
    for owner in plugin_distributions(registry):
        checks += need_checks(owner, read_needs(owner))
    return checks + _implementations(registry)


def plugin_distributions(registry: PluginRegistry) -> list[str]:
    """Distributions other than vtcore that announce plugins, broken ones too, each once."""
    items: list[PluginInfo | Problem] = [*registry.plugins, *registry.problems]
    known = {
        distribution_key(item.distribution): item.distribution
        for item in items
        if item.version and distribution_key(item.distribution) != "vtcore"
    }
    return list(known.values())


def _implementations(registry: PluginRegistry) -> list[Check]:
    # Here, since only the doctor needs it.
    from vtcore.planning import make_policy

    checks = []
    for kind, registered in registry.entries:
        name = f"{kind} {registered.entry.name}"
        owner = " ".join(filter(None, (registered.distribution, registered.version)))
        is_loaded = False
        try:
            registry.load(registered)
            is_loaded = True
            if isinstance(registered.entry, SchedulerPolicyEntry):
                make_policy(registry, registered.entry.name, {})
        except PluginError as error:
            remedy = f"mend {registered.distribution}"
            if registered.version:
                remedy = remedy_of(registered.distribution, error, is_loaded)
            checks.append(Check(name, "error", str(error), remedy))
        except VtcoreError as error:
            # A policy may refuse to be made without settings, which only its user knows.
            checks.append(Check(name, "note", f"of {owner}, needs settings: {error}", "give policy_config"))
        else:
            checks.append(Check(name, "ok", f"of {owner}{_age(kind, registered, registry)}"))
    return checks


def _age(kind: str, registered: Registered[Entry], registry: PluginRegistry) -> str:
    """A few words if the entry was written for an older version of its hook, which is still served."""
    [hook] = [point.api for point in HOOK_POINTS if point.kind == kind]
    owner = (registered.distribution, registered.plugin)
    [api] = [info.api for info in registry.plugins if (info.distribution, info.plugin) == owner]
    current = HOOK_VERSIONS[hook].current
    return (
        "" if api[hook] == current else f", written for {hook} {api[hook]}; the current version is {current}"
    )
