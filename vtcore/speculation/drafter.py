"""What the runner asks of a drafter; internal until the drafter hook exists.

Does not: verify, roll back or stop anything; a bad draft only costs acceptance.

Shape letters: T query tokens, X aux width, N sampled rows, Q query rows of a uniform row, k drafts asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from attrs import frozen
from torch import Tensor

from vtcore.execution.tables import DeviceTables
from vtcore.interfaces.batch import RowInit
from vtcore.interfaces.kv_cache_spec import KVCacheSpec
from vtcore.interfaces.model_arch import CacheContext
from vtcore.interfaces.step import LayerCache, StepInputs


@frozen(kw_only=True, eq=False)
class DraftView:
    """A finished target step as a drafter sees it; tensors are read-only.

    Args:
        step: The target's inputs. hidden_TH: The target's post-final-norm hidden.
        aux_TX: Residuals after the drafter's `aux_layers`, [T, n * H]; None if it asked for none.
        rows_B: Table row of each batch row.
        num_new_B: Query tokens of each batch row that are committed by this step (accepted run or chunk).
        next_token_B: Token after the last committed query token: sampled, or known from the prompt.
        sampled_N: Batch rows that sampled and may be drafted for.
    """

    step: StepInputs
    hidden_TH: Tensor
    aux_TX: Tensor | None
    rows_B: Tensor
    num_new_B: Tensor
    next_token_B: Tensor
    sampled_N: Tensor


class Drafter(Protocol):
    """Proposes tokens after each target step."""

    lookahead: int
    """Positions beyond the committed ones that `propose` may write."""
    needs_history: bool
    """Whether the history column must hold every row's tokens."""
    aux_layers: tuple[int, ...]
    """Target layers whose output residuals it reads: 0-based; -1 is the embedding."""

    def cache_specs(self, ctx: CacheContext) -> tuple[KVCacheSpec, ...]:
        """Cache groups of its own; they join the target's pools by lifetime."""

    def bind(self, tables: DeviceTables, caches: Mapping[str, LayerCache], vocab_size: int) -> None:
        """Take the tables and the cache tensors of its layers, once."""

    def admit(self, inits: Sequence[RowInit]) -> None:
        """Rows were replaced; called in stream order, before the step's forward."""

    def ingest(self, view: DraftView) -> None:
        """Follow a target step; called for every one, drafting or not."""

    def propose(self, view: DraftView, k: int) -> Tensor:
        """[N, k] int64 drafts for the rows of `sampled_N`, -1 from the first unused one on."""
