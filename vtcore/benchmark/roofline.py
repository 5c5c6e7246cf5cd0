"""What a step must move and compute at least, by an arch's own data, and how fast a device could be at best.

Counted are weights, once for a step, caches and states that are read or written, matrix products, attention
and recurrences. Left out are activations, logits, block tables and all that is elementwise: a bound.
Does not: measure, or know a model; what rules and cache specs do not tell comes from `ModelArch.costs`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from attrs import frozen

from vtcore.interfaces.kv_cache_spec import DTYPE_BYTES, KVCacheSpec, Slot, Window
from vtcore.interfaces.model_arch import ModelArch, ModelCosts, ParamRule


@frozen
class Ceilings:
    """What a device was seen to reach.

    Args:
        bytes_per_s: Of a copy, read and written bytes together, > 0.
        flops_per_s: Of a large matrix product, > 0.
    """

    bytes_per_s: float
    flops_per_s: float


@frozen
class Work:
    """What one step must move and compute, in bytes and FLOPs."""

    num_bytes: float
    flops: float

    def seconds(self, ceilings: Ceilings) -> float:
        """The longer of the two, as if they overlapped perfectly."""
        return max(self.num_bytes / ceilings.bytes_per_s, self.flops / ceilings.flops_per_s)


@frozen
class GroupedWeights:
    """All rules with equally many groups: a step reads only the groups that its tokens go to.

    Args:
        num_bytes: Of all groups.
        num_elements: Of all groups.
    """

    num_groups: int
    num_bytes: int
    num_elements: int


@frozen(kw_only=True)
class ModelWork:
    """A model's bytes and FLOPs, from which those of a step follow.

    Args:
        body_bytes: Of weights that every step reads, the head and groups left out.
        body_flops: FLOPs of one token in them.
        head_bytes, head_flops: Of the head, one row of logits.
        grouped: One for each number of groups.
        specs: Cache groups.
    """

    body_bytes: int
    body_flops: int
    head_bytes: int
    head_flops: int
    grouped: tuple[GroupedWeights, ...]
    specs: tuple[KVCacheSpec, ...]
    costs: ModelCosts

    @property
    def token_flops(self) -> float:
        """FLOPs of one token in all products but the head's."""
        per_token = self.costs.groups_per_token + self.costs.shared_groups
        return self.body_flops + sum(
            2 * one.num_elements * per_token / one.num_groups for one in self.grouped
        )

    def weight_bytes(self, num_tokens: int, distinct_groups: float | None = None) -> float:
        """Weights that a step of so many tokens reads.

        Args:
            distinct_groups: Groups (experts) that its tokens choose, as counted; None expects what
                independent and uniform choices give. Shared ones come on top.
        """
        total = float(self.body_bytes + self.head_bytes)
        for one in self.grouped:
            read = self.groups_read(one.num_groups, num_tokens, distinct_groups)
            total += one.num_bytes * min(1.0, read / one.num_groups)
        return total

    def groups_read(self, num_groups: int, num_tokens: int, distinct_groups: float | None = None) -> float:
        """Groups that a step of so many tokens reads, of `num_groups`, shared ones with them.

        Args:
            distinct_groups: As for `weight_bytes`.
        """
        shared = self.costs.shared_groups
        if distinct_groups is None:
            distinct_groups = expected_groups(num_groups - shared, self.costs.groups_per_token, num_tokens)
        return shared + distinct_groups

    def cache_bytes(self, context: float) -> float:
        """What decoding one token of one sequence reads and writes of its caches.

        Args:
            context: Tokens that it sees.
        """
        total = 0.0
        for spec in self.specs:
            if isinstance(lifetime := spec.lifetime, Slot):
                total += 2 * spec.unit_bytes(0)
            else:
                seen = min(context, lifetime.tokens) if isinstance(lifetime, Window) else context
                total += seen * spec.unit_bytes(0) / spec.block_size
        return total

    def decode_step(self, batch: int, context: float, distinct_groups: float | None = None) -> Work:
        """One token for each of `batch` sequences.

        Args:
            context: Tokens that each of them sees, its own included.
            distinct_groups: As for `weight_bytes`.
        """
        num_bytes = self.weight_bytes(batch, distinct_groups) + batch * self.cache_bytes(context)
        flops = self.token_flops + self.head_flops + context * self.costs.pair_flops
        return Work(num_bytes, batch * flops)

    def prefill_seconds(self, count: int, length: int, budget: int, ceilings: Ceilings) -> float:
        """Computing prompts in steps that are filled to the budget, as if nothing else ran.

        Args:
            count: Prompts.
            length: Tokens of each.
            budget: Tokens of a step at most.
        """
        total = count * length
        per_token = self.token_flops + self.costs.recurrence_flops + self.costs.pair_flops * (length + 1) / 2
        seconds = 0.0
        for first in range(0, total, budget):
            tokens = min(budget, total - first)
            flops = tokens * (per_token + self.head_flops / length)
            seconds += Work(self.weight_bytes(tokens), flops).seconds(ceilings)
        return seconds

    def generate_seconds(
        self,
        batch: int,
        length: int,
        outputs: int,
        budget: int,
        ceilings: Ceilings,
        distinct_groups: float | None = None,
    ) -> float:
        """Prompts first, then `outputs - 1` decode steps, nothing beside them: the ideal schedule."""
        step = self.decode_step(batch, length + outputs / 2, distinct_groups).seconds(ceilings)
        return self.prefill_seconds(batch, length, budget, ceilings) + (outputs - 1) * step

    def closed_loop_seconds(
        self, count: int, clients: int, length: int, outputs: int, budget: int, ceilings: Ceilings
    ) -> float:
        """`count` requests, `clients` of them at any time: as many rounds as that takes, and the rest."""
        rounds, rest = divmod(count, clients)
        seconds = rounds * self.generate_seconds(clients, length, outputs, budget, ceilings)
        if rest:
            seconds += self.generate_seconds(rest, length, outputs, budget, ceilings)
        return seconds


