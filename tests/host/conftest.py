"""Distributions with plugins, written to a temporary folder and put on the path."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution; returns its folder on the path.

    By default it offers one policy of its own name whose implementation is the core's; `metadata` are further
    lines of METADATA, `source` replaces the plugin's module.
    """

    def write(
        distribution: str, *, version: str = "1.0", metadata: str = "", source: str = "", policy: str = ""
    ) -> Path:
        module = f"module_{uuid.uuid4().hex}"
        root = tmp_path / uuid.uuid4().hex
        info = root / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        head = f"Metadata-Version: 2.4\nName: {distribution}\nVersion: {version}\n{metadata}"
        (info / "METADATA").write_text(f"{head.rstrip()}\n\nName: a description\n")
        (info / "entry_points.txt").write_text(f"[vtcore.plugins]\n{distribution} = {module}\n")
        (root / f"{module}.py").write_text(source or policy_source(policy or distribution))
        monkeypatch.syspath_prepend(str(root))
        return root

    return write


def policy_source(
    name: str, api: str = "0.2", implementation: str = "vtcore.scheduling.policies.fcfs:FcfsPolicy"
) -> str:
    return f"""
from vtcore import hookimpl
from vtcore.interfaces.registry_entries import SchedulerPolicyEntry

VTCORE_API = {{"scheduler_policies": "{api}"}}

@hookimpl
def vtcore_register_scheduler_policies():
    return [SchedulerPolicyEntry(name="{name}", implementation="{implementation}")]
"""


@pytest.fixture(name="policy_source")
def _policy_source() -> Callable[..., str]:
    return policy_source
