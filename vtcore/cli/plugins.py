"""`vtcore plugins`: what is installed, what it offers, and what is wrong with it.

`list --json` prints one object: `interpreter` (`path`, `version`), `hook_versions` and `oldest_hook_versions`
(hook -> the current version, the oldest one served), `plugins` (objects with `plugin`, `distribution`,
`version`, `source`, `api`), `entries` (objects with `kind`, `name`, `distribution`, `version`, `plugin`,
`implementation`, `description` and what its kind adds, such as
`architectures`) and `problems` (objects with `plugin`, `distribution`, `version`, `name` where two claim one,
`broken`, `message`, `remedy`). `show NAME --json` prints the same object, only with what bears the name, and
`requirements` (objects with `distribution`, `name`, `specifier`, `installed`, `extra`, `is_met`). `doctor
--json` prints what `vtcore doctor --json` prints, with the rows of plugins alone. Fields may be added; these
stay.

Does not: import an implementation, except `doctor`, whose purpose that is.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import asdict

from vtcore.cli.doctor import options_despite_problems, print_checks
from vtcore.cli.engine_flags import add_plugin_flags, given_from_args
from vtcore.cli.own_stdout import others_print_to_stderr
from vtcore.cli.plugins_lock import add_lock_parser, run_lock
from vtcore.cli.plugins_new import add_new_parser, run_new
from vtcore.config.env import read_host_variables, read_what_can_be_read
from vtcore.errors import UsageError
from vtcore.hookspecs import HOOK_POINTS, HOOK_VERSIONS
from vtcore.host.plugin_checks import look_at_plugins, plugin_checks
from vtcore.host.requirements import read_needs
from vtcore.host.verdicts import environment_checks
from vtcore.plugins import registry_for
from vtcore.registry import PluginRegistry, distribution_key
from vtcore.suggest import did_you_mean

_HEADINGS = ("NAME", "KIND", "DISTRIBUTION", "VERSION", "DESCRIPTION")


def add_parser(subparsers: Any) -> None:
    """Add what `vtcore plugins` can do."""
    parser = subparsers.add_parser("plugins", help="list installed plugins and what is wrong with them")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="what is installed and what it offers")
    show = actions.add_parser("show", help="everything about one plugin, entry or distribution")
    show.add_argument("name", metavar="NAME", help="of an entry, a plugin or a distribution")
    doctor = actions.add_parser("doctor", help="import every implementation and report what is wrong")
    for action in (listing, show, doctor):
        action.add_argument("--json", action="store_true", help="one JSON object on stdout")
        add_plugin_flags(action)
    add_lock_parser(actions)
    add_new_parser(actions)


def run(args: argparse.Namespace) -> int:
    """Run the chosen action; `doctor` returns 3 when anything is an error."""
    if args.action == "lock":
        return run_lock(args)
    if args.action == "new":
        return run_new(args)
    if args.action == "doctor":
        options, wrong = options_despite_problems(args)
        checks = environment_checks(wrong, read_host_variables()) if wrong else []
        with others_print_to_stderr():
            checks += plugin_checks(options, read_what_can_be_read())
        return print_checks(checks, args.json)
    given = given_from_args(args)
    if args.action == "show":
        with others_print_to_stderr():
            registry, _ = look_at_plugins(given.options, given.environment)
        chosen = _about(args.name, _as_json(registry))
        print(json.dumps(chosen, indent=2) if args.json else "\n".join(_show_lines(chosen)))
        return 0
    with others_print_to_stderr():
        listed = _as_json(registry_for(given.options, given.environment))
    print(json.dumps(listed, indent=2) if args.json else "\n".join(_list_lines(listed)))
    return 0


def _as_json(registry: PluginRegistry) -> dict[str, Any]:
    return {
        "interpreter": {"path": sys.executable, "version": platform.python_version()},
        "hook_versions": {hook: served.current for hook, served in HOOK_VERSIONS.items()},
        "oldest_hook_versions": {hook: served.oldest for hook, served in HOOK_VERSIONS.items()},
        "plugins": [asdict(info) for info in registry.plugins],
        "entries": [
            {"kind": kind, "distribution": r.distribution, "version": r.version, "plugin": r.plugin}
            | asdict(r.entry)
            for kind, r in registry.entries
        ],
        "problems": [
            {
                "plugin": problem.plugin,
                "distribution": problem.distribution,
                "version": problem.version,
                "name": problem.name,
                "broken": problem.error is not None,
                "message": problem.message,
                "remedy": problem.remedy,
            }
            for problem in registry.problems
        ],
    }


def _about(name: str, everything: dict[str, Any]) -> dict[str, Any]:
    """The part of everything that bears a name.

    Raises:
        UsageError: Nothing does.
    """
    key = distribution_key(name)
    plugins, entries, problems = (everything[part] for part in ("plugins", "entries", "problems"))

    def named(items: list[dict[str, Any]], fields: Iterable[str]) -> list[dict[str, Any]]:
        return [item for item in items if key in {distribution_key(item[field]) for field in fields}]

    chosen = {
        "plugins": named(plugins, ("plugin", "distribution")),
        "entries": named(entries, ("name", "plugin", "distribution")),
        "problems": named(problems, ("plugin", "distribution", "name")),
    }
    if not any(chosen.values()):
        known = {item[field] for item in (*plugins, *problems) for field in ("plugin", "distribution")}
        known |= {entry["name"] for entry in entries}
        raise UsageError(f"no plugin, entry or distribution is named {name!r}{did_you_mean(name, known)}")
    # An entry's plugin is what its author would ask about next.
    owners = {(entry["distribution"], entry["plugin"]) for entry in chosen["entries"]}
    chosen["plugins"] = [
        item
        for item in plugins
        if item in chosen["plugins"] or (item["distribution"], item["plugin"]) in owners
    ]
    distributions = {
        item["distribution"] for part in ("plugins", "problems") for item in chosen[part] if item["version"]
    }
    requirements = [
        {"distribution": owner, **asdict(need), "is_met": need.is_met}
        for owner in sorted(distributions)
        for need in read_needs(owner)
    ]
    return {**everything, **chosen, "requirements": requirements}


def _owner(item: dict[str, Any]) -> str:
    return " ".join(filter(None, (item["distribution"], item["version"])))


def _list_lines(listed: dict[str, Any]) -> list[str]:
    interpreter = listed["interpreter"]
    rows = [
        tuple(entry[field] for field in ("name", "kind", "distribution", "version", "description"))
        for entry in listed["entries"]
    ]
    offering = {(entry["distribution"], entry["plugin"]) for entry in listed["entries"]}
    idle = [item for item in listed["plugins"] if (item["distribution"], item["plugin"]) not in offering]
    return [
        f"interpreter: {interpreter['path']} ({interpreter['version']})",
        *_aligned([_HEADINGS, *rows]),
        *(f"plugin {item['plugin']} of {_owner(item)} offers nothing" for item in idle),
        f"hook versions served: {', '.join(f'{hook} {served}' for hook, served in HOOK_VERSIONS.items())}",
        *_problem_lines(listed),
    ]


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _problem_lines(listed: dict[str, Any]) -> Iterable[str]:
    for problem in listed["problems"]:
        yield f"problem: {problem['message']}"
        if problem["remedy"]:
            yield f"  remedy: {problem['remedy']}"


def _show_lines(chosen: dict[str, Any]) -> Iterable[str]:
    hooks = {point.kind: point.api for point in HOOK_POINTS}
    apis = {(item["distribution"], item["plugin"]): item["api"] for item in chosen["plugins"]}
    for entry in chosen["entries"]:
        yield f"{entry['kind']} {entry['name']}"
        api = apis[entry["distribution"], entry["plugin"]].get(hooks[entry["kind"]], "")
        shown = {
            "description": entry["description"],
            "distribution": _owner(entry),
            "plugin": entry["plugin"],
            "implementation": entry["implementation"],
            "written for hook version": f"{api} (served: {HOOK_VERSIONS[hooks[entry['kind']]]})",
        }
        others = {
            key: value for key, value in entry.items() if key not in {*shown, "kind", "name", "version"}
        }
        for key, value in {**shown, **others}.items():
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            if text:
                yield f"  {key.replace('_', ' ')}: {text}"
    for item in chosen["plugins"]:
        yield f"plugin {item['plugin']}"
        yield f"  distribution: {_owner(item)}"
        yield f"  source: {item['source']}"
        yield f"  hook versions: {', '.join(f'{hook} {number}' for hook, number in item['api'].items())}"
    for need in chosen["requirements"]:
        state = need["installed"] or "not installed"
        part = f", for its part {need['extra']}" if need["extra"] else ""
        yield f"requirement of {need['distribution']}{part}: {need['name']}{need['specifier']} ({state})"
    yield from _problem_lines(chosen)
