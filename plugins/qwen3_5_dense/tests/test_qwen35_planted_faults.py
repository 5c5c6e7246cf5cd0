"""Each rule of the arch kit bites: a fault planted in this architecture fails the rule meant for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
from attrs import evolve
from qwen35_oracle import build_oracle, tiny_text_config
from torch import Tensor
from vtcore_qwen3_5_dense.arch import Qwen35DenseArch

from vtcore.interfaces.model_arch import BuildContext, ForwardOutput, Model, ParamRule
from vtcore.interfaces.registry_entries import ArchEntry
from vtcore.interfaces.step import LayerCache, StepInputs
from vtcore.testing.arch_kit import ArchConformance, ArchLogits, MeasuredBound
from vtcore.testing.kit import failing_rules
from vtcore.testing.kit_modules import plugin_module

CONFIG = tiny_text_config(
    vocab_size=24,
    max_position_embeddings=512,
    num_hidden_layers=2,
    layer_types=["linear_attention", "full_attention"],
)
LOGITS = "test_logits_equal_the_reference"
DECODING = "test_decoding_equals_the_reference"
CHUNKS = "test_a_prompt_in_chunks_equals_the_whole"
MATES = "test_batch_mates_do_not_matter"
POISON = "test_poisoned_memory_does_not_matter"
UNITS = "test_only_a_rows_own_units_are_written"
DRAFTS = "test_verified_drafts_equal_decoding"
SHORT = "test_short_queries_stop_at_their_length"
CAPTURES = "test_captured_residuals_equal_the_reference"
MISSING = "test_a_missing_tensor_is_an_error_that_names_it"
UNKNOWN = "test_an_unknown_tensor_is_an_error_that_names_it"
RELEASED = "test_the_released_form_loads_and_all_of_it_is_used"
SCHEDULES = "test_any_schedule_gives_each_requests_own_output"
SEEDS = "test_seeded_schedules_preempt_and_drop_late_results"
BUDGETS = "test_every_budget_at_every_depth_gives_the_same_output"
SAVES = "test_a_right_draft_saves_its_step"
MANY = "test_an_engine_that_has_served_many_serves_the_next_alike"
PROMPT = "test_prompt_logprobs_equal_the_reference_in_any_chunks"
FLOAT32 = "test_float32_keeps_to_the_margin_rule"
BFLOAT16 = "test_bfloat16_keeps_to_its_measured_bound"
NOBODY = "test_rows_that_stand_for_no_request_touch_nothing"
LISTENS = "test_captured_residuals_reach_a_drafter"

Fault = Callable[[StepInputs, ForwardOutput, Mapping[str, LayerCache]], ForwardOutput]
"""(step, what is right, caches) -> what is wrong."""


class FaultyModel:
    def __init__(self, model: Model, fault: Fault) -> None:
        self.model, self.fault = model, fault
        self.caches: Mapping[str, LayerCache] = {}

    def bind(self, caches: Mapping[str, LayerCache]) -> None:
        self.caches = caches
        self.model.bind(caches)

    def forward(self, step: StepInputs) -> ForwardOutput:
        return self.fault(step, self.model.forward(step), self.caches)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden)

    def embed(self, ids: Tensor) -> Tensor:
        return self.model.embed(ids)


def faulty(fault: Fault) -> type[Qwen35DenseArch]:
    class Faulty(Qwen35DenseArch):
        def build(self, ctx: BuildContext) -> Any:
            return FaultyModel(super().build(ctx), fault)

    return Faulty


def kit(arch: type[Qwen35DenseArch]) -> type[ArchConformance]:
    class TestFaulty(ArchConformance):
        plugin = plugin_module(
            lambda name: [
                ArchEntry(name="faulty", model_types=("qwen3_5_text",), implementation=f"{name}:Arch")
            ],
            {"Arch": arch},
        )
        hf_config = CONFIG
        lengths = (3, 200)
        cuts = (127,)
        draft_prompts = (2,)
        num_schedules = 8
        is_shrinking = False
        bfloat16_bound = MeasuredBound(within=40, reason="far from what a fault does")

        @classmethod
        def make_reference(cls) -> Any:
            return build_oracle(dict(CONFIG))

    return TestFaulty


def shifted(out: ForwardOutput, by: float = 1e-6) -> ForwardOutput:
    return evolve(out, hidden=out.hidden + by)


def where(condition: Callable[[StepInputs], bool], by: float = 1e-6) -> type[Qwen35DenseArch]:
    """An arch whose hidden values are off in the steps that meet a condition."""
    return faulty(lambda step, out, caches: shifted(out, by) if condition(step) else out)


def span(step: StepInputs) -> tuple[int, int]:
    """(start, length) of the only row, a prefill row; (-1, 0) for other steps."""
    if step.num_uniform or len(step.prefill) != 1:
        return (-1, 0)
    return (step.prefill[0].start, step.prefill[0].length)


def writes_the_null_unit(
    step: StepInputs, out: ForwardOutput, caches: Mapping[str, LayerCache]
) -> ForwardOutput:
    if step.num_uniform and not int(step.query_lens.min()):
        for cache in caches.values():
            for tensor in cache.tensors.values():
                tensor[0] = 1
    return out


def writes_for_nobody(
    step: StepInputs, out: ForwardOutput, caches: Mapping[str, LayerCache]
) -> ForwardOutput:
    if any(span.is_null for span in step.prefill):
        caches["layers.0"]["conv"][0, 0, 0] = 1
    return out


def reads_for_nobody(step: StepInputs, out: ForwardOutput, caches: Mapping[str, LayerCache]) -> ForwardOutput:
    if not any(span.is_null for span in step.prefill):
        return out
    return evolve(out, hidden=out.hidden + caches["layers.0"]["conv"][0, 0, 0])


def wrong_captures(step: StepInputs, out: ForwardOutput, caches: Mapping[str, LayerCache]) -> ForwardOutput:
    return out if out.aux is None else evolve(out, aux=out.aux * 1.001)


class DoesWithoutNorm(Qwen35DenseArch):
    def param_rules(self, names: Collection[str]) -> tuple[ParamRule, ...]:
        rules = super().param_rules(names)
        return tuple(r for r in rules if not names or all(part.source in names for part in r.parts))


class SkipsAnything(Qwen35DenseArch):
    def is_skipped(self, name: str) -> bool:
        return True


class DrawsWhatNobodyKnows(Qwen35DenseArch):
    def random_init(self, rule: ParamRule) -> Mapping[str, float | str]:
        return {"kind": "cauchy"}


ONE_STEP: list[tuple[type[Qwen35DenseArch], str, frozenset[str]]] = [
    (where(lambda step: span(step) == (0, 200)), LOGITS, frozenset()),
    (where(lambda step: step.positions.tolist() == [89]), DECODING, frozenset()),
    (where(lambda step: span(step) == (127, 3)), CHUNKS, frozenset()),
    (where(lambda step: step.num_uniform > 0 < len(step.prefill)), MATES, frozenset()),
    (where(lambda step: span(step) == (2, 5), float("nan")), POISON, frozenset()),
    (faulty(writes_the_null_unit), UNITS, frozenset()),
    (where(lambda step: step.query_len == 4 and int(step.query_lens.min()) == 4), DRAFTS, frozenset()),
    (
        where(lambda step: step.num_uniform > 0 and 0 < step.query_len_min < step.query_len),
        SHORT,
        frozenset(),
    ),
    (faulty(wrong_captures), CAPTURES, frozenset()),
    (DoesWithoutNorm, MISSING, frozenset()),
    (SkipsAnything, UNKNOWN, frozenset()),
    (DrawsWhatNobodyKnows, RELEASED, frozenset()),
]
"""Of the rules that need no engine, exactly the one meant fails."""

ENGINE: list[tuple[type[Qwen35DenseArch], str]] = [
    (where(lambda step: len(step.computed) > 1, 1e-3), SCHEDULES),
    (where(lambda step: len(step.computed) > 1, 9.0), SEEDS),
    (where(lambda step: span(step)[0] > 0, 1e-3), BUDGETS),
    (where(lambda step: step.query_len > 1, 9.0), SAVES),
    (where(lambda step: len(step.computed) > 1, 9.0), MANY),
    (where(lambda step: span(step)[0] > 0, 1e-3), PROMPT),
    (faulty(lambda step, out, caches: evolve(out, hidden=out.hidden.flip(-1))), BFLOAT16),
    (
        faulty(lambda step, out, caches: evolve(out, hidden=out.hidden.bfloat16().to(out.hidden.dtype))),
        FLOAT32,
    ),
    (faulty(writes_for_nobody), NOBODY),
    (faulty(reads_for_nobody), NOBODY),
    (faulty(wrong_captures), LISTENS),
]


def names_of_one_step() -> list[str]:
    return [rule.name for rule in ArchLogits.rules()] + [MISSING, UNKNOWN, RELEASED]


def test_the_architecture_without_a_fault_keeps_to_every_rule_of_one_step() -> None:
    assert failing_rules(kit(Qwen35DenseArch), names_of_one_step()) == {}


@pytest.mark.parametrize(
    ("arch", "meant", "also"), ONE_STEP, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_planted_fault_fails_exactly_the_rule_meant_for_it(
    arch: type[Qwen35DenseArch], meant: str, also: frozenset[str]
) -> None:
    assert failing_rules(kit(arch), names_of_one_step()).keys() == also | {meant}


@pytest.mark.parametrize(("arch", "meant"), ENGINE, ids=lambda value: value if isinstance(value, str) else "")
def test_a_planted_fault_fails_the_rule_of_the_engine_meant_for_it(
    arch: type[Qwen35DenseArch], meant: str
) -> None:
    assert failing_rules(kit(arch), [meant]).keys() == {meant}


def test_every_rule_of_the_kit_has_a_planted_fault() -> None:
    planted = {meant for _, meant, _ in ONE_STEP} | {meant for _, meant in ENGINE}
    # Rules of a GPU need one; what they would catch are faults of kernels, which have tests of their own.
    rules = {rule.name for rule in ArchConformance.rules()}
    assert planted == {name for name in rules if not name.startswith("test_on_a_gpu_")}


def test_without_a_bound_bfloat16_says_what_to_write() -> None:
    class TestUnmeasured(kit(Qwen35DenseArch)):  # type: ignore[misc]
        bfloat16_bound = None

        @classmethod
        def exempted(cls, dtype: str, depth: int, budget: int) -> tuple[int, int]:
            return 2 + depth, 2 - depth

    with pytest.raises(AssertionError, match=r"bfloat16_bound = MeasuredBound\(within=8, beyond=2, reason"):
        getattr(TestUnmeasured(), BFLOAT16)()


def test_without_a_reference_the_author_is_told_what_to_define() -> None:
    class TestBare(ArchLogits):
        plugin = kit(Qwen35DenseArch).plugin
        hf_config = CONFIG

    with pytest.raises(NotImplementedError, match="TestBare has no reference; define make_reference"):
        getattr(TestBare(), LOGITS)()
