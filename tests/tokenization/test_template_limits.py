"""Hostile templates end in one error, in bounded time and memory; nothing of one run reaches another."""

from __future__ import annotations

import copy
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from vtcore.errors import ChatTemplateError, CheckpointError
from vtcore.tokenization import template_limits as limits
from vtcore.tokenization.chat_template import ChatTemplate

USER = {"role": "user", "content": "hi"}
DOUBLE = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}"
LARGEST_S = 4.0
"""No single operation takes longer, whatever the machine does beside."""


def render(source: str, **variables: Any) -> str:
    return ChatTemplate(source).render([dict(USER)], True, variables)


def doubled(start: str, step: str, use: str = "{{ ns.x }}") -> str:
    return DOUBLE.replace("START", start).replace("STEP", step) + use


NESTED = doubled("['a']", "[ns.x, ns.x]", "")
PAIRS = doubled("('a',)", "(ns.x, ns.x)", "")
TOO_LARGE = {
    "text doubled with +": doubled("'ab'", "ns.x + ns.x"),
    "text doubled with ~": doubled("'ab'", "ns.x ~ ns.x"),
    "text doubled with a filter": doubled("'ab'", "[ns.x, ns.x] | join"),
    "text doubled with a format": doubled("'ab'", "'%s%s' % (ns.x, ns.x)"),
    "text doubled with format()": doubled("'ab'", "'{0}{0}'.format(ns.x)"),
    "text doubled with replace": doubled("'ab'", "ns.x.replace('', ns.x)"),
    "text doubled with the filter replace": doubled("'ab'", "ns.x | replace('', ns.x)"),
    "text doubled in a macro": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + doubled("'ab'", "m(ns.x)"),
    "list doubled": doubled("[1]", "ns.x + ns.x"),
    "list times": doubled("[1]", "ns.x * 3"),
    "number squared": doubled("9", "ns.x * ns.x"),
    "number added": doubled("9 ** 1200", "ns.x + ns.x", "{{ ns.x - (0 - ns.x) }}" * 999),
    "power": "{{ 99 ** 99999 }}",
    "times": "{{ 'x' * 10 ** 10 }}",
    "center": "{{ 'x'.center(10 ** 10) }}",
    "filter center": "{{ 'x' | center(10 ** 10) }}",
    "ljust": "{{ 'x'.ljust(10 ** 10) }}",
    "zfill": "{{ 'x'.zfill(10 ** 10) }}",
    "indent": "{{ ('\n' * 99999) | indent(99999) }}",
    "json indent": "{{ [[1]] | tojson(indent=99999) }}",
    "json separator": "{{ [[1]] | tojson(separators=('x' * 99999, ':')) }}",
    "batch": "{{ [1] | batch(10 ** 9, 0) }}",
    "round": "{{ 1.5 | round(10 ** 9, 'ceil') }}",
    "percent width": "{{ '%999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (999999999, 1) }}",
    "filter format": "{{ '%.999999999f' | format(1) }}",
    "format width": "{{ '{:999999999}'.format(1) }}",
    "format width as a field": "{{ '{:{w}}'.format(1, w='999999999') }}",
    "format_map": "{{ '{a:>999999999}'.format_map({'a': 1}) }}",
    "date": "{{ strftime_now('%999999999d') }}",
    "joined by a long text": "{{ ('x' * 99999).join('a' * 99999) }}",
    "range joined": "{{ range(99999) | join('x' * 99999) }}",
    "translate": "{{ ('a' * 99999).translate({97: 'b' * 99999}) }}",
    "to_bytes": "{{ (1).to_bytes(10 ** 10, 'big') }}",
    "encode": "{{ 'x'.encode() }}",
    "output": "{% for i in range(99999) %}" + "y" * 9999 + "{% endfor %}",
    "block": "{% set x %}{% for i in range(99999) %}" + "y" * 9999 + "{% endfor %}{% endset %}",
    "shared parts printed": NESTED + "{{ ns.x }}",
    "shared parts joined": NESTED + "{{ ns.x ~ '' }}",
    "shared parts as JSON": NESTED + "{{ ns.x | tojson }}",
    "shared parts compared": NESTED + NESTED.replace("ns", "os") + "{{ ns.x == os.x }}",
    "shared parts searched": NESTED + "{{ ns.x in [ns.x] }}",
    "shared parts sorted": NESTED + "{{ [ns.x, ns.x] | sort }}",
    "shared parts tested": NESTED + "{{ ns.x is eq ns.x }}",
    "shared parts as a key": PAIRS + "{{ {ns.x: 1} }}",
    "shared parts looked up": PAIRS + "{{ {}[ns.x] }}",
    "shared parts got": PAIRS + "{{ {}.get(ns.x) }}",
    "shared parts in dict()": PAIRS + "{{ dict([(ns.x, 1)]) }}",
    "long text in a list": "{% set a = 'x' * 9999999 %}{{ (a ~ '') in [a] * 99 }}",
    "many parts": "{{ ('a,' * 8000000).split(',') }}",
    "words": "{{ ('ab ' * 5000000).split() }}",
    "words from the right": "{{ ('ab ' * 5000000).rsplit() }}",
    "many parts by name": "{{ ('ab,' * 5000000).split(sep=',') }}",
    "lines": "{{ ('ab\u2028' * 5000000).splitlines() }}",
    "characters": "{{ ('\u0100' * 16000000) | list | length }}",
    "characters sorted": "{{ ('\u0100' * 16000000) | sort | length }}",
    "characters sliced": "{{ ('\u0100' * 16000000) | slice(2) | length }}",
    "characters joined": "{{ ','.join('\u0100' * 8000000) | length }}",
    "titles": "{{ ('x y ' * 4000000) | title | length }}",
    "lists kept": "{% set ns = namespace(a=0) %}"
    "{% for i in range(9999) %}{% set ns.a = [ns.a, range(99999) | list] %}{% endfor %}",
    "copies kept": "{% set ns = namespace(a=0, s='x' * 9999999) %}"
    "{% for i in range(9999) %}{% set ns.a = [ns.a, ns.s[1:]] %}{% endfor %}",
    "upper cases kept": "{% set ns = namespace(a=0, s='x' * 9999999) %}"
    "{% for i in range(9999) %}{% set ns.a = [ns.a, ns.s.upper()] %}{% endfor %}",
}
TOO_DEEP = {
    "macro": "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
    "block": "{% block a %}{{ self.a() }}{% endblock %}",
    "loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "JSON": "{% set ns = namespace(x=1) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}"
    "{{ ns.x | tojson }}",
}
TOO_LONG = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for a in range(9999) %}{% for b in range(9999) if false %}{% endfor %}{% endfor %}",
    "recursive loops": "{% for a in range(99999) recursive %}{% if loop.depth < 9 %}{{ loop(range(99999)) }}"
    "{% endif %}{% endfor %}",
    "calls": "{% macro m(x) %}{% if x %}{{ m(x - 1) }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "filters": "{% for i in range(99999) %}{% set x = range(99999) | map('string') | list %}{% endfor %}",
    "tests": "{% for i in range(99999) %}{% set x = range(99999) | select('odd') | list %}{% endfor %}",
    "attributes": "{{ range(99999) | map(attribute='real" + ".real" * 9999 + "') | list }}",
    "literals": "{% for i in range(99999) %}{% for j in range(999) %}{% set x = [" + "1," * 9 + "] %}"
    "{% endfor %}{% endfor %}",
}
ESCAPES = {
    "class": "{{ ''.__class__.__mro__ }}",
    "class as a key": "{{ ''['__class__']['__mro__'] }}",
    "mro": "{{ messages.__class__.mro() }}",
    "filter attr": "{{ ('' | attr('__class__')).__mro__ }}",
    "map attribute": "{{ ([''] | map(attribute='__class__') | first).__mro__ }}",
    "format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "format_map": "{{ '{a.__class__.__mro__}'.format_map({'a': ''}) }}",
    "format taken first": "{% set f = '{0.__class__.__mro__}'.format %}{{ f('') }}",
    "globals of a function": "{{ raise_exception.__globals__.items() }}",
    "globals of a class": "{{ cycler.__init__.__globals__.items() }}",
    "globals of a macro": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "context": "{{ self._TemplateReference__context.environment }}",
    "meter": "{{ environment.tick() }}",
    "subclasses": "{{ dict.__subclasses__() }}",
    "generator": "{{ (messages | map('length')).gi_frame.f_globals }}",
    "append": "{{ messages.append(1) }}",
    "update": "{{ messages[0].update({'role': 'x'}) }}",
    "pop": "{{ messages[0].pop('role') }}",
    "sort": "{{ messages.sort() }}",
    "append by name": "{{ messages['append'](1) }}",
    "append by filter": "{{ (messages | attr('append'))(1) }}",
    "assignment": "{% set messages[0].role = 'x' %}",
}  # fmt: skip


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIME_LIMIT_S", 0.3)


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_would_be_too_large_is_refused_before_it_is_made(name: str) -> None:
    start = time.monotonic()
    with pytest.raises(ChatTemplateError, match="the chat template is stopped: it "):
        render(TOO_LARGE[name])
    assert time.monotonic() - start < limits.TIME_LIMIT_S + LARGEST_S


