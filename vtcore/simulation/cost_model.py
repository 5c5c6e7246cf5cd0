"""How long a step takes, as a sum over what it computes.

Does not: run or measure anything; `measure.py` fits these numbers to real steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, fields, frozen

from vtcore.config.structure import structure
from vtcore.errors import ConfigError
from vtcore.simulation.whole_file import write_whole


@frozen
class StepWork:
    """What one step computes.

    Args:
        prefill_tokens: Query tokens of rows whose ids come from the host.
        decode_rows: Rows that go on from their own last token, one query token each.
        context_tokens: Over all rows, the positions before the end of its query: each row's cache is read
            once in a step.
    """

    prefill_tokens: int
    decode_rows: int
    context_tokens: int

    def terms(self) -> tuple[float, float, float, float]:
        """What the four numbers of a `CostModel` multiply, in its order."""
        return (1.0, float(self.prefill_tokens), float(self.decode_rows), float(self.context_tokens))


@frozen(kw_only=True)
class CostModel:
    """Seconds of a step: fixed_s + per_prefill_token_s * prefill tokens + per_decode_row_s * decode rows +
    per_context_token_s * context tokens, the terms being those of `StepWork`.

    The defaults are an assumption, no measurement: a dense decoder of 8.03e9 parameters in bfloat16 (32
    layers, 8 KV heads of 128) on a GPU with 3.35e12 bytes/s and 989e12 FLOP/s, which reads its weights once a
    step, prefills at half of the peak and decodes at the peak, and reads each cached token once.
    Source: Llama 3.1 8B's config.json; NVIDIA H100 SXM data sheet.

    Args:
        fixed_s: Of every step; 16.06e9 bytes of weights.
        per_prefill_token_s: 2 * 8.03e9 FLOP at half of the peak.
        per_decode_row_s: 2 * 8.03e9 FLOP at the peak.
        per_context_token_s: 131,072 bytes of keys and values.
        host_s: Of the host before each launch; at depth 2 it hides behind the step that runs.
        source: Where the numbers come from, for the report.
    """

    fixed_s: float = 4.8e-3
    per_prefill_token_s: float = 3.2e-5
    per_decode_row_s: float = 1.6e-5
    per_context_token_s: float = 3.9e-8
    host_s: float = 0.0
    source: str = "assumed: an 8B decoder in bfloat16 on one H100, see docs/howto/simulate.md"

    def terms(self) -> tuple[float, float, float, float]:
        """What multiplies `StepWork.terms`."""
        return (self.fixed_s, self.per_prefill_token_s, self.per_decode_row_s, self.per_context_token_s)

    def step_s(self, work: StepWork) -> float:
        """Seconds of the device for one step."""
        return sum(seconds * amount for seconds, amount in zip(self.terms(), work.terms(), strict=True))


def cost_model_from(data: Mapping[str, Any], source: str) -> CostModel:
    """Make a cost model; what `data` leaves out is the default.

    Args:
        data: Field of `CostModel` -> value, seconds as numbers.
        source: Where `data` was given, if it does not say.

    Raises:
        ConfigError: An unknown key or a value that is no number >= 0, each with its path.
    """
    named = (*data, "source", "host_s")
    missing = [f"{one.name} assumed" for one in fields(CostModel) if one.name not in named]
    if data and missing:
        source += f" ({', '.join(missing)})"
    try:
        model = structure({"source": source, **data} if data else {}, CostModel)
    except ConfigError as error:
        raise ConfigError(*(problem.replace("$", "$.cost", 1) for problem in error.problems)) from error
    problems = [
        f"$.cost.{one.name}: {value} is below 0; give seconds, 0 for what costs nothing"
        for one in fields(CostModel)
        if one.name != "source" and (value := getattr(model, one.name)) < 0
    ]
    if problems:
        raise ConfigError(*problems)
    return model


def read_cost_model(path: str) -> dict[str, Any]:
    """Read the JSON file that `write_cost_model` wrote, or one like it.

    Raises:
        ConfigError: It cannot be read or is no JSON object.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"$.cost_file: {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"$.cost_file: {path} is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f'$.cost_file: {path} is no JSON object; write {{"fixed_s": 0.005}}')
    return data


def write_cost_model(model: CostModel, path: str) -> None:
    """Write it as a JSON file for `--cost-file`."""
    write_whole(path, [json.dumps(asdict(model), indent=2).encode() + b"\n"])
