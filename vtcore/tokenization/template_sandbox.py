"""The jinja2 sandbox that chat templates run in: every loop, operation, filter and call is metered.

Does not: say how much is too much (template_limits.py), nor know what a message is.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, LoopControlExtension
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from vtcore.tokenization import template_limits as limits
from vtcore.tokenization.template_filters import FILTERS, GLOBALS, join_metered, to_text
from vtcore.tokenization.template_limits import TemplateLimitError, charge, step, weigh

_DROPPED_FILTERS = frozenset(
    {"filesizeformat", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"}
)
"""Of no use to prompts, and costly to bound (or, for `random`, never twice the same)."""
_SHALLOW_FILTERS = frozenset(
    {"attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "reject"}
    | {"rejectattr", "reverse", "select", "selectattr", "slice"}
)
"""These look at a value's own entries, not at what lies within them."""
_ITERATING_FILTERS = frozenset(
    {"batch", "groupby", "join", "list", "map", "max", "min", "reject", "rejectattr", "select", "selectattr"}
    | {"slice", "sort", "sum", "title", "unique"}
)
"""These make an object of each character, or each word, of a text."""
_DEEP_TESTS = frozenset(
    {
        "!=",
        "<",
        "<=",
        "==",
        ">",
        ">=",
        "eq",
        "equalto",
        "ge",
        "greaterthan",
        "gt",
        "in",
        "le",
        "lessthan",
        "lt",
    }
    | {"lower", "ne", "upper"}
)
_SCOPE_ARGUMENTS = ("_loop_vars", "_block_vars")
_TOKENS_PER_NODE = 2


class GenerationBlocks(Extension):
    """`{% generation %}` marks what training learns from; in a prompt it is a plain block.

    Source: transformers, chat templates, "Training on assistant tokens".
    """

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the tag's block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class TokenMeter(Extension):
    """Counts the words of a source while it is parsed."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Pass the tokens on.

        Raises:
            TemplateLimitError: They are more than a syntax tree of legal size is made of.
        """
        for count, token in enumerate(stream):
            step()
            if count > _TOKENS_PER_NODE * limits.MAX_NODES:
                raise TemplateLimitError(f"it has more than {limits.MAX_NODES:,} parts")
            yield token


