"""`LLM` with a model's sampling defaults, a config file, and requests that fill the context."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs.exceptions import FrozenInstanceError

from vtcore import LLM, SamplingParams
from vtcore.errors import CheckpointError, ConfigError, RequestError
from vtcore.outputs import CompletionOutput

Complete = Callable[..., CompletionOutput]

PROMPT = "The quick brown fox"
OPTIONS: dict[str, Any] = {"dtype": "float64", "num_blocks": 20, "block_size": 4, "max_model_len": 48}


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy whose generation_config.json a test may change."""
    copy = tmp_path / "checkpoint"
    copy.mkdir()
    for file in tiny_checkpoint.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def set_defaults(checkpoint: Path, **values: Any) -> None:
    file = checkpoint / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def ids(llm: LLM, params: SamplingParams | None) -> tuple[int, ...]:
    [output] = llm.generate(PROMPT, params, use_tqdm=False)
    return output.outputs[0].token_ids


def test_the_checkpoints_defaults_hold_for_a_prompt_without_parameters_only(checkpoint: Path) -> None:
    set_defaults(checkpoint, temperature=0.3, top_k=2, max_new_tokens=9)
    with LLM(checkpoint, **OPTIONS) as llm:
        defaults = llm.get_default_sampling_params()
        assert defaults == SamplingParams(temperature=0.3, top_k=2, top_p=0.95, max_tokens=9)
        [bare] = llm.generate(PROMPT, None, use_tqdm=False)
        group = llm.engine.add_request(PROMPT, SamplingParams())
        assert llm.engine._groups[group].params == SamplingParams()
        llm.engine.abort(group)
        llm.engine.step()
    with LLM(checkpoint, **OPTIONS) as llm:
        assert ids(llm, defaults) == bare.outputs[0].token_ids


def test_do_sample_false_is_greedy(checkpoint: Path) -> None:
    set_defaults(checkpoint, do_sample=False)
    with LLM(checkpoint, **OPTIONS) as llm:
        assert llm.get_default_sampling_params().temperature == 0.0
        assert ids(llm, None) == ids(llm, SamplingParams(temperature=0.0))


def test_options_replace_or_override_the_checkpoints_defaults(checkpoint: Path, tmp_path: Path) -> None:
    set_defaults(checkpoint, temperature=0.3)
    other = tmp_path / "other"
    other.mkdir()
    (other / "generation_config.json").write_text('{"top_k": 7, "eos_token_id": 1}')
    for options, expected in (
        ({"generation_config": "neutral"}, SamplingParams()),
        ({"generation_config": str(other)}, SamplingParams(top_k=7)),
        (
            {"override_generation_config": {"temperature": 0.8, "presence_penalty": 1.5}},
            SamplingParams(temperature=0.8, top_k=20, top_p=0.95, presence_penalty=1.5),
        ),
    ):
        with LLM(checkpoint, **OPTIONS, **options) as llm:
            assert llm.get_default_sampling_params() == expected
            assert 1 not in llm.engine.eos_token_ids
            assert len(llm.engine.eos_token_ids) == 2


def test_illegal_defaults_stop_the_start(checkpoint: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"\$\.override_generation_config\.temprature: not a sampling parameter"
    ):
        LLM(checkpoint, **OPTIONS, override_generation_config={"temprature": 1})
    set_defaults(checkpoint, top_p=7)
    with pytest.raises(CheckpointError, match=r"checkpoint/generation_config\.json: top_p: 7 is above 1; "):
        LLM(checkpoint, **OPTIONS)
    with LLM(checkpoint, **OPTIONS, generation_config="neutral") as llm:
        assert llm.get_default_sampling_params() == SamplingParams()


def test_options_come_from_a_file_and_keywords_win(tiny_checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "engine.toml"
    file.write_text(
        'dtype = "float64"\nmax_model_len = 40\nnum_blocks = 20\n[override_generation_config]\ntop_k = 3\n'
    )
    with LLM(tiny_checkpoint, config=file, max_model_len=44) as llm:
        assert llm.get_default_sampling_params().top_k == 3
        assert (llm.config.model.dtype, llm.config.model.max_model_len) == ("float64", 44)
        assert llm.config.origins["model.dtype"].source == "config file"
        assert llm.config.origins["model.max_model_len"].source == "keyword"
        with pytest.raises(FrozenInstanceError):
            llm.config.model.dtype = "float32"  # type: ignore[misc]


def test_the_tokenizer_may_stand_elsewhere(checkpoint: Path, tiny_checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        LLM(checkpoint, **OPTIONS)
    greedy = SamplingParams(temperature=0.0, max_tokens=4)
    with (
        LLM(checkpoint, **OPTIONS, tokenizer=str(tiny_checkpoint)) as llm,
        LLM(tiny_checkpoint, **OPTIONS) as usual,
    ):
        assert ids(llm, greedy) == ids(usual, greedy)


def test_an_unknown_option_is_refused_by_name(tiny_checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"\$\.max_model_length: .*max_model_len"):
        LLM(tiny_checkpoint, max_model_length=5)


def test_without_max_tokens_a_request_fills_the_context(llm: LLM, complete: Complete) -> None:
    [output] = llm.generate(
        PROMPT, SamplingParams(max_tokens=None, ignore_eos=True, temperature=0.0), use_tqdm=False
    )
    [sample] = output.outputs
    assert len(output.prompt_token_ids) + len(sample.token_ids) == llm.engine.max_model_len == 64
    assert sample.finish_reason == "length"
    assert complete(max_tokens=10).token_ids == sample.token_ids[:10]


def test_min_tokens_must_fit_what_the_prompt_leaves(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"min_tokens=60 is above the \d+ tokens that a prompt of"):
        llm.generate(PROMPT, SamplingParams(max_tokens=None, min_tokens=60), use_tqdm=False)


def test_ids_of_numpy_are_a_prompt_like_any_other(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4)
    prompts: list[Any] = [[5, 6, 7], (5, 6, 7), range(5, 8), np.arange(5, 8), np.array([5, 6, 7], np.uint16)]
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    assert {output.prompt_token_ids for output in outputs} == {(5, 6, 7)}
    assert len({output.outputs for output in outputs}) == 1
