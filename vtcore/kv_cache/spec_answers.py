"""Asks cache specs what a plan is made of, and checks the answers.

Does not: ask what requests need while they run (spec_guard.py does). Data that are wrong stop the start:
nothing could be sized without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from vtcore.errors import PluginError, VtcoreError
from vtcore.interfaces.kv_cache_spec import (
    DTYPE_BYTES,
    KVCacheSpec,
    Lifetime,
    Slot,
    TensorSpec,
    Whole,
    Window,
)

AnswerT = TypeVar("AnswerT")
"""What a spec is asked for."""

ROLLBACKS = frozenset({"overwrite", "slots", "replay"})
"""Ways in which drafts are undone. Source: `KVCacheSpec.rollback`."""


class SpecAnswers:
    """One spec as the planner may use it; every member raises PluginError with kind, owner, member and value.

    Args:
        spec: The plugin's data.
        owner: The kind and its distribution, for messages; None when nobody knows the distribution.
    """

    def __init__(self, spec: KVCacheSpec, owner: str | None = None) -> None:
        self._spec = spec
        self._owner = owner or spec_name(spec)

    @property
    def lifetime(self) -> Lifetime:
        """As declared."""
        value = self._ask("lifetime", lambda: self._spec.lifetime)
        if not isinstance(value, Whole | Window | Slot):
            raise self._fault("lifetime", value, "a Whole, a Window or a Slot")
        if isinstance(value, Window):
            self._int("lifetime.tokens", value.tokens, 1)
        return value

    @property
    def layers(self) -> tuple[str, ...]:
        """As declared; a group has at least one."""
        value = self._ask("layers", lambda: self._spec.layers)
        if not isinstance(value, tuple) or not value or not all(isinstance(name, str) for name in value):
            raise self._fault("layers", value, "a tuple of names, one at least")
        return value

    @property
    def rollback(self) -> frozenset[str]:
        """As declared."""
        value = self._ask("rollback", lambda: self._spec.rollback)
        if not isinstance(value, frozenset) or not value <= ROLLBACKS:
            raise self._fault("rollback", value, f"a frozenset out of {', '.join(sorted(ROLLBACKS))}")
        return value

    @property
    def state_chunk(self) -> int:
        """As declared, in tokens."""
        return self._int("state_chunk", self._ask("state_chunk", lambda: self._spec.state_chunk), 1)

    def unit_bytes(self, k_max: int) -> int:
        """Bytes of one unit over all layers of the group: the sum over its tensors."""
        total = sum(tensor.num_bytes for tensor in self.tensors(k_max).values()) * len(self.layers)
        value = self._ask(f"unit_bytes({k_max})", lambda: self._spec.unit_bytes(k_max))
        if value != total:
            raise self._fault(f"unit_bytes({k_max})", value, f"{total}, the sum over its tensors and layers")
        return total

    def tensors(self, k_max: int) -> Mapping[str, TensorSpec]:
        """Those of one unit of one layer."""
        member = f"tensors({k_max})"
        value = self._ask(member, lambda: self._spec.tensors(k_max))
        if not isinstance(value, Mapping) or not value:
            raise self._fault(member, value, "a mapping of names to TensorSpec, one at least")
        for name, tensor in value.items():
            if not isinstance(name, str) or not isinstance(tensor, TensorSpec) or not _is_sound(tensor):
                wanted = f"a TensorSpec of extents of at least 0 and a dtype of {', '.join(DTYPE_BYTES)}"
                raise self._fault(f"{member}[{name!r}]", tensor, wanted)
        return value

    def max_units(self, num_tokens: int, max_query: int, lookahead: int) -> int:
        """Upper bound of one request's units."""
        member = f"max_units({num_tokens}, {max_query}, {lookahead})"
        return self._int(
            member, self._ask(member, lambda: self._spec.max_units(num_tokens, max_query, lookahead)), 1
        )

    def window_bytes(self, k_max: int) -> int:
        """Bytes per row and layer."""
        member = f"window_bytes({k_max})"
        return self._int(member, self._ask(member, lambda: self._spec.window_bytes(k_max)), 0)

    def _ask(self, member: str, ask: Callable[[], AnswerT]) -> AnswerT:
        try:
            return ask()
        except VtcoreError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"KV-cache spec {self._owner}: {member} failed: {type(error).__name__}: {error}; upgrade the "
                f"plugin, or report it to its authors"
            ) from error

    def _int(self, member: str, value: Any, least: int) -> int:
        if type(value) is not int or value < least:
            raise self._fault(member, value, f"an integer of at least {least}")
        return value

    def _fault(self, member: str, value: object, wanted: str) -> PluginError:
        return PluginError(
            f"KV-cache spec {self._owner}: {member} is {value!r}, not {wanted}; upgrade the plugin, or "
            f"report it to its authors"
        )


def spec_name(spec: KVCacheSpec) -> str:
    """A spec's kind and class, where its distribution is not known."""
    return f"{spec.kind} ({type(spec).__module__}:{type(spec).__qualname__})"


def _is_sound(tensor: TensorSpec) -> bool:
    extents_are_sound = isinstance(tensor.shape, tuple) and all(
        type(extent) is int and extent >= 0 for extent in tensor.shape
    )
    return extents_are_sound and isinstance(tensor.dtype, str) and tensor.dtype in DTYPE_BYTES
