"""Tests of Triton kernels without a GPU: bfloat16 made right in Triton's interpreter, and other program
orders.

Everything here needs `TRITON_INTERPRET=1` in the environment before triton is imported (`make test-kernels`).
Does not: show what the interpreter does not model: tf32, shared memory, registers, programs that interleave.

Source: triton 3.6, runtime/interpreter.py. It keeps bfloat16 as uint16 and computes with those integers:
sums, products, comparisons and dot products of bfloat16 are wrong there, and casts to it truncate
(triton-lang/triton issues 10945 and 11584).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

_SHUFFLES = (1, 2)
"""Seeds of `assert_order_free`, beside the reversed order."""

_is_correct = True

_patch_lang_tensor: Any = None
"""Triton's own, once it is wrapped."""


def is_interpreting() -> bool:
    """Whether kernels made from here on are interpreted."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


def poisoned(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A CPU tensor that no kernel may read: NaN, -1, or the largest value of an unsigned type."""
    if dtype.is_floating_point:
        return torch.full(tuple(shape), float("nan"), dtype=dtype)
    if dtype == torch.bool or not dtype.is_signed:
        return torch.full(tuple(shape), 1 if dtype == torch.bool else torch.iinfo(dtype).max, dtype=dtype)
    return torch.full(tuple(shape), -1, dtype=dtype)


@contextmanager
def program_order(order: str | int) -> Iterator[None]:
    """Inside, the programs of each launch run in another order than x, y, z ascending.

    A kernel whose programs depend on one another's writes gives other results then, as it may on a GPU.

    Args:
        order: "ascending", "reversed", or the seed of a shuffle.
    """
    from triton.runtime.interpreter import InterpreterBuilder

    def mapped_dim(self: Any, *dims: int) -> None:
        set_dim(self, *dims)
        every = list(product(*map(range, dims)))
        others = every[::-1] if order == "reversed" else every[:]
        if isinstance(order, int):
            Random(order).shuffle(others)
        mapping.clear()
        mapping.update(zip(every, others, strict=True))

    def mapped_index(self: Any, *index: int) -> None:
        set_index(self, *mapping[index])

    if isinstance(order, str) and order not in ("ascending", "reversed"):
        raise ValueError(f"order {order!r} is neither 'ascending', 'reversed' nor a seed")
    mapping: dict[tuple[int, ...], tuple[int, ...]] = {}
    set_dim, set_index = InterpreterBuilder.set_grid_dim, InterpreterBuilder.set_grid_idx
    with (
        patch.object(InterpreterBuilder, "set_grid_dim", mapped_dim),
        patch.object(InterpreterBuilder, "set_grid_idx", mapped_index),
    ):
        yield


def assert_order_free(run: Callable[[], Sequence[Tensor]]) -> None:
    """Require the same bits from `run` whatever the order of programs.

    Args:
        run: Makes its inputs anew, launches, and returns every tensor that a kernel wrote.

    Raises:
        AssertionError: An order gives another result.
    """
    expected = [tensor.clone() for tensor in run()]
    for order in ("reversed", *_SHUFFLES):
        with program_order(order):
            found = run()
        assert len(found) == len(expected)
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            same = torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
            assert same, f"output {index} differs when programs run in order {order!r}"


@contextmanager
def bfloat16_as_published() -> Iterator[None]:
    """Inside, the interpreter computes with bfloat16 as Triton ships it."""
    global _is_correct
    before, _is_correct = _is_correct, False
    try:
        yield
    finally:
        _is_correct = before


@contextmanager
def bfloat16_made_right() -> Iterator[None]:
    """Inside, the interpreter widens bfloat16 operands and rounds results back to nearest even, as a GPU
    does."""
    from triton.runtime import interpreter

    global _patch_lang_tensor
    _patch_lang_tensor = _patch_lang_tensor or interpreter._patch_lang_tensor
    builder = interpreter.InterpreterBuilder
    with ExitStack() as stack:
        for name in ("binary_op", "unary_op", "ternary_op", "create_fma", "create_rsqrt", "create_erf"):
            stack.enter_context(_patched(builder, name, _elementwise))
        for name in ("cast_impl", "create_fp_to_fp"):
            stack.enter_context(_patched(builder, name, _cast))
        stack.enter_context(_patched(builder, "create_dot", _dot))
        stack.enter_context(_patched(builder, "create_atomic_rmw", _refused))
        for name in ("ReduceOps", "ScanOps"):
            stack.enter_context(_patched(getattr(interpreter, name), "apply_impl", _reduction))
        stack.enter_context(patch.object(builder, "get_bf16", _constant, create=True))
        stack.enter_context(patch.object(interpreter, "_patch_lang_tensor", _indexable))
        yield


