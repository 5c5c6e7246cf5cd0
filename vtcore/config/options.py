"""What a user may ask for; every field is None until asked, which means "decide for me".

Does not: decide anything; `resolve.py` turns these into an `EngineConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, fields, frozen

from vtcore.suggest import did_you_mean

DTYPES: tuple[str, ...] = ("auto", "float64", "float32", "bfloat16")
"""Values of the option `dtype`."""

DEVICES: tuple[str, ...] = ("auto", "cpu")
"""Values of the option `device`."""

MAX_SEED = 2**63 - 1
"""Seeds are stored as int64. Source: `RowParams.seed`."""


def _option(
    about: str, at_least: int | None = None, at_most: int | None = None, choices: tuple[str, ...] = ()
) -> Any:
    limits = {"at_least": at_least, "at_most": at_most, "choices": choices}
    return field(default=None, metadata={"about": about, **limits})


@frozen(kw_only=True)
class UserOptions:
    """A user's options, under vLLM's names where the meaning is the same. `about` of each field says more."""

    model: str | None = _option("checkpoint directory")
    dtype: str | None = _option("of weights and activations; auto: the checkpoint's", choices=DTYPES)
    device: str | None = _option("where the model computes; auto: cpu", choices=DEVICES)
    block_size: int | None = _option("tokens per KV block; default 32", at_least=1)
    num_blocks: int | None = _option("KV blocks per pool of blocks; default 256", at_least=1)
    max_model_len: int | None = _option(
        "tokens per request, prompt and output; default: what the checkpoint allows and the cache holds",
        at_least=1,
    )
    max_num_seqs: int | None = _option("requests that run at once; default 8", at_least=1)
    max_num_batched_tokens: int | None = _option(
        "token budget of a step, at least max_num_seqs; default: the arch's", at_least=1
    )
    enable_prefix_caching: bool | None = _option(
        "reuse KV blocks of equal prefixes; default: on, off for archs with recurrent state"
    )
    scheduling_policy: str | None = _option("name of an installed scheduler policy; default fcfs")
    seed: int | None = _option("of requests that bring none; default 0", at_least=0, at_most=MAX_SEED)
    skip_tokenizer_init: bool | None = _option("serve token ids only; default: off")
    plugin_files: tuple[str, ...] | None = _option("single-file plugins to load")
    plugin_owners: Mapping[str, str] | None = _option(
        'which distribution serves a contested name: {"arch:NAME": "DISTRIBUTION"}'
    )


def option_problems(options: UserOptions) -> list[str]:
    """Check each value by itself.

    Returns:
        One sentence per problem, with path, value, limit and remedy.
    """
    problems = []
    for option in fields(UserOptions):
        value = getattr(options, option.name)
        low, high, choices = (option.metadata[key] for key in ("at_least", "at_most", "choices"))
        path = f"$.{option.name}"
        if value is None:
            continue
        if low is not None and value < low:
            problems.append(f"{path}: {value} is below {low}; raise it, or leave it out for the default")
        elif high is not None and value > high:
            problems.append(f"{path}: {value} is above {high}; lower it")
        elif choices and value not in choices:
            note = " (this version computes on the cpu)" if choices is DEVICES else ""
            problems.append(f"{path}: {value!r} is not served{note}{did_you_mean(value, choices)}")
        elif value == "":
            problems.append(f"{path}: the text is empty; leave the option out instead")
    return problems
