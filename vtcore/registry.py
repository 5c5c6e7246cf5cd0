"""What the plugins offered, frozen: look-up by name or by checkpoint, and the import of what was chosen.

Does not: discover plugins or call a hook; `vtcore.plugins` builds it once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from attrs import field, frozen

from vtcore.errors import (
    CheckpointError,
    ConfigError,
    PluginError,
    PluginLoadError,
    UnsupportedArchError,
    VtcoreError,
)
from vtcore.hookspecs import HOOK_POINTS
from vtcore.interfaces.kv_cache_spec import KVCacheSpec
from vtcore.interfaces.model_arch import ModelArch
from vtcore.interfaces.registry_entries import (
    ArchEntry,
    CheckpointSourceEntry,
    Entry,
    KVCacheSpecEntry,
    SchedulerPolicyEntry,
)
from vtcore.suggest import did_you_mean

EntryT = TypeVar("EntryT", bound=Entry, covariant=True)
"""The class of the description held."""

_MAX_LEFT_OUT = 3
"""Plugins that one sentence names as left out."""


@frozen(kw_only=True)
class PluginInfo:
    """One plugin that registered.

    Args:
        plugin: Entry-point name, file stem or module name; "builtin" for the core's own.
        distribution: Its pip name, or the file's path.
        version: The distribution's version; "" for a file.
        source: The entry point's value, the file or the module.
        api: Its `VTCORE_API`: hook versions it was written for; empty until its module was imported.
    """

    plugin: str
    distribution: str
    version: str
    source: str
    api: Mapping[str, str] = field(factory=dict, hash=False)

    def __str__(self) -> str:
        version = f" {self.version}" if self.version else ""
        return f"plugin {self.plugin!r} of {self.distribution}{version}"


@frozen(kw_only=True)
class Registered(Generic[EntryT]):
    """A description with its owner."""

    entry: EntryT
    distribution: str
    version: str
    plugin: str

    def __str__(self) -> str:
        return f"{self.entry.name} ({' '.join(filter(None, (self.distribution, self.version)))})"


@frozen(kw_only=True)
class Problem:
    """Something wrong with an installed plugin that nobody asked for.

    Args:
        name: The contested name, where two claim one.
        error: What stops whoever asks for it; None when the plugin works all the same.
        message: One sentence.
        remedy: A command or a setting that mends it.
    """

    plugin: str
    distribution: str
    version: str
    message: str
    remedy: str = ""
    name: str = ""
    error: PluginError | None = None


@frozen(kw_only=True)
class LeftOut:
    """An installed plugin that the user's environment keeps out; its module was not imported.

    Args:
        variable: Which one keeps it out.
    """

    plugin: PluginInfo
    variable: str

    @property
    def names(self) -> frozenset[str]:
        """What it may be meant by."""
        return frozenset(map(distribution_key, (self.plugin.plugin, self.plugin.distribution)))

    def __str__(self) -> str:
        return f"{self.plugin} is installed, but {self.variable} leaves it out"


def distribution_key(name: str) -> str:
    """The form in which distribution names are compared. Source: PEP 503, normalized names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _frozen_mapping(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(value))


