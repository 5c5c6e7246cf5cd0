"""A stranger's policy or arch that misbehaves while it runs is named, and costs no more than it must."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stranger_projects import ECHO, FAULTS, FAULTY, UNRULY, UNRULY_PLUGIN, arch_plugin

if TYPE_CHECKING:
    from conftest import Home

pytestmark = pytest.mark.slow

Build = Callable[..., Path]
IDS = ("--skip-tokenizer-init", "--dtype", "float64", "--max-tokens", "3")
RUN = (*IDS, "--max-num-seqs", "1", "--input", "in.jsonl", "--output", "-")


@pytest.fixture
def unruly(home: Home, build: Build) -> str:
    """Unruly policies and an arch that works; returns its checkpoint."""
    arch = {"plugin": arch_plugin("vtcore_echo", {"echo": "Echo"}), "arch": ECHO}
    home.install(
        build("vtcore-echo", arch), build("vtcore-unruly", {"plugin": UNRULY_PLUGIN, "policies": UNRULY})
    )
    lines = [json.dumps({"prompt_token_ids": [i + 1, i + 2]}) for i in range(5)]
    (home.work / "in.jsonl").write_text("\n".join(lines) + "\n")
    return home.checkpoint("echo")


def test_a_policy_that_breaks_its_contract_loses_its_turn_and_every_request_is_served(
    home: Home, unruly: str
) -> None:
    usual = home.shown("generate", unruly, *RUN)
    for policy, cause in (
        ("raising", "order: ZeroDivisionError: no share"),
        ("losing", "order: ValueError: order is no permutation of range("),
        ("slow", "order: TimeoutError: slower than 0.005 s in 3 steps (breach 1)"),
        ("sorting", "key: TypeError: key "),
    ):
        done = home.vtcore("generate", unruly, *RUN, "--scheduling-policy", policy)
        assert done.returncode == 0
        assert done.stdout == usual
        first = done.stderr.splitlines()[0]
        name = f"{policy} (vtcore_unruly.policies:{policy.title()})"
        assert first.startswith(f"policy {name} loses its turn: {cause}"), first


def test_a_policy_that_cannot_be_made_stops_the_start(home: Home, unruly: str) -> None:
    assert home.refused("VT311", "check", unruly, "--scheduling-policy", "unmakable") == (
        "scheduler policy unmakable (vtcore-unruly 1.0), plugin 'unruly', cannot be made: KeyError: 'weights'"
    )
    assert home.refused("VT311", "check", unruly, "--scheduling-policy", "absent") == (
        "scheduler_policy absent (vtcore-unruly 1.0), plugin 'unruly': cannot import "
        "vtcore_unruly.policies:Absent: AttributeError: module 'vtcore_unruly.policies' has no attribute "
        "'Absent'"
    )


DUE = "shape (2, 1), torch.float64, on cpu is due"
LOGITS_DUE = "shape (1, 64), a floating-point dtype, on cpu is due"
SENTENCES = {
    "Raises": "forward() failed: IndexError: layer 7 of 6",
    "Short": f"forward() returned hidden of shape (1, 1), torch.int64, on cpu; {DUE}",
    "Wide": f"forward() returned hidden of shape (2, 2), torch.int64, on cpu; {DUE}",
    "Half": f"forward() returned hidden of shape (2, 1), torch.float16, on cpu; {DUE}",
    "Elsewhere": f"forward() returned hidden of shape (2, 1), torch.int64, on meta; {DUE}",
    "Bare": "forward() returned Tensor, not a ForwardOutput",
    "Mixed": f"logits() returned logits of shape (1, 64), torch.int64, on cpu; {LOGITS_DUE}",
    "Narrow": f"logits() returned logits of shape (1, 63), torch.float64, on cpu; {LOGITS_DUE}",
    "Lost": f"logits() returned logits of shape (1, 64), torch.float64, on meta; {LOGITS_DUE}",
    "Failing": "logits() failed: IndexError: head 3 of 2",
}


def test_an_arch_that_fails_or_returns_nonsense_is_named(home: Home, build: Build) -> None:
    classes = {name.lower(): f"{name}Arch" for name in FAULTS}
    modules = {"plugin": arch_plugin("vtcore_faulty", classes), "arch": FAULTY}
    home.install(build("vtcore-faulty", modules))
    assert set(SENTENCES) == set(FAULTS)
    for name, sentence in SENTENCES.items():
        model = home.checkpoint(name.lower())
        remedy = (
            "run it again with --debug and report the traceback to the plugin's authors"
            if "failed" in sentence
            else "upgrade the plugin, or report it to its authors"
        )
        assert home.refused("VT401", "generate", model, *IDS, "--prompt-token-ids", "1,2") == (
            f"arch {name.lower()} (vtcore-faulty 1.0): {sentence}; {remedy}"
        )
