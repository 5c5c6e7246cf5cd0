"""`vtcore generate`: text for one prompt, streamed to stdout, or for a file of prompts.

Does not: import the engine before it runs, so that `--help` stays light.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from vtcore.cli.batch_input import STDIO
from vtcore.cli.engine_flags import add_engine_flags, given_from_args, print_notes
from vtcore.cli.sampling_flags import (
    add_sampling_flags,
    cli_params,
    flag_of,
    sampling_from_args,
    surrogate_at,
)
from vtcore.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from vtcore.config.layers import GivenOptions
    from vtcore.engine.engine import Engine
    from vtcore.outputs import RequestOutput
    from vtcore.request import SamplingParams

_ONLY_JSON = ("logprobs", "prompt_logprobs")


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("generate", help="generate text from a prompt or a file of prompts")
    parser.add_argument("model", metavar="MODEL", help="directory, checkpoint source or Hub id")
    parser.add_argument("--prompt", metavar="TEXT", help="the prompt; '-' reads stdin")
    parser.add_argument("--prompt-token-ids", metavar="IDS", help="the prompt as ids: 1,2,3")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the text")
    batch = parser.add_argument_group("many prompts")
    batch.add_argument(
        "--input",
        metavar="FILE",
        help='JSON lines: {"prompt": ...}, {"prompt_token_ids": [...]} or {"messages": [...]}, maybe with '
        '"id" and "sampling_params"; "-" reads stdin',
    )
    batch.add_argument(
        "--output",
        metavar="FILE",
        help='one JSON line per finished request; what is there is not done again; "-" is stdout',
    )
    batch.add_argument("--overwrite", action="store_true", help="forget what the output file holds")
    batch.add_argument(
        "--no-progress", action="store_true", help="draw no bar (there is none without a terminal)"
    )
    add_sampling_flags(parser)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Load, generate, report."""
    _check_forms(args)
    prompt = _prompt(args)
    given, options = _read_flags(args)
    print_notes(options)

    from vtcore.llm import load_engine

    if args.input is not None:
        from vtcore.cli.generate_batch import run_batch

        return run_batch(
            args.input,
            args.output,
            given,
            overwrite=args.overwrite,
            shows_progress=not args.no_progress and sys.stderr is not None and sys.stderr.isatty(),
            load=partial(load_engine, options),
            report=_report,
        )
    engine = load_engine(options)
    try:
        params = cli_params(engine.sampling_defaults, given)
        start = time.monotonic()
        output = _print_json(engine, prompt, params) if args.json else _stream(engine, prompt, params)
        num_tokens = sum(len(sample.token_ids) for sample in output.outputs)
        _report(engine, num_tokens, time.monotonic() - start)
    finally:
        engine.close()
    return 0


def _read_flags(args: argparse.Namespace) -> tuple[dict[str, Any], GivenOptions]:
    """Sampling parameters and engine options, with the problems of both said at once."""
    problems: list[str] = []
    given: dict[str, Any] = {}
    try:
        given = sampling_from_args(args)
    except ConfigError as error:
        problems += error.problems
    try:
        options = given_from_args(args)
    except ConfigError as error:
        if not problems:
            raise
        raise ConfigError(*problems, *error.problems) from error
    if problems:
        raise ConfigError(*problems)
    return given, options


def _check_forms(args: argparse.Namespace) -> None:
    forms = {"--prompt": args.prompt, "--prompt-token-ids": args.prompt_token_ids, "--input": args.input}
    if sum(value is not None for value in forms.values()) != 1:
        raise UsageError(
            "give a prompt as --prompt TEXT or as --prompt-token-ids 1,2,3, or many as --input FILE, one of "
            "the three"
        )
    if args.input is None:
        for flag, value in (
            ("--output", args.output),
            ("--overwrite", args.overwrite),
            ("--no-progress", args.no_progress),
        ):
            if value:
                raise UsageError(f"{flag} goes with --input FILE")
    elif args.output is None:
        raise UsageError("--input needs --output FILE for the results; '-' is stdout")
    elif args.overwrite and args.output == STDIO:
        raise UsageError("--overwrite goes with a file, and --output - is stdout; leave one out")
    elif args.json:
        raise UsageError("--json goes with a single prompt; the output of --input is JSON already")


def _prompt(args: argparse.Namespace) -> Any:
    if args.prompt_token_ids is not None:
        words = args.prompt_token_ids.split(",")
        if not all(word.strip().isdecimal() for word in words):
            raise UsageError(f"--prompt-token-ids: {args.prompt_token_ids!r} is no list of ids like 1,2,3")
        return {"prompt_token_ids": [int(word) for word in words]}
    text, where = args.prompt, "--prompt"
    if text == "-":
        text, where = _stdin(), "--prompt -"
    if text is not None and (at := surrogate_at(text)) is not None:
        raise UsageError(
            f"{where}: the text is not UTF-8 at character {at}; convert it, or set a UTF-8 locale"
        )
    return text


def _stdin() -> str:
    if sys.stdin is None:
        raise UsageError("--prompt -: stdin is closed; give the text itself")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompt -: stdin is not text in {error.encoding} (byte {error.start})") from error


def _print_json(engine: Engine, prompt: Any, params: SamplingParams) -> RequestOutput:
    from vtcore.outputs import output_as_json

    [output] = engine.generate([(prompt, params)])
    source: Mapping[str, Any] = {"prompt": prompt} if isinstance(prompt, str) else prompt
    print(json.dumps({**source, **output_as_json(output)}, ensure_ascii=False))
    return output


def _stream(engine: Engine, prompt: Any, params: SamplingParams) -> RequestOutput:
    """Print the first sample as it grows, the others when all are done; ids where no text is made."""
    for name in _ONLY_JSON:
        if getattr(params, name) is not None:
            raise UsageError(f"{flag_of(name)} is shown with --json or --input only")
    is_text = engine.tokenizer is not None and params.detokenize
    engine.add_request(prompt, params)
    shown, output = 0, None
    while engine.has_unfinished_requests:
        for output in engine.step():
            text = _text(output, 0, is_text)
            print(text[shown:], end="", flush=True)
            shown = len(text)
    assert output is not None
    print()
    for sample in output.outputs[1:]:
        print(f"--- sample {sample.index}\n{_text(output, sample.index, is_text)}")
    return output


def _text(output: RequestOutput, index: int, is_text: bool) -> str:
    sample = output.outputs[index]
    return sample.text if is_text else ",".join(map(str, sample.token_ids))


def _report(engine: Engine, num_tokens: int, seconds: float) -> None:
    """Say on stderr how it went, so that stdout is the text alone."""
    print(_summary(engine, num_tokens, seconds), file=sys.stderr)
    if engine.stats()["nan_logit_rows"]:
        print("warning: logits were NaN; the weights or the dtype are at fault", file=sys.stderr)


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
