"""Requests that wait for admission, in the order of their policy keys.

Does not: call the policy; a request's key is fixed when it arrives. Abort is lazy deletion.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from itertools import count

from vtcore.scheduling.request_state import RequestState, Status


class WaitingQueue:
    """A heap by order key and, beside it, arrival order for the starvation bound.

    A preempted request comes back with its old key, so before its equals that arrived later.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[object, ...], int, RequestState]] = []
        self._arrivals: deque[RequestState] = deque()
        self._ticket = count()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, request: RequestState) -> None:
        """Add a request whose status is WAITING."""
        heappush(self._heap, (request.order_key, next(self._ticket), request))
        if request.num_preemptions:
            self._arrivals.appendleft(request)
        else:
            self._arrivals.append(request)
        self._size += 1

    def discard(self, request: RequestState) -> None:
        """Forget a request that left the WAITING state; its entries are dropped when they surface."""
        self._size -= 1
        if len(self._heap) > 2 * self._size + 64:
            self._heap = [entry for entry in self._heap if entry[2].status is Status.WAITING]
            heapify(self._heap)
            self._arrivals = deque(r for r in self._arrivals if r.status is Status.WAITING)

    def first(self) -> RequestState | None:
        """The request with the smallest key."""
        heap = self._heap
        while heap and heap[0][2].status is not Status.WAITING:
            heappop(heap)
        return heap[0][2] if heap else None

    def smallest(self, size: int) -> list[RequestState]:
        """The `size` requests with the smallest keys, in order; the queue's length costs nothing."""
        heap = self._heap
        found: list[RequestState] = []
        frontier = [(heap[0], 0)] if self.first() is not None else []
        while frontier and len(found) < size:
            entry, index = heappop(frontier)
            if entry[2].status is Status.WAITING:
                found.append(entry[2])
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(heap):
                    heappush(frontier, (heap[child], child))
        return found

    def oldest(self) -> RequestState | None:
        """The request that has waited longest since it arrived."""
        arrivals = self._arrivals
        while arrivals and arrivals[0].status is not Status.WAITING:
            arrivals.popleft()
        return arrivals[0] if arrivals else None
