"""Pools and their sizes from cache specs and limits: pure arithmetic.

Does not: allocate or ask a device; `available_bytes` is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import lcm
from types import MappingProxyType

from attrs import frozen

from vtcore.errors import ConfigError, MemoryPlanError
from vtcore.interfaces.kv_cache_spec import DTYPE_BYTES, KVCacheSpec, Lifetime, Slot, Whole, Window
from vtcore.kv_cache.spec_answers import SpecAnswers, spec_name

_NO_OWNERS: Mapping[str, str] = MappingProxyType({})


@frozen
class PoolPlan:
    """One pool: the groups that share its ids, and how many units it has.

    Args:
        num_units: Units, the null unit included.
        unit_bytes: Bytes of one unit over all groups and layers.
        slots_per_request: State columns S of a slot pool, 0 for paged pools.
        num_checkpoints: Slots of a slot pool beside those of running requests; 0 for paged pools.
        owners: Each group's kind and who offers it, for messages.
    """

    lifetime: Lifetime
    specs: tuple[KVCacheSpec, ...]
    num_units: int
    unit_bytes: int
    slots_per_request: int = 0
    num_checkpoints: int = 0
    owners: tuple[str, ...] = ()

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
        num_blocks: Usable blocks of each unbounded pool; 0 when no pool is unbounded.
        table_bytes: Of the device tables.
        chunk: Prompts are computed in chunks that end at its multiples, so that their bits are always the
            same; then hits end there too. 1 cuts them anywhere.
    """

    pools: tuple[PoolPlan, ...]
    block_size: int
    num_blocks: int
    max_model_len: int
    weight_bytes: int = 0
    table_bytes: int = 0
    chunk: int = 1

    @property
    def grid(self) -> int:
        """Tokens between positions at which every pool's content can be kept for a prefix hit."""
        slots = (spec for pool in self.pools if pool.is_slot for spec in pool.specs)
        return lcm(self.block_size, self.chunk, *(SpecAnswers(spec).state_chunk for spec in slots))

    @property
    def hit_blocks(self) -> int:
        """A hit is a multiple of so many blocks."""
        return lcm(self.block_size, self.chunk) // self.block_size

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of all state checkpoints, part of the pools' own."""
        return sum(pool.num_checkpoints * pool.unit_bytes for pool in self.pools)

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
    """What sizes the pools: `num_blocks` or `kv_cache_memory_bytes`, one of them None.

    Args:
        num_blocks: Usable blocks of each unbounded pool, >= 1; without effect if there is none.
        kv_cache_memory_bytes: Bytes of all pools and device tables, null units included, >= 1; 0 too with
            `budget_from`.
        budget_from: What left those bytes, for messages; "" where the user gave them.
        max_model_len: As resolved, in tokens.
        max_model_len_pinned: Whether the user gave it; else it is cut to what the pool holds.
        max_query: Query tokens of one request that may be in flight at once.
        lookahead: Positions beyond the query that the drafter may write.
        k_max: Drafts verified per step at most.
        num_checkpoints: States kept for prefix hits, >= 0; without slot pools it has no effect.
        chunk: As of the plan.
        available_bytes: Memory that weights and caches may use; None does not check.
        available_from: What sets it, for messages; "" where nothing that the user could change does.
        spec_owners: Kind of KV-cache spec -> itself and its distribution, for messages.
    """

    block_size: int
    num_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    budget_from: str = ""
    max_num_seqs: int
    max_model_len: int
    max_model_len_pinned: bool
    max_query: int
    lookahead: int = 0
    k_max: int = 0
    num_checkpoints: int = 0
    chunk: int = 1
    available_bytes: int | None = None
    available_from: str = ""
    weight_bytes: int = 0
    spec_owners: Mapping[str, str] = _NO_OWNERS

    def answers(self, spec: KVCacheSpec) -> SpecAnswers:
        """A spec to be asked."""
        return SpecAnswers(spec, self.spec_owners.get(spec.kind))


