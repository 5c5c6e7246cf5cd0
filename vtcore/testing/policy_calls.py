"""With what a scheduler policy was called when it failed, so that an author can call it so again.

Does not: judge what the policy answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.scheduling.policy_frames import frames_in_policy, line_in_policy

AnswerT = TypeVar("AnswerT")
"""What a method of a policy returns."""

MAX_SHOWN = 2000
"""Characters of one argument."""


def ask(policy: SchedulerPolicy, method: Callable[..., AnswerT], *arguments: Any) -> AnswerT:
    """Call a method of a policy; what it raises gets a note with the policy's line and the arguments."""
    try:
        return method(*arguments)
    except Exception as error:
        error.add_note(f"{_name(type(policy))}{line_in_policy(type(policy), error)}; {_shown(arguments)}")
        raise


def call_that_failed(policy: type[SchedulerPolicy], error: BaseException) -> str:
    """The call of a policy that an error came from.

    Args:
        error: As caught by whoever called the policy.

    Returns:
        "called with ..."; "" if the error did not come out of the policy's code.
    """
    frames = frames_in_policy(policy, error)
    if not frames:
        return ""
    frame = frames[0][0]
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    values = [frame.f_locals.get(name) for name in names]
    return _shown([value for value in values if not isinstance(value, SchedulerPolicy)])


def _name(policy: type[SchedulerPolicy]) -> str:
    return f"{policy.__module__}:{policy.__qualname__}"


def _shown(arguments: Any) -> str:
    texts = []
    for one in arguments:
        text = repr(one)
        texts.append(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}...")
    return f"called with {', '.join(texts)}"
