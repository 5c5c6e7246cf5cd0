"""Errors of flags, plugins and the machine, as `error_cases.py` has them of checkpoints.

Does not: run the commands.
"""

from __future__ import annotations

import broken as b
from error_cases import (
    CHAT,
    CHECK,
    GENERATE,
    HELLO,
    MAKE,
    Case,
    bad,
    env,
    gpu_without_cuda,
    option,
    plugins,
    toy,
    usage,
)

OPTIONS: dict[str, Case] = {
    "no command": usage("vtcore --help", argv=()),
    "command unknown": usage("no command 'generat'; did you mean 'generate'?", argv=("generat",)),
    "no model": option("MODEL: no model is given", argv=("check",)),
    "flag unknown": usage(
        "unknown flag '--num-block'; did you mean '--num-blocks'?", argv=(*CHECK, "--num-block", "4")
    ),
    "argument unknown": usage("unknown argument 'more'", argv=(*CHECK, "more")),
    "value missing": usage("--num-blocks", argv=(*CHECK, "--num-blocks")),
    "explain unknown": usage("no error has the code 'VT999'", argv=("explain", "VT999")),
    "plugin name unknown": usage("named 'nothing'", argv=("plugins", "show", "nothing")),
    "empty model": option("MODEL: the text is empty", argv=("check", "")),
    "number": option("--num-blocks: 'x' is not an integer such as", argv=(*CHECK, "--num-blocks", "x")),
    "zero": option("--num-blocks: 0 is below 1; raise it", argv=(*CHECK, "--num-blocks", "0")),
    "boolean": usage(
        "--enforce-eager", "takes no value, found 'maybe'", argv=(*CHECK, "--enforce-eager=maybe")
    ),
    "long": option("--max-model-len: 99999 is above", "lower it", argv=(*CHECK, "--max-model-len", "99999")),
    "dtype flag": option("--dtype: 'int9'", argv=(*CHECK, "--dtype", "int9")),
    "policy unknown": option("'fcf'", "did you mean 'fcfs'", argv=(*CHECK, "--scheduling-policy", "fcf")),
    "generation config": option(
        "--generation-config: 'nowhere' is no directory",
        "auto or neutral",
        argv=(*CHECK, "--generation-config", "nowhere"),
    ),
    "override": option(
        "--override-generation-config",
        "top_j",
        "did you mean 'top_p'",
        argv=(*CHECK, "--override-generation-config", '{"top_j": 1}'),
    ),
    "two at once": option(
        "--block-size: 0 is below 1",
        "--num-blocks: 0 is below 1",
        argv=(*CHECK, "--num-blocks", "0", "--block-size", "0"),
        num_problems=2,
    ),
    "config absent": option("c.toml: no such config file", argv=(*CHECK, "--config", "c.toml")),
    "config no TOML": option(
        "c.toml: not TOML", argv=(*CHECK, "--config", "c.toml"), files={"c.toml": "a = "}
    ),
    "config unknown key": option(
        "c.toml",
        "num_block",
        "did you mean",
        argv=(*CHECK, "--config", "c.toml"),
        files={"c.toml": "num_block = 4\n"},
    ),
    "config no YAML": option(
        "c.yaml: not YAML", argv=(*CHECK, "--config", "c.yaml"), files={"c.yaml": "a: [1"}
    ),
    "variable": option("VTCORE_NUM_BLOCKS: 'x'", argv=CHECK, patch=env(VTCORE_NUM_BLOCKS="x")),
    "variable unknown": option("VTCORE_NUM_BLOCK", argv=CHECK, patch=env(VTCORE_NUM_BLOCK="4")),
    "invariant on the cpu": bad(
        "VT202", "--batch-invariant: true is not served on device 'cpu'", argv=(*CHECK, "--batch-invariant")
    ),
    "memory share on the cpu": bad(
        "VT202",
        "--gpu-memory-utilization: 0.5 is not served on device 'cpu'",
        "; set --kv-cache-memory-bytes or --num-blocks instead",
        argv=(*CHECK, "--gpu-memory-utilization", "0.5"),
    ),
    "device number": option("--device: 'cuda:x' is not served", argv=(*CHECK, "--device", "cuda:x")),
    "device of others": bad("VT202", "--device: 'mps'", "cpu or cuda", argv=(*CHECK, "--device", "mps")),
    "op unknown": option(
        "--op-overrides.ropes: no such op; did you mean 'rope'?",
        argv=(*CHECK, "--op-overrides.ropes", "naive"),
    ),
    "op implementation unknown": option(
        "--op-overrides.rope: no implementation 'fast' serves it; choose naive",
        argv=(*CHECK, "--op-overrides.rope", "fast"),
    ),
    "op function": option(
        "--op-overrides.rope: 'no_such:f' cannot be imported",
        "give the module:function of an op",
        argv=(*HELLO, "--op-overrides.rope", "no_such:f"),
    ),
    "not served": bad("VT202", "--tensor-parallel-size", argv=(*CHECK, "--tensor-parallel-size", "2")),
    "speculation": bad(
        "VT202", "--speculative-config", argv=(*CHECK, "--speculative-config", '{"method": "mtp"}')
    ),
    "state checkpoints without caching": option(
        "--num-state-checkpoints: 4 would have no effect, for prefix caching is off",
        "start with --enable-prefix-caching",
        argv=(*CHECK, "--num-state-checkpoints", "4"),
    ),
    "checkpoint interval without caching": option(
        "--state-checkpoint-interval: 64 would have no effect",
        argv=(*CHECK, "--state-checkpoint-interval", "64"),
    ),
    "caching without states": option(
        "--num-state-checkpoints: 0 leaves prefix caching without",
        "go without --enable-prefix-caching",
        argv=(*CHECK, "--enable-prefix-caching", "--num-state-checkpoints", "0"),
    ),
    "mamba cache mode": bad(
        "VT202",
        "--mamba-cache-mode: ",
        "say which recurrent states are kept",
        argv=(*CHECK, "--mamba-cache-mode", "align"),
    ),
    "policy config no JSON": option(
        "--policy-config: 'x' is not a JSON object", argv=(*CHECK, "--policy-config", "x")
    ),
    "policy config of fcfs": option("--policy-config", argv=(*CHECK, "--policy-config.weight", "2")),
    "policy time": option(
        "--policy-time-limit-ms: 0.0 is below 0.001", argv=(*CHECK, "--policy-time-limit-ms", "0")
    ),
    "starvation": option("--starvation-s: 'inf' is not a number", argv=(*CHECK, "--starvation-s", "inf")),
    "starvation variable": option(
        "VTCORE_STARVATION_S: 'soon' is not a number", argv=CHECK, patch=env(VTCORE_STARVATION_S="soon")
    ),
    "chat template": option(
        "--chat-template: t.jinja cannot be read: No such file",
        argv=(*CHAT, "--chat-template", "t.jinja"),
    ),
    "blocks": bad(
        "VT230",
        "--max-model-len 4096 needs 128 blocks",
        "raise --num-blocks to 128",
        argv=(*HELLO, "--num-blocks", "4", "--max-model-len", "4096"),
    ),
    "cache bytes": bad(
        "VT230", "--kv-cache-memory-bytes 9", "raise it", argv=(*HELLO, "--kv-cache-memory-bytes", "9")
    ),
    "memory": bad(
        "VT230", "available are", "the largest --num-blocks that fits is", argv=(*HELLO, "--num-blocks", "1G")
    ),
    "no size": option(
        "--size: qwen3_5_dense offers",
        argv=("make-checkpoint", "--arch", "qwen3_5_dense", "--size", "x", "out"),
    ),
    "no arch": option("--arch: 'qwen'", argv=("make-checkpoint", "--arch", "qwen", "--size", "tiny", "out")),
    "seed": option("--seed: -1 is below 0", argv=(*MAKE, "--seed=-1", "out")),
    "out a file": option("OUT: out is a file", argv=(*MAKE, "out"), files={"out": ""}),
    "out full": option("OUT: model is not empty", "--force", argv=(*MAKE, "model")),
    "out strange": option("holds a.txt", argv=(*MAKE, "--force", "model"), breaks=b.put("a.txt", b"")),
    "out real": option(
        "holds a real checkpoint",
        argv=(*MAKE, "--force", "model"),
        breaks=b.values("config.json", vtcore_random_weights=b.DROPPED),
    ),
    "out below a file": bad(
        "VT301",
        "OUT: out/x cannot be written: Not a directory",
        "another directory",
        argv=(*MAKE, "out/x"),
        files={"out": ""},
    ),
}

