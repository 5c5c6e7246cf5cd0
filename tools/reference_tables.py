"""Tables of the reference pages: their Markdown, and the one of vLLM's flags.

Does not: write files; reference.py does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from vtcore.config.vllm_names import ALWAYS, NOT_SERVED, RENAMED, SAME, VLLM_FLAGS, VllmFlag


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table; pipes inside cells are escaped."""
    cells = [[re.sub(r"(?<!\\)\|", r"\\|", " ".join(cell.split())) for cell in row] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in (head, *cells)]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]]


def code(text: str) -> str:
    """Text in backticks; nothing stays nothing."""
    return f"`{text}`" if text else ""


def vllm_lines() -> list[str]:
    """vLLM's flags by what becomes of them; those that are refused with one sentence share a row."""
    flags = VLLM_FLAGS.values()
    ours = [flag for flag in flags if flag.kind in (SAME, RENAMED)]
    always = [flag for flag in flags if flag.kind == ALWAYS]
    refused: dict[str, list[str]] = {}
    for flag in flags:
        if flag.kind == NOT_SERVED:
            refused.setdefault(flag.sentence or "", []).append(code(flag_name(flag)))
    return [
        "## Flags of vLLM",
        "",
        "Every flag of `vllm serve` 0.32, so that a command line or file written for vLLM can be brought",
        "over. They work in every place of an option.",
        "",
        "### Options here",
        "",
        *table(
            ["flag", "option", "values that are written otherwise"],
            [
                [
                    code(flag_name(flag)),
                    code(flag.to or ""),
                    ", ".join(f"{code(a)}: {code(str(b))}" for a, b in flag.read.items()),
                ]
                for flag in ours
            ],
        ),
        "",
        "### Always so",
        "",
        "Accepted, since what they ask for holds anyway; where the second column has values, only these are.",
        "",
        *table(
            ["flag", "accepted", "what holds"],
            [
                [
                    code(flag_name(flag)),
                    ", ".join(code(json.dumps(value)) for value in flag.values or ()),
                    flag.why or "",
                ]
                for flag in always
            ],
        ),
        "",
        "### Not served",
        "",
        "Refused with the sentence, and exit code 2. A switch is accepted where it is off.",
        "",
        *table(["flags", "sentence"], [[", ".join(names), sentence] for sentence, names in refused.items()]),
    ]


def flag_name(flag: VllmFlag) -> str:
    """As on a command line."""
    return "--" + flag.name.replace("_", "-")
