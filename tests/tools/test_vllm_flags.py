"""The tool that compares the list of vLLM's flags with vLLM's sources, on sources of the same form."""

from __future__ import annotations

from pathlib import Path

import vllm_flags
from vllm_flags import Flag

ENGINE = """
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        model_kwargs = get_kwargs(ModelConfig)
        group = parser.add_argument_group(title="ModelConfig")
        group.add_argument("--dtype", **model_kwargs["dtype"])
        group.add_argument("--tensor-parallel-size", "-tp", **{**model_kwargs["size"], "default": None})
        group.add_argument("--names", **model_kwargs["names"])
        group.add_argument("--hf-overrides", **model_kwargs["hf_overrides"])
        group.add_argument("--inner-config", **model_kwargs["inner"])
        group.add_argument("--eager", **model_kwargs["eager"])
        group.add_argument("--token", **model_kwargs["token"])
        parser.add_argument("--quiet", action="store_true")
        parser.add_argument("--loud", action=argparse.BooleanOptionalAction)
"""
SERVE = """
class FrontendArgs:
    host: str | None = None
    api_key: list[str] | None = None
    allowed_origins: list[str] = field(default_factory=list)

def make_arg_parser(parser):
    parser.add_argument("model_tag", type=str, nargs="?")
    parser.add_argument("--headless", action="store_true")
"""
CONFIG = """
class InnerConfig:
    a: int = 0

class ModelConfig:
    dtype: ModelDType | torch.dtype = "auto"
    size: int = 1
    names: str | list[str] | None = None
    hf_overrides: HfOverrides = field(default_factory=dict)
    inner: InnerConfig | None = None
    eager: bool | None = None
    token: bool | str | None = None
"""


def sources(directory: Path) -> Path:
    for name, text in (
        ("engine/arg_utils.py", ENGINE),
        ("entrypoints/openai/cli_args.py", SERVE),
        ("config/model.py", CONFIG),
    ):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def test_every_flag_is_found_with_its_form(tmp_path: Path) -> None:
    assert vllm_flags.flags_of(sources(tmp_path)) == {
        "allowed_origins": Flag("json", ()),
        "api_key": Flag("many", ()),
        "dtype": Flag("one", ()),
        "eager": Flag("bool", ()),
        "headless": Flag("none", ()),
        "hf_overrides": Flag("json", ()),
        "host": Flag("one", ()),
        "inner_config": Flag("json", ()),
        "loud": Flag("bool", ()),
        "names": Flag("many", ()),
        "quiet": Flag("none", ()),
        "tensor_parallel_size": Flag("one", ("-tp",)),
        "token": Flag("optional", ()),
    }


def test_each_kind_of_difference_is_a_line() -> None:
    found = {"a": Flag("one", ("-a",)), "b_c": Flag("bool", ()), "d": Flag("json", ())}
    listed: dict[str, dict[str, object]] = {
        "a": {"takes": "one"},
        "d": {"takes": "many"},
        "e": {"takes": "one"},
    }
    assert vllm_flags.compare(found, listed) == [
        "lacks --b-c",
        "in excess: e",
        "a: also written -a",
        "d: takes json, listed as many",
    ]
