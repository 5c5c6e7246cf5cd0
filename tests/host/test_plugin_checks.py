"""Every way in which an installed plugin can be wrong is one row with a remedy, and the doctor goes on."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.errors import DuplicateNameError, PluginLoadError
from vtcore.host.check import Check
from vtcore.host.plugin_checks import look_at_plugins, plugin_checks
from vtcore.plugins import build_registry

PIP = f"{sys.executable} -m pip"
Install = Callable[..., Path]


def rows(name: str, environment: Environment | None = None, **options: Any) -> list[Check]:
    """The rows of that name; whatever is wrong, the core's own policy still has its row."""
    checks = plugin_checks(UserOptions(**options), environment or Environment())
    assert "scheduler_policy fcfs" in {check.name for check in checks}
    return [check for check in checks if check.name == name]


def test_a_sound_plugin_is_one_row_per_entry(install: Install) -> None:
    install("good-dist", metadata="Requires-Dist: vtcore>=0.1\n")
    assert rows("scheduler_policy good-dist") == [
        Check("scheduler_policy good-dist", "ok", "of good-dist 1.0")
    ]
    assert rows("plugin good-dist") == []


def test_a_broken_import_is_an_error_with_two_ways_out(install: Install) -> None:
    install("bad-dist", source="import nothing_of_this_name\n")
    [check] = rows("plugin bad-dist")
    assert check.status == "error"
    assert "No module named 'nothing_of_this_name'" in check.message
    assert check.remedy == (
        f"{PIP} install --force-reinstall bad-dist, or leave it out with VTCORE_PLUGINS_BLOCK=bad-dist"
    )


def test_a_broken_plugin_that_was_asked_for_does_not_stop_the_doctor(install: Install) -> None:
    install("bad-dist", source="import nothing_of_this_name\n")
    environment = Environment(plugins=("bad-dist",))
    [check] = rows("plugin bad-dist", environment)
    assert check.status == "error"
    with pytest.raises(PluginLoadError):
        build_registry(allow=["bad-dist"])


def test_a_misfit_of_versions_is_an_error_with_the_upgrade(
    install: Install, policy_source: Callable[..., str]
) -> None:
    install("old-dist", source=policy_source("old", api="0.0"))
    [check] = rows("plugin old-dist")
    assert check.status == "error"
    assert "written for version 0.0 of the hook" in check.message
    assert check.remedy == f"{PIP} install -U vtcore old-dist"


def test_an_implementation_that_cannot_be_imported_is_an_error(
    install: Install, policy_source: Callable[..., str]
) -> None:
    install("lost-dist", source=policy_source("lost", implementation="vtcore.nowhere:Policy"))
    [check] = rows("scheduler_policy lost")
    assert check.status == "error"
    assert "cannot import vtcore.nowhere:Policy: ModuleNotFoundError" in check.message
    assert check.remedy == f"{PIP} install --force-reinstall lost-dist"


def test_a_contested_name_is_a_row_for_the_doctor_and_an_error_for_the_engine(install: Install) -> None:
    install("one-dist", policy="fair")
    install("two-dist", policy="fair")
    [check] = rows("plugin two-dist")
    assert check.status == "error"
    assert check.message == "scheduler_policy 'fair' is claimed by one-dist 1.0 and by two-dist 1.0"
    assert 'plugin_owners={"scheduler_policy:fair": "one-dist"} or "two-dist"' in check.remedy
    with pytest.raises(DuplicateNameError, match=r"two-dist 1\.0; pick one with the option"):
        build_registry()
    assert rows("plugin two-dist", plugin_owners={"scheduler_policy:fair": "two-dist"}) == []


def test_stale_metadata_is_a_warning(install: Install) -> None:
    install("twice-dist", version="0.9")
    install("twice-dist", version="1.0")
    [check] = rows("plugin twice-dist")
    assert check.status == "warning"
    assert f"{PIP} uninstall -y twice-dist" in check.remedy


def test_unmet_requirements_are_errors_even_of_a_broken_plugin(install: Install) -> None:
    metadata = "Requires-Dist: nothing-of-this-name>=2\nRequires-Dist: attrs>=9999\n"
    install("needy-dist", metadata=metadata, source="import nothing_of_this_name\n")
    [absent] = rows("nothing-of-this-name")
    assert absent.message == "needy-dist needs nothing-of-this-name>=2, which is not installed"
    assert absent.remedy == f"{PIP} install 'nothing-of-this-name>=2'"
    [old] = rows("attrs")
    assert (old.status, old.message.partition(", ")[0]) == ("error", "needy-dist needs attrs>=9999")


def test_an_optional_part_that_is_not_installed_is_a_note(install: Install) -> None:
    install(
        "part-dist",
        metadata="Requires-Dist: attrs\nProvides-Extra: fast\nProvides-Extra: full\n"
        'Requires-Dist: nothing-of-this-name; extra == "fast"\nRequires-Dist: attrs; extra == "full"\n'
        'Requires-Dist: not-for-here; sys_platform == "atari"\n',
    )
    [note] = rows("part-dist[fast]")
    assert note.status == "note"
    assert note.remedy == f"{PIP} install 'part-dist[fast]'"
    assert rows("part-dist[full]") == []
    assert rows("not-for-here") == []


