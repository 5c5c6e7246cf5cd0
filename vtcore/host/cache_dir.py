"""Where vtcore keeps files that it can make again: compiled kernels and the like.

Does not: hold models; those lie in the Hub's own cache.
"""

from __future__ import annotations

import os
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
    _try_to_write(folder, "cache directory", "VTCORE_CACHE_DIR")
    set_triton_cache_dir(str(folder / TRITON_FOLDER))


def check_kernel_folder(folder: Path) -> None:
    """Create the folder that Triton will use, which may be the user's own, and try to write to it.

    Raises:
        HostError: It cannot be created or written.
    """
    _try_to_write(folder, "folder of compiled kernels", "TRITON_CACHE_DIR")


def _try_to_write(folder: Path, what: str, variable: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A permission bit says little on network and read-only mounts; a written file says all.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as cause:
        raise HostError(
            f"the {what} {folder} cannot be written: {cause.strerror or cause}; set {variable} to a "
            f"directory that can"
        ) from cause


def resolve_hub_cache(variables: HostVariables) -> Path:
    """Find the directory of downloaded models. Source: huggingface_hub, constants.py.

    As there, a `~` that names no user and a variable that is not set stay as they are written.
    """
    cache_home = variables.cache_home or os.path.join("~", ".cache")
    home = variables.hf_home or os.path.join(cache_home, "huggingface")
    cache = variables.hf_hub_cache or os.path.join(home, "hub")
    return Path(os.path.expandvars(os.path.expanduser(cache)))
