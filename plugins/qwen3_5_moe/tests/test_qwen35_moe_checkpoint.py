"""Random checkpoints on disk: written, rewritten per expert, served, and read by transformers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from qwen35_moe_oracle import oracle_logits, stored_as
from safetensors.torch import load_file

from vtcore import LLM, SamplingParams
from vtcore.checkpoint.writer import write_shards
from vtcore.cli.make_checkpoint import make_checkpoint

PROMPTS = ["The quick brown fox", "Once upon a time", "a"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("moe") / "tiny"
    make_checkpoint("qwen3_5_moe", "tiny", out)
    return out


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    return {
        name: t for file in sorted(directory.glob("*.safetensors")) for name, t in load_file(file).items()
    }


def generate(directory: Path, **options: Any) -> list[tuple[int, ...]]:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    with LLM(str(directory), dtype="float64", max_model_len=128, **options) as llm:
        return [tuple(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, params)]


def test_both_layouts_and_dummy_weights_of_one_seed_give_the_same_tokens(
    directory: Path, tmp_path: Path
) -> None:
    tokens = generate(directory)
    assert all(len(row) == 12 for row in tokens)
    split = tmp_path / "per-expert"
    shutil.copytree(directory, split, ignore=shutil.ignore_patterns("*.safetensors*"))
    write_shards(split, stored_as("per expert", tensors_of(directory)).items(), 3)
    assert generate(split) == tokens
    bare = tmp_path / "bare"
    shutil.copytree(directory, bare, ignore=shutil.ignore_patterns("*.safetensors*"))
    assert generate(bare, load_format="dummy", seed=0) == tokens


def test_transformers_reads_the_checkpoint_and_chooses_the_same_tokens(directory: Path) -> None:
    from transformers import Qwen3_5MoeForCausalLM

    model = Qwen3_5MoeForCausalLM.from_pretrained(
        directory, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )
    # Older releases keep the rotary frequencies in float32.
    model = model.double().eval()
    with LLM(str(directory), dtype="float64", max_model_len=128) as llm:
        tokenizer = llm.get_tokenizer()
        prompts = [list(tokenizer.encode(prompt)) for prompt in PROMPTS]
    for prompt, tokens in zip(prompts, generate(directory), strict=True):
        logits = oracle_logits(model, [*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        assert logits.argmax(-1).tolist() == list(tokens)
