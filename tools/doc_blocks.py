"""Finds the fenced code blocks of a Markdown page, what the text says of each, and the commands in it.

A comment right before a block may say `not run: REASON`, or `only parsed: REASON` for data that is no file of
options. A paragraph right before it that begins with a path in backticks and a colon makes it that file.

Does not: run anything; tests/test_docs_blocks.py does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).resolve().parent.parent
PAGE_PATTERNS: tuple[str, ...] = ("*.md", "docs/**/*.md", "bench/*.md", "plugins/*/*.md")

_MARK = re.compile(r"^<!-- (not run|only parsed): (.+) -->$")
_FILE = re.compile(r"^`([\w./-]+)`:")
_HEREDOC = re.compile(r"\s*<<\s*'?(\w+)'?\s*$")
_EXIT = re.compile(r"#\s*exit (\d+)\s*$")


@frozen
class Block:
    """One fenced block.

    Args:
        page: Path from the repository's root.
        line: Of the opening fence, from 1.
        language: After the fence; "" for none.
        text: Without the fences.
        mark: "not run", "only parsed" or "".
        reason: Of the mark.
        file: Path of the file that the block is, or None.
    """

    page: str
    line: int
    language: str
    text: str
    mark: str = ""
    reason: str = ""
    file: str | None = None


@frozen
class Command:
    """One command of a shell block.

    Args:
        text: One line, continuations joined, without a here-document and without `# exit N`.
        stdin: The here-document, or None.
        exit_code: That it must end with.
    """

    text: str
    stdin: str | None = None
    exit_code: int = 0


def pages(root: Path = ROOT) -> list[str]:
    """Every Markdown page of the repository, as paths from its root; none of a cache or a build."""
    found = {file.relative_to(root) for pattern in PAGE_PATTERNS for file in root.glob(pattern)}
    return sorted(file.as_posix() for file in found if not any(map(_is_no_source, file.parts)))


def _is_no_source(part: str) -> bool:
    """Whether a folder is hidden, or what an installation from the tree leaves behind."""
    return part[0] == "." or part == "build" or part.endswith(".egg-info")


def find_blocks(page: str, text: str) -> list[Block]:
    """The blocks of one page, in order.

    Raises:
        ValueError: The last block is not closed.
    """
    lines = text.split("\n")
    blocks = []
    number = 0
    while number < len(lines):
        opening = re.match(r"^(`{3,}|~{3,})(.*)$", lines[number])
        if opening is None:
            number += 1
            continue
        start, fence = number, opening[1]
        number += 1
        while number < len(lines) and lines[number].rstrip() != fence:
            number += 1
        if number == len(lines):
            raise ValueError(f"{page}:{start + 1}: the block is not closed")
        before = _paragraph_before(lines, start)
        mark = _MARK.match(before[-1]) if before else None
        file = _FILE.match(before[0]) if before else None
        blocks.append(
            Block(
                page=page,
                line=start + 1,
                language=opening[2].strip(),
                text="".join(f"{line}\n" for line in lines[start + 1 : number]),
                mark=mark[1] if mark else "",
                reason=mark[2] if mark else "",
                file=file[1] if file else None,
            )
        )
        number += 1
    return blocks


def _paragraph_before(lines: list[str], end: int) -> list[str]:
    """Lines of the paragraph above a line; one blank line may stand between."""
    if end > 0 and not lines[end - 1].strip():
        end -= 1
    start = end
    while start > 0 and lines[start - 1].strip():
        start -= 1
    return lines[start:end]


def split_commands(text: str) -> Iterator[Command]:
    """The commands of a shell block; comments and blank lines are left out.

    Raises:
        ValueError: A here-document is not closed.
    """
    lines = iter(text.replace("\\\n", " ").split("\n"))
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        code = _EXIT.search(line)
        command = (line[: code.start()] if code else line).strip()
        stdin = None
        if (heredoc := _HEREDOC.search(command)) is not None:
            command, body = command[: heredoc.start()], []
            for inner in lines:
                if inner == heredoc[1]:
                    break
                body.append(f"{inner}\n")
            else:
                raise ValueError(f"{line!r}: the here-document is not closed")
            stdin = "".join(body)
        yield Command(command, stdin, int(code[1]) if code else 0)
