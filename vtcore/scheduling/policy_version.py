"""Which members of `SchedulerPolicy` a policy uses that came after the version it declares.

Does not: refuse a policy; `vtcore.planning.make_policy` and the conformance kit do.
"""

from __future__ import annotations

from collections.abc import Mapping

from vtcore.hookspecs import parse_hook_version
from vtcore.interfaces.scheduler_policy import SchedulerPolicy

_SINCE: Mapping[str, tuple[str, ...]] = {
    "0.2": ("options_class", "args_class", "is_active", "needs_prefix_caching")
}
"""Version of the hook -> members that a policy of an older version does not have.

Source: docs/plugins.md, Versions of the hooks.
"""


def newer_members(policy: type[SchedulerPolicy], declared: str) -> str:
    """What is wrong with the version that a policy's plugin declares.

    Args:
        declared: "MAJOR.MINOR", the plugin's `VTCORE_API["scheduler_policies"]`.

    Returns:
        The end of a sentence about the policy, with the remedy; "" if it uses nothing newer.
    """
    wanted = "; ".join(
        f"{', '.join(used)} of version {version}"
        for version, names in _SINCE.items()
        if parse_hook_version(version) > parse_hook_version(declared)
        and (used := [n for n in names if getattr(policy, n) is not getattr(SchedulerPolicy, n)])
    )
    if not wanted:
        return ""
    least = wanted.rpartition(" ")[2]
    return (
        f"uses {wanted}, and its plugin declares {declared}; write "
        f'VTCORE_API = {{"scheduler_policies": "{least}"}}'
    )
