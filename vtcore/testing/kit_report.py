"""The conformance report: what each kit class showed of each rule, as plain data.

Its form, version 1: {"schema": 1, "vtcore": VERSION, "hooks": {HOOK: VERSION}, "classes": [CLASS]}.
A CLASS is {"class": node id, "kit", "hook", "plugin", "rules": [RULE]}, plugin being {"module",
"distribution", "version", "api"} or null.
A RULE is {"rule", "since": hook version, "outcome", "reason"}; outcome is "passed", "failed", "skipped"
(reason: why) or "overridden" (the author's own test passed; reason: the author's). Rules that were not run
are left out.

Does not: import pytest or torch, or run anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import ModuleType
from typing import Any

from vtcore.hookspecs import HOOK_VERSIONS
from vtcore.testing.kit import ConformanceKit

SCHEMA = 1
"""Version of the report's form."""


def describe(kit: type[ConformanceKit], where: str, rule: str) -> dict[str, Any]:
    """One row, before it has an outcome: the class and the rule.

    Args:
        where: The class's node id.
        rule: Name of the test method.
    """
    found = kit.rule(rule)
    return {
        "class": where,
        "kit": kit.kit_name(),
        "hook": kit.hook,
        "plugin": _plugin(kit.plugin),
        "rule": found.name,
        "since": found.since,
        "overridden": found.overridden,
    }


def build_report(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The report of rows of `describe` to which "outcome" and "reason" were added."""
    classes: dict[str, dict[str, Any]] = {}
    for row in rows:
        shared = {key: row[key] for key in ("class", "kit", "hook", "plugin")}
        entry = classes.setdefault(row["class"], {**shared, "rules": []})
        outcome, reason = row["outcome"], row["reason"]
        if outcome == "passed" and row["overridden"] is not None:
            outcome, reason = "overridden", row["overridden"]
        entry["rules"].append(
            {"rule": row["rule"], "since": row["since"], "outcome": outcome, "reason": reason}
        )
    for entry in classes.values():
        entry["rules"].sort(key=lambda rule: rule["rule"])
    return {
        "schema": SCHEMA,
        "vtcore": version("vtcore"),
        "hooks": {hook: versions.current for hook, versions in HOOK_VERSIONS.items()},
        "classes": [classes[where] for where in sorted(classes)],
    }


def write_report(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write the report as JSON.

    Raises:
        OSError: The file cannot be written.
    """
    path.write_text(json.dumps(build_report(rows), indent=2) + "\n", encoding="utf-8")


def _plugin(module: ModuleType | None) -> dict[str, Any] | None:
    if module is None:
        return None
    distribution = next(iter(packages_distributions().get(module.__name__.partition(".")[0], ())), "")
    return {
        "module": module.__name__,
        "distribution": distribution,
        "version": version(distribution) if distribution else "",
        "api": dict(getattr(module, "VTCORE_API", {})),
    }
