"""The rules for single settings, as tables; each names where its rule comes from."""

from __future__ import annotations

from typing import Any

import pytest

from vtcore.config.decision import Decision, Given
from vtcore.config.engine_config import Origin
from vtcore.config.env import Environment
from vtcore.config.rules import (
    default_state_checkpoints,
    resolve_async_scheduling,
    resolve_batch_invariant,
    resolve_budget,
    resolve_cache_size,
    resolve_enforce_eager,
    resolve_gpu_memory_utilization,
    resolve_hash_seed,
    resolve_jump_forward,
    resolve_max_model_len,
    resolve_max_num_seqs,
    resolve_prefix_caching,
    resolve_state_checkpoints,
)


def said(value: Any) -> Given[Any]:
    return Given(value, Origin("keyword"))


@pytest.mark.parametrize(
    ("option", "is_recurrent", "value", "origin"),
    [
        (None, False, True, "arch: x is a plain decoder"),
        (None, True, False, "arch: x is recurrent"),
        (True, False, True, "keyword"),
        (False, False, False, "keyword"),
        (False, True, False, "keyword"),
        (True, True, True, "keyword"),
    ],
)
def test_prefix_caching(option: bool | None, is_recurrent: bool, value: bool, origin: str) -> None:
    """Source: vllm.cpp model_loader.h, ResolveEnablePrefixCaching."""
    found = resolve_prefix_caching(said(option), "x", is_recurrent)
    assert (found.value, str(found.origin), found.not_served, found.problem) == (value, origin, (), "")


PLAIN, OFF = "default: the arch has no recurrent state", "default: prefix caching is off"


@pytest.mark.parametrize(
    ("options", "is_recurrent", "caching", "values", "origins"),
    [
        ((None, None), True, True, (32, 2048), ("default", "default")),
        ((5, 128), True, True, (5, 128), ("keyword", "keyword")),
        ((None, None), True, False, (0, 2048), (OFF, "default: unused: prefix caching is off")),
        ((0, None), True, False, (0, 2048), (OFF, "default: unused: prefix caching is off")),
        ((0, None), False, True, (0, 2048), (PLAIN, "default: unused: the arch has no recurrent state")),
        ((None, None), False, False, (0, 2048), (PLAIN, "default: unused: the arch has no recurrent state")),
    ],
)
def test_state_checkpoints(
    options: tuple[int | None, int | None],
    is_recurrent: bool,
    caching: bool,
    values: tuple[int, int],
    origins: tuple[str, str],
) -> None:
    found = checkpoints(options, is_recurrent, caching)
    assert tuple(decision.value for decision in found) == values
    assert tuple(str(decision.origin) for decision in found) == origins
    assert not any(decision.problem for decision in found)


@pytest.mark.parametrize("is_recurrent", [True, False])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("option", [0, 1])
def test_state_checkpoints_without_effect_are_refused_with_a_way_out(
    is_recurrent: bool, caching: bool, option: int
) -> None:
    options = (9, None) if option == 0 else (None, 64)
    name = ("num_state_checkpoints", "state_checkpoint_interval")[option]
    problem = checkpoints(options, is_recurrent, caching)[option].problem
    if is_recurrent and caching:
        assert problem == ""
        return
    assert problem.startswith(f"$.{name}: {options[option]} would have no effect, for ")
    assert ("start with enable_prefix_caching" in problem) is is_recurrent


def test_prefix_caching_without_states_to_start_from_is_refused() -> None:
    found, _ = checkpoints((0, None), True, True)
    assert found.problem == (
        "$.num_state_checkpoints: 0 leaves prefix caching without the recurrent states that a hit starts "
        "from, so nothing could ever hit; raise it, or go without enable_prefix_caching"
    )


def checkpoints(
    options: tuple[int | None, int | None], is_recurrent: bool, caching: bool
) -> tuple[Decision[int], Decision[int]]:
    return resolve_state_checkpoints(
        said(options[0]),
        said(options[1]),
        is_recurrent=is_recurrent,
        caching=Decision(value=caching, origin=Origin("keyword")),
        defaults=(32, 2048),
    )


