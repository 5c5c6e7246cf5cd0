"""Parameter rules find every tensor under every prefix and put each row where the model reads it."""

from __future__ import annotations

import pytest
import torch
from qwen35_oracle import build_oracle, oracle_logits, tiny_text_config
from vtcore_qwen3_5_dense.arch import Qwen35DenseArch
from vtcore_qwen3_5_dense.weights import PREFIXES

from vtcore.checkpoint.format import InMemoryFormat
from vtcore.checkpoint.parameters import load_parameters
from vtcore.interfaces.kv_cache_spec import Slot, Whole
from vtcore.interfaces.model_arch import CacheContext
from vtcore.testing.model_harness import Harness, build_model


def renamed(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {
        name.replace("model.", prefix, 1) if name.startswith("model.") else name: t
        for name, t in tensors.items()
    }


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("tied", [False, True])
def test_every_prefix_gives_the_same_logits(prefix: str, tied: bool) -> None:
    config = tiny_text_config(tie_word_embeddings=tied)
    oracle = build_oracle(config)
    tensors = dict(oracle.state_dict())
    if tied:
        del tensors["lm_head.weight"]
    arch = Qwen35DenseArch({"text_config": config})
    tensors = renamed(tensors, prefix)
    harness = Harness(arch, build_model(arch, tensors, torch.float64), torch.float64)
    used = {part.source for rule in arch.param_rules(tensors.keys()) for part in rule.parts}
    assert used == tensors.keys()
    ids = list(range(9))
    wanted = oracle_logits(oracle, ids)
    assert (harness.run_sequence(ids, [5]) - wanted).abs().max() < 1e-8 * wanted.abs().max()


def test_without_names_the_rules_are_those_of_the_released_form() -> None:
    arch = Qwen35DenseArch(tiny_text_config())
    sources = {part.source for rule in arch.param_rules(()) for part in rule.parts}
    assert "model.language_model.layers.0.linear_attn.A_log" in sources
    assert "model.language_model.layers.3.self_attn.q_proj.weight" in sources
    assert "lm_head.weight" in sources


def test_a_released_text_model_has_851_tensors() -> None:
    arch = Qwen35DenseArch({"num_hidden_layers": 64, "tie_word_embeddings": False})
    sources = {part.source for rule in arch.param_rules(()) for part in rule.parts}
    assert len(sources) == 851


def test_where_the_config_is_silent_the_names_tell_whether_the_head_is_tied() -> None:
    config = tiny_text_config()
    del config["tie_word_embeddings"]
    arch = Qwen35DenseArch(config)
    names = ["model.embed_tokens.weight"]
    assert "lm_head" not in {rule.name for rule in arch.param_rules(names)}
    assert "lm_head" in {rule.name for rule in arch.param_rules([*names, "lm_head.weight"])}


def test_vision_mtp_and_stored_frequencies_are_skipped_and_nothing_else() -> None:
    arch = Qwen35DenseArch(tiny_text_config())
    for name in (
        "model.visual.blocks.0.attn.qkv.weight",
        "visual.patch_embed.proj.weight",
        "mtp.fc.weight",
        "model.mtp.norm.weight",
        "model.language_model.mtp.layers.0.mlp.up_proj.weight",
        "language_model.mtp.fc.weight",
        "model.rotary_emb.inv_freq",
    ):
        assert arch.is_skipped(name), name
    for name in (
        "lm_head.weight",
        "model.layers.9.mlp.up_proj.weight",
        "model.visuals.weight",
        "mtpx.fc.weight",
    ):
        assert not arch.is_skipped(name), name


def test_a_stored_copy_of_a_tied_head_is_skipped() -> None:
    assert Qwen35DenseArch(tiny_text_config(tie_word_embeddings=True)).is_skipped("lm_head.weight")


def test_each_part_of_a_fused_projection_holds_its_own_rows() -> None:
    config = tiny_text_config()
    tensors = build_oracle(config).state_dict()
    arch = Qwen35DenseArch(config)
    rules = {rule.name: rule for rule in arch.param_rules(tensors.keys())}
    loaded = load_parameters(arch, InMemoryFormat(tensors), torch.float64, "cpu").tensors
    gate = tensors["model.layers.3.self_attn.q_proj.weight"].view(6, 2, 16, 40)[:, 1].reshape(96, 40)
    assert torch.equal(loaded["layers.3.attn.in_proj"][-96:], gate)
    assert [p.component for p in rules["layers.0.gdn.in_proj"].parts] == ["q", "k", "v", "z", "b", "a"]
    a_rows = loaded["layers.0.gdn.in_proj"][-6:]
    assert torch.equal(a_rows, tensors["model.layers.0.linear_attn.in_proj_a.weight"])


def test_cache_specs_name_each_layer_once_and_state_its_shapes() -> None:
    arch = Qwen35DenseArch(tiny_text_config(num_hidden_layers=8))
    paged, state = arch.cache_specs(CacheContext(block_size=32, dtype="bfloat16"))
    assert paged.layers == ("layers.3", "layers.7")
    assert set(paged.layers) | set(state.layers) == {f"layers.{i}" for i in range(8)}
    assert isinstance(paged.lifetime, Whole)
    assert isinstance(state.lifetime, Slot)
    assert paged.rollback == {"overwrite"}
    assert state.rollback == {"slots"}
    assert paged.tensors(0)["k"].shape == (32, 3, 16)
    assert paged.max_units(33, 1, 0) == 2
    assert paged.max_units(33, 1, 32) == 3
    tensors = state.tensors(3)
    assert (tensors["conv"].shape, tensors["conv"].dtype) == ((3, 104), "bfloat16")
    assert (tensors["state"].shape, tensors["state"].dtype) == ((6, 8, 12), "float32")
    assert tensors["conv"].zeroed
    assert tensors["state"].zeroed
    assert state.max_units(1000, 64, 3) == 1


def test_aux_layers_outside_the_model_are_refused() -> None:
    arch = Qwen35DenseArch(tiny_text_config())
    arch.validate_layers([-1, 3])
    with pytest.raises(ValueError, match="aux layer 4"):
        arch.validate_layers([4])


def test_random_init_gives_decays_and_norms_their_own_distributions() -> None:
    arch = Qwen35DenseArch(tiny_text_config())
    kinds = {rule.name: arch.random_init(rule) for rule in arch.param_rules(())}
    assert kinds["layers.0.gdn.A_log"]["kind"] == "log_uniform"
    assert kinds["layers.0.gdn.dt_bias"]["kind"] == "ones"
    assert kinds["layers.0.gdn.norm"]["kind"] == "ones"
    assert kinds["layers.0.input_norm"]["kind"] == "zeros"
    assert kinds["lm_head"]["std"] == pytest.approx(6 / 40**0.5)
