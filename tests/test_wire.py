"""Everything that crosses the seam is plain data: it survives msgpack with its values and types."""

from __future__ import annotations

import inspect
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtcore.interfaces import batch
from vtcore.interfaces.batch import (
    Checkpoint,
    CopyOp,
    EngineRequest,
    Fork,
    PrefillRow,
    RequestUpdate,
    RowInit,
    RowMasks,
    RowParams,
    RowResult,
    ScheduledBatch,
    StepResult,
    TableDelta,
    TokenLogprobs,
)
from vtcore.testing.wire import through_msgpack

INTS = st.integers(-(2**31), 2**63 - 1)
SMALL = st.integers(0, 2**31 - 1)
FLOATS = st.floats(allow_nan=False)
TEXTS = st.text(max_size=5)


def few(element: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(element, max_size=3).map(tuple)


def made(cls: type, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Instances of a class; every one of its fields must be named, so that none goes untested."""
    assert set(fields) == {field.name for field in attrs.fields(cls)}, f"{cls.__name__} has other fields"
    return st.builds(cls, **fields)


IDS = few(SMALL)
PARAMS = made(
    RowParams,
    temperature=FLOATS,
    top_k=SMALL,
    top_p=FLOATS,
    min_p=FLOATS,
    repetition_penalty=FLOATS,
    presence_penalty=FLOATS,
    frequency_penalty=FLOATS,
    seed=INTS,
    logit_bias=few(st.tuples(SMALL, FLOATS)),
    allowed_token_ids=st.none() | IDS,
    bad_words=few(IDS),
    min_tokens=SMALL,
    stop_ids=IDS,
    logprobs=st.none() | SMALL,
)
LOGPROBS = made(
    TokenLogprobs, token_id=SMALL, logprob=FLOATS, rank=SMALL, top_ids=IDS, top_logprobs=few(FLOATS)
)
DELTA = made(TableDelta, pool=SMALL, row=SMALL, index=SMALL, id=SMALL)
INIT = made(
    RowInit,
    row=SMALL,
    computed=SMALL,
    tokens=IDS,
    tables=few(IDS),
    slots=few(IDS),
    params=PARAMS,
    prompt_len=SMALL,
    limit=SMALL,
)
COPY = made(CopyOp, pool=SMALL, src=SMALL, dst=SMALL)
CHECKPOINT = made(Checkpoint, pool=SMALL, row=SMALL, position=SMALL, dst=SMALL)
FORK = made(Fork, parent=SMALL, child=SMALL)
PREFILL = made(
    PrefillRow,
    row=SMALL,
    start=SMALL,
    ids=IDS,
    sample=st.booleans(),
    prompt_logprobs=st.none() | st.integers(-1, 5),
    targets=IDS,
    next_id=st.none() | SMALL,
)
RESULT = made(
    RowResult,
    row=SMALL,
    position=SMALL,
    tokens=IDS,
    logprobs=few(LOGPROBS),
    drafts=few(INTS),
    prompt_logprobs=few(LOGPROBS),
)
MASK = st.none() | st.binary(max_size=9)
STRATEGIES: dict[type, st.SearchStrategy[Any]] = {
    RowParams: PARAMS,
    TokenLogprobs: LOGPROBS,
    EngineRequest: made(
        EngineRequest,
        id=TEXTS,
        prompt_token_ids=IDS,
        params=PARAMS,
        max_tokens=SMALL,
        stop_token_ids=IDS,
        eos_token_ids=IDS,
        prompt_logprobs=st.none() | st.integers(-1, 5),
        arrival_s=FLOATS,
        priority=INTS,
        tenant=TEXTS,
        needs_mask=st.booleans(),
        policy_args=TEXTS,
        cache_salt=TEXTS,
        fork_of=TEXTS,
    ),
    TableDelta: DELTA,
    RowInit: INIT,
    CopyOp: COPY,
    Checkpoint: CHECKPOINT,
    Fork: FORK,
    PrefillRow: PREFILL,
    ScheduledBatch: made(
        ScheduledBatch,
        step=SMALL,
        num_drafts_in=SMALL,
        num_drafts_out=SMALL,
        max_context=SMALL,
        deltas=few(DELTA),
        inits=few(INIT),
        before=few(COPY),
        uniform=IDS,
        prefill=few(PREFILL),
        forks=few(FORK),
        after=few(COPY),
        checkpoints=few(CHECKPOINT),
    ),
    RowResult: RESULT,
    StepResult: made(StepResult, step=SMALL, rows=few(RESULT), checkpoints=few(st.booleans())),
    RowMasks: made(RowMasks, row=SMALL, masks=few(MASK)),
    RequestUpdate: made(
        RequestUpdate,
        id=TEXTS,
        tokens=IDS,
        logprobs=few(LOGPROBS),
        prompt_logprobs=few(st.tuples(SMALL, LOGPROBS)),
        num_cached_tokens=SMALL,
        finish_reason=st.none() | st.sampled_from(("stop", "length", "abort")),
        stop_reason=st.none() | SMALL,
    ),
}


def shape(value: Any) -> Any:
    """The value with the exact type of every part; True and 1, or (1,) and [1], differ here."""
    if attrs.has(type(value)):
        parts = [shape(getattr(value, field.name)) for field in attrs.fields(type(value))]
        return (type(value), parts)
    if isinstance(value, list | tuple):
        return (type(value), [shape(part) for part in value])
    return (type(value), value)


def test_every_class_of_the_seam_is_tested() -> None:
    here = {cls for _, cls in inspect.getmembers(batch, inspect.isclass) if cls.__module__ == batch.__name__}
    assert here == set(STRATEGIES)


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.__name__)
def test_any_value_survives_msgpack(cls: type) -> None:
    @given(STRATEGIES[cls])
    def survives(value: Any) -> None:
        back = through_msgpack(value)
        assert back == value
        assert shape(back) == shape(value)

    survives()


def test_infinities_survive() -> None:
    entry = TokenLogprobs(token_id=1, logprob=float("-inf"), rank=3, top_ids=(2,), top_logprobs=(0.0,))
    assert through_msgpack(entry) == entry


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.__name__)
def test_the_classes_are_frozen_and_hashable(cls: type) -> None:
    @given(STRATEGIES[cls])
    @settings(max_examples=3)
    def is_frozen(value: Any) -> None:
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, attrs.fields(cls)[0].name, None)
        assert hash(value) == hash(through_msgpack(value))

    is_frozen()