MACHINE: dict[str, Case] = {
    "plugin absent": bad("VT311", "no such file", argv=(*CHECK, "--plugin", "mine.py")),
    "plugin no file of Python": bad("VT311", "not a .py file", argv=(*CHECK, "--plugin", "mine")),
    "plugin broken": plugins(
        "VT311", "cannot import it: ModuleNotFoundError", source="import nothing_of_this_name"
    ),
    "plugin empty": plugins("VT311", "it registers nothing", source=""),
    "plugin old": plugins(
        "VT312", "written for version 9.9", "upgrade", source=b.plugin("scheduler_policies", b.POLICY, "9.9")
    ),
    "plugin unversioned": plugins(
        "VT312",
        "does not say which version",
        source=b.plugin("scheduler_policies", b.POLICY).replace("VTCORE_API", "API"),
    ),
    "plugin returns nonsense": plugins(
        "VT311", "returned 5; each item must be", source=b.plugin("scheduler_policies", "5")
    ),
    "plugin twice": bad(
        "VT210",
        "scheduler_policy 'mine' is claimed by",
        "--plugin-owner",
        argv=(*CHECK, "--plugin", "one.py", "--plugin", "two.py", "--scheduling-policy", "mine"),
        files=dict.fromkeys(("one.py", "two.py"), b.plugin("scheduler_policies", b.POLICY)),
    ),
    "plugin lock": bad(
        "VT313",
        "lock.json: this is no plugin lock: ",
        "write one with `vtcore plugins lock --out FILE`",
        argv=("plugins", "lock", "--check", "lock.json"),
        files={"lock.json": "{}"},
    ),
    "plugin listed": option("VTCORE_PLUGINS", "'nothing'", argv=CHECK, patch=env(VTCORE_PLUGINS="nothing")),
    "policy fails": plugins(
        "VT311",
        "cannot be made: ValueError: no luck",
        source=b.plugin(
            "scheduler_policies",
            'SchedulerPolicyEntry(name="mine", implementation="vtcore_bad_parts:BadPolicy")',
        ),
        argv=(*CHECK, "--scheduling-policy", "mine"),
    ),
    "source fails": plugins(
        "VT310",
        "fetch failed: ZeroDivisionError: by zero",
        source=b.plugin(
            "checkpoint_sources",
            'CheckpointSourceEntry(name="mine", implementation="vtcore_bad_parts:BadSource")',
        ),
        argv=("check", "mine://x"),
    ),
    "arch lost": toy("VT311", "cannot import vtcore_bad_parts:Nothing", arch="Nothing"),
    "cache kind lost": toy(
        "VT310", "KV-cache spec 'toy_state' is registered by no", arch="ToyArch", kinds=("blocks",)
    ),
    "arch raises": toy("VT310", "KeyError: 'wheels'", "too old for it", arch="Raising"),
    "arch cannot build": toy(
        "VT310",
        "arch toy (mine.py): build() failed: KeyError: 'axles'; upgrade the plugin, or report it to its ",
        arch="Faulty",
        argv=(*GENERATE, "--skip-tokenizer-init", "--prompt-token-ids", "1,2", "--dtype", "float64"),
    ),
    "logits of a wrong shape": toy(
        "VT401",
        "arch toy (mine.py)",
        "logits() returned logits of shape (1, 63)",
        arch="Wrong",
        argv=(*GENERATE, "--skip-tokenizer-init", "--prompt-token-ids", "1,2", "--dtype", "float64"),
    ),
    "no usable device": bad(
        "VT302",
        "1 GPU (NVIDIA H200) cannot be used; install another torch",
        'device "cpu"',
        patch=gpu_without_cuda,
    ),
    "cache directory": option(
        "VTCORE_CACHE_DIR", "whole path", argv=CHECK, patch=env(VTCORE_CACHE_DIR="~nobody_here/x")
    ),
}
