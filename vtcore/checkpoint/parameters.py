"""Turns an architecture's parameter rules and a checkpoint's tensors into the model's parameters.

Does not: open files, know a model or keep a copy: each final tensor is allocated once, filled part by part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

import torch
from attrs import define, field

from vtcore.checkpoint.format import CheckpointFormat, StoredInfo
from vtcore.checkpoint.staged_copy import StagedCopy
from vtcore.errors import (
    MissingTensorError,
    PluginError,
    TensorShapeError,
    UnknownTensorError,
    UnsupportedFeatureError,
    VtcoreError,
)
from vtcore.interfaces.model_arch import ModelArch, ParamPart, ParamRule
from vtcore.layers.dtypes import acc_dtype

_PLAIN_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_NAMES_SHOWN = 5


@define
class LoadedParameters:
    """The parameters of one model, owned by the core for the engine's life.

    Args:
        tensors: Rule name -> tensor, contiguous, in its final dtype, on the device; those handed over are
            gone.
        num_bytes: Sum over all that were loaded.
        skipped: Tensors of the checkpoint that the architecture deliberately does not use, sorted.
        num_groups: Rule name -> groups, for rules that have them.
    """

    tensors: dict[str, torch.Tensor]
    num_bytes: int
    skipped: tuple[str, ...]
    num_groups: Mapping[str, int]
    _asked: set[str] = field(factory=set, init=False)

    def param(self, name: str) -> torch.Tensor:
        """The parameter of a rule; counts as used.

        Raises:
            PluginError: The architecture has no rule for the parameter, or a matrix product has taken it.
        """
        if name in self._asked and name not in self.tensors:
            raise PluginError(f"parameter {name} went to a matrix product; ask for it by param() before")
        if name not in self.tensors:
            raise PluginError(f"the architecture asks for parameter {name}, for which it has no rule")
        self._asked.add(name)
        return self.tensors[name]

    def hand_over(self, name: str) -> tuple[torch.Tensor, bool]:
        """A parameter for a matrix product, which may keep it in another layout; counts as used.

        Returns:
            The tensor, and whether something else reads it too. If not, this mapping lets go of it.

        Raises:
            PluginError: The architecture asks for a parameter that it has no rule for, or one of groups.
        """
        if name in self.num_groups:
            raise PluginError(f"parameter {name} has groups; ask for it by grouped_linear()")
        return self._hand_over(name)

    def hand_over_groups(self, name: str) -> tuple[torch.Tensor, bool, int]:
        """As `hand_over`, for one matrix product per group.

        Returns:
            Tensor [G * N, K], whether it is shared, and G.

        Raises:
            PluginError: The architecture has no rule of groups for the parameter.
        """
        if name in self.tensors and name not in self.num_groups:
            raise PluginError(f"the rule of parameter {name} has no num_groups; ask for it by linear()")
        return *self._hand_over(name), self.num_groups[name]

    def _hand_over(self, name: str) -> tuple[torch.Tensor, bool]:
        is_shared = name in self._asked
        tensor = self.param(name)
        if not is_shared:
            del self.tensors[name]
        return tensor, is_shared

    def check_all_used(self) -> None:
        """After building the model: every rule must have been asked for.

        Raises:
            PluginError: A rule was loaded for nothing.
        """
        unused = sorted(self.tensors.keys() - self._asked)
        if unused:
            raise PluginError(f"the model was built without {len(unused)} of its rules: {_some(unused)}")


def load_parameters(
    arch: ModelArch,
    fmt: CheckpointFormat,
    dtype: torch.dtype,
    device: str,
    staged: StagedCopy | None = None,
) -> LoadedParameters:
    """Read, slice, fuse, convert and count every parameter; names, shapes and dtypes are checked first.

    Args:
        arch: Gives the rules and the skip list.
        fmt: The opened checkpoint.
        dtype: Of rules marked "model"; rules marked "acc" get `acc_dtype(dtype)`.
        device: torch device string.
        staged: How parts get there; None copies at once on the CPU, and through pinned buffers elsewhere.

    Raises:
        MissingTensorError: The checkpoint lacks tensors of the rules.
        UnknownTensorError: It has tensors that no rule reads and no skip rule names.
        TensorShapeError: A tensor's shape differs from the rule's.
        UnsupportedFeatureError: A tensor is not stored as a plain floating type.
        PluginError: The rules contradict themselves.
    """
    stored = fmt.names()
    rules = arch.param_rules(stored.keys())
    _check_rules(rules)
    skipped = _check_names(arch, rules, stored)
    for rule in rules:
        for part in rule.parts:
            _check_stored(rule, part, stored[part.source])
    total = sum(_rule_bytes(rule, dtype) for rule in rules)
    if staged is None and torch.device(device).type != "cpu":
        staged = StagedCopy(device)
    tensors = {rule.name: _load_rule(rule, fmt, dtype, device, staged) for rule in rules}
    if staged is not None:
        staged.finish()
    groups = {rule.name: rule.num_groups for rule in rules if rule.num_groups is not None}
    return LoadedParameters(tensors, total, skipped, groups)


def meta_parameters(arch: ModelArch, names: Collection[str], dtype: torch.dtype) -> LoadedParameters:
    """The parameters that `load_parameters` would make, on torch's meta device; reads nothing.

    Args:
        names: Tensor names; empty means the released form.
        dtype: Of rules marked "model".

    Raises:
        PluginError: The rules contradict themselves.
    """
    rules = arch.param_rules(names)
    _check_rules(rules)
    tensors = {
        rule.name: torch.empty(rule.shape, dtype=_rule_dtype(rule, dtype), device="meta") for rule in rules
    }
    groups = {rule.name: rule.num_groups for rule in rules if rule.num_groups is not None}
    return LoadedParameters(tensors, sum(_rule_bytes(rule, dtype) for rule in rules), (), groups)


def estimate_parameter_bytes(arch: ModelArch, names: Collection[str], dtype: torch.dtype) -> int:
    """Bytes that `load_parameters` will allocate for a checkpoint holding `names`; reads nothing.

    Args:
        names: Tensor names; empty means the released form.

    Raises:
        PluginError: The rules contradict themselves.
    """
    rules = arch.param_rules(names)
    _check_rules(rules)
    return sum(_rule_bytes(rule, dtype) for rule in rules)


def source_shape(rule: ParamRule, part: ParamPart) -> tuple[int, ...]:
    """Shape that a part has in the checkpoint."""
    return part.source_shape if part.source_shape is not None else (part.rows, *rule.shape[1:])


def _rows_of(rule: ParamRule, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A stored shape with its leading dimensions made one, so that it has as many as the rule."""
    leading = len(shape) - len(rule.shape) + 1
    return (prod(shape[:leading]), *shape[leading:]) if leading > 0 else (0,)