def test_settings_that_name_nothing_are_errors_and_do_not_hide_the_rest(install: Install) -> None:
    install("good-dist")
    environment = Environment(plugins=("no-such-plugin",), plugins_block=("nor-this",))
    first, second = rows("plugin settings", environment)
    assert "VTCORE_PLUGINS: no installed plugin is named 'no-such-plugin'" in first.message
    assert first.remedy == "mend or unset VTCORE_PLUGINS"
    assert second.remedy == "mend or unset VTCORE_PLUGINS_BLOCK"
    registry, _ = look_at_plugins(UserOptions(), environment)
    assert "good-dist" in registry.policies


def test_a_broken_file_is_mended_in_place(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def (")
    [check] = rows("plugin mine", plugin_files=(str(file),))
    assert check.status == "error"
    assert check.remedy == f"mend {file}, or leave it out"


def test_what_is_no_exception_and_no_sentence_still_becomes_a_row(install: Install) -> None:
    install("panic-dist", source="class Panic(BaseException): ...\nraise Panic('at line 3')\n")
    [check] = rows("plugin panic-dist")
    assert "cannot import it: Panic: at line 3" in check.message


def test_a_marker_that_compares_nothing_hides_no_other_requirement(install: Install) -> None:
    install(
        "mark-dist",
        metadata='Requires-Dist: other; python_version ~= "x"\nRequires-Dist: no-such-dist>=2\n',
    )
    [check] = rows("no-such-dist")
    assert check.remedy == f"{PIP} install 'no-such-dist>=2'"


def test_a_wrong_owner_is_named_whole_in_its_remedy() -> None:
    [check] = rows("plugin settings", plugin_owners={"arch:absent": "some-dist"})
    assert check.remedy == "mend or unset $.plugin_owners.arch:absent"


OWN_POLICIES = """
from vtcore import hookimpl
from vtcore.interfaces.registry_entries import SchedulerPolicyEntry
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.errors import ConfigError

VTCORE_API = {"scheduler_policies": "0.2"}

class NoSettings(SchedulerPolicy):
    options_class = dict

class Raises(SchedulerPolicy):
    def __init__(self):
        raise KeyError("weights")

class Needy(SchedulerPolicy):
    def __init__(self):
        raise ConfigError("$.policy_config.limit: none is given; give one")

@hookimpl
def vtcore_register_scheduler_policies():
    return [
        SchedulerPolicyEntry(name=name.lower(), implementation=f"{__name__}:{name}")
        for name in ("NoSettings", "Raises", "Needy")
    ]
"""


def test_a_policy_that_can_be_imported_but_not_made_is_an_error(install: Install) -> None:
    install("own-dist", source=OWN_POLICIES)
    for name, cause in (("nosettings", "no attrs class"), ("raises", "cannot be made: KeyError: 'weights'")):
        [check] = rows(f"scheduler_policy {name}")
        assert check.status == "error"
        assert cause in check.message
        assert check.remedy == f"{PIP} install -U own-dist, or report it to its authors"
    [needy] = rows("scheduler_policy needy")
    assert needy.status == "note"
    assert "$.policy_config.limit: none is given" in needy.message


def from_folder(root: Path, is_editable: bool) -> None:
    """Say of an installed distribution that it came from a folder."""
    [info] = root.glob("*.dist-info")
    origin = {"url": root.as_uri(), "dir_info": {"editable": is_editable}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    names = [file.name for file in root.glob("*.py")]
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in names))


def test_a_fault_of_an_editable_plugin_is_mended_at_its_line(install: Install) -> None:
    root = install("mine-dist", source="x = 1\ndef (\n")
    from_folder(root, is_editable=True)
    [module] = root.glob("*.py")
    [check] = rows("plugin mine-dist")
    assert check.remedy == f"mend {module}:2, or leave it out with VTCORE_PLUGINS_BLOCK=mine-dist"
    module.write_text(OWN_POLICIES)
    importlib.invalidate_caches()
    [check] = rows("scheduler_policy raises")
    line = OWN_POLICIES[: OWN_POLICIES.index("raise Key")].count("\n") + 1
    assert check.remedy == f"mend {module}:{line}"
    [check] = rows("scheduler_policy nosettings")
    assert check.remedy == f"mend {root}"


def test_a_fault_of_a_copied_folder_is_mended_there_and_installed_again(install: Install) -> None:
    root = install("copy-dist", source="def f():\n    return 1 / 0\nf()\n")
    from_folder(root, is_editable=False)
    [module] = root.glob("*.py")
    [check] = rows("plugin copy-dist")
    assert check.remedy.startswith(
        f"mend {root} (the fault is at {module}:2), then {PIP} install --force-reinstall {root}, or leave"
    )


def test_a_local_plugin_that_lacks_a_package_is_installed_again_from_its_folder(install: Install) -> None:
    root = install("poor-dist", source="import nothing_of_this_name\n")
    from_folder(root, is_editable=True)
    [check] = rows("plugin poor-dist")
    assert check.remedy.startswith(f"mend {root}, or install what it needs: {PIP} install -e {root}, or ")
