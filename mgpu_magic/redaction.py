"""Keeps secrets out of what is shown: errors, logs and notes; never prompts or answers.

```
text of a worker ── redacted(text) ──> the same with *** for each secret
```

A secret is the value of a variable whose name says so (`HF_TOKEN`, `…_KEY`, `…PASSWORD`), as it is
or as `repr`, JSON and addresses write it, the token that `hf auth login` stored, whatever looks
like a token of the hub, and who one is within an address. Shared by kernel and worker; imports
nothing of the package.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

MASK = "***"
LONGEST = 4096  # characters of a secret; who shows a part of a text reads so many more before it

_NAMES = re.compile(
    r"(TOKEN|APIKEY|(^|_)(KEY|PAT|PASS)|_PWD|PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIALS?)$", re.I
)
_SHORTEST = 8  # characters; a shorter value stands in too many words
_HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}")
# Up to the last "@" of a word: a password may hold "/" and "@". A short name alone is none (git@).
_ADDRESS = re.compile(
    r"(\b[a-z][a-z0-9+.-]{0,30}://)(?:[^\s/@:'\"]{0,300}:[^\s'\"]{1,300}|[^\s/@:'\"]{8,300})@", re.I
)


def redacted(text: str, environ: Mapping[str, str] | None = None) -> str:
    """The text with a mask in place of each secret.

    Args:
        text: What is to be shown.
        environ: Variables, whose secrets are meant; None: those of this process.
    """
    for secret in _secrets(os.environ if environ is None else environ):
        if secret in text:
            text = text.replace(secret, f"hf_{MASK}" if secret.startswith("hf_") else MASK)
    text = _HUB_TOKEN.sub(f"hf_{MASK}", text)
    return _ADDRESS.sub(rf"\1{MASK}@", text)


def _secrets(environ: Mapping[str, str]) -> list[str]:
    """What must not be shown, the longest first: one may be part of another."""
    named = [value.strip() for name, value in environ.items() if _NAMES.search(name)]
    found = {value for value in (*named, _stored(environ)) if len(value) >= _SHORTEST}
    return sorted({form for value in found for form in _forms(value)}, key=len, reverse=True)


def _forms(secret: str) -> set[str]:
    """The secret, and what becomes of it within `repr` (of a `repr`), JSON and an address."""
    if secret.isalnum() and secret.isascii():
        return {secret}
    forms = {secret}
    for _ in range(2):
        for form in tuple(forms):
            forms |= {repr(form)[1:-1], repr(form + "'\"")[1:-4], json.dumps(form)[1:-1]}
    for kept in ("", "/"):
        quoted = quote(secret.encode("utf-8", "surrogateescape"), safe=kept)
        forms |= {quoted, re.sub(r"%..", lambda code: code[0].lower(), quoted)}
        forms.add(quoted.replace("%20", "+"))
    return forms


def _stored(environ: Mapping[str, str]) -> str:
    """The token that `hf auth login` stored; empty if there is none."""
    home = environ.get("HF_HOME") or os.path.join(
        environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME", "~"), ".cache"),
        "huggingface",
    )
    path = Path(environ.get("HF_TOKEN_PATH") or os.path.join(home, "token"))
    try:
        return path.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError):  # there is none
        return ""
