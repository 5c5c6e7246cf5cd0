"""What happened to each request of a simulation, and what each tenant was given while tenants competed.

Does not: summarise; `summary.py` does.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vtcore.interfaces.batch import PrefillRow, RequestUpdate, ScheduledBatch
from vtcore.scheduling.scheduler import Scheduler
from vtcore.simulation.cost_model import StepWork
from vtcore.simulation.trace import TraceRequest


class Recorder:
    """One simulation's record. Requests are named by their index in the trace, tenants by that in `tenants`.

    Args:
        requests: The trace.
        num_rows: Rows of the engine.

    Attributes:
        tenants: Names, in order of first appearance in the trace. tenant_of, priority_of: Of each request.
        arrival_s: When each request came; NaN until then.
        first_s, last_s: When its first and its latest token came.
        prompt_len, cached, num_output: Tokens of its prompt, those that a prefix hit gave it at its first
            admission, and those of its answer so far.
        gaps_s: Seconds between two tokens of one request, of all requests.
        prefilled_tokens: Prompt tokens computed, those computed again after a preemption included.
        contended_s, contended_tokens: By tenant, see `summary.jain_index`.
    """

    def __init__(self, requests: Sequence[TraceRequest], num_rows: int) -> None:
        size = len(requests)
        self.tenants = list(dict.fromkeys(request.tenant for request in requests))
        index_of = {tenant: index for index, tenant in enumerate(self.tenants)}
        self.tenant_of = [index_of[request.tenant] for request in requests]
        self.priority_of = [request.priority for request in requests]
        self.arrival_s = [float("nan")] * size
        self.first_s = [float("nan")] * size
        self.last_s = [float("nan")] * size
        self.prompt_len = [0] * size
        self.cached = [0] * size
        self.num_output = [0] * size
        self.gaps_s = array("d")
        self.num_steps = 0
        self.num_finished = 0
        self.prefilled_tokens = 0
        self.busy_s = 0.0
        self.contended_s = np.zeros(len(self.tenants))
        self.contended_tokens = np.zeros(len(self.tenants), np.int64)
        self._unfinished = np.zeros(len(self.tenants), np.int64)
        self._served_prompt = [0] * size
        self._request_of_row = [0] * (num_rows + 1)
        self._tenant_of_row = np.zeros(num_rows + 1, np.int64)

    def arrived(self, index: int, arrival_s: float, prompt_len: int) -> None:
        """A request was handed to the core."""
        self.arrival_s[index] = arrival_s
        self.prompt_len[index] = prompt_len
        self._unfinished[self.tenant_of[index]] += 1

    def launched(
        self, scheduler: Scheduler, batch: ScheduledBatch, work: StepWork, start_s: float, end_s: float
    ) -> None:
        """A step was launched, which takes from `start_s` to `end_s`."""
        self.num_steps += 1
        self.prefilled_tokens += work.prefill_tokens
        self.busy_s += end_s - start_s
        for init in batch.inits:
            owner = scheduler.rows.owner[init.row]
            assert owner is not None
            index = self._request_of_row[init.row] = int(owner.id)
            self._tenant_of_row[init.row] = self.tenant_of[index]
        if len(self.tenants) < 2:
            return
        tokens = self._count(self._tenant_of_row[list(batch.uniform)])
        for chunk in batch.prefill:
            tokens[self._tenant_of_row[chunk.row]] += self._newly_served(chunk)
        running = self._count(self._tenant_of_row[scheduler.ordered_rows()])
        waits = self._unfinished > running
        if waits.sum() > 1:
            self.contended_s[waits] += end_s - start_s
            self.contended_tokens[waits] += tokens[waits]

    def updated(self, updates: Sequence[RequestUpdate], now_s: float) -> None:
        """New tokens are there."""
        num_output, last_s, note_gap = self.num_output, self.last_s, self.gaps_s.append
        for update in updates:
            index = int(update.id)
            if num_output[index]:
                note_gap(now_s - last_s[index])
            else:
                self.first_s[index] = now_s
                self.cached[index] = update.num_cached_tokens
            for _ in update.tokens[1:]:
                note_gap(0.0)
            last_s[index] = now_s
            num_output[index] += len(update.tokens)
            if update.finish_reason is not None:
                self.num_finished += 1
                self._unfinished[self.tenant_of[index]] -= 1

    def _newly_served(self, chunk: PrefillRow) -> int:
        """Tokens that its request gets by a chunk for the first time, those of a prefix hit included."""
        index = self._request_of_row[chunk.row]
        before = self._served_prompt[index]
        after = max(before, min(chunk.start + len(chunk.ids), self.prompt_len[index]))
        self._served_prompt[index] = after
        return after - before + chunk.sample

    def _count(self, tenants: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(tenants, minlength=len(self.tenants))
