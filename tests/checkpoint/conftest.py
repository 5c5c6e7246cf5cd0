"""A small architecture that uses every feature of a parameter rule."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from torch import Tensor

from vtcore.interfaces.kv_cache_spec import KVCacheSpec
from vtcore.interfaces.model_arch import (
    BuildContext,
    CacheContext,
    Model,
    ModelArch,
    ModelDims,
    ParamPart,
    ParamRule,
)


def squeeze_middle(tensor: Tensor) -> Tensor:
    return tensor.squeeze(1)


class ToyArch(ModelArch):
    """Fused and cut parts, a convolution squeezed and rolled, an acc vector, an optional head."""

    def __init__(self, hf_config: Mapping[str, Any]) -> None:
        inner = hf_config["text_config"]
        self._hidden, self._vocab = int(inner["hidden_size"]), int(inner["vocab_size"])
        self._tied = bool(inner["tie_word_embeddings"])

    @property
    def dims(self) -> ModelDims:
        return ModelDims(
            vocab_size=self._vocab, hidden_size=self._hidden, num_layers=1, max_position_embeddings=64
        )

    def default_token_budget(self, max_num_seqs: int) -> int:
        return 64

    def cache_specs(self, ctx: CacheContext) -> tuple[KVCacheSpec, ...]:
        return ()

    def param_rules(self, names: Collection[str]) -> tuple[ParamRule, ...]:
        h, v = self._hidden, self._vocab
        embed = ParamPart(component="embed", rows=v, source="model.embed")
        rules = [
            ParamRule(name="embed", shape=(v, h), parts=(embed,)),
            ParamRule(
                name="gate_up",
                shape=(5 * h, h),
                parts=(
                    ParamPart(component="gate", rows=2 * h, source="model.gate"),
                    ParamPart(component="up", rows=2 * h, source="model.up", source_shape=(3 * h, h)),
                    ParamPart(
                        component="tail",
                        rows=h,
                        source="model.up",
                        source_shape=(3 * h, h),
                        source_row=2 * h,
                    ),
                ),
            ),
            ParamRule(
                name="conv",
                shape=(h, 4),
                parts=(
                    ParamPart(
                        component="conv",
                        rows=h - 1,
                        source="model.conv",
                        transform=squeeze_middle,
                        source_shape=(h, 1, 4),
                        source_row=1,
                    ),
                    ParamPart(
                        component="first",
                        rows=1,
                        source="model.conv",
                        transform=squeeze_middle,
                        source_shape=(h, 1, 4),
                    ),
                ),
            ),
            ParamRule(
                name="decay",
                shape=(h,),
                parts=(ParamPart(component="decay", rows=h, source="model.decay"),),
                dtype="acc",
            ),
        ]
        if not self._tied:
            head = ParamPart(component="head", rows=v, source="head")
            rules.append(ParamRule(name="head", shape=(v, h), parts=(head,)))
        return tuple(rules)

    def is_skipped(self, name: str) -> bool:
        return name.startswith("visual.")

    def ops(self) -> Mapping[str, Mapping[str, str]]:
        return {}

    def build(self, ctx: BuildContext) -> Model:
        raise AssertionError("it has parameters only; nothing here builds it")

    def random_init(self, rule: ParamRule) -> Mapping[str, float | str]:
        if rule.name == "decay":
            return {"kind": "log_uniform", "low": 1.0, "high": 16.0}
        if rule.name == "embed":
            return {"kind": "normal", "std": 6 / self._hidden**0.5}
        return {"kind": "ones"} if rule.name == "conv" else {"kind": "normal", "std": 0.5}

    @classmethod
    def checkpoint_config(cls, size: str, vocab_size: int) -> Mapping[str, Any]:
        if size not in ("tiny", "wide"):
            raise ValueError(f"ToyArch has sizes tiny and wide, not {size!r}")
        hidden = 16 if size == "tiny" else 32
        inner = {"hidden_size": hidden, "vocab_size": vocab_size, "tie_word_embeddings": True}
        return {"architectures": ["ToyForCausalLM"], "model_type": "toy", "text_config": inner}


@pytest.fixture(name="toy_class")
def fixture_toy_class() -> type[ModelArch]:
    return ToyArch


@pytest.fixture(name="toy")
def fixture_toy() -> ModelArch:
    return ToyArch({"text_config": {"hidden_size": 6, "vocab_size": 10, "tie_word_embeddings": True}})


@pytest.fixture(name="untied_toy")
def fixture_untied_toy() -> ModelArch:
    return ToyArch({"text_config": {"hidden_size": 6, "vocab_size": 10, "tie_word_embeddings": False}})
