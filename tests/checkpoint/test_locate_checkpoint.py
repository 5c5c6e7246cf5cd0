"""What MODEL means: a directory, a source's name or URI, or an id for the source that serves bare ids."""

from __future__ import annotations

import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vtcore.checkpoint.locate import locate_checkpoint
from vtcore.errors import (
    CheckpointError,
    ConfigError,
    DuplicateNameError,
    ModelNotFoundError,
    PluginError,
    UnsupportedArchError,
    UnsupportedFeatureError,
)
from vtcore.interfaces.checkpoint_source import FetchRequest
from vtcore.plugins import build_registry
from vtcore.registry import PluginRegistry

SOURCE = """
from pathlib import Path
from vtcore import hookimpl
from vtcore.errors import ModelNotFoundError
from vtcore.interfaces.checkpoint_source import CheckpointSource
from vtcore.interfaces.registry_entries import ArchEntry, CheckpointSourceEntry

VTCORE_API = {"archs": "0.1", "checkpoint_sources": "0.1"}
REQUESTS, ANSWERS = [], []

class Source(CheckpointSource):
    def fetch(self, request):
        REQUESTS.append(request)
        answer = ANSWERS[-1] if ANSWERS else ModelNotFoundError("no " + request.model)
        if isinstance(answer, Exception):
            raise answer
        return answer

@hookimpl
def vtcore_register_checkpoint_sources():
    return [CheckpointSourceEntry(name="NAME", implementation=__name__ + ":Source", serves_bare_ids=BARE)]
"""
ARCH = """
@hookimpl
def vtcore_register_archs():
    return [ArchEntry(name="a", model_types=["served"], implementation=__name__ + ":Arch")]
"""

