"""What a distribution's metadata requires, and what of it is installed.

Does not: install anything, or follow the requirements of requirements.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution, version

from attrs import frozen
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from vtcore.host.check import Check
from vtcore.host.installed import pip_command


@frozen
class Need:
    """One requirement and what is there.

    Args:
        name: The required distribution.
        specifier: Versions that do, ">=2.9"; "" for any.
        installed: Its installed version; None when absent.
        extra: Which optional part of the distribution needs it; "" for the distribution itself.
    """

    name: str
    specifier: str
    installed: str | None
    extra: str = ""

    @property
    def is_met(self) -> bool:
        """Whether an installed version is in the range; one that is no version never is."""
        if self.installed is None:
            return False
        try:
            return SpecifierSet(self.specifier).contains(Version(self.installed), prereleases=True)
        except InvalidVersion:
            return False

    def __str__(self) -> str:
        return f"{self.name}{self.specifier} ({self.installed or 'not installed'})"


def read_needs(name: str) -> tuple[Need, ...]:
    """Read a distribution's requirements that hold on this machine, those of its optional parts too.

    Args:
        name: Of an installed distribution; one that is not installed needs nothing.
    """
    try:
        metadata = distribution(name)
    except PackageNotFoundError:
        return ()
    parts: list[str] = metadata.metadata.get_all("Provides-Extra") or []
    needs = []
    for text in metadata.requires or ():
        try:
            requirement = Requirement(text)
            marker = requirement.marker
            held = [extra for extra in ("", *parts) if marker is None or marker.evaluate({"extra": extra})]
        # InvalidRequirement, and what a marker raises that compares what cannot be compared.
        except ValueError:
            # pip refuses such metadata itself; a distribution's other lines still say something.
            continue
        if held:
            name, specifier = requirement.name, str(requirement.specifier)
            needs.append(Need(name, specifier, installed_version(name), held[0]))
    return tuple(needs)


def installed_version(name: str) -> str | None:
    """A distribution's installed version; None when it is absent."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def need_checks(owner: str, needs: tuple[Need, ...]) -> list[Check]:
    """Judge a distribution's requirements: unmet ones are errors, optional parts that lack any are notes.

    Args:
        owner: The distribution.
        needs: What `read_needs` read.
    """
    checks = []
    for need in needs:
        if need.extra or need.is_met:
            continue
        what = f"{owner} needs {need.name}{need.specifier}"
        state = "which is not installed" if need.installed is None else f"and {need.installed} is installed"
        checks.append(
            Check(need.name, "error", f"{what}, {state}", pip_command("install", need.name + need.specifier))
        )
    for extra in dict.fromkeys(need.extra for need in needs if need.extra):
        lacking = [need for need in needs if need.extra == extra and not need.is_met]
        if lacking:
            checks.append(
                Check(
                    f"{owner}[{extra}]",
                    "note",
                    f"the optional part {extra!r} of {owner} lacks {', '.join(map(str, lacking))}",
                    pip_command("install", f"{owner}[{extra}]"),
                )
            )
    return checks
