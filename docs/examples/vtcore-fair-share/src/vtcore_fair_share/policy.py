"""The policy: tenants that wait are served in proportion to their weights, whatever each of them sends.

Does not: limit anyone; what others leave is everybody's. A request that has waited for `starvation_s` goes
first in every policy.
"""

from __future__ import annotations

from collections.abc import Sequence

from vtcore.interfaces.scheduler_policy import (
    Arrived,
    Event,
    Finished,
    Preempted,
    Scheduled,
    SchedulerPolicy,
    WaitingView,
)
from vtcore_fair_share.accounts import ServiceAccounts
from vtcore_fair_share.options import FairShareOptions


class FairSharePolicy(SchedulerPolicy):
    """Admits by virtual start, which is fixed when a request arrives; so a key is enough.

    `victim` is the core's: the running request with the largest key, which is the one that by its tenant's
    share should have started last.

    Args:
        options: The user's; None takes the defaults.
    """

    options_class = FairShareOptions

    def __init__(self, options: FairShareOptions | None = None) -> None:
        super().__init__(options)
        self.accounts = ServiceAccounts(options or FairShareOptions())

    def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
        """Its start in virtual time; from here on its tenant is charged for it."""
        return (self.accounts.arrive(view.id, view.tenant, view.num_prompt_tokens, view.max_tokens),)

    def on_events(self, events: Sequence[Event]) -> None:
        """Count what each request is given."""
        for event in events:
            match event:
                case Scheduled(request_id, tokens):
                    self.accounts.compute(request_id, tokens)
                case Preempted(request_id):
                    self.accounts.preempt(request_id)
                case Finished(request_id, tokens):
                    self.accounts.finish(request_id, tokens)
                case Arrived():
                    pass  # `key` was asked for it just before.
