"""Files of options: what they may look like, and one sentence for each way they cannot be used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vtcore.config.config_file import is_yaml, read_config_file
from vtcore.errors import ConfigError

# Six lines, ten million values.
BOMB = "\n".join(
    ["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 25)}]" for i in range(1, 6))]
).encode()


@pytest.mark.parametrize(
    ("name", "text", "data"),
    [
        ("a.toml", 'max_num_seqs = 4\n[plugin_owners]\n"arch:a" = "b"', None),
        ("a.yaml", "max_num_seqs: 4\nplugin_owners: {arch:a: b}", None),
        ("a.YML", "# none\nmax_num_seqs: 4\nplugin_owners:\n  arch:a: b\n", None),
        ("a.json", '{"max_num_seqs": 4, "plugin_owners": {"arch:a": "b"}}', None),
        ("a.json", '\ufeff{\n\t"a": 1}', {"a": 1}),
        ("no_suffix", 'max_num_seqs = 4\nplugin_owners = {"arch:a" = "b"}', None),
        ("a.toml", "", {}),
        ("a.toml", "\ufeffa = 1\r\nb = 2\r\n", {"a": 1, "b": 2}),
        ("a.yaml", "\ufeffa: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
        ("a.toml", "#" * 2**20, {}),
        ("a.yaml", "", {}),
        ("a.yaml", "# only a comment\n", {}),
        ("a.yaml", "base: &b {x: 1}\nother: {<<: *b, y: 2}", {"base": {"x": 1}, "other": {"x": 1, "y": 2}}),
    ],
)
def test_the_name_decides_the_format(
    name: str, text: str, data: dict[str, object] | None, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_bytes(text.encode())
    expected = {"max_num_seqs": 4, "plugin_owners": {"arch:a": "b"}} if data is None else data
    assert read_config_file(file) == expected
    assert is_yaml(file) is (name[1:].lower() in (".yaml", ".yml"))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "a.toml",
            b"max_num_seqs: 4",
            r"not TOML: .* \(at line 1, column 13\); name it FILE\.yaml if it is YAML, FILE\.json",
        ),
        ("a.toml", b"a = 1\na = 2", r"not TOML: Cannot overwrite a value"),
        ("a.toml", b"\xff", "not UTF-8 text at byte 0"),
        ("a.toml", b"a = " + b"[" * 100_000, "nested too deeply"),
        ("a.json", b"a = 1", r"not JSON: Expecting value: line 1 column 1"),
        ("a.json", b'{"a": 1, "b": {"c": 1, "c": 2}}', "not JSON: the key 'c' is given twice$"),
        ("a.JSON", b"[1]", "not a mapping of options at its top level"),
        ("a.json", b"[" * 100_000, "nested too deeply"),
        ("a.yaml", b"a: [1", r"not YAML: expected ',' or '\]'.* at line 1, column 6$"),
        ("a.yaml", b"a: 1\nb: 2\na: 3", "not YAML: the key 'a' is given twice at line 3, column 1$"),
        ("a.yaml", b"a: {b: 1, b: 2}", "not YAML: the key 'b' is given twice at line 1, column 11$"),
        ("a.yaml", b"a: !!python/object/apply:os.getcwd []", "not YAML: could not determine a constructor"),
        ("a.yaml", b"a: 1\n---\nb: 2", "not YAML: but found another document"),
        ("a.yaml", b"a: \x01", "not YAML: "),
        ("a.yaml", b"[1, 2]: x", "not YAML: found unhashable key"),
        ("a.yaml", b"a: " + b"[" * 100_000, "nested too deeply"),
        ("a.yaml", b"- a\n- b", "not a mapping of options at its top level"),
        (
            "a.yaml",
            b"a: &a {b: *a}",
            "with its aliases written out it has more than 100000 values; write fewer$",
        ),
        ("a.yaml", BOMB, "with its aliases written out it has more than 100000 values; write fewer$"),
        ("a.toml", b"#" * (2**20 + 1), "longer than 1048576 bytes, which no file of options is$"),
        ("a.toml", b"\xff" * (2**20 + 1), "longer than 1048576 bytes, which no file of options is$"),
        ("a.yaml", b"max_num_seqs", "not a mapping of options at its top level"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(
    name: str, content: bytes, sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}: {sentence}") as caught:
        read_config_file(file)
    assert len(caught.value.problems) == 1
    assert "\n" not in str(caught.value)


def test_a_file_without_an_end_is_not_read_to_it() -> None:
    with pytest.raises(ConfigError, match=r"^/dev/zero: longer than"):
        read_config_file("/dev/zero")


def test_links_in_a_circle_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.toml").symlink_to("b.toml")
    (tmp_path / "b.toml").symlink_to("a.toml")
    with pytest.raises(ConfigError, match=r"a\.toml: cannot be read: Too many levels of symbolic links$"):
        read_config_file(tmp_path / "a.toml")


def test_a_missing_file_and_a_directory_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: no such config file$"):
        read_config_file(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"a directory, not a config file$"):
        read_config_file(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot be read: Not a directory$"):
        read_config_file(tmp_path / "file" / "a.toml")
    with pytest.raises(ConfigError, match="cannot be read: embedded null"):
        read_config_file("a\0b")
