"""The format behind `load_format=dummy`: random weights as an architecture draws them, and no weight file.

Does not: hold more than one tensor; each is drawn when read, from its own seed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from vtcore.checkpoint.format import CODE_OF_DTYPE, StoredInfo
from vtcore.checkpoint.parameters import source_shape
from vtcore.checkpoint.random_weights import draw_tensor
from vtcore.errors import MissingTensorError
from vtcore.interfaces.model_arch import ModelArch, ParamRule

_DTYPE = torch.bfloat16


class DummyFormat:
    """On the CPU the tensors that `vtcore make-checkpoint` would write with the same config and seed,
    bfloat16.

    Args:
        arch: Its rules for no names give sources and shapes.
        seed: 0 <= seed < 2**63.
        device: Where they are drawn; each kind of device has noise of its own.
    """

    def __init__(self, arch: ModelArch, seed: int, device: str = "cpu") -> None:
        self._arch, self._seed, self._device = arch, seed, device
        self._rules: dict[str, ParamRule] = {}
        self._names: dict[str, StoredInfo] = {}
        for rule in arch.param_rules(()):
            for part in rule.parts:
                self._rules.setdefault(part.source, rule)
                info = StoredInfo(source_shape(rule, part), CODE_OF_DTYPE[_DTYPE], "")
                self._names.setdefault(part.source, info)
        self._last: tuple[str, torch.Tensor] | None = None

    def names(self) -> Mapping[str, StoredInfo]:
        """Every tensor of the released form."""
        return self._names

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        """Draw one tensor, or cut a row range of it; the last one stays, for a rule that takes it in pieces.

        Raises:
            MissingTensorError: No rule has such a source.
            PluginError: The architecture's draw is unusable.
        """
        if name not in self._rules:
            raise MissingTensorError(f"the architecture has no tensor {name}")
        if self._last is None or self._last[0] != name:
            # Dropped first, so that two large tensors never exist at once.
            self._last = None
            init = self._arch.random_init(self._rules[name])
            shape = self._names[name].shape
            tensor = draw_tensor(init, shape, self._seed, name, self._device).to(_DTYPE)
            self._last = (name, tensor)
        tensor = self._last[1]
        return tensor if rows is None else tensor[rows]

    def close(self) -> None:
        """Let go of the last tensor."""
        self._last = None
