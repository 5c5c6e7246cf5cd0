"""One owner per name: settles which distribution serves each kind and name, then freezes the registry.

Does not: find plugins, or let the order in which they were found decide anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import frozen

from vtcore.errors import ConfigError, DuplicateNameError
from vtcore.hookspecs import HOOK_POINTS
from vtcore.interfaces.registry_entries import ArchEntry, CheckpointSourceEntry, Entry
from vtcore.registry import PluginInfo, PluginRegistry, Problem, Registered, distribution_key
from vtcore.suggest import did_you_mean


@frozen
class _Claim:
    """One distribution's claim to a name of one kind."""

    kind: str
    name: str
    registered: Registered[Entry]

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.name}"


def freeze_registry(
    offers: Iterable[Registered[Entry]],
    owners: Mapping[str, str],
    plugins: Iterable[PluginInfo],
    problems: Iterable[Problem],
    keep_going: bool = False,
) -> PluginRegistry:
    """Settle who owns what.

    Args:
        offers: Every description, with its distribution.
        owners: "KIND:NAME" -> the distribution that serves it; kinds are those of `HOOK_POINTS`, and
            "architecture" and "model_type" for what a config.json says, "capability" for what one may have.
        plugins: Those that registered.
        problems: Those that did not.
        keep_going: A name that two claim becomes a problem and goes to the first; False raises.

    Raises:
        DuplicateNameError: Two claim one name and `owners` does not pick.
        ConfigError: `owners` names what nobody offers.
    """
    by_entry = {point.entry: point for point in HOOK_POINTS}
    named = [_Claim(by_entry[type(offer.entry)].kind, offer.entry.name, offer) for offer in offers]
    contested: list[Problem] | None = [] if keep_going else None
    winners = _settle(named, owners, contested)
    matches = [
        _Claim(kind, value, claim.registered)
        for claim in winners.values()
        if isinstance(entry := claim.registered.entry, ArchEntry)
        for kind, values in (("architecture", entry.architectures), ("model_type", entry.model_types))
        for value in values
    ]
    matches += [
        _Claim("capability", "serves_bare_ids", claim.registered)
        for claim in winners.values()
        if isinstance(entry := claim.registered.entry, CheckpointSourceEntry) and entry.serves_bare_ids
    ]
    matched = _settle(matches, owners, contested)
    _check_owners(owners, [*named, *matches])

    def of(kind: str) -> dict[str, Registered[Entry]]:
        return {c.name: c.registered for c in winners.values() if c.kind == kind}

    def entries_by(kind: str) -> dict[str, str]:
        return {c.name: c.registered.entry.name for c in matched.values() if c.kind == kind}

    return PluginRegistry(
        archs=of("arch"),
        kv_cache_specs=of("kv_cache_spec"),
        policies=of("scheduler_policy"),
        checkpoint_sources=of("checkpoint_source"),
        architectures=entries_by("architecture"),
        model_types=entries_by("model_type"),
        bare_id_source=entries_by("capability").get("serves_bare_ids"),
        plugins=tuple(plugins),
        problems=(*problems, *(contested or ())),
    )


def _settle(
    claims: list[_Claim], owners: Mapping[str, str], contested: list[Problem] | None
) -> dict[str, _Claim]:
    """One winner per key: the only claimant, or the one that `owners` picks; `contested` None raises."""
    winners: dict[str, _Claim] = {}
    for claim in claims:
        owner = owners.get(claim.key)
        if owner is not None and distribution_key(owner) != distribution_key(claim.registered.distribution):
            continue
        other = winners.setdefault(claim.key, claim)
        if other is claim:
            continue
        problem = _conflict(claim, other.registered, claim.registered)
        if contested is None:
            assert problem.error is not None
            raise problem.error
        contested.append(problem)
    return winners


def _conflict(claim: _Claim, one: Registered[Entry], two: Registered[Entry]) -> Problem:
    if distribution_key(one.distribution) == distribution_key(two.distribution):
        message = (
            f"{claim.kind} {claim.name!r} is claimed twice by {one.distribution} {one.version}, by "
            f"plugins {one.plugin!r} and {two.plugin!r}"
        )
        remedy = "block one of them (VTCORE_PLUGINS_BLOCK) or upgrade it"
    else:
        message = f"{claim.kind} {claim.name!r} is claimed by {_named(one)} and by {_named(two)}"
        remedy = (
            f'pick one with the option plugin_owners={{"{claim.key}": "{one.distribution}"}} or '
            f'"{two.distribution}", or uninstall the other'
        )
    return Problem(
        plugin=two.plugin,
        distribution=two.distribution,
        version=two.version,
        message=message,
        remedy=remedy,
        name=claim.name,
        error=DuplicateNameError(f"{message}; {remedy}"),
    )


def _named(one: Registered[Entry]) -> str:
    """Distribution and version; a plugin file has none."""
    return f"{one.distribution} {one.version}".rstrip()


def _check_owners(owners: Mapping[str, str], claims: list[_Claim]) -> None:
    """A line that picks what nobody offers is a typo or a missing installation, never a no-op."""
    offered: dict[str, set[str]] = {}
    for claim in claims:
        offered.setdefault(claim.key, set()).add(distribution_key(claim.registered.distribution))
    wrong = []
    for key, distribution in owners.items():
        if key not in offered:
            wrong.append(f"$.plugin_owners.{key}: nothing of that kind and name{did_you_mean(key, offered)}")
        elif distribution_key(distribution) not in offered[key]:
            wrong.append(
                f"$.plugin_owners.{key}: {distribution!r} does not offer it"
                f"{did_you_mean(distribution, offered[key])}"
            )
    if wrong:
        raise ConfigError(*wrong)
