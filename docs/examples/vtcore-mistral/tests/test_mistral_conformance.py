"""Architecture and cache kind keep to vtcore's contracts: the conformance kits, on tiny random models."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from mistral_oracle import build_oracle, tiny_config
from vtcore_mistral import plugin
from vtcore_mistral.spec import SlidingWindowSpec

from vtcore.interfaces.kv_cache_spec import KVCacheSpec
from vtcore.testing.arch_kit import ArchConformance, MeasuredBound
from vtcore.testing.kv_cache_kit import KVCacheSpecConformance


class TestMistral(ArchConformance):
    plugin = plugin
    hf_config = tiny_config(sliding_window=7)
    num_schedules = 12
    bfloat16_bound = MeasuredBound(within=6, beyond=0, reason="measured 3 of 480 on x86, twice that")

    @classmethod
    def make_reference(cls) -> Any:
        return build_oracle(cls.hf_config)


@pytest.mark.slow
class TestMistralWithoutWindow(TestMistral):
    num_schedules = 100
    hf_config = tiny_config(sliding_window=None, tie_word_embeddings=True, num_key_value_heads=1)


class TestSlidingWindow(KVCacheSpecConformance):
    plugin = plugin
    num_schedules = 10
    window: ClassVar[int] = 5

    @classmethod
    def make_spec(cls, layers: tuple[str, ...], block_size: int) -> KVCacheSpec:
        return SlidingWindowSpec(
            layers=layers,
            block_size=block_size,
            window=cls.window,
            num_kv_heads=2,
            head_dim=8,
            dtype="float32",
        )


@pytest.mark.slow
class TestShortestWindow(TestSlidingWindow):
    num_schedules = 50
    window = 1


@pytest.mark.slow
class TestWindowsAroundABlock(TestSlidingWindow):
    num_schedules = 50
    block_sizes = (4, 6)
