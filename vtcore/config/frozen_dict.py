"""A dict that nobody can change: what resolved settings hold where users gave mappings.

Does not: freeze anything but dicts and lists; settings hold nothing else that could change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn


class FrozenDict(dict[str, Any]):
    """Compares, prints and serialises as any dict, which a MappingProxyType would not."""

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("a resolved setting cannot be changed; start another engine with other options")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        # The usual way fills an empty one, which refuses.
        return FrozenDict, (dict(self),)


def freeze(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """A deep copy that cannot be changed; lists become tuples."""
    return FrozenDict((key, _frozen(item)) for key, item in value.items())


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return freeze(value)
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
