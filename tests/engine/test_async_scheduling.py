"""The option `async_scheduling` on a CPU: two steps in flight, the same output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vtcore.llm import LLM
from vtcore.request import SamplingParams, TokensPrompt

PROMPTS = [TokensPrompt(prompt_token_ids=tuple(range(2, 2 + length))) for length in (1, 5, 9, 30)]


def outputs(model: Path, depth: int, async_scheduling: bool | None) -> list[tuple[int, ...]]:
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=12)
    options: dict[str, Any] = {"dtype": "float64", "block_size": 4, "num_blocks": 24, "max_num_seqs": 3}
    with LLM(model, async_scheduling=async_scheduling, **options) as llm:
        core = llm.engine.loaded.core
        assert core.depth == depth
        assert llm.config.scheduler.async_scheduling is (depth == 2)
        found = [tuple(one.outputs[0].token_ids) for one in llm.generate(PROMPTS, params)]
        assert llm.engine.loaded.plan.weight_bytes == llm.engine.loaded.parameters.num_bytes > 0
    return found


def test_it_changes_the_depth_and_no_token(tiny_checkpoint: Path) -> None:
    alone = outputs(tiny_checkpoint, 1, None)
    assert outputs(tiny_checkpoint, 1, False) == alone
    assert outputs(tiny_checkpoint, 2, True) == alone


@pytest.mark.parametrize(
    ("variable", "text", "option", "depth"),
    [
        ("VT_ASYNC_SCHED", "1", None, 2),
        ("VT_ASYNC_SCHED", "0", True, 1),
        ("VT_ASYNC_RUNNER", "0", True, 1),
        ("VT_ASYNC_RUNNER", "1", None, 1),
    ],
)
def test_the_environment_has_its_say(
    tiny_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    text: str,
    option: bool | None,
    depth: int,
) -> None:
    monkeypatch.setenv(variable, text)
    assert len(outputs(tiny_checkpoint, depth, option)) == len(PROMPTS)
