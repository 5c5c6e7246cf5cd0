"""The kit's rules of law 8: output depends on weights, prompt, parameters and seed alone.

Every request's output under a random schedule (budget, batch mates, preemption, aborts, depth, drafters,
prefix hits, poisoned memory, late launches) equals what it is alone, and that equals the reference, token by
token. Does not: run a schedule (`vtcore.testing.schedules` does).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, ClassVar

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.core import AddRequest
from vtcore.interfaces.batch import EngineRequest, RowParams, TokenLogprobs
from vtcore.interfaces.kv_cache_spec import Whole
from vtcore.internals import Internals
from vtcore.loader import load_core
from vtcore.sampling.logprobs import logprobs_of
from vtcore.testing.arch_subject import ArchSubject
from vtcore.testing.draw_case import BUDGETS, draw_case
from vtcore.testing.kit import since
from vtcore.testing.schedule_case import CaseRequest, ScheduleCase
from vtcore.testing.schedules import run_schedule

_LEAST_SEEDS, _MOST_SEEDS = 4, 60
"""Seeded schedules that are run, until all that should happen has."""


class ArchSchedules(ArchSubject):
    """In float64, through the real engine.

    Attributes:
        own_lengths: What prompts have beside a shared beginning, in tokens, in one of four schedules; put
            here what lies around the edges of the kernels' chunks.
        is_shrinking: Whether a schedule that fails is made as small as it still fails, which takes minutes.
    """

    own_lengths: ClassVar[Sequence[int]] = (1, 2, 3, 5, 30, 63, 64, 65)
    is_shrinking: ClassVar[bool] = True

    @classmethod
    def draw_case(cls, choose: Callable[[Sequence[Any]], Any]) -> ScheduleCase:
        """A random run: a quarter with long prompts, the rest short ones that fight for few blocks."""
        is_long = choose((False, False, False, True))
        return draw_case(
            choose,
            vocab_sizes=(cls.vocab_size(),),
            num_own=cls.own_lengths if is_long else (1, 2, 3, 5),
            drafters=(None, "oracle", "half", "junk") if cls.can_roll_back() else (None,),
            block_sizes=(4, 16, 32) if is_long else (4, 1),
        )

    @classmethod
    def run_seeds(cls, seeds: Iterable[int]) -> Counter[str]:
        """Run the case of each seed; for longer runs than the rules'.

        Returns:
            Counters of all runs together.

        Raises:
            AssertionError: One fails; the message names its seed.
        """
        seen: Counter[str] = Counter()
        for seed in seeds:
            try:
                seen += run_schedule(cls.draw_case(Random(seed).choice), model=cls.scheduled()).counters
            except Exception as error:
                raise AssertionError(f"seed {seed}: {error}") from error
        return seen

    @since("0.1")
    def test_any_schedule_gives_each_requests_own_output(self) -> None:
        """Law 8 over schedules that hypothesis draws, and shrinks when one fails."""

        def check(data: st.DataObject) -> None:
            case = self.draw_case(lambda options: data.draw(st.sampled_from(options)))
            run_schedule(case, model=self.scheduled())

        limits = settings(
            max_examples=self.num_schedules,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[phase for phase in Phase if self.is_shrinking or phase is not Phase.shrink],
        )
        limits(given(st.data())(check))()

    @since("0.1")
    def test_seeded_schedules_preempt_and_drop_late_results(self) -> None:
        """Law 8 over seeded schedules, in which what should disturb a request is seen to happen."""
        expected = ["late_results", "late_launches", *(["preemptions"] if Whole in self.lifetimes() else [])]
        seen = self._run_fight()
        for seed in range(_MOST_SEEDS):
            # How soon a seed shows each depends on the vocabulary, for that shifts what is drawn.
            if seed >= _LEAST_SEEDS and all(seen[name] for name in expected):
                break
            seen += self.run_seeds([seed])
        for name in expected:
            assert seen[name] > 0, f"{name} never happened in {seen}"

    @since("0.1")
    def test_every_budget_at_every_depth_gives_the_same_output(self) -> None:
        """Chunks of any length, one or two steps in flight."""
        vocab_size = self.vocab_size()
        requests = tuple(
            CaseRequest(
                prompt=tuple((7 * i + j * j) % vocab_size for j in range(length)),
                max_tokens=9,
                params=RowParams(temperature=0.0 if i % 2 else 1.0, seed=i, logprobs=2),
                arrival=i,
            )
            for i, length in enumerate((1, 3, 64, 70))
        )
        for depth in (1, 2):
            for budget in BUDGETS:
                case = ScheduleCase(
                    requests=requests,
                    budget=budget,
                    depth=depth,
                    vocab_size=vocab_size,
                    block_size=16,
                    num_blocks=40,
                )
                run_schedule(case, model=self.scheduled())

    @since("0.1")
    def test_a_right_draft_saves_its_step(self) -> None:
        """With a drafter that is always right, k + 1 tokens cost one step."""
        request = CaseRequest(
            prompt=tuple(range(20)), max_tokens=14, params=RowParams(temperature=1.0, seed=3, logprobs=1)
        )
        for depth in (1, 2):
            for k in (1, 3) if self.can_roll_back() else ():
                case = ScheduleCase(
                    requests=(request,),
                    depth=depth,
                    budget=7,
                    vocab_size=self.vocab_size(),
                    drafter="oracle",
                    captured_k=(0, k),
                    ks=(k,),
                )
                steps = run_schedule(case, model=self.scheduled()).counters["steps"]
                wanted = -(-20 // 7) + -(-13 // (k + 1))
                assert steps == wanted, f"depth {depth}, k {k}: {steps} steps, not {wanted}"

    @since("0.1")
    def test_an_engine_that_has_served_many_serves_the_next_alike(self) -> None:
        """Thirty short requests, one after another on one engine, are what each is on a fresh one."""
        vocab_size, can_draft = self.vocab_size(), self.can_roll_back()
        requests = tuple(
            CaseRequest(
                prompt=tuple((3 * i + j) % vocab_size for j in range(1 + i % 7)),
                max_tokens=4,
                params=RowParams(temperature=1.0, seed=i),
                arrival=6 * i,
            )
            for i in range(30)
        )
        case = ScheduleCase(
            requests=requests,
            budget=5,
            max_num_seqs=2,
            vocab_size=vocab_size,
            depth=2,
            drafter="junk" if can_draft else None,
            captured_k=(0, 1, 3) if can_draft else (0,),
            ks=(3, 1, 0) if can_draft else (0,),
        )
        run_schedule(case, model=self.scheduled())

    @since("0.1")
    def test_prompt_logprobs_equal_the_reference_in_any_chunks(self) -> None:
        """Log probabilities of a prompt's own tokens are the reference's, however the prompt is cut."""
        vocab_size = self.vocab_size()
        prompt = tuple((5 * j * j + 1) % vocab_size for j in range(70))
        wanted = logprobs_of(self.reference_logits(list(prompt))[:-1], torch.tensor(prompt[1:]), 2)
        for budget in (1, 7, 64, 2048):
            found = self._prompt_logprobs(prompt, budget)
            assert sorted(found) == list(range(1, 70)), f"positions {sorted(found)}"
            for position, entry in found.items():
                reference = wanted[position - 1]
                what = f"budget {budget}, position {position}"
                assert (entry.token_id, entry.top_ids) == (reference.token_id, reference.top_ids), what
                assert abs(entry.logprob - reference.logprob) <= 1e-8, what

    @classmethod
    def _run_fight(cls) -> Counter[str]:
        """Four requests that grow, in memory for one."""
        requests = tuple(
            CaseRequest(prompt=tuple(range(5 + index)), max_tokens=14, params=RowParams(temperature=0.0))
            for index in range(4)
        )
        case = ScheduleCase(requests=requests, depth=2, budget=7, vocab_size=cls.vocab_size())
        return run_schedule(case, model=cls.scheduled()).counters

    @classmethod
    def _prompt_logprobs(cls, prompt: tuple[int, ...], budget: int) -> dict[int, TokenLogprobs]:
        loaded = load_core(
            UserOptions(dtype="float64", max_model_len=128),
            hf_config=cls.hf_config,
            tensors=cls.tensors(),
            registry=cls.registry(),
            environment=Environment(),
            internals=Internals(step_budget=budget),
        )
        request = EngineRequest(
            id="p",
            prompt_token_ids=prompt,
            params=RowParams(temperature=0.0),
            max_tokens=2,
            prompt_logprobs=2,
        )
        loaded.core.inbox.append(AddRequest(request))
        found: dict[int, TokenLogprobs] = {}
        while loaded.core.has_work:
            for update in loaded.core.step():
                found.update(update.prompt_logprobs)
        loaded.close()
        return found
