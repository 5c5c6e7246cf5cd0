"""What prefix caching and forks save on a hybrid: tokens computed, and time, caching on and off in turn.

Does not: assert anything. Workloads: `shared`, requests one by one that begin with the same system prompt;
`chat`, turns of one conversation; `samples`, n samples of one prompt beside n requests. "short by": shared
tokens that were computed again, the most over requests from the third on (a chat: from the second turn on).

Usage: python bench/prefix_caching.py [--size small] [--repeat 5] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from attrs import define

from vtcore import LLM, SamplingParams
from vtcore.cli.make_checkpoint import make_checkpoint

SHARED, OWN, NUM_REQUESTS, NUM_OUT = 1000, 60, 12, 8
TURNS, WORDS, ANSWER = 6, 40, 60
SAMPLES, PROMPT = 5, 900


@define
class Run:
    """One workload on one engine: seconds, and what each request found."""

    seconds: float
    prompt_tokens: int
    prefilled: int
    short_by: int
    forks: int


def ids(count: int, seed: int, vocab_size: int) -> list[int]:
    """Random token ids, equal for equal seeds."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocab_size, (count,), generator=generator).tolist()


def shared(llm: LLM, vocab_size: int) -> Iterator[tuple[int, int]]:
    """(shared tokens, cached tokens) of each request that could know what is shared."""
    system = ids(SHARED, 0, vocab_size)
    for index in range(NUM_REQUESTS):
        prompt = system + ids(OWN, 1 + index, vocab_size)
        (output,) = llm.generate({"prompt_token_ids": prompt}, params(NUM_OUT), use_tqdm=False)
        if index >= 2:
            yield SHARED, output.num_cached_tokens or 0


def chat(llm: LLM, vocab_size: int) -> Iterator[tuple[int, int]]:
    """As `shared`, for the turns of a conversation; its last token was never computed."""
    prompt = ids(WORDS, 0, vocab_size)
    for turn in range(TURNS):
        (output,) = llm.generate({"prompt_token_ids": prompt}, params(ANSWER), use_tqdm=False)
        if turn:
            yield len(prompt) - WORDS - 1, output.num_cached_tokens or 0
        prompt = prompt + list(output.outputs[0].token_ids) + ids(WORDS, 1 + turn, vocab_size)


def samples(llm: LLM, vocab_size: int) -> Iterator[tuple[int, int]]:
    """One prompt, several samples."""
    prompt = ids(PROMPT, 0, vocab_size)
    llm.generate({"prompt_token_ids": prompt}, params(NUM_OUT, n=SAMPLES), use_tqdm=False)
    return iter(())


def separate(llm: LLM, vocab_size: int) -> Iterator[tuple[int, int]]:
    """The same, as requests of their own."""
    prompt = ids(PROMPT, 0, vocab_size)
    prompts = [{"prompt_token_ids": prompt} for _ in range(SAMPLES)]
    llm.generate(prompts, params(NUM_OUT), use_tqdm=False)
    return iter(())


def params(max_tokens: int, n: int = 1) -> SamplingParams:
    """Drawn, so that samples differ; no end before max_tokens."""
    return SamplingParams(temperature=1.0, seed=5, max_tokens=max_tokens, n=n, ignore_eos=True)


def counters(llm: LLM) -> dict[str, int]:
    """Every counter that has no labels of its own."""
    return {metric.name: metric.value for metric in llm.get_metrics() if metric.kind == "counter"}


def measure(llm: LLM, workload: Callable[[LLM, int], Iterator[tuple[int, int]]], vocab_size: int) -> Run:
    """Run a workload from an empty cache."""
    llm.reset_prefix_cache()
    before = counters(llm)
    start = time.perf_counter()
    found = list(workload(llm, vocab_size))
    seconds = time.perf_counter() - start
    news = {name: value - before[name] for name, value in counters(llm).items()}
    return Run(
        seconds,
        int(news["vtcore_prompt_tokens_total"]),
        int(news["vtcore_prefilled_tokens_total"]),
        max((known - cached for known, cached in found), default=0),
        int(news["vtcore_forks_total"]),
    )


def main() -> None:
    """Print a table, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="small")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "model"
        make_checkpoint("qwen3_5_dense", args.size, directory)
        vocab_size = json.loads((directory / "config.json").read_text())["text_config"]["vocab_size"]
        rows = compare(str(directory), vocab_size, args.repeat)
    print(f"load {load:.1f}")
    print("| workload | prompt tokens | computed | off: computed | short by | time off / on |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['workload']} | {row['prompt_tokens']} | {row['computed']} | {row['computed_off']} | "
            f"{row['short_by']} | {row['speedup']:.2f} |"
        )
    if args.json is not None:
        about = {"load": load, "machine": platform.machine(), "torch": torch.__version__}
        args.json.write_text(json.dumps({"about": about, "rows": rows}, indent=2))


def compare(model: str, vocab_size: int, repeat: int) -> list[dict[str, Any]]:
    """Each workload on and off in turn; times are minima."""
    options = {"dtype": "float32", "max_model_len": 2048, "num_blocks": 512, "skip_tokenizer_init": True}
    pairs = (
        ("shared system prompt", shared, shared, True),
        ("chat", chat, chat, True),
        (f"{SAMPLES} samples, forked", samples, separate, False),
    )
    rows = []
    with (
        LLM(model, enable_prefix_caching=True, **options) as cached,  # type: ignore[arg-type]
        LLM(model, enable_prefix_caching=False, **options) as plain,  # type: ignore[arg-type]
    ):
        for name, workload, baseline, is_cached in pairs:
            runs, baselines = [], []
            for _ in range(repeat):
                runs.append(measure(cached if is_cached else plain, workload, vocab_size))
                baselines.append(measure(plain, baseline, vocab_size))
            best = min(runs, key=lambda run: run.seconds)
            best_off = min(baselines, key=lambda run: run.seconds)
            rows.append(
                {
                    "workload": name,
                    "prompt_tokens": best_off.prompt_tokens,
                    "computed": best.prefilled,
                    "computed_off": best_off.prefilled,
                    "short_by": best.short_by,
                    "forks": best.forks,
                    "seconds": best.seconds,
                    "seconds_off": best_off.seconds,
                    "speedup": best_off.seconds / best.seconds,
                }
            )
    return rows


if __name__ == "__main__":
    main()
