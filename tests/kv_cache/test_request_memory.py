"""What a request holds from admission to release: tables, hits, windows, and what others may count on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from vtcore.errors import EngineError
from vtcore.interfaces.batch import CopyOp, EngineRequest, RowParams, TableDelta
from vtcore.interfaces.kv_cache_spec import KVCacheSpec
from vtcore.kv_cache.block_hash import root_hash
from vtcore.kv_cache.planner import PlanLimits, plan_memory
from vtcore.kv_cache.request_memory import PrefixHit, RequestMemory
from vtcore.scheduling.request_state import RequestState
from vtcore.testing.toy_arch import ToyBlocks, ToyState, ToyWindow

BLOCKS = ToyBlocks(layers=("whole",), block_size=4)
WINDOW = ToyWindow(layers=("window",), block_size=4, window=5)
STATE = ToyState(layers=("state",), block_size=4)


def memory_of(
    *specs: KVCacheSpec, num_blocks: int = 8, lookahead: int = 0, k_max: int = 0, caching: bool = True
) -> RequestMemory:
    plan = plan_memory(
        specs,
        PlanLimits(
            block_size=4,
            num_blocks=num_blocks,
            max_num_seqs=3,
            max_model_len=32,
            max_model_len_pinned=False,
            max_query=32,
            lookahead=lookahead,
            k_max=k_max,
        ),
    )
    return RequestMemory(plan, caching, root_hash(), lookahead)


def request(
    tokens: Sequence[int], max_tokens: int = 8, name: str = "r", prompt_logprobs: int | None = None
) -> RequestState:
    req = EngineRequest(
        id=name,
        prompt_token_ids=tuple(tokens),
        params=RowParams(),
        max_tokens=max_tokens,
        prompt_logprobs=prompt_logprobs,
    )
    return RequestState(req, list(tokens), min(len(tokens) + max_tokens, 32))


def admit(memory: RequestMemory, state: RequestState) -> PrefixHit:
    memory.update_hashes(state)
    hit = memory.find_hit(state)
    assert memory.admit(state, hit) is not None
    state.computed = hit.num_blocks * 4
    return hit


def compute(memory: RequestMemory, state: RequestState, upto: int) -> list[TableDelta]:
    """Cover, commit and publish `upto` tokens, as the scheduler would."""
    deltas = memory.extend(state, memory.missing(state, upto))
    state.computed = upto
    memory.publish(state)
    return deltas + memory.drop_behind(state)


def test_admission_covers_the_known_sequence_and_extension_the_rest() -> None:
    memory = memory_of(BLOCKS)
    state = request(range(9))
    admit(memory, state)
    assert len(state.blocks[0]) == 3
    assert memory.covered(state) == 12
    assert memory.missing(state, 12) == [0]
    assert memory.missing(state, 13) == [1]
    state.row = 2
    deltas = memory.extend(state, memory.missing(state, 17))
    assert deltas == [TableDelta(0, 2, 3, state.blocks[0][3]), TableDelta(0, 2, 4, state.blocks[0][4])]
    assert len(set(state.blocks[0])) == 5
    assert 0 not in state.blocks[0]
    memory.check([state])
    memory.release(state)
    assert memory.num_free == (8,)
    memory.check([])


def test_look_ahead_is_covered_but_never_the_last_position() -> None:
    memory = memory_of(BLOCKS, lookahead=3)
    state = request(range(6), max_tokens=8)
    admit(memory, state)
    assert memory.covered(state) == 12
    memory.release(state)
    # Position limit - 1 is sampled and never computed, so one block is enough for a limit of 5.
    short = request(range(4), max_tokens=1)
    admit(memory, short)
    assert memory.covered(short) == 4


def test_a_request_that_does_not_fit_takes_nothing() -> None:
    memory = memory_of(BLOCKS, STATE, num_blocks=4)
    first, second = request(range(9), name="a"), request(range(9), name="b")
    admit(memory, first)
    free = memory.num_free
    assert memory.admit(second, memory.find_hit(second)) is None
    assert memory.num_free == free
    assert second.blocks == []
    memory.check([first])


def test_slots_are_zeroed_in_their_first_column_and_unique() -> None:
    memory = memory_of(BLOCKS, STATE, k_max=2)
    states = [request(range(3), name=str(i)) for i in range(3)]
    slots = []
    for state in states:
        copies = memory.admit(state, memory.find_hit(state))
        assert copies == (CopyOp(1, 0, state.slots[1][0]),)
        assert len(state.slots[1]) == 3
        slots += state.slots[1]
    assert sorted(slots) == list(range(1, 10))
    late = request(range(3), name="late")
    assert memory.admit(late, memory.find_hit(late)) is None
    memory.check(states)
    states[1].slots[1][0] = states[0].slots[1][0]
    with pytest.raises((EngineError, AssertionError)):
        memory.check(states)


def test_a_hit_is_the_published_prefix_and_leaves_one_token() -> None:
    memory = memory_of(BLOCKS)
    first = request(range(8), name="a")
    admit(memory, first)
    compute(memory, first, 8)
    assert first.published == 2
    same, longer, other = request(range(8)), request(range(9)), request([*range(4), 99, 5, 6, 7, 8])
    for state, blocks in ((same, 1), (longer, 2), (other, 1)):
        memory.update_hashes(state)
        hit = memory.find_hit(state)
        assert hit.num_blocks == blocks
        assert hit.ids == (tuple(first.blocks[0][:blocks]),)


def test_finding_a_hit_changes_nothing() -> None:
    memory = memory_of(BLOCKS)
    first = request(range(8), name="a")
    admit(memory, first)
    compute(memory, first, 8)
    memory.release(first)
    generation, free = memory.generation, memory.num_free
    state = request(range(9))
    memory.update_hashes(state)
    assert memory.find_hit(state) == memory.find_hit(state)
    assert (memory.generation, memory.num_free) == (generation, free)


def test_a_partly_computed_block_is_not_published() -> None:
    memory = memory_of(BLOCKS)
    first = request(range(12), name="a")
    admit(memory, first)
    compute(memory, first, 7)
    assert first.published == 1
    second = request(range(12))
    memory.update_hashes(second)
    assert memory.find_hit(second).num_blocks == 1


def test_blocks_beyond_the_known_tokens_are_not_published() -> None:
    memory = memory_of(BLOCKS)
    state = request(range(7))
    admit(memory, state)
    state.computed = 8
    memory.publish(state)
    assert state.published == 1


def test_a_hit_shares_blocks_and_each_holder_counts() -> None:
    memory = memory_of(BLOCKS)
    first, second = request(range(9), name="a"), request(range(10), name="b")
    admit(memory, first)
    compute(memory, first, 9)
    hit = admit(memory, second)
    assert hit.num_blocks == 2
    assert second.published == 2
    assert second.blocks[0][:2] == first.blocks[0][:2]
    assert second.blocks[0][2] != first.blocks[0][2]
    memory.check([first, second])
    # Shared blocks come free only if both holders let go.
    assert memory.freeable([first]) == (1,)
    assert memory.freeable([second]) == (1,)
    assert memory.freeable([first, second]) == (4,)
    before = memory.num_free[0]
    memory.release(first)
    assert memory.num_free[0] == before + 1
    memory.release(second)
    assert memory.num_free == (8,)


def test_a_hit_on_blocks_nobody_holds_takes_them_from_the_free_ones() -> None:
    memory = memory_of(BLOCKS, num_blocks=3)
    first = request(range(8), max_tokens=4, name="a")
    admit(memory, first)
    compute(memory, first, 8)
    memory.release(first)
    assert memory.num_free == (3,)
    # Twelve tokens need three blocks: two hit ones that count as free until now, and one new one.
    second = request(range(12), max_tokens=1, name="b")
    assert admit(memory, second).num_blocks == 2
    assert memory.num_free == (0,)
    memory.check([second])
    memory.release(second)
    blocker = request([50], max_tokens=2, name="c")
    admit(memory, blocker)
    # With one block held elsewhere, the hit's two blocks leave none for the third.
    memory.update_hashes(second)
    hit = memory.find_hit(second)
    assert hit.num_blocks == 2
    assert memory.num_free == (2,)
    assert memory.admit(second, hit) is None
    memory.check([blocker])


def test_the_tail_of_a_released_sequence_is_evicted_first() -> None:
    memory = memory_of(BLOCKS, num_blocks=3)
    first = request(range(12), max_tokens=1, name="a")
    admit(memory, first)
    compute(memory, first, 12)
    memory.release(first)
    other = request([70], max_tokens=2, name="b")
    admit(memory, other)
    again = request(range(13), max_tokens=1, name="c")
    memory.update_hashes(again)
    assert memory.find_hit(again).num_blocks == 2


def test_prompt_logprobs_read_no_cache_but_feed_it() -> None:
    memory = memory_of(BLOCKS)
    first = request(range(9), name="a", prompt_logprobs=1)
    admit(memory, first)
    compute(memory, first, 9)
    asking, plain = request(range(9), prompt_logprobs=0), request(range(9))
    for state, blocks in ((asking, 0), (plain, 2)):
        memory.update_hashes(state)
        assert memory.find_hit(state).num_blocks == blocks


def test_without_prefix_caching_nothing_is_hashed_published_or_found() -> None:
    memory = memory_of(BLOCKS, caching=False)
    first = request(range(9), name="a")
    admit(memory, first)
    compute(memory, first, 9)
    second = request(range(9))
    admit(memory, second)
    assert (first.hashes, second.computed, memory.pools[0].by_hash) == ([], 0, {})


def test_a_window_lets_blocks_behind_it_go_by_the_committed_length() -> None:
    memory = memory_of(BLOCKS, WINDOW)
    state = request(range(20), name="a")
    admit(memory, state)
    state.row = 1
    assert state.blocks[1] == []
    assert [d.pool for d in compute(memory, state, 8)] == [1, 1, 1]
    # The query at 8 reads 4..8, so block 0 has gone and block 1 stays.
    assert state.blocks[1][0] == 0
    assert state.blocks[1][1] != 0
    held = state.blocks[1][1]
    deltas = compute(memory, state, 12)
    assert TableDelta(1, 1, 1, 0) in deltas
    assert state.blocks[1][:2] == [0, 0]
    assert memory.pools[1].ref[held] == 0
    assert all(state.blocks[0]), "the unbounded pool keeps everything"
    assert memory.drop_behind(state) == [], "a block is dropped once"
    memory.check([state])
    memory.release(state)
    memory.check([])


def test_a_hit_over_a_window_has_null_entries_where_nothing_is_read() -> None:
    memory = memory_of(BLOCKS, WINDOW)
    first = request(range(13), name="a")
    admit(memory, first)
    for upto in (4, 8, 12, 13):
        compute(memory, first, upto)
    second = request(range(13), name="b")
    hit = admit(memory, second)
    assert hit.num_blocks == 3
    assert hit.ids[0] == tuple(first.blocks[0][:3])
    assert hit.ids[1][:2] == (0, 0)
    assert hit.ids[1][2] == first.blocks[1][2] != 0
    memory.check([first, second])
    assert memory.drop_behind(second) == [], "what was never held is not dropped"
    memory.release(first)
    memory.check([second])
    memory.release(second)
    memory.check([])


@pytest.mark.parametrize("late", [0, 1])
def test_each_pool_may_shorten_a_hit(late: int) -> None:
    memory = memory_of(BLOCKS, WINDOW)
    first = request(range(13), name="a")
    admit(memory, first)
    memory.extend(first, memory.missing(first, 12))
    second = request(range(13), name="b")
    memory.update_hashes(second)
    for pool, hit in ((1 - late, 0), (late, 3)):
        for block in range(3):
            memory.pools[pool].publish(first.blocks[pool][block], first.hashes[block])
        assert memory.find_hit(second).num_blocks == hit


def test_a_hit_is_a_fixed_point_over_all_pools() -> None:
    memory = memory_of(BLOCKS, WINDOW, ToyWindow(layers=("wide",), block_size=4, window=9))
    first = request(range(13), name="a")
    admit(memory, first)
    memory.extend(first, memory.missing(first, 12))
    # At 3 blocks the wide window shortens to 2, where the narrow one, asked before, has a hole.
    for pool, blocks in ((0, (0, 1, 2)), (1, (0, 2)), (2, (0, 1))):
        for block in blocks:
            memory.pools[pool].publish(first.blocks[pool][block], first.hashes[block])
    second = request(range(13), name="b")
    assert admit(memory, second).num_blocks == 1
    memory.check([first, second])


def test_a_model_with_state_has_no_hits() -> None:
    memory = memory_of(BLOCKS, STATE)
    first = request(range(9), name="a")
    admit(memory, first)
    compute(memory, first, 9)
    second = request(range(9), name="b")
    memory.update_hashes(second)
    assert memory.find_hit(second).num_blocks == 0


def test_fits_adds_all_wishes_up() -> None:
    memory = memory_of(BLOCKS, STATE, num_blocks=3)
    assert memory.fits([[2, 0], [1, 0]])
    assert not memory.fits([[2, 0], [2, 0]])
    assert memory.fits([])


def test_check_sees_a_request_that_forgot_a_block() -> None:
    memory = memory_of(BLOCKS)
    state = request(range(9))
    admit(memory, state)
    state.blocks[0].pop()
    with pytest.raises(EngineError, match="recount"):
        memory.check([state])
