"""Ops are chosen by device and override, and a wrong name is refused at load."""

from __future__ import annotations

import math
import re

import pytest

from vtcore.errors import ConfigError, PluginLoadError
from vtcore.ops.dispatch import CORE_OPS, resolve_ops
from vtcore.ops.rms_norm.naive import rms_norm


def test_every_core_op_has_a_naive_form_that_imports() -> None:
    assert all("naive" in implementations for implementations in CORE_OPS.values())
    resolved = resolve_ops("cpu")
    assert resolved.keys() == CORE_OPS.keys()
    assert resolved["rms_norm"] is rms_norm


def test_an_op_runs_its_device_form_where_there_is_one() -> None:
    arch_ops = {"root": {"naive": "math:sqrt", "cuda": "math:cbrt"}}
    assert resolve_ops("cpu", arch_ops=arch_ops)["root"] is math.sqrt
    assert resolve_ops("cuda", arch_ops=arch_ops)["root"] is math.cbrt
    assert resolve_ops("cuda", {"root": "naive"}, arch_ops)["root"] is math.sqrt
    assert resolve_ops("cuda", {"root": "math:exp"}, arch_ops)["root"] is math.exp


@pytest.mark.parametrize(
    ("overrides", "arch_ops", "message"),
    [
        ({"nothing": "naive"}, {}, r"\$\.ops\.nothing: no such op"),
        ({"rope": "fast"}, {}, r"\$\.ops\.rope: no implementation 'fast'"),
        ({"rope": "no_such_module:rope"}, {}, "cannot be imported"),
        ({"rope": "math:no_such_function"}, {}, "cannot be imported"),
        ({"rope": "math:pi"}, {}, "is not a function"),
        ({}, {"rope": {"naive": "math:sqrt"}}, "both define"),
    ],
)
def test_a_wrong_choice_is_refused(
    overrides: dict[str, str], arch_ops: dict[str, dict[str, str]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_ops("cpu", overrides, arch_ops)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:f", "cannot be imported (ModuleNotFoundError: "),
        ("math:no_such_function", "cannot be imported (AttributeError: "),
        ("", "cannot be imported (ValueError: "),
        ("math:pi", "is not a function"),
    ],
)
def test_an_op_of_the_arch_that_cannot_be_imported_is_its_plugins_fault(path: str, message: str) -> None:
    with pytest.raises(PluginLoadError, match=re.escape(f"op 'root': {path!r} {message}")):
        resolve_ops("cpu", arch_ops={"root": {"naive": path}})
    # What an override names is the user's.
    with pytest.raises(ConfigError, match=r"^\$\.ops\.root: 'math:none' cannot be imported"):
        resolve_ops("cpu", {"root": "math:none"}, {"root": {"naive": path}})
