"""Every way in which a hub, a model on it or the place for it can fail has its own sentence and exit code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from attrs import frozen
from fake_hub import FakeModel, running_hub
from hub_shell import Done, Shell

CONFIG = b'{"architectures": ["SomeForCausalLM"], "model_type": "some"}'


@frozen
class Case:
    """A command that must fail.

    Args:
        model: What the hub has under `org/NAME`; None has nothing.
        exit_code, code: As documented.
        message: Parts of the one line of error, in order.
        flags: After MODEL.
        downloads: Files whose content crosses the network before the refusal.
    """

    model: FakeModel | None
    exit_code: int
    code: str
    message: tuple[str, ...]
    flags: tuple[str, ...] = ()
    downloads: tuple[str, ...] = ()


def with_config(changes: Mapping[str, object], *files: str) -> FakeModel:
    config = {**json.loads(CONFIG), **changes}
    return FakeModel({"config.json": json.dumps(config).encode(), **dict.fromkeys(files, b"data")})


def cases(tiny: Mapping[str, bytes]) -> dict[str, Case]:
    whole = dict(tiny)
    shard = "model-00002-of-00002.safetensors"
    small = tuple(name for name in tiny if "safetensors" not in name)
    index = "model.safetensors.index.json"
    strange = tiny["config.json"].replace(b'"linear_attention"', b'"strange_attention"')
    quantized = {"quantization_config": {"quant_method": "awq"}}
    return {
        "gated": Case(
            FakeModel(whole, token="hf_other"),
            2,
            "VT228",
            (
                "org/gated is gated: accept its terms at http://",
                "/org/gated",
                "`hf auth login` or set HF_TOKEN",
            ),
        ),
        "absent": Case(
            None,
            2,
            "VT226",
            ("shows no model org/absent", "if it is private", "no local directory of that name either"),
        ),
        "revision": Case(
            FakeModel(whole),
            2,
            "VT227",
            ("org/revision has no branch, tag or commit 'v9'",),
            ("--revision", "v9"),
        ),
        "down": Case(FakeModel(whole, status=500), 3, "VT304", ("status 500", "the hub's own fault")),
        "limited": Case(FakeModel(whole, status=429), 3, "VT304", ("status 429", "wait a little or log in")),
        "portal": Case(FakeModel(whole, status=200), 3, "VT304", ("does not answer as a hub does",)),
        "huge": Case(
            FakeModel(whole, claimed_sizes={shard: 10**17}),
            3,
            "VT303",
            ("org/huge needs 100000.0 TB more, and the disk of ", " free; free space", "--download-dir"),
            downloads=(*small, index),
        ),
        "short": Case(
            FakeModel(whole, claimed_sizes={shard: len(tiny[shard]) + 1}),
            2,
            "VT229",
            ("a file of org/short did not arrive whole", "finished files are kept"),
            downloads=(*small, index, "model-00001-of-00002.safetensors", shard),
        ),
        "place": Case(
            FakeModel(whole),
            3,
            "VT301",
            ("a-file", "cannot be written", "--download-dir or HF_HOME"),
            ("--download-dir", "a-file/below"),
        ),
        "unpublished": Case(
            FakeModel({name: text for name, text in whole.items() if name != shard}),
            2,
            "VT220",
            ("names 1 weight file(s) that were never published", shard),
            downloads=(*small, index),
        ),
        "unserved": Case(
            with_config({}, "model.safetensors"),
            2,
            "VT221",
            ("no installed plugin serves", "SomeForCausalLM"),
            downloads=("config.json",),
        ),
        "refused": Case(
            FakeModel({"config.json": strange, "model.safetensors": b"data"}),
            2,
            "VT220",
            ("/config.json: ", "strange_attention"),
            downloads=("config.json",),
        ),
        "quantized": Case(
            with_config(quantized, "model.safetensors"),
            2,
            "VT222",
            ("is quantized", "method awq"),
            downloads=("config.json",),
        ),
        "drafter": Case(
            with_config({"architectures": ["DFlashDraftModel"]}, "model.safetensors"),
            2,
            "VT222",
            ("is a drafter",),
            downloads=("config.json",),
        ),
        "pickled": Case(
            FakeModel({"config.json": tiny["config.json"], "pytorch_model.bin": b"data"}),
            2,
            "VT222",
            ("org/pickled has only pickled weights (pytorch_model.bin)",),
            downloads=("config.json",),
        ),
        "ggufs": Case(FakeModel({"m.gguf": b"GGUF"}), 2, "VT222", ("org/ggufs/m.gguf is a GGUF checkpoint",)),
        "adapter": Case(
            FakeModel({"adapter_config.json": b"{}", "adapter_model.safetensors": b"data"}),
            2,
            "VT222",
            ("org/adapter is an adapter (adapter_config.json",),
        ),
        "commit": Case(
            FakeModel(whole, claimed_info={"sha": "../../../../outside"}),
            3,
            "VT304",
            ("does not answer as a hub does", "it gives the commit as '../../../../outside'"),
        ),
        "header": Case(
            FakeModel(whole, claimed_commit="../../../../outside"),
            3,
            "VT304",
            ("does not answer as a hub does", "config.json: "),
        ),
        "malformed": Case(
            FakeModel(whole, claimed_info={"siblings": [3]}),
            3,
            "VT304",
            ("does not answer as a hub does", "its list of files is malformed"),
        ),
        "names": Case(
            FakeModel(
                {"config.json": tiny["config.json"]},
                claimed_info={
                    "siblings": [
                        {"rfilename": name}
                        for name in ("config.json", "..\\x.safetensors", "\0.safetensors", "../x.safetensors")
                    ]
                },
            ),
            2,
            "VT229",
            ("org/names has config.json but no *.safetensors",),
            downloads=("config.json",),
        ),
        "shard": Case(
            FakeModel({**whole, index: b'{"weight_map": {"a": "tokenizer.json"}}'}),
            2,
            "VT220",
            ("tensor a must name a *.safetensors file of the same folder, found 'tokenizer.json'",),
            downloads=(*small, index),
        ),
        "nothing": Case(FakeModel({"README.md": b""}), 2, "VT220", ("org/nothing has no config.json",)),
    }


@frozen
class Outcome:
    """What a case's command left, and what it fetched."""

    done: Done
    downloads: tuple[str, ...]


