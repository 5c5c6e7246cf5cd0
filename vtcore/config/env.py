"""The only reader of environment variables.

Does not: apply what it reads; the values travel as data from here on.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from attrs import asdict, evolve, field, fields, frozen

from vtcore.config.options import REFERENCE, UserOptions
from vtcore.errors import ConfigError
from vtcore.suggest import did_you_mean

PREFIX = "VTCORE_"
"""Every variable that begins so is vtcore's and must be known."""

OPTION_VARIABLES: Mapping[str, str] = {
    PREFIX + option.name.upper(): option.name for option in fields(UserOptions)
}
"""Variable -> the option that it sets where nothing else does."""

OWN_NAMES: tuple[str, ...] = ("VTCORE_PLUGINS", "VTCORE_PLUGINS_BLOCK", "VTCORE_CACHE_DIR")
"""Variables of vtcore's own that are no option."""

SEED_NAMES: tuple[str, ...] = ("VT_ASYNC_RUNNER", "VT_ASYNC_SCHED", "VT_ENABLE_JUMP_FORWARD")
"""Switches that vllm.cpp has too. Others of its prefix `VT_` are left alone: they are not vtcore's."""

HASH_SEED_NAMES: tuple[str, ...] = (
    "VTCORE_PREFIX_CACHING_HASH_SEED",
    "VLLM_PREFIX_CACHING_HASH_SEED",
    "PYTHONHASHSEED",
)
"""Where the hash seed may come from; the first that is set wins. Source: vllm.cpp model_loader.h,
EnsureNoneHash; the first name is vtcore's own."""

NAMES: tuple[str, ...] = (*OWN_NAMES, *OPTION_VARIABLES)
"""The variables of vtcore's prefix; docs/configuration.md says what each means."""

RANDOM = "random"
"""As a hash seed: 32 random bytes, so that no other process shares the hashes."""


def default_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where vtcore keeps compiled kernels and the like, unless VTCORE_CACHE_DIR says otherwise.

    Source: XDG Base Directory Specification, XDG_CACHE_HOME: a relative path counts as unset.
    """
    xdg = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(xdg):
        return Path(xdg) / "vtcore"
    home = environ.get("HOME") or os.path.expanduser("~")
    return Path(home).absolute() / ".cache" / "vtcore"


@frozen(kw_only=True)
class Environment:
    """What the environment said.

    Args:
        plugins: Entry-point names that may load; None (unset) allows all, () (set but empty) none.
        plugins_block: Entry-point names that are not loaded.
        cache_dir: Absolute; it need not exist.
        options: Option -> text of its variable, unread; variables that are empty count as unset.
        prefix_caching_hash_seed: Text that seeds the root of the block-hash chain, so that processes agree;
            None (unset or empty) leaves it to the core.
        prefix_caching_hash_seed_from: The variable that said so.
        random_hash_seed: Hex of 32 random bytes, drawn while reading, for whoever asked for `random`. It
            travels with the rest, so that a child process hashes alike.
        async_runner, async_sched, jump_forward: Texts of `SEED_NAMES`, None where unset; empty is not unset.
        gpus_hidden: Whether CUDA_VISIBLE_DEVICES hides every GPU.
    """

    plugins: tuple[str, ...] | None = None
    plugins_block: tuple[str, ...] = ()
    cache_dir: Path = field(factory=default_cache_dir)
    options: Mapping[str, str] = field(factory=dict)
    prefix_caching_hash_seed: str | None = None
    prefix_caching_hash_seed_from: str = HASH_SEED_NAMES[0]
    random_hash_seed: str = field(factory=lambda: secrets.token_hex(32), eq=False, repr=False)
    async_runner: str | None = None
    async_sched: str | None = None
    jump_forward: str | None = None
    gpus_hidden: bool = False

    def to_json(self) -> dict[str, Any]:
        """The values as JSON types, for another process."""
        return {**asdict(self), "cache_dir": str(self.cache_dir)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Environment:
        """The inverse of `to_json`."""
        plugins = data["plugins"]
        return cls(
            **{
                **data,
                "plugins": None if plugins is None else tuple(plugins),
                "plugins_block": tuple(data["plugins_block"]),
                "cache_dir": Path(data["cache_dir"]),
            }
        )


def read_option_texts(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Option -> text of its variable, unread; variables that are empty count as unset. Never raises."""
    return {option: environ[name] for name, option in OPTION_VARIABLES.items() if environ.get(name)}


