"""What a user may ask for; every field is None until asked, which means "decide for me".

Does not: decide anything; `resolve.py` turns these into an `EngineConfig`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from attrs import field, fields, frozen

from vtcore.config.shown import shown
from vtcore.suggest import did_you_mean

DTYPES: tuple[str, ...] = ("auto", "float64", "float32", "bfloat16")
"""Values of the option `dtype`."""

DEVICES: tuple[str, ...] = ("auto", "cpu", "cuda")
"""Values of the option `device`; a GPU may be numbered, `cuda:1`."""

LOAD_FORMATS: tuple[str, ...] = ("auto", "dummy")
"""Values of the option `load_format`."""

_HALF = "this version does not compute in float16; use bfloat16 or float32"
_QUANTISED = "nothing is computed in 8 bits or less; use bfloat16 or float32"
UNSERVED_DTYPES: Mapping[str, str] = {
    **dict.fromkeys(("float16", "fp16", "half"), _HALF),
    **dict.fromkeys(
        ("fp8", "float8", "float8_e4m3fn", "float8_e5m2", "fp4", "nvfp4", "mxfp4", "int8", "int4"), _QUANTISED
    ),
}
"""Dtypes that engines have and this one has not -> why, and what to do."""

UNSERVED_DEVICES: Mapping[str, str] = {
    "gpu": "an NVIDIA GPU is called cuda; give cuda, or leave it out",
    **dict.fromkeys(
        ("rocm", "hip", "xpu", "hpu", "npu", "mps", "tpu"),
        "this version computes on the cpu and on NVIDIA GPUs; leave it out, or give cpu or cuda",
    ),
}
"""Devices that engines have and this one has not -> why, and what to do; `xpu:0` is looked up as `xpu`."""

_NUMBERED = re.compile(r"(\w+):[0-9]{1,4}", re.ASCII)

UNSERVED_LOAD_FORMATS: Mapping[str, str] = {
    **dict.fromkeys(
        ("pt", "npcache"), "pickled weights are never read; leave it out and convert them to safetensors"
    ),
    **dict.fromkeys(
        ("gguf", "bitsandbytes", "tensorizer", "runai_streamer", "runai_streamer_sharded",
         "sharded_state", "mistral", "fastsafetensors", "instanttensor", "modelexpress"),
        "weights are read from mapped safetensors files; leave it out",
    ),
}  # fmt: skip
"""vLLM's other load formats -> why, and what to do. Source: vLLM, LoadFormats."""

REFERENCE = "docs/configuration.md"
"""Where every option and variable stands."""

MAX_SEED = 2**63 - 1
"""Seeds are stored as int64. Source: `RowParams.seed`."""


def _option(
    about: str,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
    unserved: Mapping[str, str] | None = None,
    numbered: tuple[str, ...] = (),
) -> Any:
    limits: dict[str, Any] = {"at_least": at_least, "at_most": at_most, "choices": choices, "words": words}
    limits |= {"unserved": unserved or {}, "numbered": numbered}
    return field(default=None, metadata={"about": about, **limits})


