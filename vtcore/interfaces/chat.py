"""How a model's chat template wants its messages, as data that the arch declares.

Does not: change a message; vtcore/tokenization/messages.py does, by these rules.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles that a message may have. Source: the Chat Completions API of OpenAI."""


@frozen(kw_only=True)
class MessageRules:
    """What is done to messages before the template sees them; the defaults do nothing.

    Args:
        role_aliases: Role as sent -> role as the template knows it ("developer": "system").
        key_aliases: Key of a message as sent -> key that the template reads ("reasoning":
            "reasoning_content"); a message that has both keeps the second.
        extra_keys: Keys of a message that the template reads beyond those of the Chat Completions API.
        merge_system_messages: Several or late system messages become one, the first, joined by an empty line;
            for templates that refuse a system message which is not first.
        arguments_as_mappings: Arguments of tool calls that come as JSON text are parsed to mappings.
        join_text_parts: A content that is a list of text parts becomes one text.
        empty_content: An assistant message without content (it only calls tools, or only thinks) gets "".
    """

    role_aliases: Mapping[str, str] = field(factory=dict)
    key_aliases: Mapping[str, str] = field(factory=dict)
    extra_keys: frozenset[str] = frozenset()
    merge_system_messages: bool = False
    arguments_as_mappings: bool = False
    join_text_parts: bool = False
    empty_content: bool = False
