"""Opening a checkpoint directory: what is read, and that each unusable form has its own error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtcore.checkpoint.source import check_listed_files, open_checkpoint
from vtcore.errors import CheckpointError, IncompleteCheckpointError, UnsupportedFeatureError

CONFIG: dict[str, Any] = {"architectures": ["SomeForCausalLM"], "model_type": "some"}


def write(directory: Path, config: object = CONFIG, *files: str) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    for name in files:
        (directory / name).write_bytes(b"{}")
    return directory


def test_a_complete_directory_gives_its_configs(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, "model.safetensors")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    opened = open_checkpoint(str(tmp_path))
    assert opened.directory == tmp_path
    assert opened.hf_config == CONFIG
    assert opened.architectures == ("SomeForCausalLM",)
    assert opened.generation_config == {"eos_token_id": [1, 2]}
    assert opened.tokenizer_config == {"eos_token": "</s>"}


def test_optional_files_may_be_absent(tmp_path: Path) -> None:
    opened = open_checkpoint(write(tmp_path, {"model_type": "some"}, "model.safetensors"))
    assert opened.architectures == ()
    assert opened.generation_config == {}


def test_a_path_that_is_absent_a_file_or_a_gguf_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(tmp_path / "absent")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="is a file"):
        open_checkpoint(tmp_path / "model.safetensors")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(UnsupportedFeatureError, match="GGUF"):
        open_checkpoint(tmp_path / "model.gguf")
    with pytest.raises(UnsupportedFeatureError, match="GGUF"):
        open_checkpoint(tmp_path / "absent.gguf")


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ((), CheckpointError, r"has no config\.json"),
        (("model.safetensors",), CheckpointError, r"has no config\.json"),
        (("adapter_config.json", "adapter_model.safetensors"), UnsupportedFeatureError, "is an adapter"),
        (("adapter_model.safetensors",), UnsupportedFeatureError, "is an adapter"),
        (("model-Q4.gguf",), UnsupportedFeatureError, "GGUF"),
        (("speculators_config.json",), UnsupportedFeatureError, "is a drafter"),
    ],
)
def test_without_a_config_the_files_name_the_reason(
    tmp_path: Path, files: tuple[str, ...], error: type[Exception], message: str
) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(error, match=message):
        open_checkpoint(tmp_path)


def test_an_unparseable_config_is_named_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n  "a": 1,\n  "b": oops\n}')
    with pytest.raises(CheckpointError, match=r"config\.json is not valid JSON.*line 3, column 8"):
        open_checkpoint(tmp_path)
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(CheckpointError, match="not UTF-8 text: bad byte at offset 7"):
        open_checkpoint(tmp_path)
    path.write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("value", "kind"), [("[]", "an array"), ('"x"', "a string"), ("3", "a number"), ("null", "null")]
)
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, value: str, kind: str) -> None:
    (tmp_path / "config.json").write_text(value)
    with pytest.raises(CheckpointError, match=f"must hold a JSON object, found {kind}"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["DFlashDraftModel"]},
        {"architectures": ["DFlash2DraftModel"]},
        {"architectures": ["LlamaForCausalLMEagle3"]},
        {"architectures": ["Eagle3Speculator"]},
        {"architectures": ["Qwen3ForCausalLM"], "dflash_config": {"mask_token_id": 1}},
        {"architectures": ["Other"], "speculators_config": {"algorithm": "eagle3"}},
    ],
)
def test_a_drafter_given_as_a_model_is_called_a_drafter(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFeatureError, match="is a drafter, not a model"):
        open_checkpoint(write(tmp_path, config, "model.safetensors"))


@pytest.mark.parametrize("place", ["outer", "text_config"])
def test_quantization_is_refused_by_method_wherever_it_stands(tmp_path: Path, place: str) -> None:
    quantization = {"quantization_config": {"quant_method": "fp8"}}
    config = {**CONFIG, **(quantization if place == "outer" else {"text_config": quantization})}
    with pytest.raises(UnsupportedFeatureError, match=r"quantized.*method fp8"):
        open_checkpoint(write(tmp_path, config, "model.safetensors"))


def test_a_modelopt_quantization_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, "model.safetensors")
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    with pytest.raises(UnsupportedFeatureError, match=r"hf_quant_config\.json: method NVFP4"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("value", [{}, [], False, "", {"bits": 4}])
def test_a_quantization_config_without_a_method_is_refused_too(tmp_path: Path, value: object) -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"quantization_config in config\.json: method unnamed"):
        open_checkpoint(write(tmp_path, {**CONFIG, "quantization_config": value}, "model.safetensors"))


def test_a_quantization_config_of_null_counts_as_absent(tmp_path: Path) -> None:
    open_checkpoint(write(tmp_path, {**CONFIG, "quantization_config": None}, "model.safetensors"))


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (("adapter_config.json", "adapter_model.safetensors"), "adapter_config.json"),
        (("adapter_config.json", "adapter_model.bin"), "adapter_config.json"),
        (("adapter_config.json",), "adapter_config.json"),
        (("adapter_model.safetensors",), "adapter_model.safetensors"),
        (
            ("adapter_model-00001-of-00002.safetensors", "adapter_model.safetensors.index.json"),
            "adapter_model",
        ),
    ],
)
def test_an_adapter_beside_a_config_is_refused_as_one(
    tmp_path: Path, files: tuple[str, ...], named: str
) -> None:
    with pytest.raises(UnsupportedFeatureError, match=rf"is an adapter \({named}.*merge it into its base"):
        open_checkpoint(write(tmp_path, CONFIG, *files))


def test_an_adapters_leftovers_beside_full_weights_are_no_obstacle(tmp_path: Path) -> None:
    open_checkpoint(write(tmp_path, CONFIG, "model.safetensors", "adapter_config.json"))


def test_a_config_without_any_model_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither `architectures` nor `model_type`"):
        open_checkpoint(write(tmp_path, {"hidden_size": 4}, "model.safetensors"))


@pytest.mark.parametrize("value", ["Name", [1], {"a": "b"}])
def test_architectures_of_another_type_are_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(CheckpointError, match="must be a list of strings"):
        open_checkpoint(write(tmp_path, {"architectures": value}, "model.safetensors"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "weights.pt"])
def test_pickled_weights_alone_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="never read"):
        open_checkpoint(write(tmp_path, CONFIG, name))


def test_pickled_weights_beside_safetensors_are_no_obstacle(tmp_path: Path) -> None:
    open_checkpoint(write(tmp_path, CONFIG, "model.safetensors", "training_args.bin"))


def test_a_config_beside_gguf_or_no_weights_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"):
        open_checkpoint(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(UnsupportedFeatureError, match="GGUF"):
        open_checkpoint(tmp_path)


def test_what_the_config_tells_comes_before_missing_weights(tmp_path: Path) -> None:
    config = {**CONFIG, "quantization_config": {"quant_method": "awq"}}
    with pytest.raises(UnsupportedFeatureError, match="method awq"):
        open_checkpoint(write(tmp_path, config))


def test_shards_that_the_index_names_must_be_there_unless_no_weights_are_needed(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, "b.safetensors")
    files = ["a.safetensors", "b.safetensors", "c.safetensors"]
    weight_map = {f"tensor.{index}": file for index, file in enumerate(files)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(
        IncompleteCheckpointError, match=r"lacks 2 of 3 weight files, first a\.safetensors .*run it again"
    ):
        open_checkpoint(tmp_path)
    assert open_checkpoint(tmp_path, needs_weights=False).hf_config == CONFIG
    for file in files:
        (tmp_path / file).write_bytes(b"")
    open_checkpoint(tmp_path)


def test_shards_are_counted_by_their_numbers_where_there_is_no_index(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, "model-00002-of-00003.safetensors")
    with pytest.raises(IncompleteCheckpointError, match=r"2 of 3 weight files, first model-00001-of-00003"):
        open_checkpoint(tmp_path)


def test_without_weights_only_the_config_decides(tmp_path: Path) -> None:
    write(tmp_path, CONFIG)
    open_checkpoint(tmp_path, needs_weights=False)
    with pytest.raises(IncompleteCheckpointError, match=r"no \*\.safetensors"):
        open_checkpoint(tmp_path)
    write(tmp_path, {**CONFIG, "quantization_config": {"quant_method": "awq"}})
    with pytest.raises(UnsupportedFeatureError, match="awq"):
        open_checkpoint(tmp_path, needs_weights=False)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["config.json", "model.bin"], r"org/m has only pickled weights \(model\.bin\)"),
        (["config.json", "model.gguf"], "org/m/model.gguf is a GGUF checkpoint"),
        (["adapter_config.json", "adapter_model.safetensors"], "org/m is an adapter"),
        (["README.md"], r"org/m has no config\.json"),
        (["config.json"], r"org/m has config\.json but no"),
    ],
)
def test_a_listing_is_judged_by_the_same_rules_as_a_directory(names: list[str], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        check_listed_files("org/m", names)


def test_a_listing_without_weights_passes_where_none_are_needed() -> None:
    check_listed_files("org/m", ["config.json", "model.bin"], needs_weights=False)
    check_listed_files("org/m", ["config.json", "model.safetensors"])
