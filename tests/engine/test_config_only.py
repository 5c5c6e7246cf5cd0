"""An engine starts from a config.json alone: dummy weights, no tokenizer, prompts and outputs as ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from vtcore import LLM, SamplingParams
from vtcore.cli.make_checkpoint import make_config
from vtcore.errors import RequestError, VtcoreError
from vtcore.request import TokensPrompt

PROMPT: TokensPrompt = {"prompt_token_ids": [5, 6, 7, 8]}
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(params=["qwen3_5_dense", "qwen3_5_moe"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    make_config(request.param, "tiny", tmp_path / "model")
    assert [file.name for file in (tmp_path / "model").iterdir()] == ["config.json"]
    return tmp_path / "model"


def outputs(model: Path, seed: int) -> tuple[int, ...]:
    with LLM(
        str(model), load_format="dummy", skip_tokenizer_init=True, device="cpu", seed=seed, max_num_seqs=2
    ) as llm:
        assert llm.get_tokenizer() is None
        [output] = llm.generate(PROMPT, GREEDY, use_tqdm=False)
        assert output.outputs[0].text == ""
        with pytest.raises(RequestError, match="no tokenizer"):
            llm.generate("text", GREEDY, use_tqdm=False)
        return tuple(output.outputs[0].token_ids)


def test_a_config_alone_is_served_and_the_seed_draws_the_weights(model: Path) -> None:
    first = outputs(model, 1)
    assert len(first) == 6
    assert outputs(model, 1) == first
    assert outputs(model, 2) != first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"skip_tokenizer_init": True}, r"safetensors"),
        ({"load_format": "dummy"}, r"tokenizer"),
    ],
)
def test_what_else_is_needed_is_named(tmp_path: Path, options: dict[str, object], message: str) -> None:
    make_config("qwen3_5_dense", "tiny", tmp_path / "model")
    with pytest.raises(VtcoreError, match=message):
        LLM(str(tmp_path / "model"), device="cpu", **options)  # type: ignore[arg-type]
