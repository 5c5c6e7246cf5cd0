"""What one request brings for the scheduler policy: checked where it enters, read once where it is queued.

Does not: know any policy; each names its own class for it (`SchedulerPolicy.args_class`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vtcore.config.plugin_settings import read_settings
from vtcore.errors import ConfigError, PluginError, RequestError
from vtcore.interfaces.scheduler_policy import SchedulerPolicy

MAX_ARGS_BYTES = 16384
"""Of one request's policy_args as JSON: it is kept for as long as the request, and read by the core."""

_PATH = "$.policy_args"


def check_policy_args(policy: SchedulerPolicy, args: Mapping[str, Any] | None) -> str:
    """Judge what a request brings, before anything of it reaches the core.

    Args:
        args: As the caller gave it; None and an empty one bring nothing.

    Returns:
        Canonical JSON (sorted keys, no spaces) for `EngineRequest.policy_args`; "" for nothing.

    Raises:
        RequestError: The policy takes no arguments, or a key, type or value is wrong; names all of them as
            `$.policy_args.key`.
    """
    if args is None or args == {}:
        return ""
    _read(policy, args)
    text = json.dumps(args, sort_keys=True, separators=(",", ":"), default=dict)
    if len(text) > MAX_ARGS_BYTES:
        raise RequestError(f"{_PATH}: {len(text)} bytes as JSON, at most {MAX_ARGS_BYTES}; send less")
    return text


def parse_policy_args(policy: SchedulerPolicy, text: str) -> Any:
    """Make the instance that the policy's views carry.

    Args:
        text: As `check_policy_args` gave it.

    Returns:
        An instance of the policy's `args_class`, its defaults for ""; None if it has no such class.

    Raises:
        RequestError: The text is not what `check_policy_args` gives for this policy.
    """
    if not text:
        return None if policy.args_class is None else policy.args_class()
    try:
        args = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{_PATH}: not JSON: {error}; send a JSON object") from error
    return _read(policy, args)


def _read(policy: SchedulerPolicy, args: Mapping[str, Any]) -> Any:
    name = type(policy).__qualname__
    if policy.args_class is None:
        raise RequestError(
            f"{_PATH}: the scheduler policy {name} takes none from requests; leave policy_args out, "
            f"or start the engine with a scheduling_policy that reads them"
        )
    try:
        return read_settings(args, policy.args_class, _PATH)
    except ConfigError as error:
        raise RequestError(str(error)) from error
    except PluginError as error:
        raise RequestError(f"{error}; this is a mistake in the scheduler policy {name}") from error
