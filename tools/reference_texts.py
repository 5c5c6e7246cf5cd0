"""What the configuration page says in words, beside its tables.

Does not: hold what a table or a docstring has.
"""

from __future__ import annotations

CONFIGURATION_INTRODUCTION = """
An option may be given in four places. The first in this list that gives it wins:

1. a keyword of `LLM(...)` or a flag of the command line;
2. a file, `--config FILE`: TOML, or by the end of its name YAML (`.yaml`, `.yml`) or JSON (`.json`);
3. a variable `VTCORE_<OPTION>`;
4. nobody: vtcore decides, from the architecture, the checkpoint and the machine.

Names are vLLM's where the meaning is the same. In files `-` and `_` in names are the same. Unknown names,
wrong types and illegal values are errors, all named at once. An option that this version does not serve is an
error too, never ignored. `vtcore check MODEL` shows every resolved value and where it came from.

In flags and variables a mapping is a JSON object, and lists in variables have commas between their texts. On
the command line a mapping may be given key by key: `--override-generation-config.top_k 20`. Whole numbers may
have a unit: `32k` is 32,000, `32K` is 32,768, `4G` is 4 times 2**30.

`vtcore.toml`: an example.

```toml
max_model_len = 4096
max_num_seqs = 4
dtype = "float32"

[override_generation_config]
temperature = 0.7
```

```sh
vtcore check MODEL --config vtcore.toml
```
"""


GPU_SECTION = """
## On a GPU

- **Device.** `auto` takes the first NVIDIA GPU that torch can use, `cuda:1` the second of those that
  `CUDA_VISIBLE_DEVICES` shows. A GPU that is here and cannot be used, or is asked for and not here, stops
  the start: nothing falls back to the CPU in silence. float64 is for exact tests on the CPU and not served.
- **Memory.** The engine uses the share `gpu_memory_utilization` of the GPU's whole memory: weights, what
  the largest steps need (measured at the start), graphs, and blocks of the cache in the rest. `num_blocks`
  or `kv_cache_memory_bytes` asks for less, and is refused if it does not fit.
- **Steps.** `async_scheduling` prepares a step while the GPU computes the last one; `enforce_eager` runs
  without captured graphs. Both change the speed and not the output. `max_num_seqs` is larger, and so is the
  default of `max_num_batched_tokens`.
- **Batch invariance.** With `batch_invariant` a request's log probabilities have the same bits alone and in
  any batch. Kernels sum in one order for every batch, which is slower; prompts are computed in chunks that
  end on multiples of 64 tokens, prefix hits end there too, and only prompts are kept for prefix hits, not
  what was generated. A request that is preempted, because the cache is full, is computed again as one
  prompt, and may differ in the last bits from then on: choose `max_num_seqs` so that the cache holds all.
- **Ops.** `op_overrides` says per op which implementation serves it: `naive`, the plain form in torch, a
  device type, or `module:function` of your own with the same arguments. The module must be importable: for
  one in the current folder set `PYTHONPATH=.` ([how to write one](howto/add-a-kernel.md)). With
  `batch_invariant` nothing is taken but what serves then anyway. A wrong name is an error that lists what
  there is.

What a machine with a GPU would do is shown without one, but for its memory:

```sh
vtcore check MODEL --device cuda --max-num-seqs 64
```
"""
