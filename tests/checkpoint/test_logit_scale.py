"""Random checkpoints give logits of a real model's spread, so that sampling on them means something."""

from __future__ import annotations

import statistics
from pathlib import Path

from vtcore import LLM, SamplingParams
from vtcore.cli.make_checkpoint import make_checkpoint


def test_the_logits_of_a_tiny_checkpoint_have_a_standard_deviation_of_about_6(tmp_path: Path) -> None:
    make_checkpoint("qwen3_5_dense", "tiny", tmp_path / "tiny")
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=-1)
    with LLM(str(tmp_path / "tiny"), dtype="float32", max_model_len=128) as llm:
        prompt = {"prompt_token_ids": list(range(5, 45))}
        [output] = llm.generate([prompt], params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    # Log probabilities are logits less a number per position, which leaves their spread alone.
    spreads = [
        statistics.pstdev(entry.logprob for entry in position.values())
        for position in output.prompt_logprobs[1:]
        if position is not None
    ]
    assert len(spreads) == 39
    assert 5.0 < statistics.mean(spreads) < 7.0
