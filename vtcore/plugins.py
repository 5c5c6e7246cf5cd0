"""Finds plugins, asks each hook once and freezes the answers into a registry.

Does not: import an implementation, read the environment, or leave anything of pluggy behind.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, version
from pathlib import Path
from types import ModuleType

import pluggy
from attrs import evolve, frozen

from vtcore import builtin, hookspecs
from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.errors import ConfigError, PluginApiError, PluginError, PluginLoadError
from vtcore.hookspecs import HOOK_POINTS, HOOK_VERSIONS, PROJECT, HookPoint, parse_hook_version
from vtcore.host.installed import GROUP as GROUP
from vtcore.host.installed import announced_plugins, pip_command
from vtcore.host.plugin_remedy import remedy_of
from vtcore.interfaces.registry_entries import Entry
from vtcore.ownership import freeze_registry
from vtcore.registry import LeftOut, PluginInfo, PluginRegistry, Problem, Registered, distribution_key
from vtcore.suggest import did_you_mean

_log = logging.getLogger(__name__)


@frozen(kw_only=True)
class _Candidate:
    """A plugin before its module is imported; `asked_for` makes any failure stop the start."""

    info: PluginInfo
    load: Callable[[], object]
    asked_for: bool


def build_registry(
    extra: Iterable[ModuleType] = (),
    entry_points: bool = True,
    files: Iterable[str | Path] = (),
    allow: Iterable[str] | None = None,
    block: Iterable[str] = (),
    owners: Mapping[str, str] | None = None,
    keep_going: bool = False,
) -> PluginRegistry:
    """Build a fresh registry.

    Args:
        extra: Modules of hookimpls, beside what is found.
        entry_points: Whether installed distributions are searched.
        files: Single-file plugins.
        allow: Entry-point names that may load and are then asked for; None allows all, () none. The core's
            own entries, `extra` and `files` always load.
        block: Entry-point names that are not even imported.
        owners: Which distribution serves a contested name: {"arch:NAME": "DISTRIBUTION"}.
        keep_going: A plugin that fails although asked for, and a contested name, become problems of the
            registry and no errors; of a name's claimants the first then serves it. For looking only.

    Raises:
        PluginLoadError: A plugin that was asked for cannot be imported, or breaks the rules of a hook.
        PluginApiError: A plugin that was asked for fits another version of a hook.
        DuplicateNameError: Two distributions claim one name and `owners` picks neither.
        ConfigError: A name in `allow`, `block` or `owners` matches nothing.
    """
    candidates = [
        _Candidate(
            info=PluginInfo(
                plugin="builtin", distribution="vtcore", version=version("vtcore"), source=builtin.__name__
            ),
            load=lambda: builtin,
            asked_for=True,
        )
    ]
    problems: list[Problem] = []
    left_out: list[LeftOut] = []
    owners = owners or {}
    block = tuple(block)
    if entry_points or allow is not None or block:
        installed, stale = announced_plugins() if entry_points else ([], [])
        problems += stale
        allowed = None if allow is None else set(allow)
        candidates += _selected(installed, allowed, block, owners)
        left_out = _left_out(installed, allowed, block)
    candidates += [_from_module(module) for module in extra]
    candidates += [_from_file(Path(file)) for file in files]

    loaded: list[PluginInfo] = []
    offers: list[Registered[Entry]] = []
    asked = pluggy.PluginManager(PROJECT)
    asked.add_hookspecs(hookspecs)
    for candidate in candidates:
        try:
            info, answers = _ask(candidate, asked)
        except PluginError as error:
            if candidate.asked_for and not keep_going:
                raise
            problems.append(_problem(candidate.info, error))
        else:
            loaded.append(info)
            offers += answers
    if problems and not keep_going:
        _log.warning("plugins with problems: %s", "; ".join(problem.message for problem in problems))
    return evolve(freeze_registry(offers, owners, loaded, problems, keep_going), left_out=tuple(left_out))


def registry_for(options: UserOptions, environment: Environment, keep_going: bool = False) -> PluginRegistry:
    """Build the registry that a user's options and environment ask for; raises as `build_registry`."""
    return build_registry(
        keep_going=keep_going,
        files=options.plugin_files or (),
        allow=environment.plugins,
        block=environment.plugins_block,
        owners=options.plugin_owners,
    )


def _selected(
    installed: list[tuple[EntryPoint, PluginInfo]],
    allowed: set[str] | None,
    block: tuple[str, ...],
    owners: Mapping[str, str],
) -> list[_Candidate]:
    known = {info.plugin for _, info in installed}
    wrong = [
        f"{option}: no installed plugin is named {name!r}{did_you_mean(name, known) or '; none is installed'}"
        for option, names in (("VTCORE_PLUGINS", allowed or ()), ("VTCORE_PLUGINS_BLOCK", block))
        for name in sorted(names)
        if name not in known
    ]
    if wrong:
        raise ConfigError(*wrong)
    owning = {distribution_key(distribution) for distribution in owners.values()}
    return [
        _Candidate(
            info=info,
            load=point.load,
            asked_for=allowed is not None or distribution_key(info.distribution) in owning,
        )
        for point, info in installed
        if info.plugin not in block and (allowed is None or info.plugin in allowed)
    ]


def _left_out(
    installed: list[tuple[EntryPoint, PluginInfo]], allowed: set[str] | None, block: tuple[str, ...]
) -> list[LeftOut]:
    return [
        LeftOut(plugin=info, variable="VTCORE_PLUGINS_BLOCK" if info.plugin in block else "VTCORE_PLUGINS")
        for _, info in installed
        if info.plugin in block or (allowed is not None and info.plugin not in allowed)
    ]


