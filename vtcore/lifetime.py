"""The engine's build order as events, and its exact reverse at the end.

Does not: know the steps; loader.py writes them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
    """The numbered steps that were built so far.

    Args:
        on_event: Told of every event, in order; an exception it raises stops the build like a step's own.
    """

    on_event: Callable[[LifetimeEvent], None] | None = None
    _built: list[tuple[int, str, Callable[[], None] | None]] = field(factory=list)

    @contextmanager
    def step(self, number: int, name: str, close: Callable[[], None] | None = None) -> Iterator[None]:
        """Run one step; it is closed with the rest once it has been built.

        Args:
            close: What undoes the step; None where dropping references is all.
        """
        self._tell("begin", number, name)
        yield
        self._built.append((number, name, close))
        self._tell("built", number, name)

    def close(self) -> None:
        """Undo every built step in reverse order; each is undone even if a later one failed to.

        Raises:
            ExceptionGroup: Several steps failed to close; a single failure is raised as it is.
        """
        errors: list[Exception] = []
        while self._built:
            try:
                self._close(*self._built.pop())
            except Exception as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup("several parts of the engine failed to close", errors)

    def _close(self, number: int, name: str, close: Callable[[], None] | None) -> None:
        try:
            if close is not None:
                close()
        finally:
            self._tell("closed", number, name)

    def _tell(self, kind: str, number: int, name: str) -> None:
        if self.on_event is not None:
            self.on_event(LifetimeEvent(kind, number, name))
