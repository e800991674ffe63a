"""Keeps secrets out of what is shown: errors, logs and notes; never prompts or answers.

```
text of a worker ── redacted(text) ──> the same with *** for each secret
```

A secret is the value of a variable whose name says so (`HF_TOKEN`, `…_API_KEY`, `…PASSWORD`), the
token that `hf auth login` stored, whatever looks like a token of the hub, and a password within
an address. Shared by kernel and worker; imports nothing of the package.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MASK = "***"
LONGEST = 4096  # characters of a secret; who shows a part of a text reads so many more before it

_NAMES = re.compile(
    r"(TOKEN|API_?KEY|ACCESS_KEY|SECRET_KEY|KAGGLE_KEY|PASSWORD|PASSWD|SECRET|CREDENTIALS?)$", re.I
)
_SHORTEST = 8  # characters; a shorter value stands in too many words
_HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}")
_ADDRESS = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@:'\"]*:[^\s/@'\"]+@", re.I)


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
    return sorted(found, key=len, reverse=True)


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
