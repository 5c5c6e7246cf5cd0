"""A small hub on loopback that speaks what huggingface_hub needs to list and download a model.

Does not: store by content, speak Xet, or check more of a request than its path and token.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

from attrs import define, field

_INFO = re.compile(r"/api/models/(?P<model>[^/]+/[^/]+)(/revision/(?P<revision>.+))?")
_FILE = re.compile(r"/(?P<model>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")


def commit_of(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha1()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + files[name])
    return digest.hexdigest()


def etag_of(content: bytes) -> str:
    """Every file is one of git-lfs here."""
    return hashlib.sha256(content).hexdigest()


@define
class FakeModel:
    """One model.

    Args:
        files: Path -> content, on `main`.
        branches: Further revisions, name -> files.
        token: Files are given only to who sends it; None gives them to all.
        status: Every request about it is answered so; 0 answers properly. 200 sends a page of HTML.
        claimed_sizes: Sizes that the listing and HEAD tell instead of the real ones.
        claimed_info: What the listing says instead of the truth.
        claimed_commit: What a file's header says instead of the commit.
        cut: File -> bytes after which the connection is cut, once.
        stall: File -> bytes after which nothing more comes until the hub stops.
    """

    files: dict[str, bytes]
    branches: dict[str, dict[str, bytes]] = field(factory=dict)
    token: str | None = None
    status: int = 0
    claimed_sizes: dict[str, int] = field(factory=dict)
    claimed_info: dict[str, Any] = field(factory=dict)
    claimed_commit: str = ""
    cut: dict[str, int] = field(factory=dict)
    stall: dict[str, int] = field(factory=dict)

    def revision(self, name: str) -> dict[str, bytes] | None:
        """The files of a branch or commit."""
        everything = {"main": self.files, **self.branches}
        return {**everything, **{commit_of(files): files for files in everything.values()}}.get(name)


@define
class FakeHub:
    """Models by id, and what was asked.

    Args:
        url: Value for HF_ENDPOINT.
        requests: "GET /path" and so on, in order; a range is appended.
    """

    url: str
    models: dict[str, FakeModel] = field(factory=dict)
    requests: list[str] = field(factory=list)
    stopping: Event = field(factory=Event)
    stalled: Event = field(factory=Event)

    def downloads(self) -> list[str]:
        """Names of files whose content was asked for, since the last call."""
        found = [
            request for request in self.requests if request.startswith("GET ") and "/resolve/" in request
        ]
        self.requests.clear()
        return [request.split("/resolve/")[1].split("/", 1)[1] for request in found]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, *args: Any) -> None:
        """Requests are kept as data instead."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        byte_range = self.headers.get("Range", "")
        self.hub.requests.append(f"{self.command} {path} {byte_range}".strip())
        found = _INFO.fullmatch(path) or _FILE.fullmatch(path)
        model = self.hub.models.get(found["model"]) if found else None
        if found is None or model is None:
            return self._send(401, code="RepoNotFound")
        if model.status:
            return self._send(model.status, b"<html>sign in to the network</html>")
        files = model.revision(found["revision"] or "main")
        if files is None:
            return self._send(404, code="RevisionNotFound")
        if "file" not in found.groupdict():
            return self._send_info(found["model"], model, files)
        if self.headers.get("Authorization") not in (None, f"Bearer {model.token}"):
            return self._send(401)
        if model.token is not None and self.headers.get("Authorization") is None:
            return self._send(401, code="GatedRepo")
        if found["file"] not in files:
            return self._send(404, code="EntryNotFound")
        return self._send_file(model, files, found["file"], byte_range)

    def _send_info(self, name: str, model: FakeModel, files: Mapping[str, bytes]) -> None:
        siblings = [
            {
                "rfilename": file,
                "size": model.claimed_sizes.get(file, len(content)),
                "lfs": {"size": len(content), "sha256": etag_of(content), "pointerSize": 1},
            }
            for file, content in files.items()
        ]
        info = {"_id": "0", "id": name, "sha": commit_of(files), "siblings": siblings, **model.claimed_info}
        self._send(200, json.dumps(info).encode())

    def _send_file(self, model: FakeModel, files: Mapping[str, bytes], file: str, byte_range: str) -> None:
        content = files[file]
        headers = {
            "ETag": f'"{etag_of(content)}"',
            "X-Repo-Commit": model.claimed_commit or commit_of(files),
            "Accept-Ranges": "bytes",
        }
        if self.command == "HEAD":
            size = model.claimed_sizes.get(file, len(content))
            return self._send(200, headers={**headers, "Content-Length": str(size)})
        start = int(byte_range.removeprefix("bytes=").rstrip("-") or 0)
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if file in model.stall or file in model.cut:
            self._send_part(content, start, headers, model, file)
        else:
            self._send(206 if start else 200, content[start:], headers=headers)

    def _send_part(
        self, content: bytes, start: int, headers: Mapping[str, str], model: FakeModel, file: str
    ) -> None:
        """Promise everything, give a part, and then go away or give nothing more."""
        self.send_response(206 if start else 200)
        for name, value in {**headers, "Content-Length": str(len(content) - start)}.items():
            self.send_header(name, value)
        self.end_headers()
        length = model.stall[file] if file in model.stall else model.cut.pop(file)
        self.wfile.write(content[start : start + length])
        self.wfile.flush()
        if file in model.stall:
            self.hub.stalled.set()
            self.hub.stopping.wait()
        self.close_connection = True

    def _send(
        self, status: int, body: bytes = b"", code: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        given = {"Content-Length": str(len(body)), **(headers or {})}
        if code:
            given["X-Error-Code"] = code
        for name, value in given.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    """A hub on a free port of loopback, stopped at the end with all its connections."""

    class Handler(_Handler):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # Idle connections of clients that were killed must not hold up the end.
    server.daemon_threads = True
    server.block_on_close = False
    hub = FakeHub(f"http://127.0.0.1:{server.server_port}")
    Handler.hub = hub
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()