def read_environment(environ: Mapping[str, str] = os.environ) -> Environment:
    """Read vtcore's variables, and those of others that it honours.

    Args:
        environ: Where to look.

    Raises:
        ConfigError: A variable of vtcore's prefix is unknown, a list has an empty or repeated item, or a
            directory's `~` has no meaning. What options' variables say is read by `gather_options`.
    """
    problems = [
        f"{name}: no such environment variable{did_you_mean(name, NAMES, see=REFERENCE)}"
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in NAMES
    ]
    lists: dict[str, tuple[str, ...] | None] = {}
    for name in ("VTCORE_PLUGINS", "VTCORE_PLUGINS_BLOCK"):
        text = environ.get(name)
        items = tuple(item.strip() for item in text.split(",")) if text and text.strip() else ()
        if "" in items or len(set(items)) < len(items):
            problems.append(f"{name}: {text!r} has an empty or repeated item; write names between commas")
        lists[name] = None if text is None else items
    cache_dir = default_cache_dir(environ)
    if environ.get("VTCORE_CACHE_DIR"):
        try:
            cache_dir = Path(environ["VTCORE_CACHE_DIR"]).expanduser().absolute()
        except RuntimeError:
            problems.append(
                f"VTCORE_CACHE_DIR: {environ['VTCORE_CACHE_DIR']!r} names no user's home; write a whole path"
            )
    if problems:
        raise ConfigError(*problems)
    environment = Environment(
        plugins=lists["VTCORE_PLUGINS"],
        plugins_block=lists["VTCORE_PLUGINS_BLOCK"] or (),
        cache_dir=cache_dir,
        options=read_option_texts(environ),
        async_runner=environ.get("VT_ASYNC_RUNNER"),
        async_sched=environ.get("VT_ASYNC_SCHED"),
        jump_forward=environ.get("VT_ENABLE_JUMP_FORWARD"),
        gpus_hidden=_hides_all(environ.get("CUDA_VISIBLE_DEVICES")),
    )
    return _with_hash_seed(environment, environ)


def _with_hash_seed(environment: Environment, environ: Mapping[str, str]) -> Environment:
    for name in HASH_SEED_NAMES:
        text = environ.get(name)
        # Python itself takes "random" as the word for "no fixed seed".
        if not text or (name == "PYTHONHASHSEED" and text == RANDOM):
            continue
        return evolve(environment, prefix_caching_hash_seed=text, prefix_caching_hash_seed_from=name)
    return environment


def _hides_all(text: str | None) -> bool:
    # Source: CUDA C Programming Guide, CUDA_VISIBLE_DEVICES: devices behind an invalid index are invisible.
    return text is not None and text.split(",")[0].strip() in ("", "-1")


@frozen(kw_only=True)
class HostVariables:
    """Variables of other programs that say something about the machine; None where unset or empty.

    Args:
        vtcore_names: Which variables of vtcore's own prefix are set.
        cc: `CC`, the C compiler that Triton calls.
        cuda_visible_devices: `CUDA_VISIBLE_DEVICES`; here "" differs from None (`Environment.gpus_hidden`).
        triton_cache_dir: `TRITON_CACHE_DIR`.
        cache_home: `XDG_CACHE_HOME`.
        hf_home, hf_hub_cache: `HF_HOME`, `HF_HUB_CACHE`.
    """

    vtcore_names: tuple[str, ...] = ()
    cc: str | None = None
    cuda_visible_devices: str | None = None
    triton_cache_dir: str | None = None
    cache_home: str | None = None
    hf_home: str | None = None
    hf_hub_cache: str | None = None


def read_host_variables(environ: Mapping[str, str] = os.environ) -> HostVariables:
    """Read what other programs' variables say of the machine; never raises."""

    def of(name: str) -> str | None:
        return environ.get(name) or None

    return HostVariables(
        vtcore_names=tuple(sorted(name for name in environ if name.startswith(PREFIX))),
        cc=of("CC"),
        cuda_visible_devices=environ.get("CUDA_VISIBLE_DEVICES"),
        triton_cache_dir=of("TRITON_CACHE_DIR"),
        cache_home=of("XDG_CACHE_HOME"),
        hf_home=of("HF_HOME"),
        hf_hub_cache=of("HF_HUB_CACHE") or of("HUGGINGFACE_HUB_CACHE"),
    )


def read_what_can_be_read(environ: Mapping[str, str] = os.environ) -> Environment:
    """As `read_environment`, but if one of vtcore's own variables is wrong, none of them counts."""
    try:
        return read_environment(environ)
    except ConfigError:
        return read_environment({k: v for k, v in environ.items() if not k.startswith(PREFIX)})


def set_triton_cache_dir(folder: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Tell Triton where compiled kernels are kept; a user's own `TRITON_CACHE_DIR` wins."""
    if not environ.get("TRITON_CACHE_DIR"):
        environ["TRITON_CACHE_DIR"] = folder
