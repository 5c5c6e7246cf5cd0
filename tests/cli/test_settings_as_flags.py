"""Sentences of the engine name settings as Python has them; a command line shows them as flags."""

from __future__ import annotations

import pytest

from vtcore.cli.engine_flags import add_engine_flags
from vtcore.cli.flag_words import errors_as_typed, names_of_flags, settings_as_flags
from vtcore.cli.parser import CommandParser
from vtcore.cli.sampling_flags import add_sampling_flags
from vtcore.errors import ConfigError, RequestError, UsageError, VtcoreError


@pytest.mark.parametrize(
    ("problem", "shown"),
    [
        ("start with skip_tokenizer_init=True and", "start with --skip-tokenizer-init and"),
        ("start with generation_config=neutral)", "start with --generation-config neutral)"),
        (
            "max_model_len=8192 needs it; raise max_model_len",
            "--max-model-len 8192 needs it; raise --max-model-len",
        ),
        ("detokenize=False makes none; detokenize=True.", "--no-detokenize makes none; --detokenize."),
        ("min_p=0.5, seed=3 (top_k=4) n=2", "--min-p 0.5, --sampling-seed 3 (--top-k 4) --n 2"),
        ("seed=None", "no --sampling-seed"),
        ('plugin_owners={"arch:a": "b"} or "c"', '--plugin-owner arch:a=b or "c"'),
        ("lower max_num_seqs or max_model_len", "lower --max-num-seqs or --max-model-len"),
        (
            "lower max_num_seqs, num_blocks or max_model_len, or set enforce_eager",
            "lower --max-num-seqs, --num-blocks or --max-model-len, or set --enforce-eager",
        ),
        ("set kv_cache_memory_bytes or num_blocks", "set --kv-cache-memory-bytes or --num-blocks"),
        ("the largest num_blocks that fits", "the largest --num-blocks that fits"),
        ("$.max_num_seqs: dtype=float64", "$.max_num_seqs: --dtype float64"),
        # What is no setting of this command, or stands in a file, keeps its spelling.
        ("prompt_token_ids[1]=9 has hidden_size=4", "prompt_token_ids[1]=9 has hidden_size=4"),
        ("'top_p=1' x.top_p=1 $top_p=1 --top-p=1", "'top_p=1' x.top_p=1 $top_p=1 --top-p=1"),
        ("the checkpoint's chat_template fails", "the checkpoint's chat_template fails"),
        ("without generation_config.json", "without generation_config.json"),
        ("in.jsonl:3: top_p=2 is above 1", "in.jsonl:3: top_p=2 is above 1"),
        ("a b.toml: $.dtype: with top_p=2", "a b.toml: $.dtype: with top_p=2"),
    ],
)
def test_settings_in_sentences_are_shown_as_flags(problem: str, shown: str) -> None:
    parser = CommandParser(prog="test")
    add_sampling_flags(parser)
    add_engine_flags(parser)
    assert settings_as_flags(problem, names_of_flags(parser._actions)) == shown


@pytest.mark.parametrize("kind", [ConfigError, UsageError, RequestError])
def test_every_error_that_leaves_a_command_is_respelled(kind: type[VtcoreError]) -> None:
    with pytest.raises(kind) as caught, errors_as_typed({}, {"dtype": "--dtype"}):
        raise kind("wrong with dtype=float8")
    assert str(caught.value) == "wrong with --dtype float8"
    if isinstance(caught.value, ConfigError | UsageError):
        assert caught.value.problems == ("wrong with --dtype float8",)
