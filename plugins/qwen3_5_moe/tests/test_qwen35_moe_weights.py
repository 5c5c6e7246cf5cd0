"""Every layout puts each expert's rows where the model reads them; what does not fit is an error by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from qwen35_moe_oracle import LAYOUTS, build_oracle, oracle_logits, stored_as, tiny_text_config
from safetensors.torch import save_file
from torch import Tensor
from vtcore_qwen3_5_moe.arch import Qwen35MoeArch

from vtcore.checkpoint.format import InMemoryFormat
from vtcore.checkpoint.parameters import LoadedParameters, load_parameters
from vtcore.checkpoint.safetensors import SafetensorsFormat
from vtcore.errors import MissingTensorError, TensorShapeError, UnknownTensorError
from vtcore.testing.model_harness import Harness, build_model

CONFIG = tiny_text_config()
EXPERTS = "model.layers.{}.mlp.experts."


@pytest.fixture(scope="module")
def oracle() -> Any:
    return build_oracle(CONFIG)


def load(tensors: dict[str, Tensor], config: dict[str, Any] = CONFIG) -> LoadedParameters:
    return load_parameters(Qwen35MoeArch(config), InMemoryFormat(tensors), torch.float64, "cpu")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_parameters_to_the_bit(oracle: Any, layout: str) -> None:
    wanted = load(oracle.state_dict()).tensors
    stored = stored_as(layout, oracle.state_dict())
    found = load(stored).tensors
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    used = {part.source for rule in Qwen35MoeArch(CONFIG).param_rules(stored.keys()) for part in rule.parts}
    assert used == stored.keys()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_of_any_layout_is_read_as_memory_is(oracle: Any, layout: str, tmp_path: Path) -> None:
    stored = {k: v.contiguous() for k, v in stored_as(layout, oracle.state_dict()).items()}
    save_file(stored, tmp_path / "model.safetensors")
    fmt = SafetensorsFormat(tmp_path)
    found = load_parameters(Qwen35MoeArch(CONFIG), fmt, torch.float64, "cpu").tensors
    fmt.close()
    wanted = load(oracle.state_dict()).tensors
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_each_expert_has_its_gate_rows_then_its_up_rows(oracle: Any) -> None:
    tensors = oracle.state_dict()
    loaded = load(tensors).tensors
    gate_up = tensors[EXPERTS.format(1) + "gate_up_proj"]
    assert torch.equal(loaded["layers.1.moe.in_proj"].view(8, 40, 40)[5], gate_up[5])
    assert torch.equal(
        loaded["layers.1.moe.out_proj"].view(8, 40, 20)[7], tensors[EXPERTS.format(1) + "down_proj"][7]
    )
    assert torch.equal(loaded["layers.1.moe.gates"][:8], tensors["model.layers.1.mlp.gate.weight"])
    assert torch.equal(
        loaded["layers.1.moe.gates"][8:], tensors["model.layers.1.mlp.shared_expert_gate.weight"]
    )
    (rule,) = [r for r in Qwen35MoeArch(CONFIG).param_rules(()) if r.name == "layers.1.moe.in_proj"]
    assert [part.component for part in rule.parts][:3] == ["gate.0", "up.0", "gate.1"]
    assert rule.num_groups == 8


@pytest.mark.parametrize("layout", ["fused", "per expert", "mixed by layer"])
def test_any_missing_expert_tensor_is_an_error_that_names_it(oracle: Any, layout: str) -> None:
    stored = stored_as(layout, oracle.state_dict())
    for name in [n for n in stored if re.search(r"layers\.[01]\.mlp\.", n)]:
        rest = {n: t for n, t in stored.items() if n != name}
        with pytest.raises(MissingTensorError, match=rf" {re.escape(name)};"):
            load(rest)


def test_a_layer_without_any_expert_is_missing_its_experts(oracle: Any) -> None:
    stored = {n: t for n, t in oracle.state_dict().items() if "layers.2.mlp.experts" not in n}
    with pytest.raises(MissingTensorError, match=r"layers\.2\.mlp\.experts\.down_proj, .*gate_up_proj;"):
        load(stored)


def test_a_layer_in_both_layouts_is_refused_and_names_the_second(oracle: Any) -> None:
    tensors = oracle.state_dict()
    both = {**stored_as("per expert", tensors), **tensors}
    with pytest.raises(UnknownTensorError, match=r"layers\.0\.mlp\.experts\.0\.down_proj\.weight"):
        load(both)


@pytest.mark.parametrize(
    ("layout", "name", "shape", "wanted"),
    [
        ("fused", "0.mlp.experts.gate_up_proj", (8, 40, 41), "[8, 40, 40]"),
        ("fused", "0.mlp.experts.gate_up_proj", (8, 20, 40), "[8, 40, 40]"),
        ("fused", "0.mlp.experts.gate_up_proj", (320, 40), "[8, 40, 40]"),
        ("fused", "3.mlp.experts.down_proj", (8, 20, 40), "[8, 40, 20]"),
        ("per expert", "0.mlp.experts.3.gate_proj.weight", (21, 40), "[20, 40]"),
        ("per expert", "0.mlp.experts.7.down_proj.weight", (20, 40), "[40, 20]"),
        ("fused", "1.mlp.gate.weight", (9, 40), "[8, 40]"),
        ("fused", "1.mlp.shared_expert_gate.weight", (40,), "[1, 40]"),
        ("fused", "1.mlp.shared_expert.up_proj.weight", (20, 40), "[28, 40]"),
    ],
)
def test_a_wrong_shape_names_the_tensor_and_both_shapes(
    oracle: Any, layout: str, name: str, shape: tuple[int, ...], wanted: str
) -> None:
    name = f"model.layers.{name}"
    stored = stored_as(layout, oracle.state_dict())
    assert name in stored
    with pytest.raises(TensorShapeError) as caught:
        load({**stored, name: torch.zeros(shape, dtype=torch.float64)})
    assert f"tensor {name} has shape {list(shape)}, the config implies {wanted}" in str(caught.value)


def test_a_config_with_another_number_of_experts_is_an_error_in_each_layout(oracle: Any) -> None:
    tensors = oracle.state_dict()
    fewer, more = tiny_text_config(num_experts=6), tiny_text_config(num_experts=9)
    for config in (fewer, more):
        with pytest.raises(TensorShapeError, match=rf"implies \[{config['num_experts']}, 40"):
            load(dict(tensors), config)
    split = stored_as("per expert", tensors)
    with pytest.raises(UnknownTensorError, match=r"experts\.6\.down_proj"):
        load(split, fewer)
    with pytest.raises(MissingTensorError, match=r"experts\.8\.down_proj"):
        load(split, more)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vision_and_mtp_tensors_of_every_layout_are_skipped(oracle: Any, layout: str) -> None:
    released = {
        name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: tensor
        for name, tensor in stored_as(layout, oracle.state_dict()).items()
    }
    extra = [
        "model.visual.blocks.0.attn.qkv.weight",
        "mtp.fc.weight",
        "mtp.layers.0.mlp.experts.gate_up_proj",
        "mtp.layers.0.mlp.experts.3.down_proj.weight",
        "mtp.layers.0.mlp.shared_expert_gate.weight",
    ]
    arch = Qwen35MoeArch({"model_type": "qwen3_5_moe", "text_config": CONFIG})
    model = build_model(arch, {**released, **dict.fromkeys(extra, torch.zeros(1))}, torch.float64)
    ids = list(range(9))
    wanted = oracle_logits(oracle, ids)
    found = Harness(arch, model, torch.float64).run_sequence(ids, [5])
    assert (found - wanted).abs().max() < 1e-8 * wanted.abs().max()
    assert not arch.is_skipped("model.layers.0.mlp.experts.gate_up_proj")


def test_a_released_model_of_35b_has_its_693_tensors() -> None:
    """40 layers, 30 of them linear: 2 norms + 7 (MoE) + 9 or 6 (mixer) each, and embedding, norm, head."""
    arch = Qwen35MoeArch({"model_type": "qwen3_5_moe", "text_config": {}, "tie_word_embeddings": False})
    rules = arch.param_rules(())
    sources = {part.source: part for rule in rules for part in rule.parts}
    assert len(sources) == 30 * (2 + 7 + 9) + 10 * (2 + 7 + 6) + 3
    assert sources["model.language_model.layers.0.mlp.experts.gate_up_proj"].source_shape == (256, 1024, 2048)
    assert sources["model.language_model.layers.39.mlp.experts.down_proj"].source_shape == (256, 2048, 512)
    count = sum(rule.shape[0] * (rule.shape[1] if len(rule.shape) > 1 else 1) for rule in rules)
    assert 34e9 < count < 36e9
