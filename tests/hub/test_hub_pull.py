"""`vtcore pull` against a hub on loopback: what is fetched, resumed, kept and used without a network."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from fake_hub import FakeHub, FakeModel, commit_of
from hub_shell import Shell

LIGHT = {"VTCORE_PLUGINS": ""}
"""No arch, so that torch is not imported; what an arch refuses is tested with the refusals."""

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
UNUSED = {
    "README.md": b"# tiny",
    "pytorch_model.bin": b"pickle",
    "model.gguf": b"GGUF",
    "consolidated.safetensors": b"the same weights once more",
    "original/model.safetensors": b"other",
    "onnx/model.onnx": b"other",
}


@pytest.fixture
def tiny(hub: FakeHub, checkpoint_files: Mapping[str, bytes]) -> FakeModel:
    model = FakeModel({**checkpoint_files, **UNUSED})
    hub.models["org/tiny"] = model
    return model


def test_only_what_is_needed_is_fetched_once_and_stdout_is_the_directory(
    shell: Shell, hub: FakeHub, tiny: FakeModel, checkpoint_files: Mapping[str, bytes]
) -> None:
    first = shell.run("pull", "org/tiny")
    assert first.code == 0, first.err
    directory = Path(first.out.removesuffix("\n"))
    assert {file.name: file.read_bytes() for file in directory.iterdir()} == checkpoint_files
    assert sorted(hub.downloads()) == sorted(checkpoint_files)
    assert directory.is_relative_to(shell.home / "hub")
    assert "org/tiny: downloading 2 of 2 weight file(s), " in first.err
    assert f"org/tiny: whole, {len(checkpoint_files)} files, " in first.err

    again = shell.run("pull", "hub://org/tiny", **LIGHT)
    assert (again.code, again.out) == (0, first.out)
    assert hub.downloads() == []
    assert "downloading" not in again.err


def test_a_whole_copy_serves_without_the_network_and_one_line_says_so(
    shell: Shell, hub: FakeHub, tiny: FakeModel
) -> None:
    online = shell.run("pull", "org/tiny", **LIGHT)
    assert online.code == 0, online.err
    offline = shell.run("pull", "org/tiny", HF_HUB_OFFLINE="1", **LIGHT)
    assert (offline.code, offline.out) == (0, online.out)
    assert "is taken from the cache" not in offline.err
    tiny.status = 503
    # With the arch, so that the source is asked twice and must still say it once.
    broken = shell.run("pull", "org/tiny")
    assert (broken.code, broken.out) == (0, online.out)
    assert broken.err.count("org/tiny is taken from the cache, because ") == 1
    assert "status 503" in broken.err


def test_ctrl_c_is_130_and_what_is_there_is_kept_and_completed_later(
    shell: Shell, hub: FakeHub, tiny: FakeModel, checkpoint_files: Mapping[str, bytes]
) -> None:
    tiny.stall = {SECOND: 100}
    with shell.start("pull", "org/tiny", **LIGHT) as process:
        assert hub.stalled.wait(60)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert SECOND in hub.downloads()

    half = shell.run("pull", "org/tiny", HF_HUB_OFFLINE="1", **LIGHT)
    assert half.code == 2
    assert half.err.startswith("error[VT229]: org/tiny is only half downloaded: ")
    assert f"lacks 1 weight file(s): {SECOND} " in half.err
    assert "unset HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) and run `vtcore pull org/tiny`" in half.err

    tiny.stall = {}
    whole = shell.run("pull", "org/tiny", **LIGHT)
    assert whole.code == 0, whole.err
    assert "downloading 1 of 2 weight file(s)" in whole.err
    assert hub.downloads() == [SECOND]
    assert (Path(whole.out.strip()) / SECOND).read_bytes() == checkpoint_files[SECOND]


def test_a_connection_that_is_cut_in_mid_file_is_taken_up_where_it_broke(
    shell: Shell, hub: FakeHub, checkpoint_files: Mapping[str, bytes]
) -> None:
    # More than the library's piece of 10 MiB, which is what it counts as received.
    content = Random(0).randbytes(12 << 20)
    small = {name: text for name, text in checkpoint_files.items() if "safetensors" not in name}
    hub.models["org/large"] = FakeModel(
        {**small, "model.safetensors": content}, cut={"model.safetensors": 11 << 20}
    )
    done = shell.run("pull", "org/large", **LIGHT)
    assert done.code == 0, done.err
    ranges = [request.split(" ")[2] for request in hub.requests if "bytes=" in request]
    assert ranges == [f"bytes={10 << 20}-"]
    assert (Path(done.out.strip()) / "model.safetensors").read_bytes() == content


def test_an_update_that_breaks_off_leaves_the_old_copy_usable_offline(
    shell: Shell, hub: FakeHub, tiny: FakeModel
) -> None:
    old = shell.run("pull", "org/tiny", **LIGHT)
    tiny.files = {**tiny.files, FIRST: b"new weights", "config.json": tiny.files["config.json"] + b"\n"}
    tiny.claimed_sizes = {FIRST: 10**18}
    new, offline = (
        shell.run("pull", "org/tiny", **LIGHT),
        shell.run("pull", "org/tiny", HF_HUB_OFFLINE="1", **LIGHT),
    )
    assert (old.code, new.code, offline.code) == (0, 3, 0)
    assert offline.out == old.out


def test_a_revision_a_download_directory_and_a_token_are_honoured(
    shell: Shell, hub: FakeHub, checkpoint_files: Mapping[str, bytes]
) -> None:
    other = {**checkpoint_files, "generation_config.json": b'{"eos_token_id": 1}'}
    hub.models["org/gated"] = FakeModel(dict(checkpoint_files), branches={"dev": other}, token="hf_secret")
    flags = ("--revision", "dev", "--download-dir", "models")
    done = shell.run("pull", "org/gated", *flags, HF_TOKEN="hf_secret", **LIGHT)
    assert done.code == 0, done.err
    directory = Path(done.out.strip())
    assert directory.is_relative_to(shell.home / "models")
    assert directory.name == commit_of(other)
    assert (directory / "generation_config.json").read_bytes() == other["generation_config.json"]
    by_commit = shell.run("pull", "org/gated", *flags, HF_HUB_OFFLINE="1", **LIGHT)
    assert by_commit.out == done.out


def test_the_network_switched_off_or_away_with_nothing_cached_are_two_errors(
    shell: Shell, hub: FakeHub, tiny: FakeModel
) -> None:
    (shell.home / "tinny").mkdir()
    offline = shell.run("pull", "tiny", HF_HUB_OFFLINE="1", **LIGHT)
    assert offline.code == 3
    assert offline.err.startswith("error[VT305]: tiny is not in the cache ")
    assert "unset it, or run `vtcore pull tiny`" in offline.err
    assert "there is no local directory of that name either; did you mean 'tinny'?" in offline.err
    # Port 9 (discard) of loopback: nobody listens.
    at_revision = shell.run("pull", "org/tiny", "--revision", "dev", TRANSFORMERS_OFFLINE="1", **LIGHT)
    assert "run `vtcore pull org/tiny --revision dev` while" in at_revision.err
    away = shell.run("pull", "org/tiny", HF_ENDPOINT="http://127.0.0.1:9", **LIGHT)
    assert away.code == 3
    assert away.err.startswith(
        "error[VT304]: http://127.0.0.1:9 cannot be reached for org/tiny (ConnectError"
    )
    assert "there is no local directory of that name either" in away.err
    assert hub.requests == []


def test_a_new_commit_with_old_weights_needs_no_disk_for_them(
    shell: Shell, hub: FakeHub, tiny: FakeModel
) -> None:
    assert shell.run("pull", "org/tiny", **LIGHT).code == 0
    hub.downloads()
    tiny.files = {**tiny.files, "generation_config.json": b'{"eos_token_id": 1}'}
    tiny.claimed_sizes = {FIRST: 10**18, SECOND: 10**18}
    done = shell.run("pull", "org/tiny", **LIGHT)
    assert done.code == 0, done.err
    assert hub.downloads() == ["generation_config.json"]
    assert "downloading" not in done.err
    assert Path(done.out.strip()).name == commit_of(tiny.files)


def test_a_wrong_variable_of_the_library_is_named_and_stdout_stays_empty(shell: Shell) -> None:
    done = shell.run("pull", "org/tiny", HF_ENDPOINT="http://[::1", **LIGHT)
    assert (done.code, done.out) == (3, "")
    assert "huggingface_hub stops at one of its variables, HF_ENDPOINT or another: Invalid IPv6" in done.err


def test_a_proxy_and_a_token_that_are_none_are_named(shell: Shell) -> None:
    proxy = shell.run("pull", "org/tiny", http_proxy="foo://bar:1", **LIGHT)
    assert proxy.code == 3
    assert proxy.err.startswith("error[VT304]: ")
    assert "correct or unset the proxy variables" in proxy.err
    token = shell.run("pull", "org/tiny", HF_TOKEN="hf_\u00fc", **LIGHT)
    assert token.code == 3
    assert token.err.startswith("error[VT301]: ")
    assert "correct or unset HF_TOKEN" in token.err
