"""Writes the reference pages from the code they describe: configuration, command line, errors, metrics.

Does not: hold facts of its own about options, flags or errors, but for variables that other programs define.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from attrs import NOTHING, Attribute, fields
from attrs import Factory as AttrsFactory
from reference_tables import code, table, vllm_lines
from reference_texts import CONFIGURATION_INTRODUCTION, GPU_SECTION

from vtcore.cli.engine_flags import add_engine_flags
from vtcore.cli.explain import errors_markdown
from vtcore.cli.interruption import EXIT_INTERRUPTED, EXIT_TERMINATED
from vtcore.cli.main import COMMANDS, EXIT_BROKEN_PIPE
from vtcore.cli.parser import CommandParser
from vtcore.config.env import HASH_SEED_NAMES, OPTION_VARIABLES, OWN_NAMES, SEED_NAMES
from vtcore.config.options import UserOptions
from vtcore.config.text_values import KINDS
from vtcore.request import SamplingParams

ROOT = Path(__file__).resolve().parent.parent

GENERATED = "<!-- Written by tools/reference.py (`make docs`) from the code; edit that. -->"

TYPES: Mapping[str, str] = {
    "text": "text",
    "bool": "true or false",
    "int": "integer",
    "float": "number",
    "int or word": "integer or word",
    "texts": "list of texts",
    "mapping": "mapping (JSON)",
}

VARIABLES: Mapping[str, str] = {
    "VTCORE_PLUGINS": "names of installed plugins that may load, between commas; empty: none; unset: all",
    "VTCORE_PLUGINS_BLOCK": "names of installed plugins that are not loaded",
    "VTCORE_CACHE_DIR": "where compiled kernels are kept; default: `vtcore` below `XDG_CACHE_HOME`",
    "VT_ASYNC_RUNNER": "begins with 0: `async_scheduling` is off, unless the next one says on; else nothing",
    "VT_ASYNC_SCHED": "wins over `async_scheduling`; begins with 0: off; anything else: on",
    "VT_ENABLE_JUMP_FORWARD": "wins over `enable_jump_forward`; on: 1, true, TRUE, on; off: all else",
    "VTCORE_PREFIX_CACHING_HASH_SEED": "the option `prefix_caching_hash_seed`; random: 32 random bytes",
    "VLLM_PREFIX_CACHING_HASH_SEED": "the same, where the one above is unset",
    "PYTHONHASHSEED": "the same, where both above are unset and this is no `random`",
}
"""What each variable of `vtcore.config.env` means that is not simply an option."""

FOREIGN_VARIABLES: Mapping[str, str] = {
    "XDG_CACHE_HOME": "where caches lie; default `~/.cache`",
    "CUDA_VISIBLE_DEVICES": "which GPUs are seen; empty or -1: none, and then a broken one is no error",
    "HF_TOKEN": "token for gated and private models of the Hub",
    "HF_HOME, HF_HUB_CACHE": "where downloads are kept, unless the option `download_dir` says otherwise",
    "HF_ENDPOINT": "another server that speaks the Hub's protocol",
    "HF_HUB_OFFLINE": "1: nothing is downloaded; what is in the cache is used",
}
"""Variables that others define and that have an effect here."""


def numeral(number: float) -> str:
    """A limit as people write it: powers of two above 2**20 as such."""
    for power in range(20, 64):
        if number == 2**power - 1:
            return f"2**{power} - 1"
    return f"{number:g}"


def legal_values(option: Attribute[Any]) -> str:
    """The limits of an option, as its metadata has them."""
    low, high, choices, words = (option.metadata[key] for key in ("at_least", "at_most", "choices", "words"))
    if choices:
        numbered = [f"{choice}:N" for choice in option.metadata["numbered"]]
        return ", ".join(code(choice) for choice in (*choices, *numbered))
    limits = ""
    if low is not None and high is not None:
        limits = f"{numeral(low)} to {numeral(high)}"
    elif low is not None:
        limits = f"at least {numeral(low)}"
    return " or ".join(filter(None, [limits, *(code(word) for word in words)]))


def flags_by_option() -> Mapping[str, str]:
    """Option -> the flag that sets it, read from the parser of the commands with an engine."""
    parser = CommandParser(prog="vtcore")
    add_engine_flags(parser)
    found: dict[str, str] = {}
    for action in parser._actions:
        if action.option_strings and action.dest not in found and action.help != argparse.SUPPRESS:
            found[action.dest] = action.option_strings[0]
    return found


def configuration_page() -> str:
    """docs/configuration.md."""
    flags = flags_by_option()
    variables = {option: name for name, option in OPTION_VARIABLES.items()}
    options = [
        [
            code(option.name),
            code(flags.get(option.name, "MODEL" if option.name == "model" else "")),
            code(variables.get(option.name, "")),
            TYPES[KINDS[option.name]],
            legal_values(option),
            option.metadata["about"],
        ]
        for option in fields(UserOptions)
    ]
    own = dict.fromkeys((*OWN_NAMES, *SEED_NAMES, *HASH_SEED_NAMES))
    environment = [[code(name), VARIABLES[name]] for name in own]
    foreign = [
        [", ".join(code(name) for name in names.split(", ")), text]
        for names, text in FOREIGN_VARIABLES.items()
    ]
    lines = [
        "# Configuration",
        "",
        GENERATED,
        "",
        *CONFIGURATION_INTRODUCTION.strip().split("\n"),
        "",
        "## Options of the engine",
        "",
        *table(["option", "flag", "variable", "type", "legal", "meaning and default"], options),
        "",
        *GPU_SECTION.strip().split("\n"),
        "",
        "## Sampling parameters",
        "",
        "Fields of `SamplingParams`; names and defaults are vLLM's.",
        "",
        *table(["parameter", "default", "meaning"], sampling_rows()),
        "",
        "## Environment variables",
        "",
        "Beside those of the options; read once, in `vtcore/config/env.py`. An unknown name that begins with",
        "`VTCORE_` is an error.",
        "",
        *table(["variable", "meaning"], environment),
        "",
        "Defined by others:",
        "",
        *table(["variable", "meaning"], foreign),
        "",
        *vllm_lines(),
    ]
    return "\n".join(lines) + "\n"


def sampling_rows() -> list[list[str]]:
    """One row per field of `SamplingParams`; the meaning is its docstring's."""
    meanings = argument_texts(SamplingParams.__doc__ or "")
    rows = []
    for parameter in fields(SamplingParams):
        default = parameter.default
        if isinstance(default, AttrsFactory):  # type: ignore[arg-type]
            default = default.factory()  # type: ignore[union-attr]
        assert default is not NOTHING
        rows.append([code(parameter.name), code(repr(default)), meanings[parameter.name]])
    return rows


