"""Every error that a command line can reach: what is broken, the command, the code, a part of the sentence.

Does not: run the commands; test_cli_errors.py does, in a folder that holds `model`, a tiny checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import broken as b
import pytest
from attrs import field, frozen

from vtcore.host.gpu import GpuFacts

Patch = Callable[[pytest.MonkeyPatch], object]
CHECK = ("check", "model")
GENERATE = ("generate", "model", "--max-tokens", "1")
CHAT = ("chat", "model", "--max-tokens", "1")
HELLO = (*GENERATE, "--prompt", "hello")
MAKE = ("make-checkpoint", "--arch", "qwen3_5_dense", "--size", "tiny")


@frozen
class Case:
    """A command that must fail.

    Args:
        code: Its first digit is the exit code.
        parts: Of the sentence, in order.
        breaks: What is done to the checkpoint `model`.
        argv: The command.
        files: Further files of the working directory.
        patch: What is done to the environment.
        num_problems: Lines of error.
        stdin: What is piped in.
    """

    code: str
    parts: Sequence[str]
    breaks: b.Break | None = None
    argv: Sequence[str] = HELLO
    files: Mapping[str, str] = field(factory=dict)
    patch: Patch | None = None
    num_problems: int = 1
    stdin: str = ""


def env(**variables: str) -> Patch:
    return lambda patch: [patch.setenv(name, value) for name, value in variables.items()]


def gpu_without_cuda(patch: pytest.MonkeyPatch) -> None:
    facts = GpuFacts(("NVIDIA H200",), "1 GPU (NVIDIA H200) cannot be used", "install another torch")
    patch.setattr("vtcore.planning.probe_gpus", lambda hidden: facts)


def lines(*requests: Any) -> dict[str, str]:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in requests]
    return {"in.jsonl": "".join(text + "\n" for text in texts)}


def bad(code: str, *parts: str, breaks: b.Break | None = None, **more: Any) -> Case:
    return Case(code, parts, breaks, **more)


def of_config(*parts: str, **changes: Any) -> Case:
    """A value in the text section of config.json, which is refused before weights are looked at."""
    return bad("VT220", "config.json: ", *parts, breaks=b.text_values(**changes), argv=CHECK)


def of_batch(*parts: str, request: Any, **more: Any) -> Case:
    """One line of --input."""
    argv = (*GENERATE, "--input", "in.jsonl", "--output", "out.jsonl")
    return bad("VT201", "in.jsonl:1: ", *parts, argv=argv, files=lines(request), **more)


def usage(*parts: str, argv: Sequence[str], **more: Any) -> Case:
    return bad("VT203", *parts, argv=argv, **more)


def option(*parts: str, argv: Sequence[str], **more: Any) -> Case:
    return bad("VT201", *parts, argv=argv, **more)


def plugins(code: str, *parts: str, source: str, argv: Sequence[str] = CHECK, **more: Any) -> Case:
    return bad(code, *parts, argv=(*argv, "--plugin", "mine.py"), files={"mine.py": source}, **more)


def toy(code: str, *parts: str, arch: str, argv: Sequence[str] = CHECK, **more: Any) -> Case:
    """A plugin of the toy architecture serves the checkpoint."""
    files = {"config.json": b.TOY_CONFIG, "model.safetensors": b"\x02\0\0\0\0\0\0\0{}"}
    source = b.toy_plugin(arch, **more)
    return plugins(code, *parts, source=source, argv=argv, breaks=b.instead(files))


def _rope(part: float) -> dict[str, float]:
    return {"rope_theta": 1e7, "partial_rotary_factor": part}


_WEIGHT = "model.language_model.layers.0.mlp.gate_proj.weight"
_ADAPTER = {"adapter_config.json": b"{}", "adapter_model.safetensors": b""}

CHECKPOINTS: dict[str, Case] = {
    "absent": bad(
        "VT226", "nowhere/x/y/z does not exist", "there is no nowhere in", argv=("check", "nowhere/x/y/z")
    ),
    "url": option("MODEL: 'https://x/y' is a URL", "give the model's id", argv=("check", "https://x/y")),
    "source unknown": option("MODEL: checkpoint source 'hubb'", "did you mean", argv=("check", "hubb://a/b")),
    "revision of a directory": option(
        "--revision: model is a local directory", argv=(*CHECK, "--revision", "v1")
    ),
    "file": bad(
        "VT220", "model/config.json is a file; give the directory", argv=("check", "model/config.json")
    ),
    "gguf file": bad("VT222", "m.gguf is a GGUF checkpoint", argv=("check", "m.gguf"), files={"m.gguf": ""}),
    "gguf": bad("VT222", "model/m.gguf is a GGUF checkpoint", breaks=b.instead({"m.gguf": b"GGUF"})),
    "gguf with a config": bad(
        "VT222", "m.gguf is a GGUF", breaks=b.both(b.keep("config.json"), b.put("m.gguf", b""))
    ),
    "adapter": bad("VT222", "model is an adapter", "merge it", breaks=b.instead(_ADAPTER)),
    "drafter": bad(
        "VT222", "is a drafter", "give the target", breaks=b.values("config.json", dflash_config={})
    ),
    "drafter by name": bad(
        "VT222", "is a drafter", breaks=b.values("config.json", architectures=["XEagleModel"])
    ),
    "speculators": bad("VT222", "is a drafter", breaks=b.instead({"speculators_config.json": b"{}"})),
    "quantized": bad(
        "VT222",
        "model is quantized (quantization_config in config.json: method awq)",
        "use the bfloat16 release",
        breaks=b.values("config.json", quantization_config={"quant_method": "awq"}),
    ),
    "quantized by file": bad("VT222", "hf_quant_config.json", breaks=b.put("hf_quant_config.json", b"{}")),
    "pickles": bad(
        "VT222", "only pickled weights (w.bin)", breaks=b.both(b.keep("config.json"), b.put("w.bin", b""))
    ),
    "float8": bad(
        "VT222",
        f"tensor {_WEIGHT} is stored as F8_E4M3",
        breaks=b.header(lambda h: _retype(h, _WEIGHT), "model-00001-of-00002.safetensors"),
    ),
    "no config": bad("VT220", "model has no config.json", breaks=b.drop("config.json")),
    "no weights": bad(
        "VT229",
        "no *.safetensors; if it is a download that broke off, run it again; or give --load-format dummy for",
        breaks=b.keep("config.json", "tokenizer.json"),
    ),
    "no shard": bad("VT229", "lacks 1 of 2 weight files", b.SHARD, breaks=b.drop(b.SHARD)),
    "no shard, no index": bad("VT229", "lacks 1 of 2", "numbered to 2", breaks=b.drop(b.SHARD, b.INDEX)),
    "no tokenizer": bad("VT220", "has no tokenizer.json", breaks=b.drop("tokenizer.json")),
    "tokenizer broken": bad("VT220", "is not a usable tokenizer", breaks=b.put("tokenizer.json", b"{}")),
    "config no JSON": bad(
        "VT220", "not valid JSON", "line 1, column 6", breaks=b.put("config.json", b'{"a":')
    ),
    "config a list": bad("VT220", "must hold a JSON object", breaks=b.put("config.json", b"[]")),
    "config no UTF-8": bad("VT220", "not UTF-8", "offset 0", breaks=b.put("config.json", b"\xff{}")),
    "config too deep": bad("VT220", "nested too deeply", breaks=b.put("config.json", b'{"a":' + b"[" * 9**5)),
    "config number": bad("VT220", "too long", breaks=b.put("config.json", b'{"a":' + b"9" * 5000 + b"}")),
    "config empty": bad(
        "VT220", "neither `architectures` nor `model_type`", breaks=b.put("config.json", b"{}")
    ),
    "architectures": bad("VT220", "`architectures` must", breaks=b.values("config.json", architectures="X")),
    "model_type": bad(
        "VT220", "model_type is 5", breaks=b.values("config.json", architectures=[], model_type=5)
    ),
    "arch unknown": bad(
        "VT221",
        "no installed plugin serves",
        "'NewForCausalLM'",
        breaks=b.values("config.json", architectures=["NewForCausalLM"], model_type="new"),
    ),
    "text_config": bad(
        "VT220", "text_config is 5", breaks=b.values("config.json", text_config=5), argv=CHECK
    ),
    "heads": of_config("num_key_value_heads is 3", "a divisor of", num_key_value_heads=3),
    "value heads": of_config("linear_num_value_heads is 3", "a multiple of", linear_num_value_heads=3),
    "count": of_config("hidden_size is -1", "integers from 1 to", hidden_size=-1),
    "count a text": of_config("hidden_size is '8'", hidden_size="8"),
    "count huge": of_config("vocab_size is 1000", "..., but", vocab_size=10**400),
    "layers": of_config("num_hidden_layers is 100000", num_hidden_layers=10**5, layer_types=b.DROPPED),
    "eps": of_config("rms_norm_eps is 1000", "finite numbers above 0", rms_norm_eps=10**400),
    "attn_output_gate": of_config("attn_output_gate is False", attn_output_gate=False),
    "attention_bias": of_config("attention_bias is True", attention_bias=True),
    "hidden_act": of_config("hidden_act is 'gelu'", hidden_act="gelu"),
    "experts": of_config("num_experts is 8", "models without experts", num_experts=8),
    "output gate": of_config("output_gate_type is 'tanh'", output_gate_type="tanh"),
    "layer_types short": of_config("layer_types is ['full_attention']", layer_types=["full_attention"]),
    "layer_types": of_config("layer_types is 'x'", layer_types=["x"] * 4),
    "tied": of_config("tie_word_embeddings is 'no'", tie_word_embeddings="no"),
    "dtype": of_config("`dtype` is 5", dtype=5),
    "rope": of_config("rope_parameters is 5", rope_parameters=5),
    "rope of full attention": of_config("full_attention is 5", rope_parameters={"full_attention": 5}),
    "rope type": of_config("rope_type is 'yarn'", rope_parameters={"rope_type": "yarn"}),
    "rotary part huge": of_config("partial_rotary_factor is 1e+308", rope_parameters=_rope(1e308)),
    "rotary part": of_config("partial_rotary_factor is 3.0", partial_rotary_factor=3, rope_parameters={}),
    "tensor missing": bad(
        "VT223",
        "lacks 1 of the",
        f"{_WEIGHT}; it is incomplete",
        breaks=b.both(
            b.drop(b.INDEX), b.header(lambda h: h.pop(_WEIGHT), "model-00001-of-00002.safetensors")
        ),
    ),
    "tensor unknown": bad(
        "VT224",
        "has 1 tensor(s) that the model does not use: x.y",
        breaks=b.both(b.drop(b.INDEX), b.header(lambda h: h.update({"x.y": _nothing()}))),
    ),
    "tensor renamed": bad("VT223", _WEIGHT, breaks=b.rename_tensor(_WEIGHT, "x.y")),
    "tensor shape": bad(
        "VT225", "has shape [576, 128]", "[576, 64]", "from one release", breaks=b.text_values(hidden_size=64)
    ),
    "tensor twice": bad(
        "VT220", "is in both again.safetensors and", "remove one file", breaks=b.repeat_shard
    ),
    "truncated": bad(
        "VT220", f"{b.SHARD} is truncated: it has", "download the file again", breaks=b.cut(b.SHARD, 9)
    ),
    "empty shard": bad("VT220", "truncated: it has 0 bytes", breaks=b.put(b.SHARD, b"")),
    "shard of text": bad("VT220", "is not a safetensors file", breaks=b.put(b.SHARD, b"<html></html>")),
    "pointer": bad(
        "VT229", "pointer of git-lfs", "`git lfs pull`", breaks=b.put(b.SHARD, b"version https://git")
    ),
    "header no JSON": bad("VT220", "header is not JSON", breaks=b.put(b.SHARD, b"\x02\0\0\0\0\0\0\0{x")),
    "header a list": bad("VT220", "not an object", breaks=b.put(b.SHARD, b"\x02\0\0\0\0\0\0\0[]")),
    "header entry": bad("VT220", "'x.y' is malformed", breaks=b.header(lambda h: h.update({"x.y": 5}))),
    "header sizes": bad(
        "VT220",
        "needs 8 bytes, its header gives it 0",
        breaks=b.header(lambda h: h.update({"x.y": {**_nothing(), "shape": [4]}})),
    ),
    "index empty": bad("VT220", "has no `weight_map` object", breaks=b.put(b.INDEX, b"{}")),
    "index no JSON": bad("VT220", f"{b.INDEX} is not valid JSON", breaks=b.put(b.INDEX, b"{")),
    "index escapes": bad(
        "VT220",
        "tensor x must name a *.safetensors file of the same folder",
        breaks=b.values(b.INDEX, weight_map={"x": "../y"}),
    ),
    "index wrong": bad(
        "VT220", "places tensor x in", "does not have it", breaks=b.values(b.INDEX, weight_map={"x": b.SHARD})
    ),
    "generation_config": bad(
        "VT220",
        "generation_config.json: temperature: -1 is below 0",
        "--generation-config neutral",
        breaks=b.values("generation_config.json", temperature=-1),
        argv=CHECK,
    ),
    "eos": bad(
        "VT220", "eos_token_id must be token ids", breaks=b.values("generation_config.json", eos_token_id="x")
    ),
    "chat template entry": bad(
        "VT220",
        "chat_template must be",
        breaks=b.both(b.drop("chat_template.jinja"), b.values("tokenizer_config.json", chat_template=5)),
    ),
    "chat template syntax": bad(
        "VT220",
        "does not parse",
        "line 1",
        breaks=b.put("chat_template.jinja", b"{% for %}"),
        argv=("chat", "model"),
    ),
    "chat template long": bad("VT220", "at most", breaks=b.put("chat_template.jinja", b"x" * 2**21)),
    "chat template no text": bad("VT220", "as UTF-8 text", breaks=b.put("chat_template.jinja", b"\xff")),
    "no chat template": bad(
        "VT241",
        "has no chat template",
        breaks=b.drop("chat_template.jinja"),
        argv=("chat", "model"),
        stdin="hi\n",
    ),
}


def _nothing() -> dict[str, Any]:
    return {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}


def _retype(data: dict[str, Any], name: str) -> None:
    data[name]["dtype"] = "F8_E4M3"
    data[name]["shape"][0] *= 2
