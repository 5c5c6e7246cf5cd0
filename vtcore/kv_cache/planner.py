"""Pools and their sizes from cache specs and limits: pure arithmetic.

Does not: allocate or ask a device; `available_bytes` is given.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from vtcore.errors import ConfigError, MemoryPlanError
from vtcore.interfaces.kv_cache_spec import DTYPE_BYTES, KVCacheSpec, Lifetime, Slot, Whole, Window


@frozen
class PoolPlan:
    """One pool: the groups that share its ids, and how many units it has.

    Args:
        num_units: Units, the null unit included.
        unit_bytes: Bytes of one unit over all groups and layers.
        slots_per_request: State columns S of a slot pool, 0 for paged pools.
    """

    lifetime: Lifetime
    specs: tuple[KVCacheSpec, ...]
    num_units: int
    unit_bytes: int
    slots_per_request: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the pool's tensors."""
        return self.num_units * self.unit_bytes

    @property
    def is_slot(self) -> bool:
        """Whether units are state slots rather than blocks."""
        return isinstance(self.lifetime, Slot)


@frozen
class MemoryPlan:
    """All pools, and the model length they can serve.

    Args:
        max_model_len: Tokens a single request may reach, prompt and output.
        num_blocks: Usable blocks of each unbounded pool.
        table_bytes: Of the device tables.
    """

    pools: tuple[PoolPlan, ...]
    block_size: int
    num_blocks: int
    max_model_len: int
    weight_bytes: int = 0
    table_bytes: int = 0

    @property
    def cache_bytes(self) -> int:
        """Bytes of all pools."""
        return sum(pool.num_bytes for pool in self.pools)

    @property
    def total_bytes(self) -> int:
        """Bytes of weights, pools and tables."""
        return self.weight_bytes + self.cache_bytes + self.table_bytes


@frozen
class TableShape:
    """Widths of the device tables, per row: entries of a block table, positions of the token history."""

    num_blocks: int
    num_positions: int