VARIABLE = "environment: VT_ENABLE_JUMP_FORWARD"


@pytest.mark.parametrize(
    ("option", "variable", "value", "origin"),
    [
        (None, None, False, "default"),
        (False, None, False, "keyword"),
        (True, None, True, "keyword"),
        (False, "1", True, VARIABLE),
        (None, "true", True, VARIABLE),
        (None, "TRUE", True, VARIABLE),
        (None, "on", True, VARIABLE),
        (True, "0", False, VARIABLE),
        (True, "", False, VARIABLE),
        (True, "True", False, VARIABLE),
        (True, "ON", False, VARIABLE),
        (True, "yes", False, VARIABLE),
        (True, " 1", False, VARIABLE),
    ],
)
def test_jump_forward(option: bool | None, variable: str | None, value: bool, origin: str) -> None:
    """Source: vllm.cpp model_loader.h, JumpForwardEnabled. What comes out as on is refused by name."""
    found = resolve_jump_forward(said(option), variable)
    assert (found.value, str(found.origin)) == (value, origin)
    start = "VT_ENABLE_JUMP_FORWARD: " if variable is not None else "$.enable_jump_forward: true "
    assert [sentence.startswith(start) for sentence in found.not_served] == ([True] if value else [])


RUNNER, SCHED = "environment: VT_ASYNC_RUNNER", "environment: VT_ASYNC_SCHED"
GPU, CPU = (
    "device: cuda, the host schedules while it computes",
    "device: cpu, it computes on the host's own cores",
)


@pytest.mark.parametrize(
    ("option", "device", "runner", "sched", "value", "origin"),
    [
        # the option, else the device
        (None, "cuda", None, None, True, GPU),
        (None, "cuda:1", None, None, True, GPU.replace("cuda", "cuda:1")),
        (True, "cuda", None, None, True, "keyword"),
        (False, "cuda", None, None, False, "keyword"),
        (None, "cpu", None, None, False, CPU),
        (False, "cpu", None, None, False, "keyword"),
        (True, "cpu", None, None, True, "keyword"),
        # VT_ASYNC_RUNNER: only a first 0 takes the support away
        (None, "cuda", "0", None, False, RUNNER),
        (True, "cuda", "0", None, False, RUNNER),
        (True, "cpu", "0", None, False, RUNNER),
        (None, "cuda", "0ff", None, False, RUNNER),
        (False, "cuda", "0", None, False, "keyword"),
        (None, "cuda", "", None, True, GPU),
        (None, "cuda", "1", None, True, GPU),
        (None, "cuda", "false", None, True, GPU),
        (None, "cpu", "1", None, False, CPU),
        # VT_ASYNC_SCHED: a first 0 forces off
        (None, "cuda", None, "0", False, SCHED),
        (True, "cuda", None, "0", False, SCHED),
        (True, "cpu", None, "0", False, SCHED),
        (None, "cpu", "1", "00", False, SCHED),
        (True, "cuda", "0", "0", False, SCHED),
        (False, "cuda", None, "0", False, "keyword"),
        # ... and anything else forces on
        (None, "cuda", None, "1", True, SCHED),
        (False, "cuda", None, "1", True, SCHED),
        (None, "cpu", None, "false", True, SCHED),
        (None, "cpu", "0", "", True, SCHED),
        (True, "cpu", None, "1", True, SCHED),
    ],
)
def test_async_scheduling(
    option: bool | None, device: str, runner: str | None, sched: str | None, value: bool, origin: str
) -> None:
    """Source: vllm.cpp model_loader.h, ResolveAsyncEnabled, but for the default on a cpu."""
    found = resolve_async_scheduling(said(option), device, runner, sched)
    assert (found.value, str(found.origin)) == (value, origin)
    assert not found.not_served
    assert not found.problem


@pytest.mark.parametrize("option", [None, True, False])
@pytest.mark.parametrize("runner", [None, "", "0", "1", "false"])
@pytest.mark.parametrize("sched", [None, "", "0", "1", "false"])
def test_on_a_gpu_async_scheduling_is_what_vllm_cpp_makes_of_it(
    option: bool | None, runner: str | None, sched: str | None
) -> None:
    """The whole matrix of a runner that can."""
    theirs = option is not False and not (runner or "").startswith("0")
    if sched is not None:
        theirs = not sched.startswith("0")
    assert resolve_async_scheduling(said(option), "cuda", runner, sched).value is theirs