class _CodeGenerator(CodeGenerator):
    """Calls the meter itself, not by way of the sandbox's check of what a template calls."""

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        if not isinstance(node.node, nodes.EnvironmentAttribute):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.visit(node.node, frame)
        self.write("(")
        for argument in node.args:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs one source's template; keeps nothing of a run."""

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset({"+", "-", "*", "**", "%"})

    def __init__(self) -> None:
        # As chat templates expect. Source: transformers, utils/chat_template_utils.py.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, GenerationBlocks, TokenMeter],
            optimized=False,
            finalize=to_text,
            cache_size=0,
        )
        self.filters.update(FILTERS)
        for name, function in list(self.filters.items()):
            self.filters[name] = _metered_filter(
                function, is_deep=name not in _SHALLOW_FILTERS, is_iterating=name in _ITERATING_FILTERS
            )
        for name in _DROPPED_FILTERS:
            del self.filters[name]
        tests: list[tuple[str, Any]] = list(self.tests.items())
        for name, function in tests:
            self.tests[name] = _metered_filter(function, is_deep=name in _DEEP_TESTS, is_iterating=False)
        del self.globals["lipsum"]
        self.globals.update(GLOBALS)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        step()
        changed = _MeterNodes(self).visit(source)
        changed.set_environment(self)
        step(limits.STEPS_PER_CLOCK)
        return super()._generate(changed, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """See jinja2; counted."""
        step()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """See jinja2; counted, and a key is weighed, because hashing walks through it."""
        step()
        if isinstance(argument, tuple):
            weigh(argument)
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """See jinja2; refused when the result would be too large."""
        limits.check_binop(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """See jinja2; refused when the result would be too large."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text, is_map = value.__self__, value.__name__ == "format_map"

        def metered_format(*args: Any, **kwargs: Any) -> str:
            named = args[0] if is_map and args and isinstance(args[0], Mapping) else kwargs
            limits.check_format(text, () if is_map else args, named)
            return wrapped(*args, **kwargs)

        return metered_format

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """See jinja2; counted, and methods of built-in types are refused unless they are bounded."""
        step()
        # Jinja adds the scope's own variables for functions that want the context.
        given = {key: value for key, value in kwargs.items() if key not in _SCOPE_ARGUMENTS}
        if isinstance(__obj, types.BuiltinMethodType):
            limits.check_method(__obj.__self__, __obj.__name__, args, given)
        elif not isinstance(__obj, Macro | LoopContext | type):
            weigh((args, given))
        return super().call(__context, __obj, *args, **kwargs)

    def concat(self, pieces: Iterable[str]) -> str:
        """Join what a macro or a block wrote."""
        return join_metered(pieces)

    def joined(self, *values: Any) -> str:
        """`a ~ b ~ c`."""
        return join_metered(map(to_text, values))

    def tick(self) -> None:
        """A loop's round."""
        step()

    def ticked(self, value: Any) -> Any:
        """A loop's condition."""
        step()
        return value

    def weighed(self, value: Any) -> Any:
        """A value that an operator is about to walk through."""
        weigh(value)
        return value

    def charged(self, value: Any) -> Any:
        """A value that was just made, not larger than what it was made from or written as."""
        charge(limits.size_of(value))
        return value


class _MeterNodes(NodeTransformer):
    """Puts the meter into a syntax tree, and counts its nodes."""

    def __init__(self, environment: TemplateEnvironment) -> None:
        self._environment = environment
        self._count = 0

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        self._count += 1
        if self._count > limits.MAX_NODES:
            raise TemplateLimitError(f"it has more than {limits.MAX_NODES:,} parts")
        return super().visit(node, *args, **kwargs)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick", [], node.lineno), lineno=node.lineno))
        if node.test is not None:
            node.test = _call("ticked", [node.test], node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("joined", node.nodes, node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _weighed(node.expr)
        for operand in node.ops:
            operand.expr = _weighed(operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _call("charged", [node], node.lineno) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _call("charged", [node], node.lineno)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _call("charged", [node], node.lineno) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _weighed(pair.key)
        return _call("charged", [node], node.lineno)

    def _refuse(self, node: nodes.Node) -> NoReturn:
        name = type(node).__name__.lower()
        raise jinja2.TemplateSyntaxError(f"a chat template stands alone; it has {name!r}", node.lineno)

    visit_Include = visit_Import = visit_FromImport = visit_Extends = _refuse
    visit_EvalContextModifier = visit_ScopedEvalContextModifier = _refuse


def _call(method: str, args: Sequence[Any], line: int) -> nodes.Call:
    call = nodes.Call(nodes.EnvironmentAttribute(method), list(args), [], None, None)
    return call.set_lineno(line, override=False)  # type: ignore[return-value]


def _weighed(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _call("weighed", [node], node.lineno)


def _metered_filter(function: Callable[..., Any], is_deep: bool, is_iterating: bool) -> Callable[..., Any]:
    """Weigh what goes in, make lists of lazy results, charge for what comes out."""
    is_given_context = getattr(function, "jinja_pass_arg", None) is not None

    @wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        step()
        values = args[1:] if is_given_context else args
        if is_deep:
            weigh((values, kwargs))
        if is_iterating and values and isinstance(values[0], str):
            limits.check_items(len(values[0]))
        for value in (*values[1:], *kwargs.values()):
            limits.check_count(value)
        result = function(*args, **kwargs)
        # A lazy result could be chained without end, and would run where nothing counts its steps.
        if isinstance(result, Iterator):
            result = _listed(result)
        charge(limits.size_of(result))
        return result

    return metered


def _listed(items: Iterator[Any]) -> list[Any]:
    found = []
    for item in items:
        step()
        found.append(item)
        limits.check_items(len(found))
    return found
