"""Ops are chosen by device and override, and a wrong name is refused at load."""

from __future__ import annotations

import math
import re

import pytest

from vtcore.errors import ConfigError, PluginLoadError
from vtcore.ops.dispatch import CORE_OPS, check_overrides, resolve_ops
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
        (
            {"nothing": "naive"},
            {},
            r"\$\.op_overrides\.nothing: no such op; known: add_rms_norm, .*, silu_mul$",
        ),
        ({"silu_mull": "naive"}, {}, r"\$\.op_overrides\.silu_mull: no such op; did you mean 'silu_mul'\?"),
        ({"roots": "naive"}, {"root": {"naive": "math:sqrt"}}, "did you mean 'root'"),
        (
            {"rope": "fast"},
            {},
            r"\$\.op_overrides\.rope: no implementation 'fast' serves it; choose naive, or give module:fun",
        ),
        ({"rope": "cuda"}, {}, "no implementation 'cuda' serves it; choose naive, or give"),
        # A kernel of another device is there, and cannot run.
        ({"rms_norm": "cuda"}, {}, "no implementation 'cuda' serves it on cpu; choose naive, or give"),
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
    with pytest.raises(ConfigError, match=r"^\$\.op_overrides\.root: 'math:none' cannot be imported"):
        resolve_ops("cpu", {"root": "math:none"}, {"root": {"naive": path}})


TWO_FORMS = {"root": {"naive": "math:sqrt", "cuda": "math:cbrt", "cuda_batch_invariant": "math:exp"}}


def test_the_invariant_form_serves_where_bits_must_not_depend_on_the_batch() -> None:
    assert resolve_ops("cuda", arch_ops=TWO_FORMS)["root"] is math.cbrt
    assert resolve_ops("cuda", arch_ops=TWO_FORMS, batch_invariant=True)["root"] is math.exp
    assert resolve_ops("cpu", arch_ops=TWO_FORMS, batch_invariant=True)["root"] is math.sqrt
    assert resolve_ops("cuda", {"root": "cuda_batch_invariant"}, TWO_FORMS)["root"] is math.exp


@pytest.mark.parametrize("choice", ["cuda", "naive", "math:cbrt", "math:sin"])
def test_no_override_takes_the_invariance_back(choice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_overrides("cuda", {"root": choice}, TWO_FORMS, batch_invariant=True)
    assert caught.value.problems == (
        f"$.op_overrides.root: {choice!r} may give a row other bits in another batch, which batch_invariant "
        f"rules out; leave it out, and cuda_batch_invariant serves, or leave batch_invariant out",
    )
    with pytest.raises(ConfigError, match="may give a row other bits"):
        resolve_ops("cuda", {"root": choice}, TWO_FORMS, batch_invariant=True)
    check_overrides("cuda", {"root": choice}, TWO_FORMS)


@pytest.mark.parametrize(
    ("device", "overrides"),
    [
        ("cuda", {"linear": "naive"}),
        ("cuda", {"linear": "cuda"}),
        ("cuda", {"rms_norm": "naive"}),
        ("cuda", {"rope": "vtcore.ops.kv_write.naive:kv_write"}),
    ],
)
def test_under_batch_invariance_the_cores_ops_are_served_by_the_forms_that_keep_it(
    device: str, overrides: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match="may give a row other bits in another batch"):
        check_overrides(device, overrides, {}, batch_invariant=True)


@pytest.mark.parametrize(
    ("device", "choice"),
    [
        ("cuda", "cuda_batch_invariant"),
        ("cuda", "math:exp"),
        ("cpu", "naive"),
        ("cpu", "math:sqrt"),
    ],
)
def test_an_override_that_names_what_serves_anyway_stays(device: str, choice: str) -> None:
    found = resolve_ops(device, {"root": choice}, TWO_FORMS, batch_invariant=True)["root"]
    assert found is resolve_ops(device, arch_ops=TWO_FORMS, batch_invariant=True)["root"]


def test_an_unknown_name_is_told_apart_from_one_that_breaks_the_invariance() -> None:
    with pytest.raises(ConfigError, match="no implementation 'fast' serves it; leave it out, and cuda_batch"):
        check_overrides("cuda", {"root": "fast"}, TWO_FORMS, batch_invariant=True)


def test_all_wrong_overrides_are_named_at_once_and_functions_only_when_asked() -> None:
    wrong = {"root": "fast", "rot": "naive", "rope": "no_such_module:rope"}
    with pytest.raises(ConfigError) as caught:
        check_overrides("cpu", wrong, TWO_FORMS, imports=True)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "$.op_overrides.root",
        "$.op_overrides.rope",
        "$.op_overrides.rot",
    ]
    check_overrides("cpu", {"rope": "no_such_module:rope"}, TWO_FORMS)