@frozen(kw_only=True)
class UserOptions:
    """A user's options, under vLLM's names where the meaning is the same. `about` of each field says more.

    Metadata of a field: `about`, one line for `--help` and the reference; `at_least`, `at_most`, limits of a
    number or of the length of a list; `choices`, all values of a text; `words`, texts that a number's option
    takes beside numbers; `unserved`, known values that are no choice -> a sentence why not, and what to do;
    `numbered`, choices that ":" and a number may follow.
    """

    model: str | None = _option("checkpoint directory, checkpoint source or Hub id")
    revision: str | None = _option("branch, tag or commit of a Hub model; default main")
    download_dir: str | None = _option(
        "where Hub models are kept (a local MODEL stays where it is); default: huggingface_hub's cache"
    )
    load_format: str | None = _option(
        "auto: the checkpoint's weights; dummy: random ones, needs only config.json",
        choices=LOAD_FORMATS,
        unserved=UNSERVED_LOAD_FORMATS,
    )
    tokenizer: str | None = _option("directory with another tokenizer.json; default: the model's")
    skip_tokenizer_init: bool | None = _option("serve token ids only; default: off")
    served_model_name: tuple[str, ...] | None = _option(
        "name in metrics; default: MODEL as given", at_least=1
    )
    chat_template: str | None = _option("file with a Jinja chat template; default: the checkpoint's")
    default_chat_template_kwargs: Mapping[str, Any] | None = _option(
        'variables for the chat template: {"enable_thinking": false}; a request\'s own win'
    )
    generation_config: str | None = _option(
        "sampling defaults: auto, the checkpoint's; neutral, none; or a directory with generation_config.json"
    )
    override_generation_config: Mapping[str, Any] | None = _option(
        'sampling defaults that win over generation_config: {"temperature": 0.7}'
    )
    dtype: str | None = _option(
        "of weights and activations; auto: the checkpoint's", choices=DTYPES, unserved=UNSERVED_DTYPES
    )
    device: str | None = _option(
        "where the model computes; auto: cuda, the first usable GPU, else cpu; cuda:N is GPU number N",
        choices=DEVICES,
        unserved=UNSERVED_DEVICES,
        numbered=("cuda",),
    )
    seed: int | None = _option(
        "of requests that bring none, and of dummy weights; default 0", at_least=0, at_most=MAX_SEED
    )
    max_model_len: int | str | None = _option(
        "tokens per request, prompt and output, one of each at least; auto, the default: what checkpoint and "
        "cache allow",
        at_least=2,
        words=("auto",),
    )
    enforce_eager: bool | None = _option(
        "run without captured graphs; default: off on cuda, on on the cpu, which captures none"
    )
    async_scheduling: bool | None = _option(
        "schedule a step while the last one runs; default: on on cuda, off on the cpu"
    )
    enable_jump_forward: bool | None = _option(
        "emit tokens that a grammar forces without a forward; default: off"
    )
    batch_invariant: bool | None = _option(
        "on cuda: a request's output has the same bits whatever it is batched with; slower; default: off"
    )
    op_overrides: Mapping[str, str] | None = _option(
        'which implementation serves an op: {"rms_norm": "naive"}, a device type, or module:function'
    )
    block_size: int | None = _option("tokens per KV block; default 32", at_least=1)
    num_blocks: int | None = _option(
        "KV blocks per pool of blocks; default 256 on the cpu, what memory holds on cuda", at_least=1
    )
    kv_cache_memory_bytes: int | None = _option("bytes for KV caches, instead of num_blocks", at_least=1)
    gpu_memory_utilization: float | None = _option(
        "share of a GPU's memory to use, weights and graphs included; default 0.92",
        at_least=0.01,
        at_most=1.0,
    )
    enable_prefix_caching: bool | None = _option(
        "reuse KV blocks of equal prefixes; default: on, off for archs with recurrent state"
    )
    prefix_caching_hash_seed: str | None = _option(
        "text that seeds the block hashes, so that processes agree; random: drawn at the start"
    )
    num_state_checkpoints: int | None = _option(
        "recurrent states kept for prefix hits; default: 4 for each of max_num_seqs, 64 at most on cuda, if "
        "prefix caching is on",
        at_least=0,
    )
    state_checkpoint_interval: int | None = _option(
        "tokens between state checkpoints inside a long prompt, rounded up to the grid that `vtcore check` "
        "shows; default 2048",
        at_least=1,
    )
    max_num_seqs: int | None = _option(
        "requests that run at once; default 8 on the cpu, 256 on cuda", at_least=1
    )
    max_num_batched_tokens: int | None = _option(
        "token budget of a step, raised to max_num_seqs if below; default: the arch's, 8192 at least on cuda",
        at_least=1,
    )
    scheduling_policy: str | None = _option("name of an installed scheduler policy; default fcfs")
    policy_config: Mapping[str, Any] | None = _option(
        'the scheduler policy\'s own settings: {"weights": {"team-a": 2}}'
    )
    policy_time_limit_ms: float | None = _option(
        "longest a scheduler policy may take to order a step; default 5", at_least=0.001
    )
    starvation_s: float | None = _option(
        "seconds after which a waiting request goes first, whatever the policy says; default 30",
        at_least=0.001,
    )
    plugin_files: tuple[str, ...] | None = _option("single-file plugins to load")
    plugin_owners: Mapping[str, str] | None = _option(
        'which distribution serves a contested name: {"arch:NAME": "DISTRIBUTION"}'
    )


def option_problems(options: UserOptions) -> list[str]:
    """Check each value by itself.

    Returns:
        One sentence per problem, with path, value, limit and remedy. What is only not served is left to
        `unserved_problems`.
    """
    problems = []
    for option in fields(UserOptions):
        value = getattr(options, option.name)
        problem = "" if value is None else _problem(option.metadata, value)
        if problem:
            problems.append(f"$.{option.name}: {problem}")
    return problems


def unserved_problems(options: UserOptions) -> list[str]:
    """Values that are known and that this version does not serve, one sentence each, with path and remedy."""
    problems = []
    for option in fields(UserOptions):
        value = getattr(options, option.name)
        if isinstance(value, str) and (why := _why_unserved(option.metadata, value)):
            problems.append(f"$.{option.name}: {shown(value)} is not served: {why}")
    return problems


def _why_unserved(limits: Mapping[str, Any], value: str) -> str:
    unserved: Mapping[str, str] = limits["unserved"]
    return unserved.get(value.partition(":")[0].lower(), "")


def _problem(limits: Mapping[str, Any], value: Any) -> str:
    """What is wrong with a value, or ""."""
    low, high, choices, words = (limits[key] for key in ("at_least", "at_most", "choices", "words"))
    if words and isinstance(value, str):
        if value in words:
            return ""
        return f"{shown(value)} is not an integer or {' or '.join(map(repr, words))}"
    if isinstance(value, tuple):
        if low is not None and len(value) < low:
            return "the list is empty; leave the option out instead"
        return f"{shown(list(value))} has an empty text" if "" in value else ""
    # Written so that NaN, which compares false with everything, is refused too.
    if low is not None and not value >= low:
        return f"{value} is below {low}; raise it, or leave it out for the default"
    if high is not None and not value <= high:
        return f"{value} is above {high}; lower it"
    found = _NUMBERED.fullmatch(str(value)) if limits["numbered"] else None
    if found is not None and found[1] in limits["numbered"]:
        return ""
    if choices and value not in choices:
        if _why_unserved(limits, value):
            return ""
        return f"{shown(value)} is not served{did_you_mean(value, choices)}"
    return "the text is empty; leave the option out instead" if value == "" else ""
