"""Errors of requests, as `error_cases.py` has them of checkpoints.

Does not: run the commands.
"""

from __future__ import annotations

import broken as b
from error_cases import GENERATE, HELLO, Case, bad, lines, of_batch, option, usage

_USER = {"role": "user", "content": "hi"}
_BATCH = (*GENERATE, "--input", "in.jsonl", "--output", "out.jsonl")
_RESULT = '{"line":1,"digest":"0"}\n'
_CALL = {"type": "function", "function": {"name": "f", "arguments": "{"}}

REQUESTS: dict[str, Case] = {
    "no prompt": usage("give a prompt as --prompt TEXT", argv=GENERATE),
    "two prompts": usage("one of the three", argv=(*HELLO, "--prompt-token-ids", "1")),
    "ids": usage("--prompt-token-ids: 'a' is no token id", argv=(*GENERATE, "--prompt-token-ids", "1,a")),
    "id long": usage("...' is no token id", argv=(*GENERATE, "--prompt-token-ids", "9" * 5000)),
    "id outside": bad(
        "VT240", "prompt_token_ids[0]=9999", "0 to 575", argv=(*GENERATE, "--prompt-token-ids", "9999")
    ),
    "prompt empty": bad("VT240", "prompt", argv=(*GENERATE, "--prompt", "")),
    "prompt long": bad(
        "VT240",
        "the prompt has 9 tokens, but --max-model-len 8",
        "shorten the prompt or raise --max-model-len",
        argv=(*GENERATE, "--max-model-len", "8", "--prompt-token-ids", ",".join("123456789")),
    ),
    "prompt no UTF-8": usage("not UTF-8 at character 1", argv=(*GENERATE, "--prompt", "a\udcff")),
    "output alone": usage("--output goes with --input", argv=(*HELLO, "--output", "x")),
    "no output": usage("--input needs --output", argv=(*GENERATE, "--input", "in.jsonl")),
    "overwrite stdout": usage(
        "--overwrite goes with a file", argv=(*GENERATE, "--input", "x", "--output", "-", "--overwrite")
    ),
    "json of many": usage("--json goes with a single prompt", argv=(*_BATCH, "--json")),
    "logprobs": usage("--logprobs is shown with --json or --input only", argv=(*HELLO, "--logprobs", "1")),
    "no tokenizer wanted": usage(
        "--prompt is text", "give --prompt-token-ids", argv=(*HELLO, "--skip-tokenizer-init")
    ),
    "temperature": option("--temperature: -1", argv=(*HELLO, "--temperature=-1")),
    "min above max": option("--min-tokens 5", "raise --max-tokens", argv=(*HELLO, "--min-tokens", "5")),
    "bad words": bad("VT240", "bad_words", "no text to ban", argv=(*HELLO, "--bad-words", " ")),
    "bias key": option(
        "--logit-bias",
        "is not an integer; a token id is",
        argv=(*HELLO, "--logit-bias", f'{{"{"9" * 5000}": 1}}'),
    ),
    "priority": option("--priority: 'x' is not an integer", argv=(*HELLO, "--priority", "x")),
    "priority large": option("--priority: 2147483648 is above", argv=(*HELLO, "--priority", "2147483648")),
    "tenant": option("--tenant has 257 characters", argv=(*HELLO, "--tenant", "x" * 257)),
    "salt": option("--cache-salt is empty", "leave it out", argv=(*HELLO, "--cache-salt", "")),
    "policy args": option("--policy-args: '5' is not a JSON object", argv=(*HELLO, "--policy-args", "5")),
    "policy args of fcfs": bad(
        "VT240", "--policy-args: the scheduler policy", argv=(*HELLO, "--policy-args.rank", "1")
    ),
    "input without a name": usage("one of them is empty", argv=(*GENERATE, "--input", "", "--output", "x")),
    "output without a name": usage("one of them is empty", argv=(*GENERATE, "--input", "x", "--output", "")),
    "input absent": usage("--input: in.jsonl cannot be read", argv=_BATCH),
    "input empty": option("in.jsonl has no request", argv=_BATCH, files={"in.jsonl": "\n"}),
    "output the input": usage(
        "is the input too",
        argv=(*GENERATE, "--input", "in.jsonl", "--output", "in.jsonl"),
        files=lines({"prompt": "x"}),
    ),
    "output elsewhere": bad(
        "VT301",
        "no/x cannot be written",
        argv=(*GENERATE, "--input", "in.jsonl", "--output", "no/x"),
        files=lines({"prompt": "x"}),
    ),
    "output full": bad(
        "VT301",
        "/dev/full cannot be written: No space left on device",
        "choose another place",
        argv=(*GENERATE, "--input", "in.jsonl", "--output", "/dev/full"),
        files=lines({"prompt": "x"}),
    ),
    "output strange": usage(
        "is no result of this command",
        "--overwrite",
        argv=_BATCH,
        files={**lines({"prompt": "x"}), "out.jsonl": "x\n"},
    ),
    "output of others": usage(
        "made from another request", argv=_BATCH, files={**lines({"prompt": "x"}), "out.jsonl": _RESULT}
    ),
    "line no JSON": of_batch("it is not JSON", request="{"),
    "line a list": of_batch("it is no JSON object", request=[1]),
    "line key": of_batch("no key 'promt' is known; did you mean 'prompt'?", request={"promt": "x"}),
    "line empty": of_batch("it has no prompt", request={}),
    "line two": of_batch("it has prompt and messages", request={"prompt": "x", "messages": []}),
    "line switch": of_batch("goes with messages only", request={"prompt": "x", "tools": []}),
    "line switch value": of_batch("not true or false", request={"messages": [], "add_generation_prompt": 5}),
    "line id": of_batch("id is 1.5", request={"prompt": "x", "id": 1.5}),
    "line parameters": of_batch("no object of parameters", request={"prompt": "x", "sampling_params": 5}),
    "line parameter": of_batch("top_k", request={"prompt": "x", "sampling_params": {"top_k": "x"}}),
    "line bias": of_batch(
        "logit_bias key", request={"prompt": "x", "sampling_params": {"logit_bias": {"9" * 5000: 1}}}
    ),
    "line priority": of_batch(
        "priority='high' is not an integer", request={"prompt": "x", "priority": "high"}
    ),
    "line tenant": of_batch("tenant=5 is not a text", request={"prompt": "x", "tenant": 5}),
    "line salt": of_batch("cache_salt is empty", request={"prompt": "x", "cache_salt": ""}),
    "line policy args": of_batch("is not a mapping", request={"prompt": "x", "policy_args": [1]}),
    "line policy args of fcfs": of_batch(
        "policy_args: the scheduler", request={"prompt": "x", "policy_args": {"a": 1}}
    ),
    "line NaN": of_batch("not finite", request='{"prompt": "x", "id": NaN}'),
    "line surrogate": of_batch("surrogate", request='{"prompt": "\\ud800"}'),
    "line ids": of_batch("prompt_token_ids[0]=9999", request={"prompt_token_ids": [9999]}),
    "messages none": of_batch("messages is empty", request={"messages": []}),
    "message role": of_batch("messages[0].role", request={"messages": [{"role": "usr", "content": "x"}]}),
    "message key": of_batch("no key of a message", request={"messages": [{**_USER, "contnt": 1}]}),
    "message image": of_batch(
        "text only", request={"messages": [{**_USER, "content": [{"type": "image_url"}]}]}
    ),
    "message call": of_batch(
        "arguments of the call of 'f' are no JSON",
        request={"messages": [_USER, {"role": "assistant", "tool_calls": [_CALL]}]},
    ),
    "message continued": of_batch(
        "continue_final_message",
        request={"messages": [_USER], "add_generation_prompt": False, "continue_final_message": True},
    ),
    "template refuses": of_batch(
        "no thanks",
        request={"messages": [_USER]},
        breaks=b.put("chat_template.jinja", b'{{ raise_exception("no thanks") }}'),
    ),
    "template without limit": of_batch(
        "is stopped",
        request={"messages": [_USER]},
        breaks=b.put("chat_template.jinja", b"{{ 'x' * 10**9 }}"),
    ),
}
