"""The engine's build order as events, and its exact reverse at the end.

Does not: know the steps; loader.py writes them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from attrs import define, field, frozen


@frozen
class LifetimeEvent:
    """Something began, was built or was closed.

    Args:
        kind: "begin", "built" or "closed".
        number: The step's number in docs/architecture.md, Lifetime.
    """

    kind: str
    number: int
    name: str


@define
class Lifetime:
    """An exit stack whose entries are the numbered steps of the build.

    Args:
        on_event: Told of every event, in order; an exception it raises stops the build like a step's own.
    """

    on_event: Callable[[LifetimeEvent], None] | None = None
    _stack: ExitStack = field(factory=ExitStack)

    @contextmanager
    def step(self, number: int, name: str, close: Callable[[], None] | None = None) -> Iterator[None]:
        """Run one step; it is closed with the rest once it has been built.

        Args:
            close: What undoes the step; None where dropping references is all.
        """
        self._tell("begin", number, name)
        yield
        self._stack.callback(self._close, number, name, close)
        self._tell("built", number, name)

    def close(self) -> None:
        """Undo every built step in reverse order; each is undone even if a later one failed to."""
        self._stack.close()

    def _close(self, number: int, name: str, close: Callable[[], None] | None) -> None:
        try:
            if close is not None:
                close()
        finally:
            self._tell("closed", number, name)

    def _tell(self, kind: str, number: int, name: str) -> None:
        if self.on_event is not None:
            self.on_event(LifetimeEvent(kind, number, name))
