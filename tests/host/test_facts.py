"""The facts of this very machine are read, and folders that cannot be written say so."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from vtcore.config.env import HostVariables, read_host_variables, read_what_can_be_read, set_triton_cache_dir
from vtcore.errors import HostError
from vtcore.host.cache_dir import TRITON_FOLDER, prepare_cache_dir, resolve_hub_cache
from vtcore.host.facts import free_bytes, num_usable_cores, read_cache, read_compiler, read_interpreter
from vtcore.host.requirements import read_needs


def test_the_interpreter_is_this_one() -> None:
    facts = read_interpreter()
    assert facts.executable == sys.executable
    assert facts.version == sys.version_info[:3]
    assert facts.required == ">=3.11"
    assert facts.is_isolated is (sys.prefix != sys.base_prefix)


def test_the_compiler_that_cc_names_wins(tmp_path: Path) -> None:
    compiler = tmp_path / "mycc"
    compiler.touch(mode=0o755)
    assert read_compiler(HostVariables(cc=str(compiler))).found == str(compiler)
    assert read_compiler(HostVariables(cc=str(tmp_path / "absent"))).found is None


def test_the_cache_directory_is_made_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    folder = tmp_path / "a" / "b"
    facts = read_cache(folder)
    assert (facts.path, facts.problem) == (str(folder), None)
    assert facts.free_bytes
    assert list(folder.iterdir()) == []
    assert read_host_variables().triton_cache_dir == str(folder / TRITON_FOLDER)


def test_a_cache_directory_that_is_a_file_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(HostError, match="cannot be written: File exists; set VTCORE_CACHE_DIR"):
        prepare_cache_dir(file)
    assert "cannot be written" in (read_cache(file / "below").problem or "")


def test_a_users_own_triton_cache_wins() -> None:
    environ = {"TRITON_CACHE_DIR": "/mine"}
    set_triton_cache_dir("/other", environ)
    assert environ == {"TRITON_CACHE_DIR": "/mine"}


def test_free_space_of_a_folder_that_is_not_there_is_its_disks(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "not" / "there")


def test_some_core_is_usable() -> None:
    assert num_usable_cores() >= 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (HostVariables(hf_hub_cache="/c", hf_home="/h"), "/c"),
        (HostVariables(hf_home="/h", cache_home="/x"), "/h/hub"),
        (HostVariables(cache_home="/x"), "/x/huggingface/hub"),
        (HostVariables(), str(Path.home() / ".cache/huggingface/hub")),
        (HostVariables(hf_home="~no-such-user/h"), "~no-such-user/h/hub"),
        (HostVariables(hf_hub_cache="$NO_SUCH_VARIABLE/c"), "$NO_SUCH_VARIABLE/c"),
    ],
)
def test_the_hub_cache_is_where_the_hub_library_puts_it(variables: HostVariables, expected: str) -> None:
    assert str(resolve_hub_cache(variables)) == expected


def test_host_variables_are_read_and_empty_ones_count_as_unset() -> None:
    environ = {"CC": "", "HF_HOME": "/h", "CUDA_VISIBLE_DEVICES": "", "VTCORE_B": "", "VTCORE_A": "1"}
    assert read_host_variables(environ) == HostVariables(
        hf_home="/h", cuda_visible_devices="", vtcore_names=("VTCORE_A", "VTCORE_B")
    )


def test_a_wrong_variable_of_vtcore_leaves_the_others_readable() -> None:
    environ = {"VTCORE_CACH_DIR": "/x", "VTCORE_CACHE_DIR": "/y", "CUDA_VISIBLE_DEVICES": "-1", "HOME": "/h"}
    environment = read_what_can_be_read(environ)
    assert environment.gpus_hidden
    assert environment.cache_dir == Path("/h/.cache/vtcore")


def test_the_cores_own_requirements_are_met() -> None:
    needs = {need.name: need for need in read_needs("vtcore")}
    assert needs["torch"].installed == version("torch")
    assert all(need.is_met for need in needs.values() if not need.extra)
    assert read_needs("no-such-distribution-xyz") == ()


def test_the_host_package_imports_no_torch() -> None:
    code = "import sys\nfrom vtcore.host import doctor\nassert not {'torch', 'triton'} & set(sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
