"""A user's own implementation of an op, through the whole engine."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import vtcore.loader
from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.errors import ConfigError
from vtcore.llm import LLM
from vtcore.request import SamplingParams, TokensPrompt

COUNTED = """
from vtcore.ops.silu_mul.naive import silu_mul

calls = []


def counted(*args, **kwargs):
    calls.append(args[0].shape)
    return silu_mul(*args, **kwargs)


def doubled(*args, **kwargs):
    return 2 * silu_mul(*args, **kwargs)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("overrides") / "tiny"
    make_checkpoint("qwen3_5_dense", "tiny", out)
    return out


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module that can be imported, a new one for each test."""
    name = f"own_ops_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(COUNTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def logprobs(model: Path, op_overrides: dict[str, str] | None) -> list[dict[int, float]]:
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=3)
    with LLM(model, num_blocks=16, dtype="float64", op_overrides=op_overrides) as llm:
        [output] = llm.generate([TokensPrompt(prompt_token_ids=(1, 2, 3, 4, 5))], params)
    found = output.outputs[0].logprobs
    assert found is not None
    return [{token: entry.logprob for token, entry in position.items()} for position in found]


def test_a_function_of_the_user_serves_an_op(model: Path, module: str) -> None:
    own = logprobs(model, None)
    assert logprobs(model, {"silu_mul": f"{module}:counted"}) == own
    calls = import_module(module).calls
    # Each step, each layer.
    assert len(calls) >= 4
    assert len(calls) % 4 == 0
    assert logprobs(model, {"silu_mul": f"{module}:doubled"}) != own


def test_a_name_of_an_implementation_is_that_implementation(model: Path) -> None:
    assert logprobs(model, {"silu_mul": "naive"}) == logprobs(model, None)


@pytest.mark.parametrize(
    ("op", "choice", "sentence"),
    [
        ("silu_mull", "naive", r"\$\.op_overrides\.silu_mull: no such op; did you mean 'silu_mul'\?"),
        ("silu_mul", "fast", r"\$\.op_overrides\.silu_mul: no implementation 'fast' serves it; choose naive"),
        ("silu_mul", "cuda", r"'cuda' serves it on cpu; choose naive, or give module:function"),
        ("silu_mul", "no_such_module:f", r"'no_such_module:f' cannot be imported \(ModuleNotFoundError"),
        ("silu_mul", "math:pi", r"'math:pi' is not a function; give the module:function of an op"),
    ],
)
def test_a_wrong_override_stops_the_start_before_a_weight_is_read(
    model: Path, op: str, choice: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(vtcore.loader, "load_parameters", refuse)
    with pytest.raises(ConfigError, match=sentence):
        LLM(model, num_blocks=16, op_overrides={op: choice})
