"""The two kits that docs/plugins.md shows can fail; test_docs_blocks.py runs the examples as they stand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parent.parent / "docs/plugins.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def example(kit: str) -> str:
    """The one block that imports a kit."""
    [block] = [block for block in BLOCKS if f"from vtcore.testing.{kit} import" in block]
    assert isinstance(block, str)
    return block


def functions_of(block: str) -> list[Callable[[], None]]:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(block, str(PAGE), "exec"), names)
    classes = [value for name, value in names.items() if name.startswith("Test")]
    methods = [getattr(made(), name) for made in classes for name in dir(made) if name.startswith("test_")]
    return [*(value for name, value in names.items() if name.startswith("test_")), *methods]


def test_the_examples_notice_a_class_that_breaks_the_contract() -> None:
    no_tuple = example("policy_kit").replace("(view.num_prompt_tokens,)", "view.num_prompt_tokens")
    assert no_tuple != example("policy_kit")
    [keys] = [function for function in functions_of(no_tuple) if "keys" in function.__name__]
    with pytest.raises(AssertionError, match="is no tuple"):
        keys()
    bad_cuts = (
        "class Bad(FullAttentionSpec):\n    def cuts(self, start, end, grid):\n        return (end,)\n\n\n"
    )
    broken = example("kv_cache_kit").replace("class Test", f"{bad_cuts}class Test")
    [cuts] = [
        function
        for function in functions_of(broken.replace("return FullAttentionSpec(", "return Bad("))
        if "cuts" in function.__name__
    ]
    with pytest.raises(AssertionError, match="are not inside"):
        cuts()
