"""Every error vtcore raises on purpose, one small class per kind of failure.

Does not: print, log or exit; the command line turns these into one sentence and an exit code.

Each class has a stable code. Its first digit is the command line's exit code: 2 configuration (options,
model, request), 3 environment (machine, installation, network), 4 engine. `vtcore explain CODE` and
docs/errors.md say what each means; a code is never given to another failure.
"""

from __future__ import annotations

from typing import ClassVar


class VtcoreError(Exception):
    """Root of all errors that vtcore raises on purpose.

    Attributes:
        code: Stable, "VT" and three digits.
    """

    code: ClassVar[str] = "VT400"

    @property
    def exit_code(self) -> int:
        """Of the command line: 2, 3 or 4."""
        return int(self.code[2])

    @property
    def doc(self) -> str:
        """Where the documentation explains it, below the project's root."""
        return f"docs/errors.md#{self.code.lower()}"


class ConfigError(VtcoreError):
    """An option has a wrong name, type or value, or two options do not go together.

    Args:
        problems: One sentence per problem, each starting with the option's path (`$.max_num_seqs`).
    """

    code = "VT201"

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class NotServedError(ConfigError):
    """An option is known, but this version does not serve it, or not with this value."""

    code = "VT202"


class UsageError(VtcoreError):
    """The command line has an unknown flag, a missing argument or a value of a wrong form.

    Args:
        problems: One sentence per problem.
    """

    code = "VT203"

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class PluginError(VtcoreError):
    """Plugins could not be turned into a registry, or one gave data that cannot be used."""

    code = "VT310"


class PluginLoadError(PluginError):
    """A plugin that was asked for cannot be imported or its implementation cannot be found."""

    code = "VT311"


class PluginApiError(PluginError):
    """A plugin was written for another version of a hook."""

    code = "VT312"


class PluginLockError(PluginError):
    """The installed plugins are not those of a plugin lock, or the lock itself cannot be read."""

    code = "VT313"


class DuplicateNameError(PluginError):
    """Two distributions claim the same name of one kind."""

    code = "VT210"


class CheckpointError(VtcoreError):
    """A checkpoint directory, its config or its tensors cannot be used as a model."""

    code = "VT220"


class UnsupportedArchError(CheckpointError):
    """No installed plugin serves the checkpoint's architecture."""

    code = "VT221"


class UnsupportedFeatureError(CheckpointError):
    """The checkpoint needs something this version does not serve (quantization, adapter, format)."""

    code = "VT222"


class MissingTensorError(CheckpointError):
    """The model needs a tensor that the checkpoint does not have."""

    code = "VT223"


class UnknownTensorError(CheckpointError):
    """The checkpoint has a tensor that nothing uses and no skip rule names."""

    code = "VT224"


class TensorShapeError(CheckpointError):
    """A tensor of the checkpoint has another shape than the config implies."""

    code = "VT225"


class ModelNotFoundError(CheckpointError):
    """MODEL is no directory, no checkpoint source's name and no model that the hub shows to this user."""

    code = "VT226"


class RevisionNotFoundError(CheckpointError):
    """The model exists, the revision does not."""

    code = "VT227"


class GatedModelError(CheckpointError):
    """The hub gives the model only to users who accepted its terms and sent a token."""

    code = "VT228"


class IncompleteCheckpointError(CheckpointError):
    """A download broke off: files that the checkpoint names are not there."""

    code = "VT229"


class MemoryPlanError(VtcoreError):
    """The cache does not fit the memory it was given; the message has the numbers."""

    code = "VT230"


class RequestError(VtcoreError):
    """A request is malformed or can never be served; nothing of it has reached the engine."""

    code = "VT240"


class ChatTemplateError(RequestError):
    """The chat template refuses the messages, fails on them, or runs beyond its limits."""

    code = "VT241"


class HostError(VtcoreError):
    """The machine or the installation lacks something: a file, a permission, a tool."""

    code = "VT301"


class DeviceError(HostError):
    """A device is present, or asked for, and cannot be used; the engine does not fall back in silence."""

    code = "VT302"


class DiskSpaceError(HostError):
    """What is to be written does not fit the disk; the message has the numbers."""

    code = "VT303"


class HubUnreachableError(HostError):
    """The hub does not answer, or answers with an error of its own."""

    code = "VT304"


class OfflineError(HostError):
    """The model is not in the local cache and the network is switched off."""

    code = "VT305"


class EngineError(VtcoreError):
    """The engine broke one of its own invariants: a bug in vtcore or in a plugin."""

    code = "VT401"


class EngineClosedError(VtcoreError):
    """The engine was closed and takes no more requests."""

    code = "VT402"