def expected_groups(num_groups: int, per_token: int, num_tokens: int) -> float:
    """Distinct groups among independent, uniform choices: E (1 - (1 - k / E)^T)."""
    return float(num_groups * (1 - (1 - min(1.0, per_token / num_groups)) ** num_tokens))


def model_work(
    arch: ModelArch, names: Collection[str], specs: Sequence[KVCacheSpec], dtype: str
) -> ModelWork:
    """Read a model's work from its arch.

    Of the rules as large as vocabulary times width one is the head, which sampling reads; of any other only
    single rows are looked up.

    Args:
        names: Tensors of the checkpoint; empty for the released form.
        specs: As `ModelArch.cache_specs` gave them for the engine's dtype and block size.
        dtype: Of weights marked "model", a key of `DTYPE_BYTES`.
    """
    rules = arch.param_rules(names)
    table = (arch.dims.vocab_size, arch.dims.hidden_size)
    heads = [rule for rule in rules if rule.shape == table and rule.num_groups is None]
    body = [rule for rule in rules if rule not in heads and rule.num_groups is None]
    by_groups: dict[int, list[ParamRule]] = {}
    for rule in rules:
        if rule.num_groups is not None:
            by_groups.setdefault(rule.num_groups, []).append(rule)
    return ModelWork(
        body_bytes=sum(_num_bytes(rule, dtype) for rule in body),
        # Vectors scale or shift; only matrices are multiplied with.
        body_flops=sum(2 * prod(rule.shape) for rule in body if len(rule.shape) > 1),
        head_bytes=_num_bytes(heads[-1], dtype) if heads else 0,
        head_flops=2 * prod(table) if heads else 0,
        grouped=tuple(
            GroupedWeights(
                num_groups,
                sum(_num_bytes(rule, dtype) for rule in some),
                sum(prod(rule.shape) for rule in some),
            )
            for num_groups, some in sorted(by_groups.items())
        ),
        specs=tuple(specs),
        costs=arch.costs(),
    )


def _num_bytes(rule: ParamRule, dtype: str) -> int:
    acc = "float64" if dtype == "float64" else "float32"
    return prod(rule.shape) * DTYPE_BYTES[acc if rule.dtype == "acc" else dtype]
