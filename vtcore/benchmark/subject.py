"""The engine that a benchmark measures, loaded as users do, with the method's settings where none is given.

Does not: time requests; it notes how long each part of the start took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define, evolve, field, frozen

from vtcore.benchmark.machine import count_kernels, process_age_s
from vtcore.benchmark.roofline import ModelWork, model_work
from vtcore.config.decision import Given
from vtcore.config.engine_config import Origin
from vtcore.errors import ConfigError, MemoryPlanError, VtcoreError
from vtcore.llm import load_engine
from vtcore.loader import plan_core
from vtcore.request import SamplingParams

if TYPE_CHECKING:
    from vtcore.config.layers import GivenOptions
    from vtcore.engine.engine import Engine
    from vtcore.lifetime import LifetimeEvent
    from vtcore.planning import PlannedCore
    from vtcore.request import Prompt

TOKEN_BUDGET = 8192
"""Tokens of a step, where none is given. Source: the method of docs/performance.md."""
_BLOCK = 32
_SMALL_SIZES: Mapping[str, Mapping[str, str]] = {
    "latency": {
        "--prompt-tokens": "32",
        "--ttft-tokens": "32",
        "--output-tokens": "9",
        "--batch-sizes": "1,2",
    },
    "throughput": {"--prompt-tokens": "32", "--output-tokens": "9", "--clients": "1,2"},
    "kernels": {"--context-tokens": "32", "--prefill-tokens": "32", "--batch-sizes": "1,2"},
}
"""Action -> sizes that a CPU runs in seconds; the method's are for a GPU."""
METHOD = Origin("default", "the method of vtcore bench")
_SETTLE = 4
"""Decode steps that run before any is looked at."""


@frozen(kw_only=True)
class Demand:
    """Tokens of one request, and who asks for them.

    Args:
        who: The options with their values, as in "--prompt-tokens 8 and --output-tokens 5 are".
        tokens: Prompt and output.
        lower: Most tokens -> which option to lower; None where none would do.
    """

    who: str
    tokens: int
    lower: Callable[[int], str] | None = None


