"""An arch as the core may use it: what it answers is checked, and its faults name it and its distribution.

Does not: judge what the data mean; who uses them does. Importable without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from attrs import fields

from vtcore.errors import PluginError, VtcoreError
from vtcore.interfaces.chat import MessageRules
from vtcore.interfaces.kv_cache_spec import KVCacheSpec
from vtcore.interfaces.model_arch import (
    BuildContext,
    CacheContext,
    Model,
    ModelArch,
    ModelCosts,
    ModelDims,
    ParamPart,
    ParamRule,
)

AnswerT = TypeVar("AnswerT")
"""What an arch is asked for."""

_MODEL_METHODS = ("bind", "forward", "logits", "embed")
"""Source: `vtcore.interfaces.model_arch.Model`."""


@contextmanager
def naming_arch(owner: str) -> Iterator[None]:
    """Add the arch to plugin errors about its data that do not know it."""
    try:
        yield
    except PluginError as error:
        if owner in str(error):
            raise
        raise type(error)(f"arch {owner}: {error}") from error


class CheckedArch(ModelArch):
    """The seam between an arch plugin and the core.

    An error that vtcore raises on purpose passes; any other becomes a PluginError, as a wrong type does.

    Args:
        arch: The plugin's object.
        owner: The arch and its distribution, for messages.
    """

    def __init__(self, arch: ModelArch, owner: str) -> None:
        self._arch = arch
        self._owner = owner
        rules = self._ask("message_rules", lambda: arch.message_rules)
        # Of this arch, as others have others; the interface has it of the class, where plugins define it.
        self.message_rules = self._typed("message_rules", rules, MessageRules)  # type: ignore[misc]

    @property
    def dims(self) -> ModelDims:
        """The arch's numbers, each an integer of at least 1."""
        dims = self._typed("dims", self._ask("dims", lambda: self._arch.dims), ModelDims)
        for field in fields(ModelDims):
            self._positive(f"dims.{field.name}", getattr(dims, field.name))
        return dims

    def default_token_budget(self, max_num_seqs: int) -> int:
        """The arch's, at least 1."""
        member = f"default_token_budget({max_num_seqs})"
        budget = self._ask(member, lambda: self._arch.default_token_budget(max_num_seqs))
        return self._positive(member, budget)

    def cache_specs(self, ctx: CacheContext) -> tuple[KVCacheSpec, ...]:
        """The arch's cache groups; who asks them for more checks that too."""
        specs: tuple[KVCacheSpec, ...] = self._tuple_of(
            "cache_specs()", lambda: self._arch.cache_specs(ctx), KVCacheSpec
        )
        return specs

    def param_rules(self, names: Collection[str]) -> tuple[ParamRule, ...]:
        """The arch's rules, each made of the types that its fields name."""
        rules: tuple[ParamRule, ...] = self._tuple_of(
            "param_rules()", lambda: self._arch.param_rules(names), ParamRule
        )
        for index, rule in enumerate(rules):
            if mistake := _mistyped_field(rule):
                raise self._fault(f"param_rules()[{index}]", mistake)
        return rules

    def is_skipped(self, name: str) -> bool:
        """The arch's word."""
        return bool(self._ask(f"is_skipped({name!r})", lambda: self._arch.is_skipped(name)))

    def ops(self) -> Mapping[str, Mapping[str, str]]:
        """The arch's own ops, text to texts."""
        ops = self._ask("ops()", self._arch.ops)
        if not isinstance(ops, Mapping) or not all(
            isinstance(name, str)
            and isinstance(forms, Mapping)
            and all(isinstance(text, str) for pair in forms.items() for text in pair)
            for name, forms in ops.items()
        ):
            raise self._fault("ops()", f"is {ops!r}, not a mapping of names to mappings of texts")
        return ops

    def build(self, ctx: BuildContext) -> Model:
        """The arch's model, with every method that one has."""
        model = self._ask("build()", lambda: self._arch.build(ctx))
        if missing := [name for name in _MODEL_METHODS if not callable(getattr(model, name, None))]:
            raise self._fault("build()", f"returned {type(model).__name__}, without {', '.join(missing)}")
        return model

    def random_init(self, rule: ParamRule) -> Mapping[str, float | str]:
        """How the arch draws a parameter."""
        member = f"random_init({rule.name})"
        draw = self._ask(member, lambda: self._arch.random_init(rule))
        if not isinstance(draw, Mapping):
            raise self._fault(member, f"is {draw!r}, not a mapping")
        return draw

    def costs(self) -> ModelCosts:
        """The arch's word; no number is below that of an arch that says nothing."""
        costs = self._typed("costs()", self._ask("costs()", self._arch.costs), ModelCosts)
        for field in fields(ModelCosts):
            found = getattr(costs, field.name)
            if type(found) is not int or found < int(field.default or 0):
                raise self._fault("costs()", f"has {field.name} {found!r}, not an integer >= {field.default}")
        return costs

    def validate_layers(self, layers: Sequence[int]) -> None:
        """The arch's word.

        Raises:
            ValueError: A number is outside its layers.
        """
        self._ask("validate_layers()", lambda: self._arch.validate_layers(layers), passes=(ValueError,))

    def _ask(
        self, member: str, ask: Callable[[], AnswerT], passes: tuple[type[Exception], ...] = ()
    ) -> AnswerT:
        try:
            return ask()
        # Memory that ran out is no fault of the plugin.
        except (VtcoreError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            if isinstance(error, passes) or _is_out_of_memory(error):
                raise
            raise self._fault(member, f"failed: {type(error).__name__}: {error}") from error

    def _typed(self, member: str, value: object, wanted: type[AnswerT]) -> AnswerT:
        if not isinstance(value, wanted):
            raise self._fault(member, f"is {value!r}, not of {wanted.__module__}.{wanted.__qualname__}")
        return value

    def _positive(self, member: str, value: object) -> int:
        if type(value) is not int or value < 1:
            raise self._fault(member, f"is {value!r}, not an integer of at least 1")
        return value

    def _tuple_of(self, member: str, ask: Callable[[], Any], wanted: type) -> tuple[Any, ...]:
        """What an arch lists, even if it makes it while it is read."""
        found = self._ask(member, lambda: tuple(ask()))
        for index, one in enumerate(found):
            self._typed(f"{member}[{index}]", one, wanted)
        return found

    def _fault(self, member: str, sentence: str) -> PluginError:
        return PluginError(
            f"arch {self._owner}: {member} {sentence}; upgrade the plugin, or report it to its authors"
        )


def _mistyped_field(rule: Any) -> str:
    """What is wrong with the types of a rule's fields; "" if nothing is."""
    if not isinstance(rule.name, str):
        return f"has name {rule.name!r}, not a text"
    if not _are_ints(rule.shape):
        return f"({rule.name}) has shape {rule.shape!r}, not a tuple of integers"
    if not isinstance(rule.parts, tuple) or not all(isinstance(part, ParamPart) for part in rule.parts):
        return f"({rule.name}) has parts {rule.parts!r}, not a tuple of ParamPart"
    if rule.num_groups is not None and type(rule.num_groups) is not int:
        return f"({rule.name}) has num_groups {rule.num_groups!r}, not an integer"
    for part in rule.parts:
        if not isinstance(part.source, str) or not isinstance(part.component, str):
            return f"({rule.name}) has a part of component {part.component!r} and source {part.source!r}"
        if type(part.rows) is not int or type(part.source_row) is not int:
            return f"({rule.name}) takes rows {part.rows!r} from {part.source_row!r} of {part.source}"
        if part.source_shape is not None and not _are_ints(part.source_shape):
            return f"({rule.name}) has source_shape {part.source_shape!r}, not a tuple of integers"
    return ""


def _are_ints(value: object) -> bool:
    return isinstance(value, tuple) and all(type(extent) is int for extent in value)


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether it is torch's word for it, told by its name so that torch need not be imported."""
    return any(
        kind.__module__ == "torch" and kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__
    )
