"""How a request is queued and cached: its place in line, whose it is, and with whom it shares the cache.

Does not: change what is generated; none of it reaches the sampler. What a policy makes of it is the policy's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, fields, frozen

from vtcore.config.shown import shown
from vtcore.errors import RequestError
from vtcore.request_checks import Problems

MAX_PRIORITY = 2**31 - 1
"""Largest priority in absolute value, an int32; the smallest is one less."""
MAX_TENANT_CHARS = 256
"""Longest name of a tenant: enough for an e-mail address or a hash."""
MAX_SALT_CHARS = 256
"""Longest cache salt; 43 characters of base64 hold 256 random bits. (vLLM has no limit.)"""


@frozen(kw_only=True)
class Handling:
    """How one request is handled, as its user gave it; `check_handling` judges it.

    Args:
        priority: -2**31 <= priority < 2**31, smaller goes first under a policy that looks at it, as
            `priority` does. `fcfs` does not.
        tenant: Whose request it is, at most 256 characters, for policies that share between tenants; None is
            the tenant "".
        policy_args: What else the scheduler policy wants to know of the request, by name; None brings none.
        cache_salt: 1 to 256 characters; prefixes are shared only between requests of equal salt. None shares
            with all that bring none.
    """

    priority: int = 0
    tenant: str | None = None
    policy_args: Mapping[str, Any] | None = field(default=None, hash=False)
    cache_salt: str | None = None


NO_HANDLING = Handling()
"""First come, nobody's, sharing with all."""
HANDLING_NAMES: tuple[str, ...] = tuple(option.name for option in fields(Handling))
"""Arguments of `LLM.generate` beside the sampling parameters, and keys of a line of requests."""


def check_handling(handling: Handling) -> None:
    """Judge what can be judged without the policy; its own args it judges itself.

    Raises:
        RequestError: Every value that is wrong, at once.
    """
    check = Problems()
    check.integer("priority", handling.priority, -MAX_PRIORITY - 1, MAX_PRIORITY, "smaller goes first")
    if handling.tenant is not None:
        _check_text(check, "tenant", handling.tenant, MAX_TENANT_CHARS)
    if handling.cache_salt is not None and _check_text(
        check, "cache_salt", handling.cache_salt, MAX_SALT_CHARS
    ):
        check.that(handling.cache_salt != "", "cache_salt is empty; leave it out, or give a text")
    args = handling.policy_args
    check.that(
        args is None or isinstance(args, Mapping),
        f"policy_args={shown(args)} is not a mapping; give the policy's arguments by name, or leave it out",
    )
    check.raise_if_any()


def spread_handling(count: int, **options: Any) -> list[Handling]:
    """One `Handling` per prompt of what is given once for all, or once per prompt.

    Args:
        count: Prompts.
        **options: Fields of `Handling`, each a value for all, a sequence of one per prompt, or None.

    Raises:
        RequestError: A sequence has another length.
    """
    columns = {name: _column(name, count, value) for name, value in options.items() if value is not None}
    return [
        Handling(**{name: column[i] for name, column in columns.items() if column[i] is not None})
        for i in range(count)
    ]


def _column(name: str, count: int, value: Any) -> Sequence[Any]:
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise RequestError(f"{count} prompts came with {len(value)} of {name}; give one, or one for each")
    return value


def _check_text(check: Problems, name: str, value: object, most: int) -> bool:
    if not isinstance(value, str):
        return check.that(False, f"{name}={shown(value)} is not a text; give one, or leave it out")
    if not check.that(
        len(value) <= most, f"{name} has {len(value)} characters; at most {most} are served, shorten it"
    ):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        return check.that(
            False, f"{name} has half of a surrogate pair at character {error.start}; give text without it"
        )
    return True
