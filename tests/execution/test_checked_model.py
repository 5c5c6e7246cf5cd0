"""What a model returns is checked for type, shape, dtype and device before anything reads it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vtcore.errors import CheckpointError, EngineError
from vtcore.execution.checked_model import CheckedModel
from vtcore.interfaces.model_arch import ForwardOutput

TOKENS, HIDDEN, VOCAB, AUX = 3, 4, 7, 2
STEP: Any = SimpleNamespace(ids=torch.zeros(TOKENS, dtype=torch.int64))


class Fixed:
    """A model that returns what it is told to, or raises it."""

    def __init__(self, result: object) -> None:
        self._result = result

    def bind(self, caches: object) -> None:
        self._give()

    def forward(self, step: object) -> Any:
        return self._give()

    def logits(self, hidden: object) -> Any:
        return self._give()

    def embed(self, ids: object) -> Any:
        return self._give()

    def _give(self) -> object:
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


def checked(result: object, num_aux: int = 0, device: str = "cpu") -> CheckedModel:
    return CheckedModel(
        Fixed(result),
        "odd (vtcore-odd 1.0)",
        hidden_size=HIDDEN,
        vocab_size=VOCAB,
        num_aux=num_aux,
        dtype=torch.float32,
        device=device,
    )


def zeros(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


GOOD = zeros(TOKENS, HIDDEN)


def test_what_fits_comes_back_as_it_is() -> None:
    output = ForwardOutput(GOOD, zeros(TOKENS, AUX * HIDDEN))
    assert checked(output, num_aux=AUX).forward(STEP) is output
    # The toy's hidden state is a hash: integers that only its own head reads.
    assert checked(ForwardOutput(zeros(TOKENS, HIDDEN, dtype=torch.int64))).forward(STEP)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        logits = zeros(TOKENS, VOCAB, dtype=dtype)
        assert checked(logits).logits(GOOD) is logits
    assert checked(GOOD).embed(STEP.ids) is GOOD
    checked(None).bind({})


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (GOOD, "forward() returned Tensor, not a ForwardOutput"),
        (None, "forward() returned NoneType, not a ForwardOutput"),
        (ForwardOutput([0.0]), "forward() returned list for hidden, not a tensor"),  # type: ignore[arg-type]
        (
            ForwardOutput(zeros(TOKENS - 1, HIDDEN)),
            "forward() returned hidden of shape (2, 4), torch.float32, on cpu; "
            "shape (3, 4), torch.float32, on cpu is due",
        ),
        (ForwardOutput(zeros(TOKENS * HIDDEN)), "hidden of shape (12,), torch.float32, on cpu;"),
        (ForwardOutput(GOOD.double()), "hidden of shape (3, 4), torch.float64, on cpu;"),
        (ForwardOutput(GOOD.to("meta")), "hidden of shape (3, 4), torch.float32, on meta;"),
    ],
)
def test_a_wrong_hidden_is_refused_with_what_is_due(result: object, said: str) -> None:
    with pytest.raises(EngineError) as caught:
        checked(result).forward(STEP)
    assert str(caught.value).startswith("arch odd (vtcore-odd 1.0): ")
    assert said in str(caught.value)
    assert str(caught.value).endswith("; upgrade the plugin, or report it to its authors")


@pytest.mark.parametrize(
    ("aux", "said"),
    [
        (None, "forward() returned NoneType for aux, not a tensor"),
        (zeros(TOKENS, HIDDEN), "aux of shape (3, 4), torch.float32, on cpu; shape (3, 8), torch.float32"),
        (zeros(TOKENS, AUX * HIDDEN, dtype=torch.int64), "aux of shape (3, 8), torch.int64, on cpu;"),
    ],
)
def test_wrong_aux_residuals_are_refused_where_they_were_asked_for(
    aux: torch.Tensor | None, said: str
) -> None:
    with pytest.raises(EngineError) as caught:
        checked(ForwardOutput(GOOD, aux), num_aux=AUX).forward(STEP)
    assert said in str(caught.value)
    assert checked(ForwardOutput(GOOD, aux)).forward(STEP)


@pytest.mark.parametrize(
    "logits",
    [
        zeros(TOKENS, VOCAB - 1),
        zeros(TOKENS + 1, VOCAB),
        zeros(TOKENS, VOCAB, dtype=torch.int64),
        zeros(TOKENS, VOCAB, device="meta"),
    ],
)
def test_wrong_logits_are_refused(logits: torch.Tensor) -> None:
    with pytest.raises(EngineError, match=r"logits\(\) returned logits of .*shape \(3, 7\), a floating"):
        checked(logits).logits(GOOD)


def test_wrong_embeddings_are_refused() -> None:
    with pytest.raises(EngineError, match=r"embed\(\) returned embeddings of shape \(3, 5\)"):
        checked(zeros(TOKENS, HIDDEN + 1)).embed(STEP.ids)


@pytest.mark.parametrize("method", ["bind", "forward", "logits", "embed"])
def test_what_a_model_raises_names_its_plugin(method: str) -> None:
    fault = IndexError("layer 7 of 6")
    with pytest.raises(EngineError) as caught:
        getattr(checked(fault), method)(STEP if method == "forward" else STEP.ids)
    assert caught.value.__cause__ is fault
    assert str(caught.value) == (
        f"arch odd (vtcore-odd 1.0): {method}() failed: IndexError: layer 7 of 6; run it again with --debug "
        f"and report the traceback to the plugin's authors"
    )


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), MemoryError(), torch.OutOfMemoryError(), CheckpointError("damaged")]
)
def test_what_is_not_the_plugins_fault_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        checked(error).forward(STEP)
    assert caught.value is error


def test_a_device_without_a_number_is_any_of_its_kind() -> None:
    output = ForwardOutput(GOOD.to("meta"))
    assert checked(output, device="meta").forward(STEP) is output
    with pytest.raises(EngineError, match="on meta:1 is due"):
        checked(output, device="meta:1").forward(STEP)