def group_by_lifetime(
    specs: Sequence[KVCacheSpec], owners: Mapping[str, str] = _NO_OWNERS
) -> list[tuple[Lifetime, tuple[KVCacheSpec, ...]]]:
    """Groups that share a pool: `Whole` first, windows by length, slots last.

    Args:
        owners: As `PlanLimits.spec_owners`.

    Raises:
        ConfigError: Two groups name the same layer.
        PluginError: A spec's layers or lifetime are wrong data.
    """
    seen: dict[str, str] = {}
    asked = [SpecAnswers(spec, owners.get(spec.kind)) for spec in specs]
    for spec, answers in zip(specs, asked, strict=True):
        for layer in answers.layers:
            if layer in seen:
                raise ConfigError(f"layer {layer!r} is in two cache groups ({seen[layer]} and {spec.kind})")
            seen[layer] = spec.kind
    lifetimes: dict[Lifetime, list[KVCacheSpec]] = {}
    for spec, answers in zip(specs, asked, strict=True):
        lifetimes.setdefault(answers.lifetime, []).append(spec)
    return sorted(((life, tuple(group)) for life, group in lifetimes.items()), key=lambda x: _rank(x[0]))


def plan_memory(specs: Sequence[KVCacheSpec], limits: PlanLimits) -> MemoryPlan:
    """Size every pool: bounded ones for max_num_seqs requests, unbounded ones by blocks or by leftover bytes.

    Raises:
        MemoryPlanError: A pinned max_model_len does not fit the blocks, `kv_cache_memory_bytes` hold less
            than one request or one block, or pools and weights do not fit `available_bytes`; the message has
            the numbers and the nearest value that fits.
        ConfigError: Two groups name the same layer.
        PluginError: A spec answers what its interface does not allow.
        ValueError: Not exactly one of `num_blocks` and `kv_cache_memory_bytes` is given.
    """
    groups = group_by_lifetime(specs, limits.spec_owners)
    num_blocks = limits.num_blocks
    if limits.kv_cache_memory_bytes is not None and num_blocks is None:
        num_blocks = _blocks_in(limits.kv_cache_memory_bytes, groups, limits)
    elif num_blocks is None or limits.kv_cache_memory_bytes is not None:
        raise ValueError("either num_blocks or kv_cache_memory_bytes sizes the pools")
    elif not _is_unbounded(groups):
        num_blocks = 0
    max_model_len = limits.max_model_len
    if _is_unbounded(groups):
        max_model_len = _fit_max_model_len(limits, num_blocks)
    plan = _plan(groups, limits, num_blocks, max_model_len)
    _check_fits(plan, groups, limits)
    return plan


Groups = Sequence[tuple[Lifetime, tuple[KVCacheSpec, ...]]]
"""As `group_by_lifetime` returns them."""


def _is_unbounded(groups: Groups) -> bool:
    return any(isinstance(life, Whole) for life, _ in groups)


def _plan(groups: Groups, limits: PlanLimits, num_blocks: int, max_model_len: int) -> MemoryPlan:
    pools = tuple(_plan_pool(life, group, limits, num_blocks, max_model_len) for life, group in groups)
    return MemoryPlan(
        pools,
        limits.block_size,
        num_blocks,
        max_model_len,
        limits.weight_bytes,
        _table_bytes(pools, limits, max_model_len),
        limits.chunk,
    )


def _rank(lifetime: Lifetime) -> tuple[int, int]:
    if isinstance(lifetime, Whole):
        return (0, 0)
    if isinstance(lifetime, Window):
        return (1, lifetime.tokens)
    return (2, 0)