@frozen(kw_only=True)
class Needs:
    """What a benchmark asks of the engine.

    Args:
        batch: Requests at once, at most.
        batch_tokens: Prompt and output of each of them.
        longest: Tokens of the longest request.
        batch_flag: The option that asks for `batch`.
        demands: Whose the lengths are, for errors.
    """

    batch: int
    batch_tokens: int
    longest: int
    batch_flag: str = "--batch-sizes"
    demands: tuple[Demand, ...] = ()

    def blocks(self, block_size: int) -> int:
        """Of a cache that holds all of them."""
        needed = [(self.batch, self.batch_tokens), (1, self.longest)]
        return max(count * (-(-tokens // block_size) + 1) for count, tokens in needed)

    def too_long(self, most: int, why: str, remedy: str) -> list[str]:
        """A sentence for each demand of more tokens.

        Args:
            most: Tokens that a request may have.
            why: Who says so.
            remedy: Beside that of the demand; "" for none.
        """
        problems = []
        for one in self.demands:
            if one.tokens > most:
                remedies = [text for text in ("" if one.lower is None else one.lower(most), remedy) if text]
                what_to_do = ", or ".join(remedies) or "measure a model that takes more"
                problems.append(f"{one.who} {one.tokens} tokens; {why}; {what_to_do}")
        return problems


def request_demand(prompt: int, output: int, least_output: int = 1) -> Demand:
    """Of requests with --prompt-tokens and --output-tokens.

    Args:
        least_output: What --output-tokens may be lowered to.
    """

    def lower(most: int) -> str:
        if output < most:
            return f"lower --prompt-tokens to {most - output}"
        if prompt + least_output <= most:
            return f"lower --output-tokens to {most - prompt}"
        return "lower --prompt-tokens and --output-tokens"

    who = f"--prompt-tokens {prompt} and --output-tokens {output} are"
    return Demand(who=who, tokens=prompt + output, lower=lower)


def prompt_demand(flag: str, length: int) -> Demand:
    """Of a prompt that is computed up to its first output token."""
    return Demand(
        who=f"{flag} {length} and one output token are",
        tokens=length + 1,
        lower=lambda most: f"lower {flag} to {most - 1}",
    )


@define
class StartClock:
    """Notes when each step of the loader began and ended.

    Args:
        imports_s: Age of the process when loading began.
        kernels: In the kernel cache at that time.
        phases: Step -> seconds, in order.
    """

    imports_s: float
    kernels: int
    phases: dict[str, float] = field(factory=dict)
    _began: float = 0.0

    def note(self, event: LifetimeEvent) -> None:
        """Told of by the loader."""
        if event.kind == "begin":
            self._began = time.monotonic()
        elif event.kind == "built":
            self.phases[event.name] = time.monotonic() - self._began


@define(eq=False)
class Subject:
    """A loaded engine, and what the benchmark knows of it.

    Args:
        start_s: Age of the process when the first token became possible.
        compiled_in_start: Kernels that the start added to the cache.
        seed: Of prompts.
        given: What it was loaded with, the method's settings added.
    """

    engine: Engine
    work: ModelWork
    clock: StartClock
    start_s: float
    compiled_in_start: int
    seed: int
    given: GivenOptions
    _generator: np.random.Generator = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._generator = np.random.default_rng(self.seed)

    @property
    def device(self) -> str:
        """torch device string."""
        return self.engine.loaded.config.model.device

    @property
    def is_gpu(self) -> bool:
        """Whether steps run beside the host."""
        return self.device != "cpu"

    @property
    def budget(self) -> int:
        """Tokens of a step at most."""
        return self.engine.loaded.config.scheduler.max_num_batched_tokens

    def plan_again(self) -> PlannedCore:
        """The engine's plan, made anew and without a look at memory, which the engine itself has filled."""
        given, plan = self.given, self.engine.loaded.plan
        options = evolve(given.options, max_model_len=plan.max_model_len)
        if options.kv_cache_memory_bytes is None and plan.num_blocks:
            options = evolve(options, num_blocks=plan.num_blocks)
        return plan_core(options, sources=given.sources, environment=given.environment)

    def prompts(self, count: int, length: int) -> list[list[int]]:
        """Random token ids, never the same twice."""
        vocab_size = self.engine.loaded.arch.dims.vocab_size
        ids: list[list[int]] = self._generator.integers(0, vocab_size, (count, length)).tolist()
        return ids

    def run(self, prompts: Sequence[Sequence[int]], outputs: int, temperature: float) -> float:
        """Seconds to run requests together to their end.

        Raises:
            ConfigError: They did not run together, for want of cache.
        """
        params = SamplingParams(temperature=temperature, max_tokens=outputs, ignore_eos=True)
        requests: list[tuple[Prompt, SamplingParams]] = [
            ({"prompt_token_ids": ids}, params) for ids in prompts
        ]
        before = self.preemptions()
        started = time.perf_counter()
        self.engine.generate(requests)
        seconds = time.perf_counter() - started
        self.check_undisturbed(before, len(prompts))
        return seconds

    @contextmanager
    def decoding(self, batch: int, context: int, steps: int) -> Iterator[Engine]:
        """While it is open all of `batch` requests decode, for `steps` steps at least; then they end.

        Args:
            context: Tokens of each prompt, >= 1.

        Raises:
            ConfigError: They did not run together, for want of cache.
        """
        engine = self.engine
        params = SamplingParams(
            temperature=0.0, max_tokens=decoding_tokens(batch, context, steps, self.budget), ignore_eos=True
        )
        before, prefilled = self.preemptions(), engine.stats()["prefilled_tokens"]
        ids = [
            engine.add_request({"prompt_token_ids": prompt}, params)
            for prompt in self.prompts(batch, context)
        ]
        try:
            while engine.stats()["prefilled_tokens"] - prefilled < batch * context:
                engine.step(final_only=True)
            for _ in range(_SETTLE):
                engine.step(final_only=True)
            yield engine
            self.check_undisturbed(before, batch)
        finally:
            for request_id in ids:
                engine.abort(request_id)
            # The core learns of it in a step; nothing is left to run.
            while engine.loaded.core.has_work:
                engine.step(final_only=True)

    def preemptions(self) -> int:
        """Requests so far that had to give up their memory."""
        return self.engine.stats()["preemptions"]

    def check_undisturbed(self, before: int, count: int) -> None:
        """Raise if requests have been preempted since there were `before`.

        Raises:
            ConfigError: Times would be those of computing prompts twice.
        """
        if (found := self.preemptions() - before) > 0:
            raise ConfigError(
                f"$.num_blocks: the caches do not hold {count} requests at once, {found} had to start again; "
                f"raise it or kv_cache_memory_bytes, or run fewer at once"
            )


def smaller_sizes(action: str, typed: Collection[str]) -> str:
    """Flags that make a run on a CPU short; none of those that the user gave.

    Args:
        action: "latency", "throughput" or "kernels".
        typed: Destinations of flags.
    """
    sizes = {flag[2:].replace("-", "_"): f"{flag} {size}" for flag, size in _SMALL_SIZES[action].items()}
    return " ".join(text for name, text in sizes.items() if name not in typed)


def decoding_tokens(batch: int, context: int, steps: int, budget: int) -> int:
    """Tokens that no request of `Subject.decoding` ends before: the first ones decode beside late prompts."""
    return 2 * -(-batch * context // budget) + steps + 4 * _SETTLE


def load_subject(given: GivenOptions, needs: Needs) -> Subject:
    """Load the engine, with the method's settings where the user gave none.

    Raises:
        ConfigError: The user's settings, the model or the caches cannot hold what is to be measured.
        VtcoreError: It cannot be loaded.
    """
    asked = given
    check_given(asked, needs)
    given = with_method(asked, needs)
    cache_dir = given.environment.cache_dir
    clock = StartClock(process_age_s(), count_kernels(cache_dir))
    try:
        engine = load_engine(given, on_event=clock.note)
    except (ConfigError, MemoryPlanError) as error:
        # Only now, since a plan beforehand would count as a part of the start.
        if problems := _explained(asked, needs):
            raise ConfigError(*problems) from error
        raise
    start_s = process_age_s()
    loaded = engine.loaded
    specs = [spec for pool in loaded.plan.pools for spec in pool.specs]
    work = model_work(loaded.arch, (), specs, loaded.config.model.dtype)
    return Subject(
        engine,
        work,
        clock,
        start_s,
        count_kernels(cache_dir) - clock.kernels,
        given.options.seed or 0,
        given,
    )


def check_given(given: GivenOptions, needs: Needs) -> None:
    """Refuse what the user's own settings rule out, before anything is loaded.

    Raises:
        ConfigError: Requests would be too long, or would not run at once.
    """
    problems: list[str] = []
    seqs, length = given.options.max_num_seqs, given.options.max_model_len
    if seqs is not None and seqs < needs.batch:
        flag, where = needs.batch_flag, _where(given, "max_num_seqs")
        problems.append(
            f"{flag} {needs.batch} is above max_num_seqs={seqs}{where}, so that these requests would not run "
            f"at once; lower {flag} to {seqs}, or raise max_num_seqs to {needs.batch}"
        )
    if isinstance(length, int):
        why = f"max_model_len={length}{_where(given, 'max_model_len')} is less"
        problems += needs.too_long(length, why, f"raise max_model_len to {needs.longest}")
    if problems:
        raise ConfigError(*problems)


def _explained(given: GivenOptions, needs: Needs) -> list[str]:
    """Why the model or the caches cannot hold what is to be measured; nothing where they can."""
    planned_as = with_method(given, needs)
    options = evolve(planned_as.options, max_model_len=given.options.max_model_len)
    try:
        plan = plan_core(options, sources=planned_as.sources, environment=given.environment)
    except VtcoreError:
        return []
    most = plan.plan.max_model_len
    if plan.config.origins["model.max_model_len"].source != "memory plan":
        return needs.too_long(most, f"the model takes {most}", "")
    for name in ("num_blocks", "kv_cache_memory_bytes"):
        if (value := getattr(given.options, name)) is not None:
            blocks = f" to {needs.blocks(plan.config.cache.block_size)}" if name == "num_blocks" else ""
            why = f"{name}={value}{_where(given, name)} holds {most}"
            return needs.too_long(most, why, f"raise {name}{blocks}")
    return []


def _where(given: GivenOptions, name: str) -> str:
    return Given(name, given.sources[name]).where


def with_method(given: GivenOptions, needs: Needs) -> GivenOptions:
    """Add the settings of the method that the user left open."""
    import torch

    options = given.options
    wanted: dict[str, Any] = {
        "enable_prefix_caching": False,
        "skip_tokenizer_init": True,
        "max_num_batched_tokens": max(TOKEN_BUDGET, needs.batch),
        "max_num_seqs": needs.batch,
        "max_model_len": needs.longest,
    }
    is_cpu = options.device == "cpu" or (options.device in (None, "auto") and not torch.cuda.is_available())
    if is_cpu and options.kv_cache_memory_bytes is None:
        # A CPU's default cache is small; a GPU's is all that is free.
        wanted["num_blocks"] = needs.blocks(options.block_size or _BLOCK)
    # "auto", which max_model_len may be, says what None says.
    added = {name: value for name, value in wanted.items() if getattr(options, name) in (None, "auto")}
    return evolve(
        given,
        options=evolve(options, **added),
        sources={**given.sources, **dict.fromkeys(added, METHOD)},
    )
