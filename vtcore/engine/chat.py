"""From a conversation to a prompt: messages are normalised, a template is rendered, its text becomes ids.

Does not: generate; `LLM.chat` and the command line do, with the prompt that is made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from vtcore.engine.frontend import check_template_kwargs, default_template_kwargs, load_template_option
from vtcore.errors import ChatTemplateError, CheckpointError, RequestError
from vtcore.interfaces.chat import MessageRules
from vtcore.request import RenderedPrompt
from vtcore.tokenization.chat_template import ChatTemplate, compiled
from vtcore.tokenization.messages import normalize_messages, normalize_tools
from vtcore.tokenization.plain_data import to_plain
from vtcore.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from vtcore.engine.engine import Engine


@frozen(kw_only=True)
class ChatRequest:
    """One conversation and how it is to be rendered; values are judged by `ChatRenderer`.

    Args:
        messages: Each with `role` and `content`, in the form of the Chat Completions API.
        tools: JSON objects, `{"type": "function", "function": {...}}` or the inner ones; None for none.
        documents: JSON objects that the template may show; None for none.
        chat_template: Jinja source, or the name of one of the checkpoint's templates; None lets the
            checkpoint and the option `chat_template` decide.
        add_generation_prompt: The text ends where the assistant's answer begins.
        continue_final_message: The text ends right after the content of the last message, an assistant's.
        template_kwargs: Variables for the template (`enable_thinking`); they win over the option
            `default_chat_template_kwargs`.
    """

    messages: Any
    tools: Any = None
    documents: Any = None
    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] | None = None


@frozen(kw_only=True)
class ChatRenderer:
    """What all conversations with one model share; may be used by several threads at once.

    Args:
        tokenizer: Has the checkpoint's templates.
        rules: The arch's.
        template: Of the option `chat_template`; None is the checkpoint's.
        default_kwargs: Of the option `default_chat_template_kwargs`.
    """

    tokenizer: Tokenizer
    rules: MessageRules = field(factory=MessageRules)
    template: ChatTemplate | None = None
    default_kwargs: Mapping[str, Any] = field(factory=dict)

    def render(self, request: ChatRequest) -> str:
        """The prompt's text.

        Raises:
            RequestError: A message, a tool or an argument is malformed, or there is no template.
            ChatTemplateError: The template refuses the messages, fails on them, or runs beyond its limits.
        """
        if request.add_generation_prompt and request.continue_final_message:
            raise RequestError(
                "add_generation_prompt and continue_final_message exclude each other; switch one off"
            )
        messages = normalize_messages(request.messages, self.rules)
        if request.continue_final_message:
            _check_continuable(messages[-1], len(messages) - 1)
        tools = normalize_tools(request.tools)
        variables = {
            **self.tokenizer.special_tokens,
            **check_template_kwargs(self.default_kwargs, "default_kwargs"),
            **check_template_kwargs(request.template_kwargs, "chat_template_kwargs"),
            "tools": tools,
            "documents": None if request.documents is None else to_plain(request.documents, "documents"),
        }
        return self.choose_template(request.chat_template, bool(tools)).render(
            messages, request.add_generation_prompt, variables, request.continue_final_message
        )

    def prompt(self, request: ChatRequest) -> RenderedPrompt:
        """The prompt's text and ids. Special tokens that the template writes become their ids; none is added.

        Raises:
            RequestError: As `render`.
        """
        text = self.render(request)
        return RenderedPrompt(text, tuple(self.tokenizer.encode(text, add_special_tokens=False)))

    def choose_template(self, given: str | None = None, has_tools: bool = False) -> ChatTemplate:
        """The template that a request is rendered with.

        Args:
            given: `ChatRequest.chat_template`.
            has_tools: Whether tools are given.

        Raises:
            ChatTemplateError: There is none, or what is given is no usable template.
        """
        if given is None:
            return self.template or self.tokenizer.chat_template(has_tools=has_tools)
        if not isinstance(given, str):
            raise RequestError(
                f"chat_template is of type {type(given).__name__}; give Jinja text, or the name of a template"
            )
        if given in self.tokenizer.chat_template_names:
            return self.tokenizer.chat_template(given)
        try:
            return compiled(given)
        except CheckpointError as error:
            raise ChatTemplateError(str(error)) from error


def build_chat_renderer(engine: Engine) -> ChatRenderer:
    """The renderer of an engine, by its arch and options.

    Raises:
        RequestError: The engine has no tokenizer.
        ConfigError: The file of the option `chat_template` is no readable template any more.
    """
    if engine.tokenizer is None:
        raise RequestError(
            "the engine has no tokenizer, so conversations are not served; start without skip_tokenizer_init"
        )
    config = engine.loaded.config
    return ChatRenderer(
        tokenizer=engine.tokenizer,
        rules=engine.loaded.arch.message_rules,
        template=load_template_option(config),
        default_kwargs=default_template_kwargs(config),
    )


def render_conversations(renderer: ChatRenderer, messages: Any, **options: Any) -> list[RenderedPrompt]:
    """Prompts of one conversation or several; all are rendered, or none.

    Args:
        messages: A list of messages, or a list of such lists.
        **options: The other fields of `ChatRequest`, for all conversations.

    Raises:
        RequestError: As `ChatRenderer.render`; of several conversations, the text says which.
    """
    conversations = _split(messages)
    prompts = []
    for index, conversation in enumerate(conversations):
        try:
            prompts.append(renderer.prompt(ChatRequest(messages=conversation, **options)))
        except RequestError as error:
            if len(conversations) == 1:
                raise
            raise type(error)(f"conversation {index} of {len(conversations)}: {error}") from error
    return prompts


def _split(messages: Any) -> list[Any]:
    if isinstance(messages, list | tuple) and messages:
        lists = [isinstance(item, list | tuple) for item in messages]
        if any(lists) and not all(lists):
            raise RequestError("messages mixes messages and lists of messages; give one kind")
        return list(messages) if all(lists) else [messages]
    return [messages]


def _check_continuable(message: Mapping[str, Any], index: int) -> None:
    path = f"messages[{index}]"
    if message["role"] != "assistant":
        raise RequestError(
            f"continue_final_message: {path} is of role {message['role']!r}; the last message must be the "
            f"assistant's"
        )
    if message.get("tool_calls"):
        raise RequestError(f"continue_final_message: {path} ends in tool calls, which cannot be continued")
    if not message.get("content"):
        raise RequestError(f"continue_final_message: {path}.content is empty; there is nothing to continue")
