"""What an author of an architecture gives the conformance kit, and what the kit makes of it once.

Does not: state a rule; the kit's other files do, and `vtcore.testing.arch_kit` puts them together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from attrs import frozen
from torch import Tensor

from vtcore.checkpoint.random_weights import random_tensors
from vtcore.interfaces.kv_cache_spec import Slot, Whole
from vtcore.interfaces.model_arch import CacheContext, ModelArch
from vtcore.testing.alone import Alone
from vtcore.testing.exact_casts import float32_casts_lifted
from vtcore.testing.kit import ConformanceKit
from vtcore.testing.model_harness import Harness, build_model
from vtcore.testing.schedules import ScheduledModel

RELATIVE = 1e-8
"""Of the largest logit, in float64, between the model and the reference. Source: the design's eighth law."""
SAME = 1e-10
"""The same between two ways through one model."""
MAX_LEN = 512
"""Tokens per request in the kit's engines, if the model has as many positions."""


@frozen(kw_only=True)
class MeasuredBound:
    """How many tokens of a busy batch may differ from float64's, set by the first measurement and then kept.

    Args:
        within: Tokens whose logit is below the best one's by at most tau.
        beyond: Tokens further below; 0 for a model without discrete choices inside.
        reason: What was measured, and where.
    """

    within: int
    beyond: int = 0
    reason: str


class ArchSubject(ConformanceKit):
    """The author's part.

    Attributes:
        hf_config: config.json of a tiny model, outer form; at least 24 tokens and 256 positions. Its logits
            should have a standard deviation of some units, or the margin rule sees ties.
        bfloat16_bound: See `MeasuredBound`; None until measured.
        num_schedules: Random runs for law 8.
    """

    hook = "archs"
    hf_config: ClassVar[Mapping[str, Any]]
    bfloat16_bound: ClassVar[MeasuredBound | None] = None
    num_schedules: ClassVar[int] = 25

    @classmethod
    def make_reference(cls) -> Any:
        """The reference model, in float64; called once. Default: none.

        A causal language model of transformers needs no more. For anything else, override
        `reference_logits` and `reference_hidden`, and `make_tensors` if it has no `state_dict`.
        """
        return None

    @classmethod
    def make_tensors(cls) -> dict[str, Tensor]:
        """The checkpoint by tensor names; called once.

        Default: the reference's `state_dict()`; without a reference, random tensors as the arch asks for
        them.
        """
        reference = cls.reference()
        if reference is None:
            return dict(random_tensors(cls.arch(), 0, torch.float64))
        return dict(reference.state_dict())

    @classmethod
    def reference_logits(cls, ids: list[int]) -> Tensor:
        """[T, V] float64 logits after each of `ids`, computed from scratch, from `tensors()`."""
        with float32_casts_lifted(), torch.inference_mode():
            logits: Tensor = cls._model()(torch.tensor([ids]), use_cache=False).logits[0]
        return logits

    @classmethod
    def reference_hidden(cls, ids: list[int]) -> Sequence[Tensor]:
        """[T, H] residuals: the embedding's output, then each layer's but the last; more is ignored."""
        with float32_casts_lifted(), torch.inference_mode():
            out = cls._model()(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
        return [state[0] for state in out.hidden_states]

    @classmethod
    def _model(cls) -> Any:
        reference = cls.reference()
        if reference is None:
            raise NotImplementedError(
                f"{cls.__qualname__} has no reference; define make_reference(cls), or reference_logits(cls, "
                f"ids) and reference_hidden(cls, ids)"
            )
        return reference

    @classmethod
    def reference(cls) -> Any:
        """What `make_reference` made."""
        return cls.once("reference", cls.make_reference)

    @classmethod
    def tensors(cls) -> dict[str, Tensor]:
        """What `make_tensors` made."""
        found: dict[str, Tensor] = cls.once("tensors", cls.make_tensors)
        return found

    @classmethod
    def arch(cls) -> ModelArch:
        """The arch that the registry finds for `hf_config`."""
        found: ModelArch = cls.once("arch", lambda: cls.registry().build_arch(cls.hf_config)[1])
        return found

    @classmethod
    def lifetimes(cls) -> set[type]:
        """`Whole`, `Window`, `Slot`: those that the arch's caches have."""
        specs = cls.arch().cache_specs(CacheContext(block_size=4, dtype="float64"))
        return {type(spec.lifetime) for spec in specs}

    @classmethod
    def can_roll_back(cls) -> bool:
        """Whether all of the arch's caches can undo drafts without the arch's `replay`."""
        specs = cls.arch().cache_specs(CacheContext(block_size=4, dtype="float64"))
        return all(spec.rollback & {"overwrite", "slots"} for spec in specs)

    @classmethod
    def build(
        cls, dtype: torch.dtype = torch.float64, columns: int = 1, aux_layers: tuple[int, ...] = ()
    ) -> Harness:
        """The model over fresh, poisoned caches.

        Args:
            columns: State slots of a row, 1 + drafts verified at most.
            aux_layers: Whose residuals are captured.
        """
        arch = cls.arch()
        model = build_model(arch, cls.tensors(), dtype, aux_layers, cls.max_len())
        return Harness(arch, model, dtype, columns=columns)

    @classmethod
    def max_len(cls) -> int:
        """Tokens per request."""
        return min(MAX_LEN, cls.arch().dims.max_position_embeddings)

    @classmethod
    def alone(cls, dtype: str = "float64") -> Alone:
        """An engine that runs one request at a time, judged by the reference."""

        def make() -> Alone:
            return Alone(
                cls.registry(),
                cls.hf_config,
                cls.tensors(),
                cls.reference_logits,
                vocab_size=cls.vocab_size(),
                dtype=dtype,
                max_model_len=cls.max_len(),
            )

        found: Alone = cls.once(f"alone {dtype}", make)
        return found

    @classmethod
    def scheduled(cls) -> ScheduledModel:
        """The model as `run_schedule` takes it."""
        return ScheduledModel(
            cls.registry(),
            cls.hf_config,
            cls.tensors(),
            cls.alone(),
            has_blocks=Whole in cls.lifetimes(),
            has_states=Slot in cls.lifetimes(),
        )

    @classmethod
    def vocab_size(cls) -> int:
        """Rows of the embedding."""
        return cls.arch().dims.vocab_size

    @classmethod
    def ids(cls, count: int, seed: int = 0) -> list[int]:
        """Random token ids."""
        generator = torch.Generator().manual_seed(seed)
        found: list[int] = torch.randint(0, cls.vocab_size(), (count,), generator=generator).tolist()
        return found


def assert_close(found: Tensor, wanted: Tensor, relative: float, what: str) -> None:
    """Assert that two tensors differ by at most `relative` times the largest value wanted.

    Raises:
        AssertionError: They do not; `what` begins the message.
    """
    assert found.shape == wanted.shape, f"{what}: shape {list(found.shape)}, not {list(wanted.shape)}"
    bound = relative * float(wanted.abs().max())
    difference = float((found - wanted).abs().max())
    # A NaN is in no order, so it must not pass.
    assert difference <= bound, f"{what}: off by {difference:.3g}, at most {bound:.3g} is allowed"
