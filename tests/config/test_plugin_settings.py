"""Settings that a plugin declares: which classes may hold them, and what is said of wrong ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Literal

import attrs
import pytest

from vtcore.config.frozen_dict import freeze
from vtcore.config.plugin_settings import check_settings_class, read_settings
from vtcore.errors import ConfigError, PluginError

PATH = "$.policy_config"


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@attrs.frozen
class Inner:
    depth: int = 1


def above_zero(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if value <= 0:
        raise ValueError("it must be above 0")


@attrs.frozen
class Settings:
    weights: Mapping[str, float] = attrs.field(factory=dict)
    sizes: list[int] = attrs.field(factory=list)
    names: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    limit: int | None = None
    mode: Literal["fast", "fair"] = "fast"
    level: Literal[0, 1] = 0
    colour: Colour = Colour.RED
    inner: Inner = attrs.field(factory=Inner)
    share: float = attrs.field(default=1.0, validator=above_zero)
    count: int = attrs.field(default=1, validator=attrs.validators.in_((1, 2)))
    anything: Any = None
    nested: Mapping[str, Sequence[str]] = attrs.field(factory=dict)


@attrs.frozen
class Range:
    low: int = 1
    high: int = 10

    def __attrs_post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")
        if self.low == 7:
            raise KeyError("seven")


def problems_of(data: Any, cls: type[Any] = Settings) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_settings(data, cls, PATH)
    return [problem.removeprefix(PATH) for problem in caught.value.problems]


def test_each_kind_of_value_is_read() -> None:
    check_settings_class(Settings, "settings")
    data = {
        "weights": {"a": 2, "b": 0.5},
        "sizes": [1, 2],
        "names": ["x"],
        "words": ["y"],
        "limit": 3,
        "mode": "fair",
        "colour": "blue",
        "inner": {"depth": 2},
        "share": 2,
        "anything": {"k": [1, None]},
        "nested": {"a": ["b"]},
    }
    expected = Settings(
        weights={"a": 2.0, "b": 0.5},
        sizes=[1, 2],
        names=("x",),
        words=frozenset({"y"}),
        limit=3,
        mode="fair",
        colour=Colour.BLUE,
        inner=Inner(2),
        share=2.0,
        anything={"k": [1, None]},
        nested={"a": ("b",)},
    )
    assert read_settings(data, Settings, PATH) == expected
    # As the resolved config holds them: nothing in it can be changed.
    assert read_settings(freeze(data), Settings, PATH) == expected
    assert read_settings({}, Settings, PATH) == Settings()


REFUSED: list[tuple[Any, list[str]]] = [
    ({"wieghts": {}}, [".wieghts: no such setting; did you mean 'weights'?"]),
    ({"weights": [1]}, [".weights: [1] is not a mapping"]),
    ({"weights": {"a": "x"}}, [".weights['a']: 'x' is not a number"]),
    ({"weights": {"a": True}}, [".weights['a']: True is not a number"]),
    ({"sizes": "12"}, [".sizes: '12' is not a list"]),
    ({"sizes": [1, "2"]}, [".sizes[1]: '2' is not an integer"]),
    ({"names": "abc"}, [".names: 'abc' is not a list"]),
    ({"words": {"a": 1}}, [".words: {'a': 1} is not a list"]),
    ({"limit": "3"}, [".limit: '3' is not an integer"]),
    ({"limit": True}, [".limit: True is not an integer"]),
    ({"mode": "slow"}, [".mode: 'slow' is none of 'fast', 'fair'"]),
    ({"level": True}, [".level: True is none of 0, 1"]),
    ({"colour": "green"}, [".colour: 'green' is none of 'red', 'blue'"]),
    ({"inner": 3}, [".inner: 3 is not a mapping"]),
    ({"inner": {"depht": 3}}, [".inner.depht: no such option; did you mean 'depth'?"]),
    ({"inner": {"depth": "3"}}, [".inner.depth: '3' is not an integer"]),
    ({"share": float("nan")}, [".share: nan is not a finite number"]),
    ({"anything": {1: 2}}, [".anything: the key 1 is not a text"]),
    ({"nested": {"a": "bc"}}, [".nested.a: 'bc' is not a list"]),
    ([1], [": [1] is not a mapping"]),
    (None, [": None is not a mapping"]),
    (
        {"share": 0},
        [".share: 0 is refused: it must be above 0; change it, or leave it out for the default"],
    ),
]


@pytest.mark.parametrize(("data", "expected"), REFUSED, ids=[str(data) for data, _ in REFUSED])
def test_what_is_wrong_is_named_with_path_and_value(data: Any, expected: list[str]) -> None:
    assert problems_of(data) == expected


def test_a_validator_of_attrs_speaks_in_one_sentence() -> None:
    [problem] = problems_of({"count": 7})
    assert problem.startswith(".count: 7 is refused: 'count' must be in (1, 2)")
    assert "attribute" not in problem.lower()


def test_everything_that_is_wrong_is_said_at_once() -> None:
    found = problems_of({"nope": 1, "limit": "x", "share": -1, "count": 9, "mode": "fair"})
    assert [problem.partition(":")[0] for problem in found] == [".nope", ".limit", ".share", ".count"]


def test_values_that_only_fit_together_are_judged_together() -> None:
    assert read_settings({"low": 20, "high": 30}, Range, PATH) == Range(20, 30)
    # Beside another mistake too: 20 alone would be above the default of high.
    assert problems_of({"low": 20, "high": 30, "x": 1}, Range) == [".x: no such setting; known: high, low"]
    assert problems_of({"low": 8, "high": 5}, Range) == [
        ": {'high': 5, 'low': 8} is refused: low is above high; change it, or leave it out for the default"
    ]


def test_a_class_that_fails_on_a_value_is_the_plugins_mistake() -> None:
    with pytest.raises(PluginError, match=r"\$\.policy_config\.low: Range fails on 7: KeyError: 'seven'"):
        read_settings({"low": 7}, Range, PATH)


@attrs.frozen
class NoDefault:
    size: int


@attrs.define
class NotFrozen:
    size: int = 1


@attrs.frozen
class BadDefault:
    share: float = attrs.field(default=0.0, validator=above_zero)


@attrs.frozen
class NoJsonType:
    size: object = None


@attrs.frozen
class NoSuchType:
    size: Missing = 1  # type: ignore[name-defined]  # noqa: F821


class Plain:
    size = 1


BAD_CLASSES: dict[Any, str] = {
    NoDefault: "NoDefault, has no default for size; make it a class under @attrs.frozen",
    NotFrozen: "NotFrozen, is not frozen; make it a class under @attrs.frozen",
    BadDefault: "BadDefault, refuses its own defaults: ValueError: it must be above 0",
    NoJsonType: "NoJsonType: no JSON can be read as size",
    NoSuchType: "NoSuchType, has a type that its module does not define: name 'Missing'",
    Plain: "Plain'>, which is no attrs class",
    7: "is 7, which is no attrs class",
}


@pytest.mark.parametrize(("cls", "message"), BAD_CLASSES.items(), ids=str)
def test_a_class_that_cannot_hold_settings_is_refused_with_its_name(cls: Any, message: str) -> None:
    with pytest.raises(PluginError) as caught:
        check_settings_class(cls, "options_class of policy 'x'")
    assert str(caught.value).startswith("options_class of policy 'x'")
    assert message in str(caught.value)
