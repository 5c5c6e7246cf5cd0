"""An `LLM` on a registry that a test has built, whatever else is installed.

Does not: read the process's environment variables.
"""

from __future__ import annotations

from typing import Any

from vtcore.config.env import Environment
from vtcore.config.layers import gather_options
from vtcore.llm import LLM, load_engine
from vtcore.registry import PluginRegistry


class RegistryLLM(LLM):
    """As `LLM`, but arch, KV-cache specs and policy come from `registry` alone.

    Args:
        registry: As `build_registry` made it.
        options: Fields of `UserOptions`, by name.
    """

    def __init__(self, registry: PluginRegistry, **options: Any) -> None:
        given = gather_options(options, environment=Environment())
        self.engine = load_engine(given, registry=registry)