DRAWN = "ab" * 32


@pytest.mark.parametrize(
    ("option", "environment", "seed", "origin"),
    [
        (None, None, None, "default: the built-in root"),
        (None, "e", "e", "environment: VLLM_PREFIX_CACHING_HASH_SEED"),
        ("o", "e", "o", "keyword"),
        ("random", "e", DRAWN, "keyword: random, drawn at the start"),
        (
            None,
            "random",
            DRAWN,
            "environment: VLLM_PREFIX_CACHING_HASH_SEED, random, drawn at the start",
        ),
        ("Random", None, "Random", "keyword"),
    ],
)
def test_hash_seed(option: str | None, environment: str | None, seed: str | None, origin: str) -> None:
    """Source: vllm.cpp model_loader.h, EnsureNoneHash. The order within the environment is test_env.py's."""
    env = Environment(
        prefix_caching_hash_seed=environment,
        prefix_caching_hash_seed_from="VLLM_PREFIX_CACHING_HASH_SEED",
        random_hash_seed=DRAWN,
    )
    for is_on in (True, False):
        found = resolve_hash_seed(said(option), env, Decision(value=is_on, origin=Origin("keyword")))
        assert (found.value, str(found.origin)) == (seed, origin)
        assert bool(found.problem) is (option is not None and not is_on)


@pytest.mark.parametrize(("source", "is_refused"), [("config file", True), ("environment", False)])
def test_a_hash_seed_without_caching_is_refused_but_for_a_variable(source: str, is_refused: bool) -> None:
    seed = Given("s", Origin(source, "there"))
    off = Decision(value=False, origin=Origin("keyword"))
    expected = (
        f"$.prefix_caching_hash_seed: 's' (from {source}: there) would have no effect, for prefix caching is "
        f"off; leave it out, or start with enable_prefix_caching"
    )
    assert resolve_hash_seed(seed, Environment(), off).problem == (expected if is_refused else "")


@pytest.mark.parametrize(
    ("blocks", "num_bytes", "resolved", "origins", "refused"),
    [
        (None, None, (256, None), ("default", "default: num_blocks sizes the cache"), False),
        (9, None, (9, None), ("keyword", "default: num_blocks sizes the cache"), False),
        (None, 10**9, (None, 10**9), ("keyword: from kv_cache_memory_bytes", "keyword"), False),
        (9, 10**9, (None, 10**9), ("keyword: from kv_cache_memory_bytes", "keyword"), True),
    ],
)
def test_blocks_or_bytes(
    blocks: int | None,
    num_bytes: int | None,
    resolved: tuple[int | None, int | None],
    origins: tuple[str, str],
    refused: bool,
) -> None:
    """Source: vllm.cpp model_loader.h, EngineParams, which lets num_blocks win over the bytes in silence."""
    found = resolve_cache_size(said(blocks), said(num_bytes))
    assert tuple(decision.value for decision in found) == resolved
    assert tuple(str(decision.origin) for decision in found) == origins
    assert [bool(decision.problem) for decision in found] == [refused, False]


@pytest.mark.parametrize(
    ("blocks", "num_bytes", "resolved", "problem"),
    [
        (None, None, (0, None), ""),
        # Bytes are the most that may be taken, whatever sizes the pools.
        (None, 4096, (None, 4096), ""),
        (4, None, (0, None), "$.num_blocks: 4 would have no effect, "),
        (4, 4096, (0, None), "$.num_blocks: 4 would have no effect, "),
    ],
)
def test_a_number_of_blocks_is_refused_where_max_num_seqs_sizes_every_pool(
    blocks: int | None, num_bytes: int | None, resolved: tuple[int | None, int | None], problem: str
) -> None:
    found = resolve_cache_size(said(blocks), said(num_bytes), is_bounded=True)
    assert tuple(decision.value for decision in found) == resolved
    assert found[0].problem == problem + (
        "for every cache of the arch is bounded (windows, slots); leave it out, or lower max_num_seqs"
        if problem
        else ""
    )
    assert not found[1].problem