def _rule_dtype(rule: ParamRule, dtype: torch.dtype) -> torch.dtype:
    return acc_dtype(dtype) if rule.dtype == "acc" else dtype


def _rule_bytes(rule: ParamRule, dtype: torch.dtype) -> int:
    return prod(rule.shape) * _rule_dtype(rule, dtype).itemsize


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _check_rules(rules: Sequence[ParamRule]) -> None:
    seen: set[str] = set()
    for rule in rules:
        if rule.name in seen:
            raise PluginError(f"the architecture has two rules for parameter {rule.name}")
        seen.add(rule.name)
        if rule.dtype not in ("model", "acc"):
            raise PluginError(f'rule {rule.name}: dtype must be "model" or "acc", found {rule.dtype!r}')
        rows = sum(part.rows for part in rule.parts)
        if not rule.shape or rows != rule.shape[0]:
            raise PluginError(
                f"rule {rule.name}: its parts have {rows} rows, its shape is {list(rule.shape)}"
            )
        groups = rule.num_groups
        if groups is not None and (groups < 1 or rule.shape[0] % groups or len(rule.shape) != 2):
            raise PluginError(f"rule {rule.name}: shape {list(rule.shape)} is not {groups} equal matrices")
        if len({part.component for part in rule.parts}) != len(rule.parts):
            raise PluginError(f"rule {rule.name}: two parts have the same component name")
        for part in rule.parts:
            _check_part(rule, part)


