"""Distributions written to a temporary folder and put on the path."""

from __future__ import annotations

import sys
import textwrap
import uuid
from pathlib import Path

import pytest

from vtcore.plugins import GROUP

sys.path.insert(0, str(Path(__file__).parent))

from plugin_sources import Install


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Write a distribution and put it first on the path; returns the name of its module."""

    def write(
        distribution: str, source: str, *, version: str = "1.0", names: tuple[str, ...] = (), module: str = ""
    ) -> str:
        module = module or f"module_{uuid.uuid4().hex}"
        root = tmp_path / uuid.uuid4().hex
        info = root / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = [f"{name} = {module}" for name in names or (distribution,)]
        (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
        (root / f"{module}.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(str(root))
        return module

    return write