def table_shape(max_model_len: int, block_size: int, k_max: int) -> TableShape:
    """Wide enough for every position a step may name, those past a cut query included."""
    positions = max_model_len + k_max + 2
    return TableShape(-(-positions // block_size) + 1, positions)


@frozen(kw_only=True)
class PlanLimits:
    """What sizes the pools.

    Args:
        num_blocks: Usable blocks of each unbounded pool, >= 1.
        max_model_len: As resolved, in tokens.
        max_model_len_pinned: Whether the user gave it; else it is cut to what the pool holds.
        max_query: Query tokens of one request that may be in flight at once.
        lookahead: Positions beyond the query that the drafter may write.
        k_max: Drafts verified per step at most.
        available_bytes: Memory that weights and caches may use; None does not check.
    """

    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_model_len: int
    max_model_len_pinned: bool
    max_query: int
    lookahead: int = 0
    k_max: int = 0
    available_bytes: int | None = None
    weight_bytes: int = 0


def group_by_lifetime(specs: Sequence[KVCacheSpec]) -> list[tuple[Lifetime, tuple[KVCacheSpec, ...]]]:
    """Groups that share a pool: `Whole` first, windows by length, slots last.

    Raises:
        ConfigError: Two groups name the same layer.
    """
    seen: dict[str, str] = {}
    for spec in specs:
        for layer in spec.layers:
            if layer in seen:
                raise ConfigError(f"layer {layer!r} is in two cache groups ({seen[layer]} and {spec.kind})")
            seen[layer] = spec.kind
    lifetimes: dict[Lifetime, list[KVCacheSpec]] = {}
    for spec in specs:
        lifetimes.setdefault(spec.lifetime, []).append(spec)
    return sorted(((life, tuple(group)) for life, group in lifetimes.items()), key=lambda x: _rank(x[0]))


def plan_memory(specs: Sequence[KVCacheSpec], limits: PlanLimits) -> MemoryPlan:
    """Size every pool: bounded ones for max_num_seqs requests, unbounded ones by `num_blocks`.

    Raises:
        MemoryPlanError: A pinned max_model_len does not fit the blocks, or the pools and weights do not fit
            `available_bytes`; the message has the numbers and the largest value that fits.
    """
    groups = group_by_lifetime(specs)
    unbounded = any(isinstance(life, Whole) for life, _ in groups)
    plan = _plan(groups, limits, _fit_max_model_len(limits) if unbounded else limits.max_model_len)
    _check_fits(plan, groups, limits)
    return plan


Groups = Sequence[tuple[Lifetime, tuple[KVCacheSpec, ...]]]
"""As `group_by_lifetime` returns them."""


def _plan(groups: Groups, limits: PlanLimits, max_model_len: int) -> MemoryPlan:
    pools = tuple(_plan_pool(life, group, limits, max_model_len) for life, group in groups)
    return MemoryPlan(
        pools,
        limits.block_size,
        limits.num_blocks,
        max_model_len,
        limits.weight_bytes,
        _table_bytes(pools, limits, max_model_len),
    )


def _rank(lifetime: Lifetime) -> tuple[int, int]:
    if isinstance(lifetime, Whole):
        return (0, 0)
    if isinstance(lifetime, Window):
        return (1, lifetime.tokens)
    return (2, 0)


def _fit_max_model_len(limits: PlanLimits) -> int:
    capacity = limits.num_blocks * limits.block_size
    if limits.max_model_len <= capacity:
        return limits.max_model_len
    if not limits.max_model_len_pinned:
        return capacity
    needed = -(-limits.max_model_len // limits.block_size)
    raise MemoryPlanError(
        f"max_model_len={limits.max_model_len} needs {needed} blocks of {limits.block_size} tokens, "
        f"num_blocks={limits.num_blocks} holds {capacity} tokens; "
        f"the largest max_model_len that fits is {capacity}, or raise num_blocks to {needed}"
    )


def _plan_pool(
    lifetime: Lifetime, specs: tuple[KVCacheSpec, ...], limits: PlanLimits, max_model_len: int
) -> PoolPlan:
    unit_bytes = sum(spec.unit_bytes(limits.k_max) for spec in specs)
    if isinstance(lifetime, Whole):
        return PoolPlan(lifetime, specs, limits.num_blocks + 1, unit_bytes)
    per_request = max(spec.max_units(max_model_len, limits.max_query, limits.lookahead) for spec in specs)
    columns = 0
    if isinstance(lifetime, Slot):
        columns = limits.k_max + 1
        per_request *= columns
    return PoolPlan(lifetime, specs, limits.max_num_seqs * per_request + 1, unit_bytes, columns)


def _table_bytes(pools: Sequence[PoolPlan], limits: PlanLimits, max_model_len: int) -> int:
    """Bytes of the device tables and of the inputs that replay rollback keeps."""
    shape = table_shape(max_model_len, limits.block_size, limits.k_max)
    int64, int32 = DTYPE_BYTES["int64"], DTYPE_BYTES["int32"]
    per_row = shape.num_positions * int32 + (4 + limits.k_max) * int64
    for pool in pools:
        per_row += (pool.slots_per_request if pool.is_slot else shape.num_blocks) * int64
        per_row += sum(spec.window_bytes(limits.k_max) * len(spec.layers) for spec in pool.specs)
    return per_row * (limits.max_num_seqs + 1)


def _check_fits(plan: MemoryPlan, groups: Groups, limits: PlanLimits) -> None:
    if limits.available_bytes is None or plan.total_bytes <= limits.available_bytes:
        return
    remedy = "no num_blocks fits: lower max_num_seqs, use a smaller dtype or free memory"
    fitting = _largest_fitting(groups, limits, limits.available_bytes)
    if fitting:
        remedy = f"the largest num_blocks that fits is {fitting}"
        if limits.max_model_len_pinned and fitting * limits.block_size < limits.max_model_len:
            remedy += f", with max_model_len at most {fitting * limits.block_size}"
    raise MemoryPlanError(
        f"num_blocks={limits.num_blocks} and max_num_seqs={limits.max_num_seqs} need "
        f"{_mib(plan.total_bytes)} (weights {_mib(plan.weight_bytes)}, caches {_mib(plan.cache_bytes)}, "
        f"tables {_mib(plan.table_bytes)}), available are {_mib(limits.available_bytes)}; {remedy}"
    )


def _largest_fitting(groups: Groups, limits: PlanLimits, available_bytes: int) -> int:
    """Largest num_blocks whose plan fits, the model length cut to it; 0 when not even one does."""

    def fits(num_blocks: int) -> bool:
        length = min(limits.max_model_len, num_blocks * limits.block_size)
        return _plan(groups, evolve(limits, num_blocks=num_blocks), length).total_bytes <= available_bytes

    low, high = 0, limits.num_blocks
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