def _check_part(rule: ParamRule, part: ParamPart) -> None:
    if part.rows < 1 or part.source_row < 0:
        raise PluginError(f"rule {rule.name}: component {part.component} has no rows")
    shape = source_shape(rule, part)
    # What a transform makes of the shape is known only once it has run.
    if part.transform is None and (
        (flat := _rows_of(rule, shape))[1:] != rule.shape[1:] or part.source_row + part.rows > flat[0]
    ):
        raise PluginError(
            f"rule {rule.name}: component {part.component} takes rows {part.source_row} to "
            f"{part.source_row + part.rows} of shape {list(rule.shape)} from a source of shape {list(shape)}"
        )


def _check_names(
    arch: ModelArch, rules: Sequence[ParamRule], stored: Mapping[str, StoredInfo]
) -> tuple[str, ...]:
    sources = {part.source for rule in rules for part in rule.parts}
    missing = sorted(sources - stored.keys())
    if missing:
        raise MissingTensorError(
            f"the checkpoint lacks {len(missing)} of the {len(sources)} tensors that the model needs: "
            f"{_some(missing)}; it is incomplete, or its config describes another model"
        )
    rest = sorted(stored.keys() - sources)
    unknown = [name for name in rest if not arch.is_skipped(name)]
    if unknown:
        raise UnknownTensorError(
            f"the checkpoint has {len(unknown)} tensor(s) that the model does not use: {_some(unknown)}; the "
            f"config describes another model, or the architecture plugin is too old for this checkpoint"
        )
    return tuple(rest)


def _check_stored(rule: ParamRule, part: ParamPart, info: StoredInfo) -> None:
    if info.dtype not in _PLAIN_FLOATS:
        raise UnsupportedFeatureError(
            f"tensor {part.source} is stored as {info.dtype}; only F64, F32, F16 and BF16 are served, use an "
            f"unquantized release"
        )
    _check_shape(rule, part, info.shape, source_shape(rule, part))


def _check_shape(
    rule: ParamRule, part: ParamPart, found: tuple[int, ...], expected: tuple[int, ...], when: str = ""
) -> None:
    if found != expected:
        raise TensorShapeError(
            f"tensor {part.source} has shape {list(found)}{when}, the config implies {list(expected)} "
            f"(rule {rule.name}, component {part.component}); take config.json and weights from one release"
        )


def _load_rule(
    rule: ParamRule, fmt: CheckpointFormat, dtype: torch.dtype, device: str, staged: StagedCopy | None
) -> torch.Tensor:
    final = torch.empty(rule.shape, dtype=_rule_dtype(rule, dtype), device=device)
    start = 0
    for part in rule.parts:
        rows, found = final[start : start + part.rows], _read_part(rule, part, fmt)
        if staged is None:
            rows.copy_(found)
        else:
            staged.copy(rows, found)
        start += part.rows
    return final


def _read_part(rule: ParamRule, part: ParamPart, fmt: CheckpointFormat) -> torch.Tensor:
    """A part's rows, in the stored dtype."""
    rows = slice(part.source_row, part.source_row + part.rows)
    shape = source_shape(rule, part)
    if part.transform is None and len(shape) > len(rule.shape):
        # Whole, because a format cuts dimension 0 only; a file of safetensors gives a view of itself.
        tensor = fmt.read(part.source).flatten(0, len(shape) - len(rule.shape))[rows]
    elif part.transform is None:
        tensor = fmt.read(part.source, None if shape[0] == part.rows else rows)
    else:
        stored = fmt.read(part.source)
        try:
            tensor = part.transform(stored)
        except (VtcoreError, MemoryError, torch.OutOfMemoryError):
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"rule {rule.name}: the transform of {part.source} failed: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(tensor, torch.Tensor):
            raise PluginError(f"rule {rule.name}: the transform of {part.source} returned no tensor")
        tensor = tensor[rows] if tensor.ndim else tensor
    _check_shape(rule, part, tuple(tensor.shape), (part.rows, *rule.shape[1:]), " once cut and transformed")
    return tensor
