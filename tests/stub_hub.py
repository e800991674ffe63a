"""A hub of models on this machine, which counts what is fetched from it.

```
with StubHub({"owner/name": directory}) as hub:
    HF_ENDPOINT=hub.url  ──  /api/models/owner/name, .../tree, /owner/name/resolve/REVISION/FILE
```

It can be slow, break off in the middle of a file, refuse files, and ask for a token.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROUTE = re.compile(
    r"(/api/models)?/(?P<model>[^/]+/[^/]+)(/(?P<what>revision|tree|resolve)/(?P<revision>[^/]+))?"
    r"(/(?P<file>.+))?$"
)
_PIECES = 20


class StubHub:
    """A server, from `with` to its end.

    Args:
        models: Directories by model id.
        token: What a request must bring along.
        gated: Whether even this token has no access.
        seconds: That a file takes at least.

    Attributes:
        fetched: How often each file was fetched, whole or in part, as `"owner/name/file"`.
        asked: Requests of any kind.
        breaks: Files that break off in their middle so many times more.
        refused: Files that are answered with this status.
    """

    def __init__(
        self,
        models: Mapping[str, str | Path],
        *,
        token: str | None = None,
        gated: bool = False,
        seconds: float = 0.0,
    ) -> None:
        self.models = {name: Path(path) for name, path in models.items()}
        self.token = token
        self.gated = gated
        self.seconds = seconds
        self.fetched: Counter[str] = Counter()
        self.asked = 0
        self.breaks: Counter[str] = Counter()
        self.refused: dict[str, int] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        """For `HF_ENDPOINT`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> StubHub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub._answer(self)

            do_HEAD = do_GET  # noqa: N815  # the server's name for it

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _answer(self, to: BaseHTTPRequestHandler) -> None:
        self.asked += 1
        route = _ROUTE.match(unquote(urlsplit(to.path).path))
        directory = route and self.models.get(route["model"])
        if self.token and to.headers["Authorization"] != f"Bearer {self.token}":
            _send(to, 401, {}, b"", "GatedRepo" if self.gated else "RepoNotFound")
        elif self.gated:
            _send(to, 403, {}, b"", "GatedRepo")
        elif not route or not directory:
            _send(to, 404, {}, b"", "RepoNotFound")
        elif route["what"] == "resolve":
            self._send_file(to, route["model"], directory, route["file"])
        else:
            _send(to, 200, {}, json.dumps(_listing(route["model"], directory, route["what"])))

    def _send_file(
        self, to: BaseHTTPRequestHandler, model: str, directory: Path, file: str
    ) -> None:
        path = directory / file
        if not path.is_file():
            _send(to, 404, {}, b"", "EntryNotFound")
            return
        key, data = f"{model}/{file}", path.read_bytes()
        if key in self.refused and to.command == "GET":
            _send(to, self.refused[key], {}, b"")
            return
        marks = {"ETag": f'"{_digest(data)}"', "X-Repo-Commit": _commit(directory)}
        begin = re.match(r"bytes=(\d+)-", to.headers.get("Range", ""))
        start = int(begin[1]) if begin else 0
        if begin:
            marks["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if to.command == "HEAD":
            _send(to, 200, marks, data)
            return
        self.fetched[key] += 1
        broken = self.breaks[key] > 0
        self.breaks[key] -= broken
        _send(to, 206 if begin else 200, marks, data[start:], pause=self.seconds, cut=broken)


def _listing(model: str, directory: Path, what: str | None) -> Any:
    files = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    if what == "tree":
        return [
            {"type": "file", "path": name, "size": len(data), "oid": _digest(data)}
            for name, data in files.items()
        ]
    siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
    return {"id": model, "modelId": model, "sha": _commit(directory), "siblings": siblings}


def _send(
    to: BaseHTTPRequestHandler,
    status: int,
    headers: Mapping[str, str],
    body: bytes | str,
    error: str | None = None,
    *,
    pause: float = 0.0,
    cut: bool = False,
) -> None:
    data = body.encode() if isinstance(body, str) else body
    to.send_response(status)
    for name, value in {**headers, "Content-Length": str(len(data))}.items():
        to.send_header(name, value)
    if error:
        to.send_header("X-Error-Code", error)
    to.end_headers()
    if to.command == "HEAD":
        return
    size = max(1, -(-len(data) // _PIECES))
    for begin in range(0, len(data) // 2 if cut else len(data), size):
        to.wfile.write(data[begin : begin + size])
        time.sleep(pause / _PIECES)
    to.close_connection |= cut


def _digest(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _commit(directory: Path) -> str:
    names = sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))
    return _digest(json.dumps(names).encode())
