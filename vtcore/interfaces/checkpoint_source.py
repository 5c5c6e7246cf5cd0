"""The contract of a checkpoint source: from what MODEL says to a directory in the published form.

Does not: decide which source is asked (`vtcore.checkpoint.locate` does) or read weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from attrs import frozen


@frozen(kw_only=True)
class FetchRequest:
    """What is to be fetched.

    Args:
        model: MODEL without the source's name: all of it when the source serves bare ids, what follows
            `NAME://` otherwise, and empty when MODEL is the name alone.
        revision: Version of the model, in the source's own terms; None is its default.
        download_dir: Where downloads are kept; None is the source's default.
        only_configs: The weights may be left out; all small files must be there.
        show_progress: Lines and bars about the download may go to stderr. stdout is never written to.
    """

    model: str
    revision: str | None = None
    download_dir: Path | None = None
    only_configs: bool = False
    show_progress: bool = True


class CheckpointSource(ABC):
    """Makes a local directory of a model; made without arguments, one object per MODEL.

    `fetch` is called once or twice: with `only_configs`, so that what cannot be served is refused before its
    weights cross the network, and then without.
    """

    @abstractmethod
    def fetch(self, request: FetchRequest) -> Path:
        """Make sure that the files are on this machine.

        What an earlier, broken-off call has fetched is not fetched again. Ctrl-C may stop it at any time.

        Returns:
            An existing directory with config.json, tokenizer files and, unless `only_configs`, *.safetensors.

        Raises:
            VtcoreError: It cannot; the sentence names the model, the reason and the remedy.
        """
