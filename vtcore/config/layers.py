"""Gathers what a user said, in keywords or flags, a config file and the environment, into one set of options.

Does not: decide what was not said; `resolve.py` does, and shows the sources that are noted here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import define, field, fields, frozen

from vtcore.config.config_file import is_yaml, read_config_file
from vtcore.config.engine_config import Origin
from vtcore.config.env import OPTION_VARIABLES, Environment, read_environment, read_option_texts
from vtcore.config.options import UserOptions
from vtcore.config.structure import structure_options
from vtcore.config.text_values import KINDS, parse_value
from vtcore.config.vllm_names import translate_options
from vtcore.errors import ConfigError, NotServedError

_VARIABLES: Mapping[str, str] = {option: variable for variable, option in OPTION_VARIABLES.items()}


@frozen(kw_only=True)
class GivenOptions:
    """What a user said, and where.

    Args:
        options: Of each option the value of the strongest source; None where no source has one.
        sources: Option -> where its value stands; one for each value, none for others.
        environment: As it was read, once for all who need it.
        notes: A sentence for each of vLLM's options that was accepted because it is always so here.
    """

    options: UserOptions
    sources: Mapping[str, Origin]
    environment: Environment
    notes: tuple[str, ...] = ()


@define
class _Gathered:
    """The layers read so far, the weakest first, and what is wrong with them."""

    values: dict[str, Any] = field(factory=dict)
    sources: dict[str, Origin] = field(factory=dict)
    notes: list[str] = field(factory=list)
    problems: list[str] = field(factory=list)
    is_served: bool = True

    def refuse(self, *problems: str) -> None:
        """Note what no version would take."""
        self.is_served = self.is_served and not problems
        self.problems += problems

    def add(
        self, data: Mapping[str, Any], origin: Callable[[str], Origin], label: Callable[[str], str]
    ) -> None:
        """Put a layer above the others; a problem's sentence goes through `label` to say whose it is."""
        try:
            options = structure_options(data)
        except NotServedError as error:
            self.problems += map(label, error.problems)
            return
        except ConfigError as error:
            self.refuse(*map(label, error.problems))
            return
        for option in fields(UserOptions):
            value = getattr(options, option.name)
            if value is not None:
                self.values[option.name] = value
                self.sources[option.name] = origin(option.name)

    def translate(
        self, data: Mapping[Any, Any], origin: Origin, label: Callable[[str], str], texts: bool = False
    ) -> None:
        """As `add`, of data that may have vLLM's names, and whose texts may stand for other values."""
        # None is "not given", also beside the same option in its other spelling.
        found = translate_options({key: value for key, value in data.items() if value is not None})
        self.notes += map(label, found.notes)
        self.refuse(*map(label, found.problems))
        self.problems += map(label, found.not_served)
        values = dict(found.options)
        for name in list(values) if texts else ():
            if isinstance(values[name], str) and name in KINDS:
                try:
                    values[name] = parse_value(name, values[name])
                except ValueError as error:
                    self.refuse(label(f"$.{name}: {error}"))
                    del values[name]
        self.add(values, lambda _: origin, label)


def gather_options(
    keywords: Mapping[str, Any],
    *,
    config_file: str | Path | None = None,
    environment: Environment | None = None,
    where: str = "keyword",
) -> GivenOptions:
    """Merge the sources: keywords or flags win over the file, the file over the environment.

    An option is taken whole from one source: mappings are not merged. Names may have dashes for underscores,
    and in keywords and files be vLLM's. In a YAML file a text may stand for a value of another type, as a
    flag's would ("32k", "true", '{"temperature": 0.7}'), because that is what vLLM's own files hold; keywords
    and TOML are taken as typed.

    Args:
        keywords: Option -> value, of keyword arguments or parsed flags; None is "not given".
        config_file: TOML, or YAML by its name; None for no file.
        environment: As read once; None reads it.
        where: What `keywords` are, as an origin's source: "keyword" or "command line".

    Raises:
        ConfigError: The problems of all sources at once, each with its source's name: nothing before `$` in
            keywords, the file, or the variable.
        NotServedError: The same, when each is merely something that this version does not serve.
    """
    gathered = _Gathered()
    if environment is None:
        try:
            environment = read_environment()
        except ConfigError as error:
            gathered.refuse(*error.problems)
    _add_environment(gathered, read_option_texts() if environment is None else environment.options)
    if config_file is not None:
        _add_file(gathered, config_file)
    gathered.translate(keywords, Origin(where), str)
    if gathered.problems or environment is None:
        raise (NotServedError if gathered.is_served else ConfigError)(*gathered.problems)
    return GivenOptions(
        options=UserOptions(**gathered.values),
        sources=gathered.sources,
        environment=environment,
        notes=tuple(gathered.notes),
    )


def _add_environment(gathered: _Gathered, texts: Mapping[str, str]) -> None:
    values: dict[str, Any] = {}
    for option, text in texts.items():
        try:
            values[option] = parse_value(option, text)
        except ValueError as error:
            gathered.refuse(f"{_VARIABLES[option]}: {error}")

    def label(problem: str) -> str:
        return re.sub(r"^\$\.(\w+)", lambda found: _VARIABLES[found[1]], problem)

    gathered.add(values, lambda option: Origin("environment", _VARIABLES[option]), label)


def _add_file(gathered: _Gathered, file: str | Path) -> None:
    try:
        data = read_config_file(file)
    except ConfigError as error:
        gathered.refuse(*error.problems)
        return
    gathered.translate(
        data, Origin("config file", str(file)), lambda problem: f"{file}: {problem}", texts=is_yaml(file)
    )