NAMES = tuple(cases(dict.fromkeys(("config.json", "model-00002-of-00002.safetensors"), b"")))


@pytest.fixture(scope="module")
def outcomes(
    checkpoint_files: Mapping[str, bytes],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Outcome]:
    home = tmp_path_factory.mktemp("refusals")
    (home / "a-file").write_text("")
    table = cases(checkpoint_files)
    with running_hub() as hub:
        hub.models.update({f"org/{name}": case.model for name, case in table.items() if case.model})
        commands = [["pull", f"org/{name}", *case.flags] for name, case in table.items()]
        found = Shell(home, hub.url).run_many(commands)
        fetched = [
            request for request in hub.requests if request.startswith("GET ") and "/resolve/" in request
        ]
    return {
        name: Outcome(
            done,
            tuple(r.split("/resolve/")[1].split("/", 1)[1] for r in fetched if f"/org/{name}/" in r),
        )
        for name, done in zip(table, found, strict=True)
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_refusal_has_its_sentence_and_exit_code_and_costs_no_more_than_it_must(
    name: str, outcomes: Mapping[str, Outcome], checkpoint_files: Mapping[str, bytes]
) -> None:
    case, outcome = cases(checkpoint_files)[name], outcomes[name]
    assert (outcome.done.code, outcome.done.out) == (case.exit_code, "")
    lines = outcome.done.err.splitlines()
    [line] = [line for line in lines if line.startswith("error[")]
    assert line.startswith(f"error[{case.code}]: ")
    position = 0
    for part in case.message:
        assert part in line[position:], line
        position = line.index(part, position) + len(part)
    assert "Traceback" not in outcome.done.err
    assert sorted(outcome.downloads) == sorted(case.downloads)


def test_a_wrong_token_is_named_as_the_cause(checkpoint_files: Mapping[str, bytes], tmp_path: Path) -> None:
    with running_hub() as hub:
        hub.models["org/tiny"] = FakeModel(dict(checkpoint_files), token="hf_right")
        shell = Shell(tmp_path, hub.url)
        done = shell.run("pull", "org/tiny", HF_TOKEN="hf_wrong", VTCORE_PLUGINS="")
    assert done.code == 3
    assert done.err.startswith(
        f"error[VT301]: {hub.url} refuses the token that was sent for org/tiny (status 401)"
    )