def _from_module(module: ModuleType) -> _Candidate:
    name = module.__name__
    return _Candidate(
        info=PluginInfo(plugin=name, distribution=name, version="", source=name),
        load=lambda: module,
        asked_for=True,
    )


def _from_file(path: Path) -> _Candidate:
    def load() -> ModuleType:
        # The path is part of the name, so two files of one stem stay two modules.
        digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
        name = f"vtcore_file_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}_{digest}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise PluginLoadError(f"plugin file {path}: not a .py file")
        if not path.is_file():
            raise PluginLoadError(f"plugin file {path}: no such file")
        module = importlib.util.module_from_spec(spec)
        # Entries name their implementation as f"{__name__}:Class", so the module must be importable.
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    info = PluginInfo(plugin=path.stem, distribution=str(path), version="", source=str(path))
    return _Candidate(info=info, load=load, asked_for=True)


def _problem(info: PluginInfo, error: PluginError) -> Problem:
    if not info.version:
        remedy = f"mend {info.source}, or leave it out"
    elif isinstance(error, PluginApiError):
        remedy = pip_command("install", "-U", "vtcore", info.distribution)
    else:
        mending = remedy_of(info.distribution, error)
        remedy = f"{mending}, or leave it out with VTCORE_PLUGINS_BLOCK={info.plugin}"
    return Problem(
        plugin=info.plugin,
        distribution=info.distribution,
        version=info.version,
        message=str(error),
        remedy=remedy,
        error=error,
    )


def _ask(candidate: _Candidate, asked: pluggy.PluginManager) -> tuple[PluginInfo, list[Registered[Entry]]]:
    """Import one plugin, check it and ask every hook, alone in `asked` so that blame is certain."""
    info = candidate.info
    try:
        module = candidate.load()
    except (PluginError, KeyboardInterrupt):
        raise
    # Extensions written in other languages raise what is no Exception, and scripts exit.
    except BaseException as cause:
        raise PluginLoadError(f"{info}: cannot import it: {type(cause).__name__}: {cause}") from cause
    _check_marks(module, info)
    try:
        asked.register(module, name=info.plugin)
        asked.check_pending()
        offers = _answers(module, info, asked)
    except pluggy.PluginValidationError as cause:
        raise PluginLoadError(f"{info}: {cause}") from cause
    finally:
        asked.unregister(name=info.plugin)
    declared: Mapping[object, object] = getattr(module, "VTCORE_API", {})
    return evolve(info, api={str(key): str(value) for key, value in declared.items()}), offers


def _answers(module: object, info: PluginInfo, asked: pluggy.PluginManager) -> list[Registered[Entry]]:
    offers: list[Registered[Entry]] = []
    implemented = [point for point in HOOK_POINTS if getattr(asked.hook, point.hook).get_hookimpls()]
    if not implemented:
        hooks = ", ".join(point.hook for point in HOOK_POINTS)
        raise PluginLoadError(f"{info}: it registers nothing; define one of {hooks} under @hookimpl")
    for point in implemented:
        _check_version(module, point, info)
        try:
            [answer] = getattr(asked.hook, point.hook)()
            entries = list(answer)
        except KeyboardInterrupt:
            raise
        except BaseException as cause:
            raise PluginLoadError(f"{info}: {point.hook} failed: {type(cause).__name__}: {cause}") from cause
        for entry in entries:
            if type(entry) is not point.entry:
                raise PluginLoadError(
                    f"{info}: {point.hook} returned {entry!r}; each item must be a {point.entry.__name__}"
                )
            offers.append(
                Registered(
                    entry=entry,
                    distribution=info.distribution,
                    version=info.version,
                    plugin=info.plugin,
                )
            )
    return offers


def _check_marks(module: object, info: PluginInfo) -> None:
    """Catch what pluggy lets pass: a hook without its mark, or a mark on an unknown hook of any prefix."""
    known = {point.hook for point in HOOK_POINTS}
    mark = f"{PROJECT}_impl"
    for name in dir(module):
        value = getattr(module, name)
        if not callable(value) or isinstance(value, type):
            continue
        marked = getattr(value, mark, None)
        if marked is not None and name not in known and not marked["optionalhook"]:
            raise PluginLoadError(f"{info}: there is no hook {name!r}{did_you_mean(name, known)}")
        if marked is None and name in known:
            raise PluginLoadError(f"{info}: {name} is not marked; write @hookimpl (from vtcore) above it")


def _check_version(module: object, point: HookPoint, info: PluginInfo) -> None:
    declared = getattr(module, "VTCORE_API", None)
    served = HOOK_VERSIONS[point.api]
    if not isinstance(declared, Mapping) or not isinstance(declared.get(point.api), str):
        raise PluginApiError(
            f"{info}: it does not say which version of the hook {point.hook} it was written for (this vtcore "
            f'serves {served}); add VTCORE_API = {{"{point.api}": "{served.current}"}} to {info.source}'
        )
    wanted = declared[point.api]
    try:
        theirs = parse_hook_version(wanted)
    except ValueError as cause:
        raise PluginApiError(
            f'{info}: VTCORE_API["{point.api}"]: {cause}; this vtcore serves {served}'
        ) from cause
    if served.serves(wanted):
        return
    if theirs > served.pair:
        remedy = f"upgrade vtcore: {pip_command('install', '-U', 'vtcore')}"
    elif info.version:
        remedy = f"upgrade the plugin: {pip_command('install', '-U', info.distribution)}"
    else:
        remedy = f"port {info.source} to {served.current} (docs/plugins.md)"
    raise PluginApiError(
        f"{info}: it was written for version {wanted} of the hook {point.hook}, this vtcore "
        f"{version('vtcore')} serves {served}; {remedy}"
    )
