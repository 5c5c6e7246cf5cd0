"""The kit's rules of the engine's usual dtypes: the margin rule in float32, counted tokens in bfloat16.

Does not: judge speed. Each token of a busy batch is held to the reference's float64 logits after the very
tokens before it; one that is not the best is exempted if its logit is below the best by at most tau.

Source: tau and the rule are the design's eighth law; its float32 bound is 1 token in 10,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar

import torch
from torch import Tensor

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.core import AddRequest
from vtcore.execution.executor import Executor
from vtcore.execution.model_runner import ModelRunner
from vtcore.interfaces.batch import EngineRequest, RowParams
from vtcore.interfaces.kv_cache_spec import Whole
from vtcore.internals import Internals
from vtcore.loader import load_core
from vtcore.speculation.drafter import DraftView
from vtcore.testing.arch_subject import RELATIVE, ArchSubject, MeasuredBound, assert_close
from vtcore.testing.invariants import check_idle, check_invariants
from vtcore.testing.kit import since
from vtcore.testing.late_executor import LateExecutor
from vtcore.testing.toy_drafters import JunkDrafter

TAU = {"float32": 5e-3, "bfloat16": 0.5}
"""Largest gap of logits that the margin rule exempts."""
NUM_REQUESTS = 12
NUM_TOKENS = 40
"""Output tokens of each."""


class ArchPrecision(ArchSubject):
    """Over twelve greedy requests that share too few blocks, under a late executor and junk drafts.

    Attributes:
        busy_lengths: Prompt lengths of the busy batch, in turn.
    """

    busy_lengths: ClassVar[Sequence[int]] = (1, 3, 40, 63, 64, 65)

    @since("0.1")
    def test_float32_keeps_to_the_margin_rule(self) -> None:
        """Of 960 tokens none differs from float64's own: one in 10,000 may."""
        for depth, budget in ((1, 7), (2, 64)):
            within, beyond = self.exempted("float32", depth, budget)
            assert (within, beyond) == (0, 0), (
                f"depth {depth}: {within} tokens of {NUM_REQUESTS * NUM_TOKENS} differ from float64's by at "
                f"most {TAU['float32']}, {beyond} by more"
            )

    @since("0.1")
    def test_bfloat16_keeps_to_its_measured_bound(self) -> None:
        """Tokens that differ from float64's are counted and at most `bfloat16_bound`."""
        found = [self.exempted("bfloat16", depth, budget) for depth, budget in ((1, 7), (2, 64))]
        within, beyond = (max(counts) for counts in zip(*found, strict=True))
        bound = self.bfloat16_bound
        total = NUM_REQUESTS * NUM_TOKENS
        assert bound is not None, (
            f"{within} of {total} tokens differ from float64's within tau {TAU['bfloat16']}, {beyond} beyond "
            f"it; write that down, doubled, for processors round differently: bfloat16_bound = MeasuredBound("
            f'within={2 * within}, beyond={2 * beyond}, reason="measured {within} and {beyond} of {total}")'
        )
        assert isinstance(bound, MeasuredBound), f"bfloat16_bound is {bound!r}, no MeasuredBound"
        assert within <= bound.within, f"{within} of {total} tokens differ within tau, at most {bound.within}"
        assert beyond <= bound.beyond, f"{beyond} of {total} tokens differ beyond tau, at most {bound.beyond}"

    @since("0.1")
    def test_captured_residuals_reach_a_drafter(self) -> None:
        """A drafter sees the residuals it asks for, of every committed token, whatever the chunks."""
        if not self.can_roll_back():
            return
        layers = (-1, *range(min(2, self.arch().dims.num_layers - 1)))
        for budget in (3, 64):
            listener = _Listener(layers)
            loaded = load_core(
                UserOptions(dtype="float64", max_model_len=64),
                hf_config=self.hf_config,
                tensors=self.tensors(),
                registry=self.registry(),
                environment=Environment(),
                internals=Internals(drafter=listener, captured_k=(0, 1), step_budget=budget),
            )
            request = EngineRequest(
                id="r", prompt_token_ids=(5, 3, 9, 1, 7), params=RowParams(temperature=0.0), max_tokens=6
            )
            loaded.core.inbox.append(AddRequest(request))
            ids = list(request.prompt_token_ids)
            while loaded.core.has_work:
                for update in loaded.core.step():
                    ids += update.tokens
            loaded.close()
            hidden = self.reference_hidden(ids[:-1])
            wanted = torch.cat([hidden[layer + 1] for layer in layers], -1)
            assert sorted(listener.seen) == list(range(len(ids) - 1)), "a committed token was not shown"
            found = torch.stack([listener.seen[position] for position in range(len(ids) - 1)])
            assert_close(found, wanted, RELATIVE, f"captures at budget {budget}")

    @classmethod
    def exempted(cls, dtype: str, depth: int, budget: int) -> tuple[int, int]:
        """Run the busy batch; how many tokens are not float64's own, within and beyond tau."""
        outputs = cls._run_together(dtype, depth, budget)
        within = beyond = 0
        for prompt, tokens in outputs:
            assert len(tokens) == NUM_TOKENS
            logits = cls.reference_logits([*prompt, *tokens][:-1])[len(prompt) - 1 :]
            gap = logits.max(1).values - logits.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
            within += int(((gap > 0) & (gap <= TAU[dtype])).sum())
            beyond += int((gap > TAU[dtype]).sum())
        return within, beyond

    @classmethod
    def _run_together(cls, dtype: str, depth: int, budget: int) -> list[tuple[tuple[int, ...], list[int]]]:
        executors: list[LateExecutor] = []

        def make_executor(runner: ModelRunner) -> Executor:
            executors.append(LateExecutor(runner, Random(budget)))
            return executors[0]

        can_draft, has_blocks = cls.can_roll_back(), Whole in cls.lifetimes()
        options = UserOptions(
            dtype=dtype,
            max_model_len=160,
            block_size=8,
            num_blocks=24 if has_blocks else None,
            max_num_seqs=4,
        )
        loaded = load_core(
            options,
            hf_config=cls.hf_config,
            tensors=cls.tensors(),
            registry=cls.registry(),
            environment=Environment(),
            internals=Internals(
                depth=depth,
                drafter=JunkDrafter() if can_draft else None,
                captured_k=(0, 1, 3) if can_draft else (0,),
                make_executor=make_executor,
                step_budget=budget,
                check=check_invariants,
            ),
        )
        core = loaded.core
        executors[0].poison(core.scheduler.memory, loaded.caches)
        prompts = [cls._prompt(index) for index in range(NUM_REQUESTS)]
        outputs: dict[str, list[int]] = {str(index): [] for index in range(NUM_REQUESTS)}
        for index, prompt in enumerate(prompts):
            request = EngineRequest(
                id=str(index),
                prompt_token_ids=prompt,
                params=RowParams(temperature=0.0),
                max_tokens=NUM_TOKENS,
                arrival_s=float(index),
            )
            core.inbox.append(AddRequest(request))
        while core.has_work:
            for update in core.step():
                outputs[update.id] += update.tokens
        check_idle(core)
        executors[0].check_canaries()
        preempted = core.scheduler.counters.preemptions
        assert preempted > 0 or not has_blocks, "nothing was preempted: the batch was not busy"
        loaded.close()
        return list(zip(prompts, outputs.values(), strict=True))

    @classmethod
    def _prompt(cls, index: int) -> tuple[int, ...]:
        length = cls.busy_lengths[index % len(cls.busy_lengths)]
        return tuple((11 * j + 5 * index) % cls.vocab_size() for j in range(length))


class _Listener(JunkDrafter):
    """Keeps the residuals of the only row by position, and drafts nothing."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        super().__init__()
        self.aux_layers = layers
        self.seen: dict[int, Tensor] = {}

    def ingest(self, view: DraftView) -> None:
        """Remember what the committed query tokens show."""
        assert view.aux_TX is not None, "no residual was captured"
        for offset in range(int(view.num_new_B[0])):
            self.seen[int(view.step.computed[0]) + offset] = view.aux_TX[offset]

    def row_drafts(self, row: int, last: int, k: int) -> list[int]:
        """None."""
        return [-1] * k