Make = Callable[..., ModuleType]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes a plugin module with one source; its requests and answers are lists of the module."""
    made: list[str] = []

    def build(name: str = "shelf", bare: bool = False, more: str = "") -> ModuleType:
        module = ModuleType(f"source_{uuid.uuid4().hex}")
        text = SOURCE.replace("NAME", name).replace("BARE", str(bare)) + more
        exec(textwrap.dedent(text), module.__dict__)
        sys.modules[module.__name__] = module
        made.append(module.__name__)
        return module

    yield build
    for name in made:
        del sys.modules[name]


def registry_of(*modules: ModuleType, **options: Any) -> PluginRegistry:
    return build_registry(extra=modules, entry_points=False, **options)


def owning(module: ModuleType) -> PluginRegistry:
    """`module` serves bare ids, not the built-in source."""
    return registry_of(module, owners={"capability:serves_bare_ids": module.__name__})


@pytest.mark.parametrize(
    "form", ["{path}", "{path}/", "./{name}", "{name}", "../{parent}/{name}", "~/{name}"]
)
def test_a_directory_wins_in_every_form_and_asks_no_source(
    form: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = make("shelf", bare=True)
    (tmp_path / "shelf").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    model = form.format(path=tmp_path / "shelf", name="shelf", parent=tmp_path.name)
    assert locate_checkpoint(model, owning(module)).resolve() == (tmp_path / "shelf").resolve()
    assert module.REQUESTS == []


def test_a_revision_of_a_local_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\$\.revision: .* is a local directory, which has no revisions"):
        locate_checkpoint(str(tmp_path), registry_of(), revision="main")


@pytest.mark.parametrize(("model", "rest"), [("shelf", ""), ("shelf://", ""), ("shelf://a/b c?d", "a/b c?d")])
def test_a_sources_name_and_uri_reach_it(model: str, rest: str, make: Make, tmp_path: Path) -> None:
    module = make()
    module.ANSWERS.append(tmp_path)
    found = locate_checkpoint(
        model, registry_of(module), revision="r", download_dir="d", only_configs=True, show_progress=False
    )
    assert found == tmp_path
    [request] = module.REQUESTS
    assert request == FetchRequest(
        model=rest, revision="r", download_dir=Path("d"), only_configs=True, show_progress=False
    )


@pytest.mark.parametrize("model", ["org/name", "name", "Org-1/Name_2.5-B", "shelves"])
def test_an_id_goes_to_the_source_that_serves_bare_ids(model: str, make: Make, tmp_path: Path) -> None:
    module = make(bare=True)
    module.ANSWERS.append(tmp_path)
    assert locate_checkpoint(model, owning(module)) == tmp_path
    assert [request.model for request in module.REQUESTS] == [model]


def test_the_built_in_source_serves_bare_ids_unless_another_is_picked(make: Make) -> None:
    module = make(bare=True)
    assert registry_of().bare_id_source == "hub"
    assert registry_of(make("quiet")).bare_id_source == "hub"
    assert owning(module).bare_id_source == "shelf"
    with pytest.raises(
        DuplicateNameError, match=r"capability 'serves_bare_ids' is claimed by vtcore .* and by"
    ):
        registry_of(module)


@pytest.mark.parametrize(
    "model", ["./modle", "../x/y", "/nowhere/at/all", "~/modle", "a/b/c", "modle/", "a b"]
)
def test_what_looks_like_a_path_and_is_not_there_never_reaches_a_source(
    model: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = make(bare=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="does not exist: there is no "):
        locate_checkpoint(model, owning(module))
    assert module.REQUESTS == []


def test_a_mistyped_path_names_the_part_that_is_wrong_and_a_close_one(tmp_path: Path) -> None:
    (tmp_path / "models" / "qwen").mkdir(parents=True)
    with pytest.raises(ModelNotFoundError, match=rf"no modles in {tmp_path}; did you mean 'models'\?"):
        locate_checkpoint(str(tmp_path / "modles" / "qwen"), registry_of())
    with pytest.raises(ModelNotFoundError, match=r"no qwne in .*/models; did you mean 'qwen'\?"):
        locate_checkpoint(str(tmp_path / "models" / "qwne"), registry_of())


def test_an_unknown_id_may_be_a_mistyped_directory(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = make(bare=True)
    (tmp_path / "qwen").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"no qwem; there is no local .* did you mean 'qwen'\?"):
        locate_checkpoint("qwem", owning(module))
    with pytest.raises(ModelNotFoundError) as caught:
        locate_checkpoint("shelf://qwem", owning(module))
    assert str(caught.value) == "no qwem"


def test_files_keep_their_own_sentences(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="is a file; give the directory"):
        locate_checkpoint(str(tmp_path / "model.safetensors"), registry_of())
    for model in (str(tmp_path / "m.gguf"), "m.gguf"):
        with pytest.raises(UnsupportedFeatureError, match="GGUF"):
            locate_checkpoint(model, registry_of())


def test_unknown_sources_and_urls_are_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint source 'shlef' .*; did you mean 'shelf'\?"):
        locate_checkpoint("shlef://x", registry_of(make()))
    with pytest.raises(ConfigError, match="is a URL, which is not fetched; give the model's id"):
        locate_checkpoint("https://hub.example/org/name", registry_of())
    with pytest.raises(ConfigError, match="the text is empty"):
        locate_checkpoint("", registry_of())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ValueError("oops"), "fetch failed: ValueError: oops"),
        ("text", "fetch returned 'text', which is no Path of a directory"),
        (Path("/nowhere/at/all"), "which is no Path of a directory"),
        (None, "fetch returned None"),
    ],
)
def test_a_source_that_misbehaves_is_named(answer: Any, message: str, make: Make) -> None:
    module = make()
    module.ANSWERS.append(answer)
    with pytest.raises(PluginError, match=rf"checkpoint source shelf .*{message}"):
        locate_checkpoint("shelf", registry_of(module))


def test_what_no_arch_serves_is_refused_before_its_weights_are_asked_for(make: Make, tmp_path: Path) -> None:
    module = make(more=ARCH)
    module.ANSWERS.append(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "other"}')
    with pytest.raises(UnsupportedArchError, match="'other'"):
        locate_checkpoint("shelf", registry_of(module))
    assert [request.only_configs for request in module.REQUESTS] == [True]
    assert locate_checkpoint("shelf", registry_of(module), only_configs=True) == tmp_path
