"""Which groups (experts) a model's decode steps read, counted, and a routing that prefers some of them.

An arch offers this by forms of its own ops beside those of devices: "skewed" routes unevenly, "counted" and
"skewed_counted" count; the module of a counting form has `take_tally() -> (calls, distinct, largest)`, sums
since the last look of layers' steps, of the groups with a row in them, and of the rows of the fullest group.
Does not: count while anything is timed, since counting takes time; an engine of its own counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from vtcore.benchmark.figures import short
from vtcore.benchmark.roofline import expected_groups
from vtcore.benchmark.subject import METHOD, TOKEN_BUDGET, Needs, decoding_tokens, load_subject
from vtcore.errors import ConfigError
from vtcore.loader import plan_core

if TYPE_CHECKING:
    from vtcore.benchmark.subject import Subject
    from vtcore.config.layers import GivenOptions

_PROMPT_TOKENS = 64
_STEPS = 16


@frozen(kw_only=True)
class GroupCount:
    """Of one layer's decode step, on average over layers and steps.

    Args:
        batch: Rows of a step.
        distinct: Groups that its rows chose; shared ones left out.
        largest: Rows of the group that got most.
        expected: Distinct groups if choices were independent and uniform; None where several numbers of
            groups exist.
    """

    batch: int
    distinct: float
    largest: float
    expected: float | None

    def as_json(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "distinct_groups": short(self.distinct),
            "largest_group_rows": short(self.largest),
            "distinct_if_uniform": None if self.expected is None else short(self.expected),
        }


def with_routing(given: GivenOptions, routing: str) -> GivenOptions:
    """Add the overrides that make the arch route so.

    Args:
        routing: "model", as its weights say, or a form of its ops: "skewed".

    Raises:
        ConfigError: The arch offers no such routing, or batch invariance is asked for too.
    """
    if routing == "model":
        return given
    planned = plan_core(given.options, sources=given.sources, environment=given.environment)
    forms = forms_of(planned.arch.ops(), routing)
    if not forms:
        raise ConfigError(
            f"--routing: {planned.config.model.arch} has no groups that a {routing} routing could prefer; "
            f"leave it out"
        )
    if planned.config.model.batch_invariant:
        raise ConfigError(
            f"--routing: {routing} replaces {', '.join(forms)} by forms that batch_invariant does not cover; "
            f"leave one of the two out"
        )
    return _overridden(given, forms)


def forms_of(ops: Mapping[str, Mapping[str, str]], form: str) -> dict[str, str]:
    """The ops that have such a form -> its dotted path."""
    return {name: forms[form] for name, forms in ops.items() if form in forms}


def count_groups(
    given: GivenOptions,
    ops: Mapping[str, Mapping[str, str]],
    routing: str,
    batches: Sequence[int],
    say: Callable[[str], object],
) -> dict[int, GroupCount]:
    """Load an engine that counts, and decode with each batch; nothing where the arch offers no count.

    Args:
        given: As for the engine that was timed, which must be closed.
        ops: The arch's.
        say: Told of each batch as it is done.
    """
    forms = forms_of(ops, "counted" if routing == "model" else f"{routing}_counted")
    if not forms or not batches:
        return {}
    given = _overridden(given, forms)
    # Which groups rows choose does not hang on the last bits, and a counting form keeps none of them.
    # Its requests have lengths of their own.
    counting: dict[str, Any] = {"enforce_eager": True, "batch_invariant": False, "max_model_len": None}
    options = evolve(given.options, **counting)
    given = evolve(given, options=options, sources={**given.sources, **dict.fromkeys(counting, METHOD)})
    budget = given.options.max_num_batched_tokens or TOKEN_BUDGET
    tokens = _PROMPT_TOKENS + decoding_tokens(max(batches), _PROMPT_TOKENS, _STEPS, budget)
    subject = load_subject(given, Needs(batch=max(batches), batch_tokens=tokens, longest=tokens))
    tallies = [import_module(path.partition(":")[0]).take_tally for path in forms.values()]
    try:
        counts = {}
        for batch in batches:
            counts[batch] = one = _count(subject, batch, tallies)
            say(f"batch {batch}: {one.distinct:.1f} distinct groups, {one.largest:.1f} rows in the fullest")
        return counts
    finally:
        subject.engine.close()


def _count(subject: Subject, batch: int, tallies: Sequence[Callable[[], tuple[int, int, int]]]) -> GroupCount:
    with subject.decoding(batch, _PROMPT_TOKENS, _STEPS) as engine:
        for take in tallies:
            take()
        for _ in range(_STEPS):
            engine.step(final_only=True)
        totals = [take() for take in tallies]
    calls, distinct, largest = (sum(total[i] for total in totals) for i in range(3))
    work = subject.work
    expected = None
    if len(work.grouped) == 1:
        routed = work.grouped[0].num_groups - work.costs.shared_groups
        expected = expected_groups(routed, work.costs.groups_per_token, batch)
    return GroupCount(batch=batch, distinct=distinct / calls, largest=largest / calls, expected=expected)


def _overridden(given: GivenOptions, forms: Mapping[str, str]) -> GivenOptions:
    overrides = {**(given.options.op_overrides or {}), **forms}
    return evolve(
        given,
        options=evolve(given.options, op_overrides=overrides),
        sources={**given.sources, "op_overrides": METHOD},
    )
