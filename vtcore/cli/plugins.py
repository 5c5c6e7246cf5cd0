"""`vtcore plugins`: what is installed, what it offers, and what is wrong with it.

Does not: import an implementation, except `doctor`, whose purpose that is.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from attrs import asdict

from vtcore.cli.engine_flags import add_plugin_flags, options_from_args
from vtcore.config.env import read_environment
from vtcore.errors import PluginError
from vtcore.hookspecs import HOOK_POINTS, HOOK_VERSIONS
from vtcore.interfaces.registry_entries import Entry
from vtcore.plugins import registry_for
from vtcore.registry import PluginRegistry, Registered

EXIT_UNHEALTHY = 1
"""`doctor` found a problem."""


def add_parser(subparsers: Any) -> None:
    """Add `plugins list` and `plugins doctor`."""
    parser = subparsers.add_parser("plugins", help="list installed plugins and what is wrong with them")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="what is installed and what it offers")
    listing.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add_plugin_flags(listing)
    doctor = actions.add_parser("doctor", help="import every implementation and report what is wrong")
    add_plugin_flags(doctor)


def run(args: argparse.Namespace) -> int:
    """Run the chosen action."""
    registry = registry_for(options_from_args(args), read_environment())
    if args.action == "doctor":
        return _doctor(registry)
    if args.json:
        print(json.dumps(_as_json(registry), indent=2))
    else:
        _print_list(registry)
    return 0


def _by_kind(registry: PluginRegistry) -> dict[str, list[Registered[Entry]]]:
    everything: list[Registered[Entry]] = [
        *registry.archs.values(),
        *registry.kv_cache_specs.values(),
        *registry.policies.values(),
    ]
    return {
        point.kind: [registered for registered in everything if type(registered.entry) is point.entry]
        for point in HOOK_POINTS
    }


def _as_json(registry: PluginRegistry) -> dict[str, Any]:
    return {
        "hook_versions": dict(HOOK_VERSIONS),
        "plugins": [asdict(info) for info in registry.plugins],
        "entries": [
            {"kind": kind, "distribution": r.distribution, "version": r.version, "plugin": r.plugin}
            | asdict(r.entry)
            for kind, entries in _by_kind(registry).items()
            for r in entries
        ],
        "problems": [
            {
                "plugin": problem.plugin,
                "distribution": problem.distribution,
                "version": problem.version,
                "broken": problem.error is not None,
                "message": problem.message,
            }
            for problem in registry.problems
        ],
    }


def _print_list(registry: PluginRegistry) -> None:
    for info in registry.plugins:
        print(info)
    for kind, entries in _by_kind(registry).items():
        for registered in entries:
            about = f": {registered.entry.description}" if registered.entry.description else ""
            print(f"{kind} {registered}{about}")
    for problem in registry.problems:
        print(f"problem: {problem.message}")


def _doctor(registry: PluginRegistry) -> int:
    problems = [problem.message for problem in registry.problems]
    for kind, entries in _by_kind(registry).items():
        for registered in entries:
            try:
                registry.load(registered)
            except PluginError as error:
                problems.append(str(error))
            else:
                print(f"ok: {kind} {registered}")
    for problem in problems:
        print(f"problem: {problem}")
    return EXIT_UNHEALTHY if problems else 0
