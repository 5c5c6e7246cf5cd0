"""Where in a scheduler policy's own code an error came from.

Does not: decide what the error costs the policy; `vtcore.scheduling.policy_guard` does.
"""

from __future__ import annotations

import traceback
from types import FrameType

from vtcore.interfaces.scheduler_policy import SchedulerPolicy


def frames_in_policy(policy: type[SchedulerPolicy], error: BaseException) -> list[tuple[FrameType, int]]:
    """Frames of the error's traceback that lie in the packages of the policy and its parents.

    Args:
        error: As caught by whoever called the policy; the caller's own frame is left out.

    Returns:
        (frame, line), the outermost first; empty if the policy's answer was refused after it returned.
    """
    modules = {parent.__module__ for parent in policy.__mro__ if parent not in (SchedulerPolicy, object)}
    packages = {module.rpartition(".")[0] or module for module in modules}
    # The first frame is the caller's; the built-in policies share its top package.
    called = list(traceback.walk_tb(error.__traceback__))[1:]
    return [
        (frame, line)
        for frame, line in called
        if any(f"{frame.f_globals.get('__name__')}.".startswith(f"{package}.") for package in packages)
    ]


def line_in_policy(policy: type[SchedulerPolicy], error: BaseException) -> str:
    """ " at FILE:LINE" of the innermost line of the policy's own code; "" if the error is not from there."""
    frames = frames_in_policy(policy, error)
    return f" at {frames[-1][0].f_code.co_filename}:{frames[-1][1]}" if frames else ""
