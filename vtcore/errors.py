"""Every error vtcore raises on purpose, one small class per kind of failure.

Does not: print, log or exit; the command line turns these into one sentence and an exit code.
"""

from __future__ import annotations


class VtcoreError(Exception):
    """Root of all errors that vtcore raises on purpose."""


class ConfigError(VtcoreError):
    """An option has a wrong name, type or value, or two options do not go together.

    Args:
        problems: One sentence per problem, each starting with the option's path (`$.max_num_seqs`).
    """

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class PluginError(VtcoreError):
    """Plugins could not be turned into a registry: import, version, duplicate or unknown name."""


class PluginLoadError(PluginError):
    """A plugin that was asked for cannot be imported or its implementation cannot be found."""


class PluginApiError(PluginError):
    """A plugin was written for another version of a hook."""


class DuplicateNameError(PluginError):
    """Two distributions claim the same name of one kind."""


class CheckpointError(VtcoreError):
    """A checkpoint directory, its config or its tensors cannot be used as a model."""


class UnsupportedArchError(CheckpointError):
    """No installed plugin serves the checkpoint's architecture."""


class UnsupportedFeatureError(CheckpointError):
    """The checkpoint needs something this version does not serve (quantization, adapter, format)."""


class MissingTensorError(CheckpointError):
    """The model needs a tensor that the checkpoint does not have."""


class UnknownTensorError(CheckpointError):
    """The checkpoint has a tensor that nothing uses and no skip rule names."""


class TensorShapeError(CheckpointError):
    """A tensor of the checkpoint has another shape than the config implies."""


class MemoryPlanError(VtcoreError):
    """The cache does not fit the memory it was given; the message has the numbers."""


class RequestError(VtcoreError):
    """A request is malformed or can never be served; nothing of it has reached the engine."""


class EngineError(VtcoreError):
    """The engine broke one of its own invariants: a bug in vtcore or in a plugin."""


class EngineClosedError(VtcoreError):
    """The engine was closed and takes no more requests."""
