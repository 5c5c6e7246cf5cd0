"""vLLM's option names: which are ours, which are always so here, which are not served and what to do instead.

Does not: check the values of our own options, or know flags on a command line; `cli/engine_flags.py` does.

The list is `vtcore/data/vllm_serve_flags.toml`: every flag of `vllm serve` in vLLM 0.32.0, taken from
engine/arg_utils.py and entrypoints/launchers/cli_args.py (entrypoints/openai/cli_args.py in versions before).
`tools/vllm_flags.py` compares it with a copy of vLLM's sources.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from attrs import Factory, fields, frozen

from vtcore.config.options import UserOptions
from vtcore.config.shown import shown

SAME, RENAMED, ALWAYS, NOT_SERVED = "same", "renamed", "always", "not_served"
KINDS = (SAME, RENAMED, ALWAYS, NOT_SERVED)
"""What a flag of vLLM can be here; tables of the data file."""

TAKES = ("none", "optional", "one", "many", "json", "bool")
"""What can follow a flag; bool is nothing, and the flag has a form with --no-."""


@frozen(kw_only=True)
class VllmFlag:
    """One flag of `vllm serve`.

    Args:
        name: With underscores.
        kind: One of `KINDS`.
        takes: One of `TAKES`.
        short: Other spellings (`-tp`, `--device-memory-utilization`).
        to: Our option's name, of the kinds same and renamed, else None.
        read: Values that we write otherwise, by vLLM's text for them.
        values: All values that are accepted, of the kinds always and not_served; None is every value of an
            always and no value of a not_served.
        why: What holds whatever is said, of the kind always.
        sentence: Why another value is refused, and what to do; None where none is refused.
    """

    name: str
    kind: str
    takes: str
    short: tuple[str, ...] = ()
    to: str | None = None
    read: Mapping[str, Any] = Factory(dict)
    values: tuple[Any, ...] | None = None
    why: str | None = None
    sentence: str | None = None

    def accepts(self, value: Any) -> bool:
        """Whether `value` asks for nothing that is not so."""
        if self.values is None:
            return self.kind == ALWAYS
        return _is_among(value, self.values)


@frozen(kw_only=True)
class Translated:
    """Options under our names, and what became of the others.

    Args:
        options: Ours, and names that nobody knows, which `structure_options` refuses.
        problems: A sentence per name given twice, in two spellings or under two names.
        not_served: A sentence per option of vLLM that is known and not served, or not with this value.
        notes: A sentence per option that was accepted because it is always so.
    """

    options: dict[str, Any]
    problems: tuple[str, ...] = ()
    not_served: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _read_flags() -> Iterator[VllmFlag]:
    text = files("vtcore.data").joinpath("vllm_serve_flags.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    sentences = tables["sentences"]
    for kind in KINDS:
        for name, entry in tables[kind].items():
            rest = dict(entry)
            values = rest.pop("values", None)
            # Whoever says that a feature is off has what he asks for where there is no such feature.
            if kind == NOT_SERVED and rest["takes"] in ("none", "bool") and not rest.pop("even_false", False):
                values = [False, *(values or ())]
            group = rest.pop("group", None)
            yield VllmFlag(
                name=name,
                kind=kind,
                takes=rest.pop("takes"),
                short=tuple(rest.pop("short", ())),
                to=name if kind == SAME else rest.pop("to", None),
                values=None if values is None else tuple(values),
                sentence=sentences[group] if group is not None else rest.pop("sentence", None),
                **rest,
            )


VLLM_FLAGS: Mapping[str, VllmFlag] = {flag.name: flag for flag in _read_flags()}
"""Every flag of `vllm serve`, by name with underscores."""

_ALIASES: Mapping[str, str] = {
    short.removeprefix("--").replace("-", "_"): flag.name
    for flag in VLLM_FLAGS.values()
    for short in flag.short
    if short.startswith("--")
}

_OWN_NAMES = frozenset(option.name for option in fields(UserOptions))

KNOWN_NAMES: frozenset[str] = _OWN_NAMES | VLLM_FLAGS.keys() | _ALIASES.keys()
"""Every name that a user may mean, ours and vLLM's: for "did you mean"."""


def normalised(name: str) -> str:
    """The name with underscores, and the main one of two that mean the same."""
    plain = name.replace("-", "_")
    return _ALIASES.get(plain, plain)


def translate_options(data: Mapping[Any, Any]) -> Translated:
    """Put options that may have vLLM's names under ours.

    Args:
        data: Name, with underscores or dashes -> value. None, "" and empty lists and mappings ask for nothing
            of vLLM's that is not ours, as in vLLM; ours are passed on whatever they are.

    Returns:
        Our options, with what is wrong or notable about the others. Values are not checked here.
    """
    options: dict[str, Any] = {}
    written: dict[str, str] = {}
    problems, not_served, notes = [], [], []
    for key, value in data.items():
        if not isinstance(key, str):
            options[key] = value
            continue
        name = normalised(key)
        flag = VLLM_FLAGS.get(name)
        target = name if flag is None else flag.to
        if target is not None:
            if target in written:
                problems.append(f"$.{target}: given twice, as {written[target]!r} and as {key!r}; keep one")
                continue
            written[target] = key
            options[target] = value if flag is None else _ours(value, flag.read)
        elif flag is not None and not _asks_nothing(value):
            if flag.accepts(value):
                why = flag.why or f"{shown(value)} asks for nothing beyond what is done"
                notes.append(f"$.{name}: accepted; {why}")
            else:
                # The sentence says by itself what is not served; a value is named where another one would do.
                has_values = flag.values is not None and flag.takes in ("one", "optional")
                given = f"{shown(value)} is not served: " if has_values else ""
                not_served.append(f"$.{name}: {given}{flag.sentence}")
    return Translated(
        options=options, problems=tuple(problems), not_served=tuple(not_served), notes=tuple(notes)
    )


def _ours(value: Any, read: Mapping[str, Any]) -> Any:
    return read.get(_text(value), value) if isinstance(value, str | int) else value


def _asks_nothing(value: Any) -> bool:
    return value is None or value in ("", [], (), {})


def _is_among(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Whether each value inside is one of `allowed`; a text equals the number or truth that it spells."""
    if isinstance(value, Mapping):
        return all(_is_among(item, allowed) for item in value.values())
    if isinstance(value, list | tuple):
        return all(_is_among(item, allowed) for item in value)
    return any(_spelled(value) == _spelled(item) for item in allowed)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)


def _spelled(value: Any) -> str | float:
    text = _text(value).strip().lower()
    try:
        return float(text)
    except ValueError:
        return text
