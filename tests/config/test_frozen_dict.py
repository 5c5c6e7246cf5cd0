"""What a config holds cannot be changed, and is still a dict to whoever reads, copies or sends it."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from vtcore.config.env import Environment
from vtcore.config.frozen_dict import freeze
from vtcore.config.options import UserOptions
from vtcore.config.resolve import ArchFacts, resolve_config

FACTS = ArchFacts(
    name="some_arch",
    vocab_size=1000,
    max_position_embeddings=4096,
    is_recurrent=False,
    default_token_budget=lambda max_num_seqs: 2048,
)


def test_no_part_of_a_config_can_be_changed() -> None:
    given: dict[str, Any] = {"a": {"b": [1, {"c": 2}]}}
    options = UserOptions(default_chat_template_kwargs=given, override_generation_config={"top_k": 1})
    config = resolve_config(options, FACTS, Environment())
    digest = config.digest()
    kwargs: Any = config.frontend.default_chat_template_kwargs
    mappings: list[Any] = [
        config.frontend.override_generation_config,
        config.plugin_owners,
        config.origins,
        kwargs,
        kwargs["a"],
        kwargs["a"]["b"][1],
    ]
    for mapping in mappings:
        changes: tuple[Callable[[Any], object], ...] = (
            lambda m: m.update(x=1),
            lambda m: m.setdefault("x", 1),
            lambda m: m.__setitem__("x", 1),
            lambda m: m.__delitem__("x"),
            lambda m: m.__ior__({"x": 1}),
            lambda m: m.pop("x", None),
            lambda m: m.popitem(),
            lambda m: m.clear(),
        )
        for change in changes:
            with pytest.raises(TypeError, match="cannot be changed"):
                change(mapping)
    assert isinstance(kwargs["a"]["b"], tuple)
    given["a"]["b"].append(3)
    assert kwargs == {"a": {"b": (1, {"c": 2})}}
    assert config.digest() == digest
    for copied in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert copied == config
        assert copied.digest() == digest
        assert type(copied.origins) is type(config.origins)


def test_a_frozen_dict_is_json_as_any_dict() -> None:
    data = {"a": [1, {"b": None}], "c": "d"}
    assert json.loads(json.dumps(freeze(data))) == data
