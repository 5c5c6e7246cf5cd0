"""A Hub id is a MODEL for every command, and each fetches no more than it needs."""

from __future__ import annotations

from collections.abc import Mapping

from fake_hub import FakeHub, FakeModel
from hub_shell import Shell

FLAGS = ("--prompt", "The quick brown fox", "--max-tokens", "4", "--temperature", "0", "--num-blocks", "16")


def test_check_and_dummy_weights_need_no_weights_and_the_real_ones_are_then_fetched(
    shell: Shell, hub: FakeHub, checkpoint_files: Mapping[str, bytes]
) -> None:
    hub.models["org/tiny"] = FakeModel(dict(checkpoint_files))
    weights = {name for name in checkpoint_files if name.endswith(".safetensors")}
    checked, dummy = shell.run_many(
        [["check", "org/tiny"], ["generate", "org/tiny", *FLAGS, "--load-format", "dummy"]]
    )
    assert (checked.code, dummy.code) == (0, 0), (checked.err, dummy.err)
    assert set(hub.downloads()) == checkpoint_files.keys() - weights

    real, again = shell.run_many([["generate", "org/tiny", *FLAGS]] * 2)
    assert (real.code, again.code) == (0, 0), (real.err, again.err)
    assert set(hub.downloads()) == weights
    # The checkpoint was drawn with seed 0 by the same rules, so the text must be the same.
    assert real.out == dummy.out
    assert again.out == real.out
