"""`vtcore generate`: text for one prompt, streamed to stdout.

Does not: import the engine before it runs, so that `--help` stays light.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from vtcore.cli.engine_flags import add_engine_flags, options_from_args
from vtcore.cli.parser import UsageError

if TYPE_CHECKING:
    from vtcore.engine.engine import Engine
    from vtcore.outputs import RequestOutput
    from vtcore.request import SamplingParams

_SAMPLING = {
    "n": (int, "samples of the prompt; only the first is streamed"),
    "temperature": (float, "0 is greedy"),
    "top-p": (float, "mass of the ids that stay"),
    "top-k": (int, "number of ids that stay; 0 is all"),
    "min-p": (float, "share of the largest probability below which ids go"),
    "max-tokens": (int, "output tokens at most"),
    "sampling-seed": (int, "seed of this request; default: chosen by the engine's --seed"),
}


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("generate", help="generate text from a prompt")
    parser.add_argument("model", metavar="MODEL", help="checkpoint directory")
    parser.add_argument("--prompt", metavar="TEXT", help="the prompt; '-' reads stdin")
    parser.add_argument("--prompt-token-ids", metavar="IDS", help="the prompt as ids: 1,2,3")
    sampling = parser.add_argument_group("sampling")
    for name, (kind, about) in _SAMPLING.items():
        metavar = "N" if kind is int else "X"
        sampling.add_argument(f"--{name}", type=kind, metavar=metavar, help=about)
    sampling.add_argument("--stop", action="append", metavar="TEXT", help="end at this text (repeatable)")
    sampling.add_argument("--ignore-eos", action="store_true", help="do not end at the model's own end")
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Load, generate, report."""
    prompt = _prompt(args)
    options = options_from_args(args)
    params = _sampling_params(args)

    from vtcore.llm import load_engine

    engine = load_engine(options)
    try:
        start = time.monotonic()
        output = _stream(engine, prompt, params)
        seconds = time.monotonic() - start
        num_tokens = sum(len(sample.token_ids) for sample in output.outputs)
        # To stderr, so that stdout is the text alone.
        print(_summary(engine, num_tokens, seconds), file=sys.stderr)
        if engine.stats()["nan_logit_rows"]:
            print("warning: logits were NaN; the weights or the dtype are at fault", file=sys.stderr)
    finally:
        engine.close()
    return 0


def _prompt(args: argparse.Namespace) -> Any:
    if (args.prompt is None) == (args.prompt_token_ids is None):
        raise UsageError("give a prompt as --prompt TEXT or as --prompt-token-ids 1,2,3, one of the two")
    if args.prompt_token_ids is not None:
        words = args.prompt_token_ids.split(",")
        if not all(word.strip().isdecimal() for word in words):
            raise UsageError(f"--prompt-token-ids: {args.prompt_token_ids!r} is no list of ids like 1,2,3")
        return {"prompt_token_ids": [int(word) for word in words]}
    if args.prompt != "-":
        return args.prompt
    if sys.stdin is None:
        raise UsageError("--prompt -: stdin is closed; give the text itself")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompt -: stdin is not text in {error.encoding} (byte {error.start})") from error


def _sampling_params(args: argparse.Namespace) -> SamplingParams:
    from vtcore.request import SamplingParams

    given = {name.replace("-", "_"): getattr(args, name.replace("-", "_")) for name in _SAMPLING}
    given["seed"] = given.pop("sampling_seed")
    given["stop"] = args.stop
    given["ignore_eos"] = args.ignore_eos or None
    return SamplingParams.from_dict({name: value for name, value in given.items() if value is not None})


def _stream(engine: Engine, prompt: Any, params: SamplingParams) -> RequestOutput:
    """Print the first sample as it grows, the others when all are done; ids where there is no tokenizer."""
    engine.add_request(prompt, params)
    shown, output = 0, None
    while engine.has_unfinished_requests:
        for output in engine.step():
            text = _text(engine, output, 0)
            print(text[shown:], end="", flush=True)
            shown = len(text)
    assert output is not None
    print()
    for sample in output.outputs[1:]:
        print(f"--- sample {sample.index}\n{_text(engine, output, sample.index)}")
    return output


def _text(engine: Engine, output: RequestOutput, index: int) -> str:
    sample = output.outputs[index]
    if engine.tokenizer is not None:
        return sample.text
    return ",".join(map(str, sample.token_ids))


def _summary(engine: Engine, num_tokens: int, seconds: float) -> str:
    import torch

    config = engine.loaded.config.model
    parts = [
        config.device,
        config.dtype,
        f"torch {torch.__version__}",
        f"{num_tokens / max(seconds, 1e-9):.1f} tokens/s",
    ]
    if engine.loaded.hf_config.get("vtcore_random_weights"):
        parts.append("random weights: gibberish on purpose")
    return f"[{', '.join(parts)}]"
