"""Each mistake that a step engine is known to make is planted, and the random schedules must notice it.

Source: the list is that of the step's prototype; docs/architecture.md, The step, has the rules they break.
"""

from __future__ import annotations

import inspect
import textwrap
from random import Random
from typing import Any

import pytest

import vtcore.engine.core
import vtcore.execution.model_runner
import vtcore.execution.staged_sampling
import vtcore.ops.prepare_step.naive
import vtcore.scheduling.commit
import vtcore.scheduling.scheduler
import vtcore.scheduling.uniform_rows
from vtcore.engine.core import EngineCore
from vtcore.execution.model_runner import ModelRunner
from vtcore.execution.tables import DeviceTables
from vtcore.execution.unit_copies import UnitCopies
from vtcore.kv_cache.request_memory import RequestMemory
from vtcore.scheduling.scheduler import Scheduler
from vtcore.testing.draw_case import draw_case
from vtcore.testing.schedules import run_schedule, toy_registry
from vtcore.testing.toy_drafters import ShiftedDrafter

REGISTRY = toy_registry()
TRIES = 400

# name: (owner, function, right, wrong)
MISTAKES: dict[str, tuple[Any, str, str, str]] = {
    "results_routed_by_row_without_epoch": (
        vtcore.scheduling.commit,
        "commit",
        "if not alive[index]:",
        "request = rows.owner[frame_rows[index]]\n        if request is None:",
    ),
    "admission_keeps_the_state_column": (
        DeviceTables,
        "_stage_inits",
        "self.cur_slot.index_fill_(0, rows_I, 0)",
        "pass",
    ),
    "hit_without_history_upload": (
        DeviceTables,
        "_stage_inits",
        "_ragged(inits, [init.tokens for init in inits])",
        "_ragged(inits, [init.tokens for init in inits])[:, "
        "np.concatenate([np.arange(len(i.tokens)) >= i.computed for i in inits])]",
    ),
    "no_clamp_at_the_limit": (
        vtcore.ops.prepare_step.naive,
        "prepare_rows",
        "limit_R.index_select(0, rows_U) - 1 - computed_U",
        "limit_R.index_select(0, rows_U) + 99",
    ),
    "a_step_without_drafts_leaves_the_state_column": (
        ModelRunner,
        "_advance",
        "tables.cur_slot if tables.drafts.shape[1] else None",
        "tables.cur_slot if inputs.query_len > 1 or not inputs.num_uniform else None",
    ),
    "a_missing_draft_is_embedded_as_a_token": (
        vtcore.ops.prepare_step.naive,
        "prepare_rows",
        "lens_U = 1 + legal_UK.long().cumprod(1).sum(1)",
        "lens_U = torch.full_like(rows_U, 1 + drafts_UK.shape[1]); drafts_UK.masked_fill_(~legal_UK, 0)",
    ),
    "blocks_for_the_committed_length": (
        vtcore.scheduling.uniform_rows,
        "take_uniform",
        "np.minimum(rows.bound[chosen] + query + scheduler.memory.lookahead, last[ready])",
        "np.array([_owner(scheduler, int(r)).computed + 1 for r in chosen])",
    ),
    "window_freed_by_the_upper_bound": (
        RequestMemory,
        "drop_behind",
        "self.guard.first_needed(spec, request.computed)",
        "spec.needed(request.computed + 4).start",
    ),
    "a_hit_of_all_tokens": (
        RequestMemory,
        "_hit_limit",
        "(len(request.tokens) - 1) // self.block_size",
        "len(request.tokens) // self.block_size",
    ),
    "blocks_published_before_they_are_computed": (
        RequestMemory,
        "publish",
        "min(request.computed, known)",
        "known",
    ),
    "an_accepted_run_is_not_cut_at_the_stop": (
        vtcore.scheduling.commit,
        "_append",
        'return "stop", token',
        "stop = token",
    ),
    "a_mask_is_made_before_the_commit_it_needs": (
        EngineCore,
        "_must_wait",
        "if not self._masks or len(self.frames) < 2:",
        "if True:",
    ),
    "one_mask_for_all_query_rows": (
        EngineCore,
        "_row_masks",
        "own.append(source.mask(tokens))",
        "own.append(own[0])",
    ),
    "masks_shifted_by_one_row": (
        vtcore.execution.model_runner,
        "_flat_masks",
        "own[position]",
        "own[max(position - 1, 0)]",
    ),
    "a_victim_that_is_already_in_the_batch": (
        vtcore.scheduling.uniform_rows,
        "_later",
        "running[running.index(request) + 1 :]",
        "[r for r in running if r is not request][:1]",
    ),
    "no_zeroing_of_a_new_state": (UnitCopies, "_zero", "tensor.data.index_fill_(1, sent[at], 0)", "pass"),
    "a_drafter_without_its_carry": (
        ShiftedDrafter,
        "ingest",
        "carry = int(view.hidden_TH[offset + step, 0])",
        "carry = int(view.hidden_TH[offset + step, 0]) if step else 0",
    ),
    "draft_kv_one_position_early": (
        ShiftedDrafter,
        "ingest",
        "self._write(row, start + step, ",
        "self._write(row, max(start + step - 1, 0), ",
    ),
    "more_drafts_than_the_budget": (
        Scheduler,
        "_begin",
        "most = min(self._last_k_out, budget.left - 1)",
        "most = self._last_k_out",
    ),
    "sampling_a_chunk_that_does_not_end_the_prompt": (
        Scheduler,
        "_prefill_chunk",
        "sample = end == known",
        "sample = True",
    ),
    "a_state_kept_from_the_newest_column": (
        UnitCopies,
        "stage_states",
        "position_C - before_C - 1",
        "now_C - before_C - 1",
    ),
    "a_state_kept_of_a_position_that_was_passed_before": (
        UnitCopies,
        "stage_states",
        "(before_C < position_C) & (position_C <= now_C) & is_end_C",
        "position_C <= now_C",
    ),
    "a_hit_that_restores_no_state": (
        RequestMemory,
        "admit",
        "CopyOp(index, source, request.slots[index][0])",
        "CopyOp(index, 0, request.slots[index][0])",
    ),
    "a_fork_without_its_parents_state": (
        RequestMemory,
        "fork",
        "CopyOp(index, leader.slots[index][0], child.slots[index][0])",
        "CopyOp(index, 0, child.slots[index][0])",
    ),
    "a_fork_that_writes_into_its_parents_block": (
        RequestMemory,
        "fork",
        "[*table[:full], *pool.allocate(own)]",
        "[*table[: full + 1], *pool.allocate(own)]",
    ),
    "a_fork_copied_before_the_prompt_is_computed": (
        Scheduler,
        "_fork",
        "draft.after += copies",
        "self._before += copies",
    ),
    "a_fork_that_takes_its_parents_token": (
        vtcore.execution.staged_sampling,
        "stage_sampling",
        "rows += [fork.child for fork in batch.forks]",
        "rows += [fork.parent for fork in batch.forks]",
    ),
    "a_fork_that_stands_where_its_parents_chunk_began": (
        ModelRunner,
        "_start_forks",
        "tables.computed.index_copy_(0, rows_F, ends_F)",
        "pass",
    ),
    "nobody_computes_the_prompt_of_a_leader_that_ended": (
        Scheduler,
        "finish",
        "pass_on(request, self.waiting)",
        "pass",
    ),
    "a_state_of_a_dropped_row_is_not_given_back": (
        vtcore.scheduling.commit,
        "_settle_checkpoints",
        "scheduler.memory.put_checkpoint(checkpoint, None)",
        "pass",
    ),
    "a_state_named_by_the_block_before_its_own": (
        RequestMemory,
        "put_checkpoint",
        "checkpoint.position // self.block_size - 1",
        "checkpoint.position // self.block_size - 2",
    ),
    "a_state_published_before_it_is_written": (
        RequestMemory,
        "take_checkpoint",
        "return None if dst is None",
        "dst and self._states.publish(dst, self._hash_before(request, position) or b'?')\n"
        "    return None if dst is None",
    ),
    "a_lower_bound_that_counts_drafts": (Scheduler, "_launch", "advance[: draft.uniform.size] = 1", "pass"),
    "hashes_without_the_salt": (
        RequestMemory,
        "update_hashes",
        "salted_root(self._root, request.req.cache_salt)",
        "self._root",
    ),
    "draft_rows_do_not_see_the_drafts_before_them": (
        ModelRunner,
        "_place_drafts",
        "if not k or",
        "if True or",
    ),
}
IMPORTED_BY = {
    "commit": vtcore.engine.core,
    "stage_sampling": vtcore.execution.model_runner,
    "take_uniform": vtcore.scheduling.scheduler,
}
"""Modules that hold a planted function by name."""


def plant(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, right: str, wrong: str) -> None:
    """Recompile a function with one line changed."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(right) >= 1, f"{name} no longer reads {right!r}"
    module = inspect.getmodule(function)
    assert module is not None
    scope = dict(vars(module))
    exec(compile(source.replace(right, wrong), f"planted {name}", "exec"), scope)
    for holder in {owner, IMPORTED_BY.get(name, owner)}:
        monkeypatch.setattr(holder, name, scope[name])


def first_failure(tries: int = TRIES) -> int | None:
    for seed in range(tries):
        try:
            run_schedule(draw_case(Random(seed).choice), REGISTRY)
        except Exception:
            return seed
    return None


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, function, right, wrong = MISTAKES[name]
    plant(monkeypatch, owner, function, right, wrong)
    assert first_failure() is not None, f"{name} went unnoticed in {TRIES} schedules"
