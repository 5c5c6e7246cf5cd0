"""Requests that wait for admission, in the order of their policy keys.

Does not: call the policy; a request's key is fixed when it arrives. Abort is lazy deletion.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from vtcore.scheduling.request_state import RequestState


class WaitingQueue:
    """A heap by order key and, for the starvation bound, one by when the wait began.

    A preempted request comes back with its old key, so before its equals that arrived later.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[object, ...], int, RequestState]] = []
        self._arrivals: list[tuple[float, int, RequestState]] = []
        self._ticket = count()
        # Entries stay behind when a request leaves, and it may come back; only its last ticket counts.
        self._ticket_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._ticket_of)

    def push(self, request: RequestState) -> None:
        """Add a request whose status is WAITING."""
        ticket = next(self._ticket)
        self._ticket_of[request.id] = ticket
        heappush(self._heap, (request.order_key, ticket, request))
        heappush(self._arrivals, (request.waits_since, ticket, request))

    def discard(self, request: RequestState) -> None:
        """Forget a request that left the WAITING state; its entries are dropped when they surface."""
        del self._ticket_of[request.id]
        if len(self._heap) > 2 * len(self) + 64:
            self._heap = [entry for entry in self._heap if self._waits(entry[1], entry[2])]
            heapify(self._heap)
        if len(self._arrivals) > 2 * len(self) + 64:
            self._arrivals = [entry for entry in self._arrivals if self._waits(entry[1], entry[2])]
            heapify(self._arrivals)

    def first(self) -> RequestState | None:
        """The request with the smallest key."""
        heap = self._heap
        while heap and not self._waits(heap[0][1], heap[0][2]):
            heappop(heap)
        return heap[0][2] if heap else None

    def smallest(self, size: int) -> list[RequestState]:
        """The `size` requests with the smallest keys, in order; the queue's length costs nothing."""
        heap = self._heap
        found: list[RequestState] = []
        frontier = [(heap[0], 0)] if self.first() is not None else []
        while frontier and len(found) < size:
            entry, index = heappop(frontier)
            if self._waits(entry[1], entry[2]):
                found.append(entry[2])
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(heap):
                    heappush(frontier, (heap[child], child))
        return found

    def oldest(self) -> RequestState | None:
        """The request that has waited longest since it arrived or was preempted."""
        arrivals = self._arrivals
        while arrivals and not self._waits(arrivals[0][1], arrivals[0][2]):
            heappop(arrivals)
        return arrivals[0][2] if arrivals else None

    def _waits(self, ticket: int, request: RequestState) -> bool:
        return self._ticket_of.get(request.id) == ticket