@frozen(kw_only=True)
class PluginRegistry:
    """Everything that can be chosen by name or by checkpoint.

    Args:
        archs, kv_cache_specs, policies, checkpoint_sources: By registry name.
        architectures, model_types: What a config.json says -> name of the arch that owns it.
        bare_id_source: Name of the checkpoint source that serves bare ids; None where no plugin offers one.
        plugins: All that registered, the core's own first.
        problems: Installed plugins that did not register, or whose metadata is doubtful.
        left_out: Installed plugins that were not asked.
    """

    archs: Mapping[str, Registered[ArchEntry]] = field(converter=_frozen_mapping)
    kv_cache_specs: Mapping[str, Registered[KVCacheSpecEntry]] = field(converter=_frozen_mapping)
    policies: Mapping[str, Registered[SchedulerPolicyEntry]] = field(converter=_frozen_mapping)
    checkpoint_sources: Mapping[str, Registered[CheckpointSourceEntry]] = field(converter=_frozen_mapping)
    architectures: Mapping[str, str] = field(converter=_frozen_mapping)
    model_types: Mapping[str, str] = field(converter=_frozen_mapping)
    bare_id_source: str | None
    plugins: tuple[PluginInfo, ...]
    problems: tuple[Problem, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def entries(self) -> tuple[tuple[str, Registered[Entry]], ...]:
        """(kind, description) of everything, kinds in the order of `HOOK_POINTS`."""
        everything: list[Registered[Entry]] = [
            *self.archs.values(),
            *self.kv_cache_specs.values(),
            *self.policies.values(),
            *self.checkpoint_sources.values(),
        ]
        return tuple((p.kind, r) for p in HOOK_POINTS for r in everything if type(r.entry) is p.entry)

    def arch_for(self, hf_config: Mapping[str, Any]) -> Registered[ArchEntry]:
        """Find the arch of a checkpoint: by its architectures in their order, then by its model type.

        Args:
            hf_config: The parsed config.json, outer form.

        Raises:
            CheckpointError: `architectures` or `model_type` has a wrong type.
            PluginError: Nothing matches, and a plugin named after the model type is installed but broken.
            UnsupportedArchError: Nothing installed matches.
        """
        architectures, model_type = _match_keys(hf_config)
        for architecture in architectures:
            if architecture in self.architectures:
                return self.archs[self.architectures[architecture]]
        if model_type in self.model_types:
            return self.archs[self.model_types[model_type]]
        if model_type:
            self._raise_if_broken(model_type)
        raise UnsupportedArchError(self._unsupported(architectures, model_type))

    def build_arch(self, hf_config: Mapping[str, Any]) -> tuple[Registered[ArchEntry], ModelArch]:
        """Find the arch of a checkpoint and let it read the config.

        Raises:
            VtcoreError: As `arch_for` and `load`, or as the arch refuses the config.
            PluginError: The arch fails on it with an error of another kind.
        """
        registered = self.arch_for(hf_config)
        return registered, self.make_arch(registered, hf_config)

    def make_arch(self, registered: Registered[ArchEntry], hf_config: Mapping[str, Any]) -> ModelArch:
        """Import an arch and let it read a config.

        Raises:
            VtcoreError: As `load`, or as the arch refuses the config.
            PluginError: The arch fails on it with an error of another kind.
        """
        arch_class = self.load(registered)
        try:
            arch: ModelArch = arch_class(hf_config)
        except VtcoreError:
            raise
        except (Exception, SystemExit) as cause:
            raise PluginError(
                f"arch {registered}, plugin {registered.plugin!r}, fails on the checkpoint's config: "
                f"{type(cause).__name__}: {cause}; the config may be damaged, or the plugin too old for it"
            ) from cause
        return arch

    def policy(self, name: str) -> Registered[SchedulerPolicyEntry]:
        """Find a scheduler policy.

        Raises:
            PluginError: The plugin of that name is installed but broken.
            ConfigError: No installed plugin offers it.
        """
        return self._find(
            self.policies,
            name,
            ConfigError,
            f"$.scheduling_policy: {name!r} is offered by no installed plugin",
        )

    def kv_cache_spec(self, kind: str) -> Registered[KVCacheSpecEntry]:
        """Find a kind of KV-cache spec.

        Raises:
            PluginError: No installed plugin offers it, or the one named so is broken.
        """
        return self._find(
            self.kv_cache_specs,
            kind,
            PluginError,
            f"KV-cache spec {kind!r} is registered by no installed plugin",
        )

    def checkpoint_source(self, name: str) -> Registered[CheckpointSourceEntry]:
        """Find a checkpoint source.

        Raises:
            PluginError: The plugin of that name is installed but broken.
            ConfigError: No installed plugin offers it.
        """
        return self._find(
            self.checkpoint_sources,
            name,
            ConfigError,
            f"$.model: checkpoint source {name!r} is offered by no installed plugin",
        )

    def _find(
        self,
        offered: Mapping[str, Registered[EntryT]],
        name: str,
        error: type[VtcoreError],
        sentence: str,
    ) -> Registered[EntryT]:
        """What is offered under a name; else its broken plugin's error, or `error` with what is known."""
        if name in offered:
            return offered[name]
        self._raise_if_broken(name)
        # Whoever mistyped a name has nothing to install.
        is_close = did_you_mean(name, offered, list_all=False)
        remedy = "" if is_close else "; install a plugin that offers it, from a publisher you trust"
        raise error(f"{sentence}{did_you_mean(name, offered)}{remedy}{self._absent_note(name)}")

    def load(self, registered: Registered[Any]) -> Any:
        """Import an implementation and check it against its interface.

        Returns:
            The class that the entry names.

        Raises:
            PluginLoadError: The import fails, the name is absent, or it is no complete subclass.
        """
        entry = registered.entry
        [point] = [point for point in HOOK_POINTS if point.entry is type(entry)]
        owner = f"{point.kind} {registered}, plugin {registered.plugin!r}"
        module_name, _, name = entry.implementation.partition(":")
        try:
            found = getattr(import_module(module_name), name)
        except KeyboardInterrupt:
            raise
        except BaseException as cause:
            raise PluginLoadError(
                f"{owner}: cannot import {entry.implementation}: {type(cause).__name__}: {cause}"
            ) from cause
        interface = point.interface
        if not isinstance(found, type) or not issubclass(found, interface):
            raise PluginLoadError(
                f"{owner}: {entry.implementation} is not a subclass of "
                f"{interface.__module__}.{interface.__qualname__}; derive it from that class"
            )
        missing: frozenset[str] = getattr(found, "__abstractmethods__", frozenset())
        if missing:
            names = ", ".join(sorted(missing))
            raise PluginLoadError(f"{owner}: {entry.implementation} lacks {names}; define them")
        kind = getattr(found, "kind", None) if issubclass(found, KVCacheSpec) else entry.name
        if kind != entry.name:
            raise PluginLoadError(
                f"{owner}: {entry.implementation} has kind {kind!r}; it must equal the entry's name"
            )
        return found

    def _raise_if_broken(self, name: str) -> None:
        """Whoever names a broken plugin gets its error, not "unknown name"."""
        wanted = {distribution_key(name), distribution_key(f"vtcore-{name}")}
        for problem in self.problems:
            named = {distribution_key(problem.plugin), distribution_key(problem.distribution)}
            if problem.error is not None and named & wanted:
                raise problem.error

    def _absent_note(self, name: str) -> str:
        """What is installed and serves nothing; of what was left out, the namesakes of `name` first."""
        broken = [f"{p.distribution} ({p.message})" for p in self.problems if p.error is not None]
        sentences = [f"installed but broken: {', '.join(broken)}"] if broken else []
        wanted = {distribution_key(name), distribution_key(f"vtcore-{name}")}
        left_out = sorted(self.left_out, key=lambda one: not one.names & wanted)
        sentences += [str(one) for one in left_out[:_MAX_LEFT_OUT]]
        if len(left_out) > _MAX_LEFT_OUT:
            sentences.append(f"{len(left_out) - _MAX_LEFT_OUT} more are left out")
        return "".join(f"; {sentence}" for sentence in sentences)

    def _unsupported(self, architectures: tuple[str, ...], model_type: str) -> str:
        wanted = f"architectures {list(architectures)}, model_type {model_type!r}"
        served = [
            f"{r} serves {', '.join(r.entry.architectures + r.entry.model_types)}"
            for r in self.archs.values()
        ]
        installed = "; ".join(served) or "no arch"
        # No name of a package is made up here: whoever registered it first would be installed.
        return (
            f"no installed plugin serves the checkpoint's {wanted}; installed: {installed}"
            f"{self._absent_note(model_type)}; install a plugin that serves it, from a publisher you trust, "
            f"or write one (docs/howto/add-a-model.md)"
        )


def _match_keys(hf_config: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    architectures: Iterable[Any] = hf_config.get("architectures") or ()
    model_type = hf_config.get("model_type") or ""
    if not isinstance(architectures, list | tuple) or not all(isinstance(a, str) for a in architectures):
        raise CheckpointError(f"config.json: architectures is {architectures!r}, not a list of texts")
    if not isinstance(model_type, str):
        raise CheckpointError(
            f"config.json: model_type is {model_type!r}, not a text; use the config.json that the model was "
            f"published with"
        )
    return tuple(architectures), model_type
