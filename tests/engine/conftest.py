"""A tiny real checkpoint with an `LLM` over it, and the two short ways in which tests ask it for text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vtcore import LLM, SamplingParams
from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.outputs import CompletionOutput
from vtcore.testing.invariants import check_idle

Complete = Callable[..., CompletionOutput]


@pytest.fixture(scope="module")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "checkpoint"
    make_checkpoint("qwen3_5_dense", "tiny", directory)
    return directory


@pytest.fixture(scope="module")
def engine_options() -> dict[str, Any]:
    """Small enough that requests queue, share steps and preempt each other."""
    return {"dtype": "float64", "block_size": 4, "num_blocks": 20, "max_model_len": 64, "max_num_seqs": 4}


@pytest.fixture(scope="module")
def open_llm(tiny_checkpoint: Path, engine_options: dict[str, Any]) -> Iterator[LLM]:
    with LLM(str(tiny_checkpoint), **engine_options) as llm:
        yield llm


@pytest.fixture
def llm(open_llm: LLM) -> Iterator[LLM]:
    """Shared by a module's tests; none may leave anything running."""
    yield open_llm
    open_llm.engine.step()
    check_idle(open_llm.engine.loaded.core)


@pytest.fixture
def complete(llm: LLM) -> Complete:
    """The one sample of one prompt, greedy and without end unless said otherwise."""

    def run(prompt: Any = "The quick brown fox", **params: Any) -> CompletionOutput:
        sampling = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": 20, **params})
        [output] = llm.generate(prompt, sampling, use_tqdm=False)
        assert output.finished
        [sample] = output.outputs
        return sample

    return run
