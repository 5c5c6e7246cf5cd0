"""A small checkpoint as a hub publishes it, a hub, and a shell to use it from."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_hub import FakeHub, running_hub
from hub_shell import Shell

from vtcore.cli.make_checkpoint import make_checkpoint


@pytest.fixture(scope="session")
def checkpoint_files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    directory = tmp_path_factory.mktemp("published") / "tiny"
    make_checkpoint("qwen3_5_dense", "tiny", directory)
    return {file.name: file.read_bytes() for file in directory.iterdir()}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with running_hub() as running:
        yield running


@pytest.fixture
def shell(hub: FakeHub, tmp_path: Path) -> Shell:
    return Shell(tmp_path, hub.url)
