"""`vtcore generate`: text for one prompt, streamed to stdout, or for a file of prompts.

Does not: import the engine before it runs, so that `--help` stays light.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from vtcore.cli.batch_input import STDIO
from vtcore.cli.engine_flags import add_engine_flags, print_notes
from vtcore.cli.handling_flags import add_handling_flags, handling_from_args
from vtcore.cli.interruption import say_interrupted
from vtcore.cli.own_stdout import others_print_to_stderr
from vtcore.cli.sampling_flags import (
    add_sampling_flags,
    cli_params,
    flag_of,
    read_flags,
    surrogate_at,
)
from vtcore.cli.terminal import say
from vtcore.errors import UsageError

if TYPE_CHECKING:
    from vtcore.config.layers import GivenOptions
    from vtcore.engine.engine import Engine
    from vtcore.outputs import RequestOutput
    from vtcore.request import SamplingParams
    from vtcore.request_handling import Handling

_ONLY_JSON = ("logprobs", "prompt_logprobs")
_MAX_ID_DIGITS = 80
"""More than any id has; Python reads no integer of some thousand."""


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
        '"id", "sampling_params", "priority", "tenant", "policy_args", "cache_salt"; "-" reads stdin',
    )
    batch.add_argument(
        "--output",
        metavar="FILE",
        help="one JSON line per finished request; what is there is not done again; put into the order of "
        'the input at the end. "-" is stdout, which gets them as they finish, in any order',
    )
    batch.add_argument("--overwrite", action="store_true", help="forget what the output file holds")
    batch.add_argument(
        "--no-progress", action="store_true", help="draw no bar (there is none without a terminal)"
    )
    add_sampling_flags(parser)
    add_handling_flags(parser)
    add_engine_flags(parser)


def needs_stdout(args: argparse.Namespace) -> bool:
    """Not where a file takes the results."""
    return args.output is None or args.output == STDIO


def run(args: argparse.Namespace) -> int:
    """Load, generate, report."""
    _check_forms(args)
    prompt = _prompt(args)
    given, options = read_flags(args)
    handling = handling_from_args(args)
    _check_what_is_shown(args, given, options)
    print_notes(options)
    if args.input is not None:
        from vtcore.cli.generate_batch import run_batch
        from vtcore.llm import load_engine

        return run_batch(
            args.input,
            args.output,
            given,
            handling,
            overwrite=args.overwrite,
            has_text=not options.options.skip_tokenizer_init,
            shows_progress=not args.no_progress and sys.stderr is not None and sys.stderr.isatty(),
            load=partial(load_engine, options),
            report=_report,
        )
    try:
        _answer(args, prompt, given, handling, options)
    except KeyboardInterrupt as interrupt:
        return say_interrupted(interrupt)
    return 0


def _answer(
    args: argparse.Namespace,
    prompt: Any,
    given: Mapping[str, Any],
    handling: Handling,
    options: GivenOptions,
) -> None:
    """Load, and generate for one prompt."""
    from vtcore.llm import load_engine

    with others_print_to_stderr():
        engine = load_engine(options)
    try:
        params = cli_params(engine.sampling_defaults, given)
        start = time.monotonic()
        answer = _print_json if args.json else _stream
        output = answer(engine, prompt, params, handling)
        num_tokens = sum(len(sample.token_ids) for sample in output.outputs)
        _report(engine, num_tokens, time.monotonic() - start)
    finally:
        engine.close()


def _check_what_is_shown(args: argparse.Namespace, given: Mapping[str, Any], options: GivenOptions) -> None:
    """Refuse before the model is loaded what could not be asked or shown afterwards."""
    if args.prompt is not None and options.options.skip_tokenizer_init:
        raise UsageError(
            "--prompt is text, and --skip-tokenizer-init makes no ids of it; give --prompt-token-ids 1,2,3"
        )
    if args.input is None and not args.json:
        _check_logprobs(lambda name: given.get(name))


def _check_logprobs(value_of: Callable[[str], Any]) -> None:
    for name in _ONLY_JSON:
        if value_of(name) is not None:
            raise UsageError(
                f"{flag_of(name)} is shown with --json or --input only; add one, or leave it out"
            )


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
        for flag, value in (
            ("--chat-template", args.chat_template),
            ("--default-chat-template-kwargs", args.default_chat_template_kwargs),
        ):
            if value is not None:
                raise UsageError(
                    f"{flag} holds for conversations, which a single prompt is not; leave it out, or use "
                    f"chat, or messages in --input FILE"
                )
    elif not args.input or args.output == "":
        raise UsageError("--input and --output name files, and one of them is empty; '-' is stdin or stdout")
    elif args.output is None:
        raise UsageError("--input needs --output FILE for the results; '-' is stdout")
    elif args.overwrite and args.output == STDIO:
        raise UsageError("--overwrite goes with a file, and --output - is stdout; leave one out")
    elif args.json:
        raise UsageError("--json goes with a single prompt; the output of --input is JSON already")


def _prompt(args: argparse.Namespace) -> Any:
    if args.prompt_token_ids is not None:
        words = [word.strip() for word in args.prompt_token_ids.split(",")]
        for word in words:
            if not (word.isdecimal() and len(word) <= _MAX_ID_DIGITS):
                found = word if len(word) <= _MAX_ID_DIGITS else f"{word[:_MAX_ID_DIGITS]}..."
                raise UsageError(
                    f"--prompt-token-ids: {found!r} is no token id; give a list of ids like 1,2,3"
                )
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


def _print_json(engine: Engine, prompt: Any, params: SamplingParams, handling: Handling) -> RequestOutput:
    from vtcore.outputs import output_as_json

    with others_print_to_stderr():
        [output] = engine.generate([(prompt, params)], handling=[handling])
    source: Mapping[str, Any] = {"prompt": prompt} if isinstance(prompt, str) else prompt
    shown = {**source, "num_cached_tokens": output.num_cached_tokens, **output_as_json(output)}
    print(json.dumps(shown, ensure_ascii=False))
    return output


def _stream(engine: Engine, prompt: Any, params: SamplingParams, handling: Handling) -> RequestOutput:
    """Print the first sample as it grows, the others when all are done; ids where no text is made."""
    # The model's defaults may ask for them too.
    _check_logprobs(lambda name: getattr(params, name))
    is_text = engine.tokenizer is not None and params.detokenize
    engine.add_request(prompt, params, handling=handling)
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
    say(_summary(engine, num_tokens, seconds))
    if engine.stats()["nan_logit_rows"]:
        say("warning: logits were NaN; the weights or the dtype are at fault")


def _summary(engine: Engine, num_tokens: int, seconds: float) -> str:
    import torch

    config = engine.loaded.config.model
    parts = [
        config.device,
        config.dtype,
        f"torch {torch.__version__}",
        f"{num_tokens / max(seconds, 1e-9):.1f} tokens/s",
    ]
    stats = engine.stats()
    if stats["hit_tokens"]:
        parts.append(f"{stats['hit_tokens']} of {engine.counts.prompt_tokens} prompt tokens from the cache")
    if engine.loaded.hf_config.get("vtcore_random_weights"):
        parts.append("random weights: gibberish on purpose")
    return f"[{', '.join(parts)}]"
