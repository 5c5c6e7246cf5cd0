"""The kit's rules of parameters: what a checkpoint lacks, what it has beside, and what the model asks for.

Does not: read files; formats are the core's.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from vtcore.checkpoint.format import InMemoryFormat
from vtcore.checkpoint.parameters import load_parameters
from vtcore.checkpoint.random_weights import random_tensors
from vtcore.errors import MissingTensorError, UnknownTensorError, VtcoreError
from vtcore.testing.arch_subject import ArchSubject
from vtcore.testing.kit import since


class ArchCheckpoint(ArchSubject):
    """Over the author's own tensors."""

    @since("0.1")
    def test_a_missing_tensor_is_an_error_that_names_it(self) -> None:
        """Without any one tensor of its rules, loading raises MissingTensorError with the tensor's name."""
        tensors = self.tensors()
        used = self._used(tensors)
        assert used, "the arch has no parameter rules"
        for name in sorted(used):
            rest = {other: tensor for other, tensor in tensors.items() if other != name}
            error = self._load_error(rest)
            is_head = len(tensors[name]) == self.vocab_size() and name not in self._used(rest)
            if error is None and is_head:
                # A head that is not there may mean a tied one, which is another form of the model.
                continue
            assert isinstance(error, MissingTensorError), f"without {name}: {error!r}, no MissingTensorError"
            shown = name
            if len(self._used(rest) - rest.keys()) > 1:
                # The tensor by which prefixes are told is missed under another prefix, and so are others.
                shown = ".".join(name.split(".")[-2:])
            assert re.search(rf"(?<!\w){re.escape(shown)}(?![\w.])", str(error)), (
                f"the error for a missing {name} does not name it: {error}"
            )

    @since("0.1")
    def test_an_unknown_tensor_is_an_error_that_names_it(self) -> None:
        """A tensor that no rule reads and `is_skipped` does not name raises UnknownTensorError."""
        for name in ("vtcore_kit.extra.weight", "model.layers.0.vtcore_kit_extra.weight"):
            error = self._load_error({**self.tensors(), name: torch.zeros(1, dtype=torch.float64)})
            assert isinstance(error, UnknownTensorError), f"with {name}: {error!r}, no UnknownTensorError"
            assert name in str(error), f"the error for an unknown {name} does not name it: {error}"

    @since("0.1")
    def test_the_released_form_loads_and_all_of_it_is_used(self) -> None:
        """A random checkpoint of released form, as dummy weights are, loads; the model asks for all of it."""
        arch = self.arch()
        tensors = dict(random_tensors(arch, 0, torch.float32))
        skipped = load_parameters(arch, InMemoryFormat(tensors), torch.float32, "cpu").skipped
        assert not skipped, f"of its own released form the arch skips {', '.join(skipped)}"
        # Building raises if a rule is loaded for nothing.
        self.build()

    @classmethod
    def _used(cls, tensors: dict[str, Tensor]) -> set[str]:
        return {part.source for rule in cls.arch().param_rules(tensors.keys()) for part in rule.parts}

    @classmethod
    def _load_error(cls, tensors: dict[str, Tensor]) -> VtcoreError | None:
        try:
            load_parameters(cls.arch(), InMemoryFormat(tensors), torch.float64, "cpu")
        except VtcoreError as error:
            return error
        return None