def _least_blocks(groups: Groups, limits: PlanLimits) -> int:
    """Blocks without which no request can run: 0 without an unbounded pool, 1 where the length may be cut."""
    if not _is_unbounded(groups):
        return 0
    return -(-limits.max_model_len // limits.block_size) if limits.max_model_len_pinned else 1


def _cost(groups: Groups, limits: PlanLimits, num_blocks: int) -> int:
    """Bytes of pools and tables for as many blocks, the model length cut to them."""
    length = limits.max_model_len
    if _is_unbounded(groups):
        length = min(length, num_blocks * limits.block_size)
    plan = _plan(groups, limits, num_blocks, length)
    return plan.cache_bytes + plan.table_bytes


def _blocks_in(num_bytes: int, groups: Groups, limits: PlanLimits) -> int:
    """Most blocks whose pools and tables fit the bytes; bounded pools, null units and tables come first."""
    least = _least_blocks(groups, limits)
    needed = _cost(groups, limits, least)
    if needed > num_bytes:
        for_what = f"max_num_seqs={limits.max_num_seqs}"
        if least:
            tokens = min(limits.max_model_len, least * limits.block_size)
            for_what += f" and one request of {tokens} tokens"
        if limits.budget_from:
            weights = f", beside weights of {_mib(limits.weight_bytes)}" if limits.weight_bytes else ""
            raise MemoryPlanError(
                f"{limits.budget_from} leaves {num_bytes} bytes ({_mib(num_bytes)}){weights}, less than the "
                f"caches and tables of {for_what} need, {needed} bytes ({_mib(needed)}); raise it, free "
                f"memory of the device, or lower max_num_seqs"
                + (", num_state_checkpoints" if limits.num_checkpoints else "")
                + (" or max_model_len" if limits.max_model_len_pinned else "")
            )
        raise MemoryPlanError(
            f"kv_cache_memory_bytes={num_bytes} ({_mib(num_bytes)}) is less than the caches and tables of "
            f"{for_what} need, {needed} bytes ({_mib(needed)}); raise it to that, or lower max_num_seqs"
            + (", num_state_checkpoints" if limits.num_checkpoints else "")
            + (" or max_model_len" if limits.max_model_len_pinned else "")
        )
    if not least:
        return 0
    whole = [spec for life, specs in groups if isinstance(life, Whole) for spec in specs]
    too_many = num_bytes // sum(limits.answers(spec).unit_bytes(limits.k_max) for spec in whole) + 1
    return _largest(lambda num_blocks: _cost(groups, limits, num_blocks) <= num_bytes, least, too_many)


def _largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Largest number in [low, high) that fits, low being known to and high not to."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _fit_max_model_len(limits: PlanLimits, num_blocks: int) -> int:
    capacity = num_blocks * limits.block_size
    if limits.max_model_len <= capacity:
        return limits.max_model_len
    if not limits.max_model_len_pinned:
        return capacity
    needed = -(-limits.max_model_len // limits.block_size)
    raise MemoryPlanError(
        f"max_model_len={limits.max_model_len} needs {needed} blocks of {limits.block_size} tokens, "
        f"num_blocks={num_blocks} holds {capacity} tokens; "
        f"the largest max_model_len that fits is {capacity}, or raise num_blocks to {needed}"
    )


def _plan_pool(
    lifetime: Lifetime,
    specs: tuple[KVCacheSpec, ...],
    limits: PlanLimits,
    num_blocks: int,
    max_model_len: int,
) -> PoolPlan:
    asked = [limits.answers(spec) for spec in specs]
    owners = tuple(limits.spec_owners.get(spec.kind) or spec_name(spec) for spec in specs)
    unit_bytes = sum(answers.unit_bytes(limits.k_max) for answers in asked)
    if isinstance(lifetime, Whole):
        return PoolPlan(lifetime, specs, num_blocks + 1, unit_bytes, owners=owners)
    per_request = max(
        answers.max_units(max_model_len, limits.max_query, limits.lookahead) for answers in asked
    )
    columns = checkpoints = 0
    if isinstance(lifetime, Slot):
        columns, checkpoints = limits.k_max + 1, limits.num_checkpoints
        # The plan's grid is their multiple, for whoever asks for it; wrong ones stop the start here.
        lcm(*(answers.state_chunk for answers in asked))
        per_request *= columns
    num_units = limits.max_num_seqs * per_request + checkpoints + 1
    return PoolPlan(lifetime, specs, num_units, unit_bytes, columns, checkpoints, owners)


def _table_bytes(pools: Sequence[PoolPlan], limits: PlanLimits, max_model_len: int) -> int:
    """Bytes of the device tables and of the inputs that replay rollback keeps."""
    shape = table_shape(max_model_len, limits.block_size, limits.k_max)
    int64, int32 = DTYPE_BYTES["int64"], DTYPE_BYTES["int32"]
    per_row = shape.num_positions * int32 + (4 + limits.k_max) * int64
    for pool in pools:
        per_row += (pool.slots_per_request if pool.is_slot else shape.num_blocks) * int64
        per_row += sum(
            limits.answers(spec).window_bytes(limits.k_max) * len(spec.layers) for spec in pool.specs
        )
    return per_row * (limits.max_num_seqs + 1)


def _check_fits(plan: MemoryPlan, groups: Groups, limits: PlanLimits) -> None:
    if limits.available_bytes is None or plan.total_bytes <= limits.available_bytes:
        return
    name, given = "num_blocks", limits.num_blocks
    fitting = _largest_fitting(groups, limits, plan.num_blocks, limits.available_bytes)
    remedy = f"the largest num_blocks that fits is {fitting}"
    if limits.kv_cache_memory_bytes is not None:
        name, given = "kv_cache_memory_bytes", limits.kv_cache_memory_bytes
        room = limits.available_bytes - limits.weight_bytes
        least = _least_blocks(groups, limits)
        fitting = room if least and _cost(groups, limits, least) <= room else 0
        remedy = f"the largest kv_cache_memory_bytes that fits is {fitting}"
    elif limits.max_model_len_pinned and fitting * limits.block_size < limits.max_model_len:
        remedy += f", with max_model_len at most {fitting * limits.block_size}"
    what, none = f"{name}={given} and max_num_seqs={limits.max_num_seqs} need", f"no {name} fits"
    if name == "num_blocks" and not _is_unbounded(groups):
        what, none = f"max_num_seqs={limits.max_num_seqs} needs", "it does not fit"
    if not fitting:
        fewer = "max_num_seqs or num_state_checkpoints" if limits.num_checkpoints else "max_num_seqs"
        remedy = f"{none}: lower {fewer}, use a smaller dtype or free memory"
    if limits.weight_bytes > limits.available_bytes:
        remedy = f"{none}, for the weights alone do not: use a smaller model or dtype, or free memory"
    by = f" by {limits.available_from}" if limits.available_from else ""
    raise MemoryPlanError(
        f"{what} "
        f"{_mib(plan.total_bytes)} (weights {_mib(plan.weight_bytes)}, caches {_mib(plan.cache_bytes)}, "
        f"tables {_mib(plan.table_bytes)}), available are {_mib(limits.available_bytes)}{by}; {remedy}"
    )


def _largest_fitting(groups: Groups, limits: PlanLimits, tried: int, available_bytes: int) -> int:
    """Largest num_blocks below `tried` whose plan fits, the length cut to it; 0 when not even one does."""

    def fits(num_blocks: int) -> bool:
        length = min(limits.max_model_len, num_blocks * limits.block_size)
        return _plan(groups, limits, num_blocks, length).total_bytes <= available_bytes

    return _largest(fits, 0, tried)


def _mib(num_bytes: int) -> str:
    # In integers: a damaged config.json may ask for more than a float holds.
    tenths = (num_bytes * 10 + 2**19) // 2**20
    return f"{tenths // 10}.{tenths % 10} MiB"