@pytest.mark.parametrize("name", TOO_DEEP)
def test_what_nests_without_end_is_refused(name: str) -> None:
    with pytest.raises(ChatTemplateError, match="it nests too deeply"):
        render(TOO_DEEP[name])


@pytest.mark.parametrize("name", TOO_LONG)
@pytest.mark.usefixtures("quick")
def test_what_runs_without_end_is_stopped(name: str) -> None:
    start = time.monotonic()
    with pytest.raises(ChatTemplateError, match=r"stopped: it runs for more than 0.3 s"):
        render(TOO_LONG[name])
    assert time.monotonic() - start < 0.3 + LARGEST_S


def test_a_run_has_a_number_of_steps_that_no_machine_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_STEPS", 5000)
    assert render("{% for i in range(4000) %}{% endfor %}") == ""
    with pytest.raises(ChatTemplateError, match="more than 5,000 steps"):
        render("{% for i in range(6000) %}{% endfor %}")


@pytest.mark.parametrize("name", ESCAPES)
def test_nothing_leads_out_of_the_sandbox_or_changes_the_messages(name: str) -> None:
    messages = [dict(USER)]
    before = copy.deepcopy(messages)
    # jinja2 itself refuses some of these when it parses them, the sandbox the others.
    with pytest.raises((ChatTemplateError, CheckpointError)):
        ChatTemplate(ESCAPES[name]).render(messages, True, {})
    assert messages == before


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x" * 10_000_000, "has 10,000,000 characters, at most 1,048,576 are served"),
        ("{{a}}" * 200_000, "more than 100,000 parts"),
        ("{{ " + "(" * 99_999 + "1" + ")" * 99_999 + " }}", "nests too deeply"),
        ("{{ 1" + " + 1" * 40_000 + " }}", "nests too deeply"),
        ("{{ x" + ".a" * 40_000 + " }}", "nests too deeply"),
        ("{{ x" + " | list" * 5_000 + " }}", "nests too deeply"),
        ("{% if a %}" * 3_000 + "{% endif %}" * 3_000, "nests too deeply"),
        ("{% for a in b %}" * 50 + "{% endfor %}" * 50, "cannot be compiled"),
        ("{#" * 400_000, "does not parse"),
        ("{{ '" + "\\\\" * 99_999, "does not parse"),
        ("{{ " + "9" * 99_999 + " }}", "cannot be compiled"),
    ],
)  # fmt: skip
def test_a_source_that_is_a_burden_is_refused(source: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        ChatTemplate(source)


def test_what_a_namespace_holds_is_not_printed() -> None:
    assert render(NESTED + "{{ ns }}{{ [ns] }}") == "<Namespace>[<Namespace>]"


def test_a_refusal_stays_short() -> None:
    with pytest.raises(ChatTemplateError) as caught:
        render("{{ raise_exception('x' * 999999) }}")
    assert 100 < len(str(caught.value)) < 10_000


def test_a_refused_operation_takes_no_memory() -> None:
    template = ChatTemplate("{{ messages[0].content * 9999 }}")
    tracemalloc.start()
    try:
        with pytest.raises(ChatTemplateError, match="more than 16,777,216 characters"):
            template.render([{"role": "user", "content": "x" * 1_000_000}], True, {})
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_a_long_conversation_stays_within_the_limits() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{{ m.role ~ ': ' ~ m.content | trim ~ '\n' }}"
        "{% if m == messages[-1] %}end{% endif %}{% endfor %}"
    )
    messages = [{"role": "user", "content": "word " * 1000}] * 2000
    text = template.render(messages, True, {})
    assert len(text) == 2000 * (len("user: ") + 4999 + 1) + 2000 * len("end")


def test_what_a_limit_of_pieces_cuts_short_is_served() -> None:
    words = "ab " * 1_100_000
    template = ChatTemplate(
        "{{ messages[0].content.split(none, 1) | length }}"
        "{{ messages[0].content.rsplit(' ', maxsplit=2) | length }}"
        "{{ messages[0].content[:999].split() | length }}"
        "{{ messages[0].content.splitlines() | length }}"
    )
    assert template.render([{"role": "user", "content": words}], True, {}) == "233331"


def test_threads_that_share_a_template_have_a_meter_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIME_LIMIT_S", 1.0)
    template = ChatTemplate(
        "{% set ns = namespace(n=0) %}{% for i in range(count) %}{% set ns.n = ns.n + 1 %}{% endfor %}"
        "{{ ns.n }}"
    )
    endless = ChatTemplate(TOO_LONG["nested loops"])
    with ThreadPoolExecutor(4) as pool:
        stopped = pool.submit(endless.render, [USER], True, {})
        texts = list(pool.map(lambda i: template.render([USER], True, {"count": i}), range(40)))
        with pytest.raises(ChatTemplateError, match="more than 1 s"):
            stopped.result()
    assert texts == [str(i) for i in range(40)]
