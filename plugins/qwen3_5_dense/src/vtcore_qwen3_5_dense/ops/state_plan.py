"""Which state slots the uniform rows of a step read and write, query token by query token.

Does not: touch a state.

Shape letters: U uniform rows, A rows still active at a query index.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.interfaces.step import SlotPool, StepInputs
from vtcore.ops.once import once


@frozen(eq=False)
class QueryIndex:
    """The rows with a valid query token at one query index.

    Args:
        keep: Positions of the active rows among those of the index before; None keeps all.
        rows: [A] batch rows, None for all U.
        write_A: [A] slots that take the state after this token.
        count: A.
    """

    keep: Tensor | None
    rows: Tensor | None
    write_A: Tensor
    count: int


@frozen(eq=False)
class StatePlan:
    """The uniform part of a step for one slot pool.

    Args:
        read_A: Slots read, of the rows with at least one valid query token.
        queries: One per query index; cut off where no row is active any more.
    """

    read_A: Tensor
    queries: tuple[QueryIndex, ...]

    @property
    def rows(self) -> Tensor | None:
        """Rows that have a query at all; None for all U."""
        return self.queries[0].rows if self.queries else self.read_A


def build_state_plan(step: StepInputs, pool_index: int) -> StatePlan:
    """The plan of a step, made once.

    Raises:
        EngineError: A row with a query names slot 0.
    """
    return once(step, ("state_plan", pool_index), lambda: _plan(step, pool_index))


def slot_pool(step: StepInputs, pool_index: int) -> SlotPool:
    """The step's view of a slot pool.

    Raises:
        EngineError: The pool is not one of slots.
    """
    pool = step.pools[pool_index]
    if not isinstance(pool, SlotPool):
        raise EngineError(f"pool {pool_index} holds blocks, but a recurrent layer was bound to it")
    return pool


def prefill_slots(step: StepInputs, pool_index: int) -> tuple[tuple[Tensor, Tensor], ...]:
    """(read [1], write [1]) slots of each prefill row, made once per step; none for one that stands for none.

    Raises:
        EngineError: A row names slot 0.
    """
    return once(step, ("prefill_slots", pool_index), lambda: _prefill_slots(step, pool_index))


def _plan(step: StepInputs, pool_index: int) -> StatePlan:
    pool = slot_pool(step, pool_index)
    lengths_U = step.query_lens[: step.num_uniform]
    read_A = pool.read_slots[: step.num_uniform]
    rows: Tensor | None = None
    queries = []
    for index in range(step.query_len):
        keep = None
        if index >= step.query_len_min:
            active = torch.ones_like(lengths_U, dtype=torch.bool) if rows is None else None
            lengths_A = lengths_U if active is not None else lengths_U[rows]
            keep = (lengths_A > index).nonzero().view(-1)
            rows = keep if rows is None else rows[keep]
            if not rows.numel():
                break
        write_A = pool.write_slots[: step.num_uniform, index]
        write_A = write_A.clone() if rows is None else write_A[rows]
        queries.append(QueryIndex(keep, rows, write_A, write_A.shape[0]))
    if not queries:
        read_A = read_A[:0]
    elif queries[0].rows is not None:
        read_A = read_A[queries[0].rows]
    _check((read_A, *(query.write_A for query in queries)))
    return StatePlan(read_A, tuple(queries))


def _prefill_slots(step: StepInputs, pool_index: int) -> tuple[tuple[Tensor, Tensor], ...]:
    pool = slot_pool(step, pool_index)
    slots = tuple(
        (pool.read_slots[row : row + num], pool.write_slots[row, :num])
        for row, num in ((span.index, int(not span.is_null)) for span in step.prefill)
    )
    _check(tuple(slot for pair in slots for slot in pair))
    return slots


def _check(slots: tuple[Tensor, ...]) -> None:
    if any(slot.numel() and int(slot.min()) == 0 for slot in slots):
        raise EngineError("a running row would read or write state through the null slot 0")