def _indexable(tensor: Any, scope: Any) -> None:
    """Let a scalar be a loop's bound: it is an array of one element, which numpy 2.4 makes no number any
    more."""
    _patch_lang_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(np.asarray(self.handle.data).item()))


def _patched(owner: Any, name: str, wrap: Callable[..., Any]) -> Any:
    published = getattr(owner, name)

    def wrapper(self: Any, *args: Any) -> Any:
        if not _is_correct:
            return published(self, *args)
        return wrap(lambda *inner: published(self, *inner), *args)

    return patch.object(owner, name, wrapper)


def _elementwise(published: Callable[..., Any], *args: Any) -> Any:
    # A choice between two moves bits; widening would lose the payload of a NaN.
    if args[-1] is np.where or not any(map(_is_bfloat16, args)):
        return published(*args)
    return _narrowed(published(*map(_widened, args)))


def _cast(published: Callable[..., Any], source: Any, target: Any, *rounding: Any) -> Any:
    import triton.language as tl

    is_from, is_to = _is_bfloat16(source), target.scalar == tl.bfloat16
    if is_from == is_to:
        return source if is_from else published(source, target, *rounding)
    if is_from:
        wide = _widened(source)
        return wide if target.scalar == tl.float32 else published(wide, target, *rounding)
    if source.dtype.scalar != tl.float32:
        source = published(source, tl.float32, *rounding)
    return _narrowed(source)


def _dot(published: Callable[..., Any], a: Any, b: Any, acc: Any, *rest: Any) -> Any:
    found = published(_widened(a), _widened(b), _widened(acc), *rest)
    return _narrowed(found) if _is_bfloat16(acc) else found


def _refused(published: Callable[..., Any], operation: Any, pointer: Any, value: Any, *rest: Any) -> Any:
    if _is_bfloat16(value):
        raise NotImplementedError("the interpreter has no bfloat16 atomics; test them in float32")
    return published(operation, pointer, value, *rest)


def _reduction(published: Callable[..., Any], inputs: Any) -> Any:
    import triton.language as tl

    if not any(_is_bfloat16(item.handle) for item in inputs):
        return published(inputs)
    wide = tuple(
        tl.tensor(_widened(item.handle), tl.block_type(tl.float32, item.shape))
        if _is_bfloat16(item.handle)
        else item
        for item in inputs
    )
    found = published(wide)
    results = list(found) if isinstance(found, list | tuple) else [found]
    for index, (item, result) in enumerate(zip(inputs, results, strict=False)):
        if _is_bfloat16(item.handle):
            kind = tl.block_type(tl.bfloat16, result.shape) if result.shape else tl.bfloat16
            results[index] = tl.tensor(_narrowed(result.handle), kind)
    return results if isinstance(found, list | tuple) else results[0]


def _constant(self: Any, value: float) -> Any:
    """The builder lacks this one, so that a bfloat16 constant other than 0 fails."""
    return _narrowed(self.get_fp32(value))


def _is_bfloat16(handle: Any) -> bool:
    import triton.language as tl

    scalar = getattr(getattr(handle, "dtype", None), "scalar", None)
    # A comparison's result keeps its operands' type but holds booleans.
    return bool(scalar == tl.bfloat16 and handle.data.dtype == np.uint16)


def _widened(handle: Any) -> Any:
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if not _is_bfloat16(handle):
        return handle
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _narrowed(handle: Any) -> Any:
    """Round float32 to the nearest bfloat16, ties to even; NaN stays NaN, booleans stay as they are."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if handle.data.dtype == np.bool_:
        return TensorHandle(handle.data, tl.int1)
    bits = np.asarray(handle.data, dtype=np.float32).view(np.uint32)
    with np.errstate(over="ignore"):
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return TensorHandle(np.where(is_nan, (bits >> 16) | 0x40, rounded).astype(np.uint16), tl.bfloat16)


def kernel_device() -> str:
    """Where tests of kernels keep their tensors: "cpu" where kernels are interpreted, else "cuda"."""
    return "cpu" if is_interpreting() else "cuda"