def argument_texts(docstring: str) -> dict[str, str]:
    """Argument -> its text in the `Args` section of a docstring; a line may name several."""
    section = docstring.split("Args:\n")[1].split("\n\n")[0]
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in section.split("\n"):
        entry = re.match(r"^ {8}(\w+(?:, \w+)*): (.*)$", line)
        if entry:
            names = entry[1].split(", ")
            texts |= dict.fromkeys(names, entry[2])
        else:
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return texts


def every_command() -> Iterator[tuple[CommandParser, str]]:
    """Each command that runs something, with its line of help; subcommands in the place of their parent."""
    parser = CommandParser(prog="vtcore")
    subparsers = parser.add_subparsers(dest="command")
    for module, _ in COMMANDS.values():
        import_module(module).add_parser(subparsers)
    yield from _leaves(parser, "")


def _leaves(parser: Any, about: str) -> Iterator[tuple[CommandParser, str]]:
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not nested:
        yield parser, about
    for action in nested:
        abouts = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, child in action.choices.items():
            yield from _leaves(child, abouts.get(name, ""))


def shown(action: argparse.Action) -> str:
    """A flag or argument with what follows it."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return ", ".join(code(option) for option in action.option_strings)
    word = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else None)
    word = str(word or action.dest.upper())
    if not action.option_strings:
        return code(f"[{word}]" if action.nargs in ("?", "*") else word)
    value = "" if action.nargs == 0 else f" {word} ..." if action.nargs in ("+", "*") else f" {word}"
    return ", ".join(code(option + value) for option in action.option_strings)


def cli_page() -> str:
    """docs/cli.md."""
    engine = CommandParser(prog="vtcore")
    add_engine_flags(engine)
    standard = {option for action in engine._actions for option in action.option_strings}
    lines = ["# Command line", "", GENERATED, "", *CLI_INTRODUCTION.strip().split("\n")]
    for parser, about in every_command():
        actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        own = [
            action for action in actions if not standard.issuperset(action.option_strings or ["positional"])
        ]
        has_engine = {"--max-num-seqs"} <= {option for action in actions for option in action.option_strings}
        if not has_engine:
            own = [action for action in actions if not {"-h", "--debug"} & set(action.option_strings)]
        arguments = " ".join(shown(action).strip("`") for action in own if not action.option_strings)
        lines += ["", f"## {parser.prog}", "", _sentence(about), ""]
        lines += ["    " + " ".join(filter(None, [parser.prog, arguments, "[FLAGS]"]))]
        if own:
            rows = [
                [shown(action), (action.help or "") % {**vars(action), "prog": parser.prog}] for action in own
            ]
            lines += ["", *table(["argument", "meaning"], rows)]
        if has_engine:
            lines += [
                "",
                "And `--config FILE` and every option of the engine: [configuration.md](configuration.md).",
            ]
    return "\n".join(lines) + "\n"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


CLI_INTRODUCTION = f"""
Flags are never abbreviated. Each command has `--help` and `--debug`, which shows the traceback of an error.

