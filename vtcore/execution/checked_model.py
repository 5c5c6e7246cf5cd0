"""A model as the runner may use it: what it returns is checked on the host, its faults name its plugin.

Does not: look at values, which would wait for the device, or change what the model returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from vtcore.errors import EngineError, VtcoreError
from vtcore.interfaces.model_arch import ForwardOutput, Model
from vtcore.interfaces.step import LayerCache, StepInputs

ResultT = TypeVar("ResultT")


class CheckedModel:
    """The seam between an arch's model and the engine.

    Args:
        model: Of the plugin; borrowed.
        owner: The arch and its distribution, for messages.
        hidden_size: Width of what the head reads.
        vocab_size: Width of the logits.
        num_aux: Layers whose residuals were asked for.
        dtype: Of activations.
        device: torch device string of all that it returns.
    """

    def __init__(
        self,
        model: Model,
        owner: str,
        *,
        hidden_size: int,
        vocab_size: int,
        num_aux: int,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        self._model = model
        self._owner = owner
        self._hidden_size = hidden_size
        self._vocab_size = vocab_size
        self._num_aux = num_aux
        self._dtype = dtype
        self._device = torch.device(device)

    def bind(self, caches: Mapping[str, LayerCache]) -> None:
        """Hand the caches over."""
        self._call("bind", lambda: self._model.bind(caches))

    def forward(self, step: StepInputs) -> ForwardOutput:
        """Run the model.

        Raises:
            EngineError: It fails, or returns what its interface does not allow.
        """
        output = self._call("forward", lambda: self._model.forward(step))
        if not isinstance(output, ForwardOutput):
            raise self._fault(f"forward() returned {type(output).__name__}, not a ForwardOutput")
        num_tokens = len(step.ids)
        # Only its own head reads an integer hidden, so its dtype is the model's business.
        self._check("forward", "hidden", output.hidden, (num_tokens, self._hidden_size), allows_ints=True)
        if self._num_aux:
            self._check("forward", "aux", output.aux, (num_tokens, self._num_aux * self._hidden_size))
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        """Run the head.

        Raises:
            EngineError: It fails, or returns what its interface does not allow.
        """
        logits = self._call("logits", lambda: self._model.logits(hidden))
        self._check("logits", "logits", logits, (len(hidden), self._vocab_size), any_float=True)
        return logits

    def embed(self, ids: Tensor) -> Tensor:
        """Look tokens up.

        Raises:
            EngineError: It fails, or returns what its interface does not allow.
        """
        embedded = self._call("embed", lambda: self._model.embed(ids))
        self._check("embed", "embeddings", embedded, (len(ids), self._hidden_size), allows_ints=True)
        return embedded

    def _call(self, method: str, call: Callable[[], ResultT]) -> ResultT:
        try:
            return call()
        # Memory that ran out is no fault of the plugin.
        except (VtcoreError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise EngineError(
                f"arch {self._owner}: {method}() failed: {type(error).__name__}: {error}; run it again with "
                f"--debug and report the traceback to the plugin's authors"
            ) from error

    def _check(
        self,
        method: str,
        what: str,
        tensor: object,
        shape: tuple[int, int],
        *,
        allows_ints: bool = False,
        any_float: bool = False,
    ) -> None:
        """Compare shape, dtype and device, all known without waiting for the device."""
        if not isinstance(tensor, Tensor):
            raise self._fault(f"{method}() returned {type(tensor).__name__} for {what}, not a tensor")
        is_float = tensor.is_floating_point()
        fits = tensor.dtype == self._dtype or (any_float and is_float) or (allows_ints and not is_float)
        if tuple(tensor.shape) != shape or not fits or not self._is_here(tensor.device):
            found = f"shape {tuple(tensor.shape)}, {tensor.dtype}, on {tensor.device}"
            wanted = "a floating-point dtype" if any_float else str(self._dtype)
            raise self._fault(
                f"{method}() returned {what} of {found}; shape {shape}, {wanted}, on {self._device} is due"
            )

    def _is_here(self, device: torch.device) -> bool:
        # "cuda" without a number is whichever device is current.
        return device.type == self._device.type and self._device.index in (None, device.index)

    def _fault(self, sentence: str) -> EngineError:
        return EngineError(f"arch {self._owner}: {sentence}; upgrade the plugin, or report it to its authors")