@pytest.mark.parametrize(
    ("option", "length", "origin", "refused"),
    [
        (None, 4096, "checkpoint: max_position_embeddings", False),
        ("auto", 4096, "checkpoint: max_position_embeddings", False),
        (100, 100, "keyword", False),
        (4096, 4096, "keyword", False),
        (4097, 4097, "keyword", True),
    ],
)
def test_max_model_len(option: int | str | None, length: int, origin: str, refused: bool) -> None:
    """Source: vllm.cpp model_loader.h, EngineParams; `auto` is vLLM's word for the default here."""
    found = resolve_max_model_len(said(option), 4096)
    assert (found.value, str(found.origin), bool(found.problem)) == (length, origin, refused)


@pytest.mark.parametrize(
    ("option", "seqs", "length", "budget", "origin"),
    [
        (None, 8, 4096, 2048, "arch: of x"),
        (None, 2, 10, 20, "arch: of x (2048), fitted to max_num_seqs and max_model_len"),
        (77, 8, 4096, 77, "keyword"),
        (7, 8, 4096, 8, "keyword: 7 raised to max_num_seqs, so that none starves"),
    ],
)
def test_an_origin_says_why_a_budget_is_another(
    option: int | None, seqs: int, length: int, budget: int, origin: str
) -> None:
    """Source: vllm.cpp model_loader.h, ResolveMaxNumBatchedTokens."""
    found = resolve_budget(said(option), seqs, length, "x", 2048)
    assert (found.value, str(found.origin)) == (budget, origin)


@pytest.mark.parametrize(
    ("option", "seqs", "length", "arch_default", "budget", "origin"),
    [
        (None, 256, 4096, 2048, 8192, "device: cuda, for the 2048 of x"),
        (None, 256, 4096, 16384, 16384, "arch: of x"),
        (
            None,
            2,
            100,
            2048,
            200,
            "device: cuda, for the 2048 of x (8192), fitted to max_num_seqs and max_model_len",
        ),
        (77, 8, 4096, 2048, 77, "keyword"),
        (7, 8, 4096, 2048, 8, "keyword: 7 raised to max_num_seqs, so that none starves"),
    ],
)
def test_a_gpus_default_budget_is_larger(
    option: int | None, seqs: int, length: int, arch_default: int, budget: int, origin: str
) -> None:
    found = resolve_budget(said(option), seqs, length, "x", arch_default, "cuda")
    assert (found.value, str(found.origin)) == (budget, origin)


def test_a_budget_leaves_room_for_a_whole_chunk_beside_all_others() -> None:
    found = resolve_budget(said(70), 8, 4096, "x", 2048, "cuda", 64)
    assert (found.value, str(found.origin)) == (
        71,
        "keyword: 70 raised to max_num_seqs + 63, so that none starves",
    )
    assert resolve_budget(said(71), 8, 4096, "x", 2048, "cuda", 64).origin == Origin("keyword")
    assert resolve_budget(said(None), 2, 10, "x", 2048, "cuda", 64).value == 65


@pytest.mark.parametrize(
    ("option", "device", "value", "origin"),
    [
        (None, "cpu", 8, "default"),
        (None, "cuda", 256, "device: cuda"),
        (None, "cuda:3", 256, "device: cuda:3"),
        (9, "cuda", 9, "keyword"),
        (9, "cpu", 9, "keyword"),
    ],
)
def test_a_gpu_runs_more_requests_at_once(option: int | None, device: str, value: int, origin: str) -> None:
    found = resolve_max_num_seqs(said(option), device)
    assert (found.value, str(found.origin)) == (value, origin)


@pytest.mark.parametrize(
    ("seqs", "device", "checkpoints"),
    [(8, "cpu", 32), (100, "cpu", 400), (8, "cuda", 32), (16, "cuda", 64), (256, "cuda:1", 64)],
)
def test_a_gpu_keeps_fewer_states_by_default(seqs: int, device: str, checkpoints: int) -> None:
    assert default_state_checkpoints(seqs, device) == checkpoints


