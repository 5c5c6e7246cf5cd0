"""The public names of vtcore, each imported when first used.

Does not: import torch or any implementation by itself; `from vtcore import hookimpl` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vtcore.hookspecs import hookimpl
    from vtcore.llm import LLM
    from vtcore.outputs import RequestOutput
    from vtcore.request import SamplingParams

    __version__: str

__all__ = ["LLM", "RequestOutput", "SamplingParams", "__version__", "hookimpl"]

_HOMES = {
    "LLM": "vtcore.llm",
    "RequestOutput": "vtcore.outputs",
    "SamplingParams": "vtcore.request",
    "hookimpl": "vtcore.hookspecs",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("vtcore")
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'vtcore' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
