"""Where vtcore keeps files that it can make again: compiled kernels and the like.

Does not: hold models; those lie in the Hub's own cache.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from vtcore.config.env import HostVariables, set_triton_cache_dir
from vtcore.errors import HostError

TRITON_FOLDER = "triton"
"""Below the cache directory."""


def prepare_cache_dir(folder: Path) -> None:
    """Create the cache directory, try to write to it, and point Triton below it.

    Args:
        folder: `Environment.cache_dir`.

    Raises:
        HostError: It cannot be created or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A permission bit says little on network and read-only mounts; a written file says all.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as cause:
        raise HostError(
            f"the cache directory {folder} cannot be written: {cause.strerror or cause}; set "
            f"VTCORE_CACHE_DIR to a directory that can"
        ) from cause
    set_triton_cache_dir(str(folder / TRITON_FOLDER))


def resolve_hub_cache(variables: HostVariables) -> Path:
    """Find the directory of downloaded models. Source: huggingface_hub, Environment variables."""
    if variables.hf_hub_cache:
        return Path(variables.hf_hub_cache).expanduser()
    if variables.hf_home:
        return Path(variables.hf_home).expanduser() / "hub"
    home = Path(variables.cache_home) if variables.cache_home else Path.home() / ".cache"
    return home / "huggingface" / "hub"