@pytest.mark.parametrize(
    ("blocks", "num_bytes", "resolved", "origins"),
    [
        (None, None, (None, None), ("device: gpu_memory_utilization sizes the cache",) * 2),
        (9, None, (9, None), ("keyword", "default: num_blocks sizes the cache")),
        (None, 10**9, (None, 10**9), ("keyword: from kv_cache_memory_bytes", "keyword")),
    ],
)
def test_a_gpus_memory_sizes_the_cache_unless_asked(
    blocks: int | None,
    num_bytes: int | None,
    resolved: tuple[int | None, int | None],
    origins: tuple[str, str],
) -> None:
    found = resolve_cache_size(said(blocks), said(num_bytes), device="cuda")
    assert tuple(decision.value for decision in found) == resolved
    assert tuple(str(decision.origin) for decision in found) == origins
    assert not any(decision.problem for decision in found)
    bounded = resolve_cache_size(said(None), said(None), is_bounded=True, device="cuda")
    assert [decision.value for decision in bounded] == [0, None]


@pytest.mark.parametrize(
    ("option", "value", "origin"),
    [
        (None, False, "device: cuda captures graphs"),
        (True, True, "keyword"),
        (False, False, "keyword"),
    ],
)
def test_a_gpu_captures_graphs_unless_told_not_to(option: bool | None, value: bool, origin: str) -> None:
    found = resolve_enforce_eager(said(option), "cuda")
    assert (found.value, str(found.origin), found.not_served) == (value, origin, ())


@pytest.mark.parametrize(("option", "share"), [(None, 0.92), (0.5, 0.5)])
def test_a_gpus_memory_is_shared(option: float | None, share: float) -> None:
    found = resolve_gpu_memory_utilization(said(option), "cuda")
    assert (found.value, found.not_served) == (share, ())
    assert str(found.origin) == ("default" if option is None else "keyword")


@pytest.mark.parametrize(
    ("option", "device", "value", "is_served"),
    [
        (None, "cpu", False, True),
        (None, "cuda", False, True),
        (False, "cpu", False, True),
        (True, "cuda", True, True),
        (True, "cuda:1", True, True),
        (True, "cpu", True, False),
    ],
)
def test_only_a_gpu_is_batch_invariant(
    option: bool | None, device: str, value: bool, is_served: bool
) -> None:
    found = resolve_batch_invariant(said(option), device)
    assert found.value is value
    if is_served:
        assert not found.not_served
    else:
        [sentence] = found.not_served
        assert sentence.startswith("$.batch_invariant: true is not served on device 'cpu'")
        assert "leave it out" in sentence


@pytest.mark.parametrize(
    ("option", "value", "origin", "refused"),
    [
        (None, True, "device: cpu captures no graphs", False),
        (True, True, "keyword", False),
        (False, False, "keyword", True),
    ],
)
def test_a_cpu_is_eager(option: bool | None, value: bool, origin: str, refused: bool) -> None:
    found = resolve_enforce_eager(said(option), "cpu")
    assert (found.value, str(found.origin), bool(found.not_served)) == (value, origin, refused)


def test_a_cpu_has_no_memory_to_share() -> None:
    assert resolve_gpu_memory_utilization(said(None), "cpu").value is None
    assert (
        "set kv_cache_memory_bytes or num_blocks instead"
        in (resolve_gpu_memory_utilization(said(0.9), "cpu").not_served[0])
    )


@pytest.mark.parametrize(
    ("origin", "where"),
    [
        (Origin("keyword"), ""),
        (Origin("command line"), ""),
        (Origin("user"), ""),
        (Origin("config file", "a.toml"), " (from config file: a.toml)"),
        (Origin("environment", "VTCORE_SEED"), " (from environment: VTCORE_SEED)"),
    ],
)
def test_a_sentence_says_where_a_value_stands_when_it_is_not_at_hand(origin: Origin, where: str) -> None:
    assert Given(1, origin).where == where
    assert Given("a", origin).origin_or("default") == origin
