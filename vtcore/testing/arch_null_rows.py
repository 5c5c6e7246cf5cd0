"""The kit's rule of rows that stand for no request: a GPU's start measures and warms up with them.

They name id 0 in every pool. A uniform one has no query tokens, a prefill one says so itself.
Does not: need a GPU; ops for one are tried by `ArchGpu`.
"""

from __future__ import annotations

import torch

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.execution.warm_up import all_batches, null_batch, run_null
from vtcore.interfaces.kv_cache_spec import Whole
from vtcore.internals import Internals
from vtcore.loader import load_core
from vtcore.testing.arch_subject import ArchSubject
from vtcore.testing.kit import since


class ArchNullRows(ArchSubject):
    """Through a runner on the CPU, over caches of NaN."""

    @since("0.1")
    def test_rows_that_stand_for_no_request_touch_nothing(self) -> None:
        """Whatever a start runs leaves every unit of every pool as it was, id 0 too, and reads none."""
        captured_k = (0, 2) if self.can_roll_back() else (0,)
        loaded = load_core(
            UserOptions(
                dtype="float64",
                max_model_len=96,
                block_size=8,
                num_blocks=24 if Whole in self.lifetimes() else None,
                max_num_seqs=4,
            ),
            hf_config=self.hf_config,
            tensors=self.tensors(),
            registry=self.registry(),
            environment=Environment(),
            internals=Internals(captured_k=captured_k),
        )
        runner = loaded.runner
        for cache in loaded.caches.values():
            for tensor in cache.tensors.values():
                tensor.view(torch.uint8).fill_(0xFF)
        batches = [*all_batches((1, 4), captured_k, 4, 64, 96), null_batch(3, captured_k[-1], [1, 17])]
        for batch in batches:
            run_null(runner, batch)
        for layer, cache in loaded.caches.items():
            for name, tensor in cache.tensors.items():
                assert bool((tensor.view(torch.uint8) == 0xFF).all()), f"{layer}.{name} was written"
        tables = runner.tables
        for column in (tables.last_token, tables.computed, tables.limit, tables.cur_slot, tables.history):
            assert not bool(column[0].any()), "the null row was written"
        nan_rows = runner.sampler.counters().num_nan_rows
        assert nan_rows == 0, f"{nan_rows} rows have logits of NaN: a cache was read for them"
        loaded.close()
