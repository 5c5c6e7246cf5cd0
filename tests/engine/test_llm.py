"""`LLM.generate`: forms of prompts and parameters, what each parameter does, errors and the lifetime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from vtcore import LLM, SamplingParams
from vtcore.engine.core import counters_of
from vtcore.errors import ConfigError, EngineClosedError, RequestError
from vtcore.outputs import CompletionOutput
from vtcore.request import child_seed
from vtcore.tokenization.tokenizer import encode_bad_words

Complete = Callable[..., CompletionOutput]

PROMPT = "The quick brown fox"
TAU = 5e-3
"""Two ids whose reference logits are closer than this may change places; the reference sums in float32."""


def ids_of(llm: LLM, text: str) -> list[int]:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    return tokenizer.encode(text)


def greedy(**params: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **params})


@pytest.fixture(scope="module")
def reference(tiny_checkpoint: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_checkpoint, dtype=torch.float64).eval()


@pytest.mark.parametrize("prompt", [PROMPT, "a", "Hello, world! " * 4])
def test_greedy_output_is_transformers(
    llm: LLM, complete: Complete, reference: Any, tiny_checkpoint: Path, prompt: str
) -> None:
    out, prompt_ids = complete(prompt, max_tokens=24), ids_of(llm, prompt)
    assert len(out.token_ids) == 24
    with torch.inference_mode():
        logits = reference(torch.tensor([[*prompt_ids, *out.token_ids]])).logits[0, len(prompt_ids) - 1 : -1]
    drawn = logits.gather(1, torch.tensor(out.token_ids)[:, None])[:, 0]
    assert float((logits.amax(1) - drawn).max()) < TAU
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    assert tokenizer(prompt)["input_ids"] == prompt_ids
    assert out.text == tokenizer.decode(list(out.token_ids), skip_special_tokens=True)


def test_every_form_of_a_prompt_gives_the_same(llm: LLM) -> None:
    ids = ids_of(llm, PROMPT)
    forms: list[Any] = [PROMPT, {"prompt": PROMPT}, {"prompt_token_ids": ids}]
    together = llm.generate(forms, greedy(), use_tqdm=False)
    alone = [llm.generate(form, greedy(), use_tqdm=False)[0] for form in forms]
    assert [o.prompt for o in together] == [o.prompt for o in alone] == [PROMPT, PROMPT, None]
    assert {o.prompt_token_ids for o in together + alone} == {tuple(ids)}
    assert len({o.outputs for o in together + alone}) == 1
    assert len({o.request_id for o in together + alone}) == 6


def test_outputs_stand_in_the_order_of_the_prompts_not_of_their_ends(llm: LLM) -> None:
    params = [greedy(max_tokens=n) for n in (9, 1, 5, 2, 7, 3)]
    outputs = llm.generate([f"prompt {i}" for i in range(6)], params, use_tqdm=False)
    assert [o.prompt for o in outputs] == [f"prompt {i}" for i in range(6)]
    assert [len(o.outputs[0].token_ids) for o in outputs] == [9, 1, 5, 2, 7, 3]


def test_parameters_are_one_for_all_one_each_or_the_defaults(llm: LLM) -> None:
    prompts = ["one", "two"]
    for params, lengths in (
        (greedy(max_tokens=3), [3, 3]),
        ([greedy(max_tokens=3), greedy(max_tokens=4)], [3, 4]),
        (SamplingParams(ignore_eos=True), [16, 16]),
    ):
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert [len(o.outputs[0].token_ids) for o in outputs] == lengths
    assert len(llm.generate("one", use_tqdm=False)[0].outputs[0].token_ids) <= 16


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_parameters_than_prompts_is_refused(llm: LLM, count: int) -> None:
    with pytest.raises(RequestError, match=f"2 prompts came with {count} sampling_params"):
        llm.generate(["one", "two"], [greedy()] * count, use_tqdm=False)


def test_parameters_of_another_type_are_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="not a SamplingParams"):
        llm.generate(["one"], [{"temperature": 0}], use_tqdm=False)  # type: ignore[list-item]


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([], use_tqdm=False) == []
    assert llm.generate([], [], use_tqdm=False) == []


def test_sample_i_is_a_run_of_its_own_with_the_child_seed(llm: LLM, complete: Complete) -> None:
    [output] = llm.generate(PROMPT, SamplingParams(n=3, seed=7, ignore_eos=True, logprobs=0), use_tqdm=False)
    assert [sample.index for sample in output.outputs] == [0, 1, 2]
    assert len({sample.token_ids for sample in output.outputs}) == 3
    for sample in output.outputs:
        seed = child_seed(7, sample.index)
        alone = complete(temperature=1.0, max_tokens=16, seed=seed, logprobs=0)
        assert (sample.token_ids, sample.text) == (alone.token_ids, alone.text)
        assert sample.cumulative_logprob == pytest.approx(alone.cumulative_logprob, abs=1e-8)


def test_more_samples_than_rows_are_served(llm: LLM) -> None:
    [output] = llm.generate(PROMPT, SamplingParams(n=9, seed=1, max_tokens=3, ignore_eos=True))
    assert [len(sample.token_ids) for sample in output.outputs] == [3] * 9


def test_a_seed_repeats_whatever_else_runs(llm: LLM, complete: Complete) -> None:
    params = SamplingParams(seed=3, max_tokens=20, ignore_eos=True, logprobs=2, frequency_penalty=0.5)
    [alone] = llm.generate(PROMPT, params, use_tqdm=False)
    mates = [SamplingParams(seed=i, max_tokens=12 + i, ignore_eos=True) for i in range(6)]
    before = counters_of(llm.engine.loaded.core)["preemptions"]
    outputs = llm.generate([*["mate " * i for i in range(1, 7)], PROMPT], [*mates, params], use_tqdm=False)
    assert counters_of(llm.engine.loaded.core)["preemptions"] > before, "the mates are to press for memory"
    mixed, lone = outputs[-1].outputs[0], alone.outputs[0]
    assert (mixed.token_ids, mixed.text) == (lone.token_ids, lone.text)
    assert mixed.cumulative_logprob == pytest.approx(lone.cumulative_logprob, abs=1e-8)


def test_requests_without_a_seed_differ_and_repeat_with_the_engines(
    tiny_checkpoint: Path, engine_options: dict[str, Any]
) -> None:
    runs = []
    for seed in (5, 5, 6):
        with LLM(str(tiny_checkpoint), seed=seed, **engine_options) as llm:
            outputs = llm.generate([PROMPT] * 2, SamplingParams(ignore_eos=True), use_tqdm=False)
            runs.append([output.outputs[0].token_ids for output in outputs])
    assert runs[0] == runs[1]
    assert len({*runs[0], *runs[2]}) == 4


def test_a_bad_word_is_never_completed(llm: LLM, complete: Complete) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    free = complete().token_ids
    word, at = next(
        (tokenizer.token_string(i), at)
        for at, i in enumerate(free)
        if tokenizer.token_string(i).strip().isalpha()
        and (i,) in encode_bad_words(tokenizer, [tokenizer.token_string(i)])
    )
    banned = {s[0] for s in encode_bad_words(tokenizer, [word]) if len(s) == 1}
    out = complete(bad_words=[word]).token_ids
    assert out[:at] == free[:at]
    assert out[at] != free[at]
    assert not banned & set(out)


def test_a_bad_word_of_several_tokens_is_allowed_to_begin(llm: LLM, complete: Complete) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    words = ("fox", "xylograph", "zebra", "quartz")
    spelled = next(s for w in words for s in encode_bad_words(tokenizer, [w]) if len(s) > 1)
    word = tokenizer.decode(spelled).lstrip()
    among: dict[str, Any] = {
        "allowed_token_ids": list(spelled),
        "temperature": 50.0,
        "seed": 1,
        "max_tokens": 40,
    }
    assert word in complete(**among).text
    out = complete(**among, bad_words=[word])
    assert spelled[0] in out.token_ids
    assert word not in out.text


def test_a_logit_bias_forces_or_forbids(complete: Complete) -> None:
    free = complete(logprobs=2)
    assert free.logprobs is not None
    first = free.token_ids[0]
    [second] = [i for i, entry in free.logprobs[0].items() if entry.rank == 2]
    assert complete(logit_bias={first: -100.0}, max_tokens=1).token_ids == (second,)
    assert set(complete(logit_bias={second: 100.0}).token_ids) == {second}


def test_only_allowed_ids_are_drawn(complete: Complete) -> None:
    allowed = [3, 70, 311]
    assert set(complete(allowed_token_ids=allowed, temperature=2.0, seed=1).token_ids) <= set(allowed)
    assert set(complete(allowed_token_ids=[70]).token_ids) == {70}


def test_one_token_is_the_first_of_a_longer_output(complete: Complete) -> None:
    one = complete(max_tokens=1)
    assert one.token_ids == complete().token_ids[:1]
    assert (one.finish_reason, one.stop_reason) == ("length", None)


def test_a_prompt_that_leaves_one_position_gets_one_token(llm: LLM, complete: Complete) -> None:
    ids = (ids_of(llm, PROMPT) * 20)[: llm.engine.max_model_len]
    out = complete({"prompt_token_ids": ids[:-1]}, max_tokens=30)
    assert (len(out.token_ids), out.finish_reason) == (1, "length")
    with pytest.raises(RequestError, match="max_model_len=64 leaves room for 63"):
        complete({"prompt_token_ids": ids})


def test_an_output_ends_where_the_model_does(llm: LLM, complete: Complete) -> None:
    ids = (ids_of(llm, PROMPT) * 20)[: llm.engine.max_model_len - 5]
    out = complete({"prompt_token_ids": ids}, max_tokens=30)
    assert (len(out.token_ids), out.finish_reason) == (5, "length")


@pytest.mark.parametrize(
    ("prompt", "params"),
    [
        ("", {}),
        ("\ud800", {}),
        ({"prompt_token_ids": []}, {}),
        ({"prompt_token_ids": [10**9]}, {}),
        ({"prompt_token_ids": [-1]}, {}),
        ({"prompt_token_ids": "12"}, {}),
        ({"prompt": 3}, {}),
        ({"text": "x"}, {}),
        (7, {}),
        (None, {}),
        ("x", {"stop_token_ids": [10**9]}),
        ("x", {"logit_bias": {10**9: 1.0}}),
        ("x", {"allowed_token_ids": [10**9]}),
        ("x", {"bad_words": ["  "]}),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_one_bad_request_of_a_batch_leaves_nothing_running(
    llm: LLM, prompt: Any, params: dict[str, Any], first: bool
) -> None:
    steps = llm.engine.stats()["steps"]
    batch: list[Any] = [prompt, "fine"] if first else ["fine", prompt]
    each = [greedy(**params), greedy()] if first else [greedy(), greedy(**params)]
    with pytest.raises(RequestError):
        llm.generate(batch, each, use_tqdm=False)
    assert not llm.engine.has_unfinished_requests
    assert not llm.engine.loaded.core.has_work
    assert llm.engine.stats()["steps"] == steps


@pytest.mark.parametrize("use_tqdm", [True, False])
def test_progress_shows_on_stderr_when_asked(
    llm: LLM, capsys: pytest.CaptureFixture[str], use_tqdm: bool
) -> None:
    llm.generate(["one", "two"], greedy(max_tokens=2), use_tqdm=use_tqdm)
    shown = capsys.readouterr()
    assert ("2/2" in shown.err) is use_tqdm
    assert shown.out == ""


def test_without_a_tokenizer_ids_are_served_and_text_is_refused(
    tiny_checkpoint: Path, engine_options: dict[str, Any], llm: LLM, complete: Complete
) -> None:
    ids = ids_of(llm, PROMPT)
    with LLM(str(tiny_checkpoint), skip_tokenizer_init=True, **engine_options) as bare:
        assert bare.get_tokenizer() is None
        [output] = bare.generate({"prompt_token_ids": ids}, greedy(max_tokens=20, logprobs=1), use_tqdm=False)
        assert output.outputs[0].token_ids == complete().token_ids
        assert output.outputs[0].text == ""
        assert output.outputs[0].logprobs is not None
        assert {e.decoded_token for d in output.outputs[0].logprobs for e in d.values()} == {None}
        for prompt, params in (
            (PROMPT, greedy()),
            ({"prompt_token_ids": ids}, greedy(stop="x")),
            ({"prompt_token_ids": ids}, greedy(bad_words=["x"])),
        ):
            with pytest.raises(RequestError, match="no tokenizer"):
                bare.generate(prompt, params, use_tqdm=False)  # type: ignore[arg-type]


def test_without_detokenize_there_are_ids_and_no_text(complete: Complete) -> None:
    out = complete(detokenize=False)
    assert (out.token_ids, out.text) == (complete().token_ids, "")


def test_special_tokens_show_in_the_text_only_when_asked(llm: LLM, complete: Complete) -> None:
    [special, *_] = llm.engine.eos_token_ids
    forced = {"allowed_token_ids": [special], "max_tokens": 2}
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    assert complete(**forced).text == ""
    assert complete(**forced, skip_special_tokens=False).text == 2 * tokenizer.token_string(special) != ""


def test_an_unknown_option_is_refused_with_a_guess_beside_all_other_problems(tiny_checkpoint: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(str(tiny_checkpoint), max_num_seq=3, block_size=0, dtype="float8")
    text = str(caught.value)
    assert "$.max_num_seq" in text
    assert "did you mean 'max_num_seqs'" in text
    assert "$.block_size" in text or "$.dtype" in text


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (123, "$.model: 123 is not a text; write it in quotes"),
        (b"dir", "$.model: b'dir' is not a text"),
        (True, "$.model: True is not a text; write it in quotes"),
        (None, "$.model: no model is given; name a directory, a checkpoint source or a Hub id"),
    ],
)
def test_a_model_of_another_type_is_an_error_of_the_option(model: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(model)
    assert caught.value.problems == (sentence,)


def test_a_config_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="config is of type int; give the path of a file"):
        LLM("x", config=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("prompts", [b"hi", bytearray(b"hi"), 5])
def test_prompts_of_another_type_are_refused_as_what_they_are(llm: LLM, prompts: Any) -> None:
    with pytest.raises(RequestError, match=f"^prompts is of type {type(prompts).__name__}; give a "):
        llm.generate(prompts, use_tqdm=False)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (
            {"num_blocks": 2},
            "shorten the prompt or give the cache more room (num_blocks or kv_cache_memory_bytes)",
        ),
        ({"max_model_len": 64}, "shorten the prompt or raise max_model_len"),
    ],
)
def test_a_long_prompt_is_told_what_limits_it(
    options: dict[str, Any], remedy: str, tiny_checkpoint: Path
) -> None:
    with LLM(tiny_checkpoint, **options) as small, pytest.raises(RequestError) as caught:
        small.generate({"prompt_token_ids": [1] * 200}, use_tqdm=False)
    assert str(caught.value).endswith(f"; {remedy}")


def test_a_closed_llm_stays_closed(tiny_checkpoint: Path, engine_options: dict[str, Any]) -> None:
    with LLM(str(tiny_checkpoint), **engine_options) as llm:
        assert llm.generate("x", greedy(max_tokens=1), use_tqdm=False)[0].finished
    llm.close()
    llm.close()
    with pytest.raises(EngineClosedError):
        llm.generate("x", greedy(), use_tqdm=False)
    with pytest.raises(EngineClosedError):
        llm.engine.add_request("x", greedy())


def test_an_exception_in_the_with_block_still_closes(
    tiny_checkpoint: Path, engine_options: dict[str, Any]
) -> None:
    llm = LLM(str(tiny_checkpoint), **engine_options)

    def fail_midway() -> None:
        with llm:
            llm.engine.add_request("x", greedy())
            llm.engine.step()
            raise KeyError

    with pytest.raises(KeyError):
        fail_midway()
    with pytest.raises(EngineClosedError):
        llm.engine.add_request("x", greedy())