An error is one line per problem, `error[CODE]: sentence`, and exit code:

| code | meaning |
|---|---|
| 0 | done |
| 2 | configuration: options, model, request |
| 3 | environment: machine, installation, network; also when a `doctor` finds an error |
| 4 | engine: a fault of vtcore or a plugin |
| {EXIT_INTERRUPTED} | interrupted by Ctrl-C |
| {EXIT_TERMINATED} | ended by SIGTERM |
| {EXIT_BROKEN_PIPE} | the reader of the output went away |

[errors.md](errors.md) has every code, `vtcore explain CODE` says the same.
"""


def metrics_page() -> str:
    """docs/metrics.md, from an engine with each kind of pool: what it reports is what there is."""
    from vtcore.engine.frontend import build_frontend
    from vtcore.engine.metrics import collect_metrics
    from vtcore.loader import load_core
    from vtcore.testing.schedules import toy_registry

    toy = {"model_type": "toy", "vocab_size": 16, "parts": ["whole", "state"]}
    engine = build_frontend(
        load_core(UserOptions(num_blocks=16), hf_config=toy, tensors={}, registry=toy_registry())
    )
    try:
        metrics = collect_metrics(engine)
    finally:
        engine.close()
    rows = {
        metric.name: [
            code(metric.name),
            metric.kind,
            ", ".join(code(label) for label in metric.labels if label != "model_name"),
            metric.help,
        ]
        for metric in metrics
    }
    lines = ["# Metrics", "", GENERATED, "", *METRICS_INTRODUCTION.strip().split("\n"), ""]
    return "\n".join([*lines, *table(["name", "kind", "labels", "meaning"], list(rows.values()))]) + "\n"


METRICS_INTRODUCTION = """
What `LLM.get_metrics()` returns: numbers as they stand at the call, under names in Prometheus' form. A
counter only rises while the engine lives. Each has the label `model_name`, the first of `served_model_name`;
where other labels are named the metric comes once per value.
"""


PAGES: Mapping[str, Callable[[], str]] = {
    "docs/configuration.md": configuration_page,
    "docs/cli.md": cli_page,
    "docs/errors.md": errors_markdown,
    "docs/metrics.md": metrics_page,
}


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write the pages, or with `--check` compare them; returns 1 if one is out of date."""
    parser = argparse.ArgumentParser(description="Write the reference pages from the code.")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail when a page is out of date"
    )
    args = parser.parse_args(argv)
    is_old = False
    for page, render in PAGES.items():
        file, text = root / page, render()
        before = file.read_text(encoding="utf-8") if file.is_file() else ""
        if before == text:
            continue
        if args.check:
            is_old = True
            print(f"{page} is out of date; run `make docs`", file=sys.stderr)
            lines = difflib.unified_diff(
                before.split("\n"), text.split("\n"), "written", "code", n=0, lineterm=""
            )
            print("\n".join(lines), file=sys.stderr)
        else:
            file.write_text(text, encoding="utf-8")
            print(f"{page} written")
    return int(is_old)


if __name__ == "__main__":
    sys.exit(main())
