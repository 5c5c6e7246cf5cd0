"""Virtual time: where each tenant's next request starts, and what each request has really cost.

Start-time fair queueing: a request starts at S = max(now, E), where E is the end of its tenant's last one,
and ends at S + cost / weight. The smallest S goes first; now is the largest S that was admitted. So who waits
is served by weight, and who was away starts at the present: nothing is saved up.

Source: Goyal, Vin, Cheng, Start-time fair queueing (SIGCOMM 1996), section 2, after Demers, Keshav, Shenker,
Analysis and simulation of a fair queueing algorithm (SIGCOMM 1989). A packet's length is known when it comes,
a request's is not: it is expected at first, and settled as the request is served.

Does not: know the core's events, views or queue.
"""

from __future__ import annotations

from attrs import define

from vtcore_fair_share.options import FairShareOptions

MAX_ABSENT = 1024
"""Tenants without requests that are remembered; the one longest gone is forgotten first."""

LEARNING_RATE = 0.2
"""Share of a tenant's latest answer in the length that is expected of its next one."""


@define
class _Tenant:
    """Its weight, its virtual end, its requests, and the answer length expected of it (None: unknown)."""

    name: str
    weight: float
    end: float = 0.0
    num_requests: int = 0
    expected_output: float | None = None


@define
class _Request:
    """One request.

    Args:
        start: In virtual time.
        charged: The cost that its tenant's end holds for it: the expected one, until it has cost more.
        scheduled: Tokens computed since it was last preempted.
        cost_before: Of what was computed until then; computing it again is free.
    """

    tenant: _Tenant
    start: float
    num_prompt: int
    charged: float
    scheduled: int = 0
    cost_before: float = 0.0


class ServiceAccounts:
    """What every tenant was given; ids that are not known are ignored."""

    def __init__(self, options: FairShareOptions) -> None:
        self.now = 0.0
        self._options = options
        self._last_end = 0.0
        self._requests: dict[str, _Request] = {}
        self._tenants: dict[str, _Tenant] = {}
        # In order of leaving.
        self._absent: dict[str, None] = {}

    @property
    def num_remembered(self) -> int:
        """Requests and tenants in the books."""
        return len(self._requests) + len(self._tenants)

    def arrive(self, request_id: str, tenant_name: str, num_prompt: int, max_output: int) -> float:
        """Take a request in.

        Returns:
            Its start, in virtual time.
        """
        self._leave(request_id)
        tenant = self._tenants.get(tenant_name)
        if tenant is None:
            weight = self._options.weights.get(tenant_name, self._options.default_weight)
            tenant = self._tenants[tenant_name] = _Tenant(tenant_name, weight)
        self._absent.pop(tenant_name, None)
        tenant.num_requests += 1
        expected = max_output if tenant.expected_output is None else min(max_output, tenant.expected_output)
        start = tenant.end = max(self.now, tenant.end)
        request = self._requests[request_id] = _Request(tenant, start, num_prompt, 0.0)
        self._charge(request, self._cost(num_prompt, expected))
        return start

    def compute(self, request_id: str, num_tokens: int) -> None:
        """So many tokens of a request are computed in this step; the first time, it was admitted."""
        request = self._requests.get(request_id)
        if request is None:
            return
        self.now = max(self.now, request.start)
        request.scheduled += num_tokens
        self._charge(request, max(request.charged, self._cost_so_far(request)))

    def preempt(self, request_id: str) -> None:
        """A request lost what was computed of it."""
        request = self._requests.get(request_id)
        if request is not None:
            request.cost_before = self._cost_so_far(request)
            request.scheduled = 0

    def finish(self, request_id: str, num_output: int) -> None:
        """Settle a request's account: its tenant is given back what was expected and not computed."""
        request = self._requests.get(request_id)
        if request is not None:
            if num_output:
                mean = request.tenant.expected_output
                step = 0.0 if mean is None else (num_output - mean) * LEARNING_RATE
                request.tenant.expected_output = num_output if mean is None else mean + step
            # The first output token comes with the prompt's last; each later one takes a computed token.
            output = min(max(num_output - 1, 0), request.scheduled)
            cost = self._cost(request.scheduled - output, output)
            self._charge(request, max(request.cost_before, cost))
            self._leave(request_id)
        if not self._requests:
            self.now = max(self.now, self._last_end)

    def _cost(self, num_prompt: float, num_output: float) -> float:
        return self._options.prompt_cost * num_prompt + self._options.output_cost * num_output

    def _cost_so_far(self, request: _Request) -> float:
        """As if nothing of its prompt had been cached: what was is not known before it ends."""
        prompt = min(request.scheduled, request.num_prompt)
        return max(request.cost_before, self._cost(prompt, request.scheduled - prompt))

    def _charge(self, request: _Request, cost: float) -> None:
        tenant = request.tenant
        tenant.end += (cost - request.charged) / tenant.weight
        request.charged = cost
        self._last_end = max(self._last_end, tenant.end)

    def _leave(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        tenant = request.tenant
        tenant.num_requests -= 1
        if not tenant.num_requests:
            self._absent[tenant.name] = None
        if len(self._absent) > MAX_ABSENT:
            oldest = next(iter(self._absent))
            del self._absent[oldest], self._tenants[oldest]
