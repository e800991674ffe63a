"""What is never shown, whatever a library puts into its errors and logs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

import pytest
from fakes import completion

from mgpu_magic.launchers.process import log_tail
from mgpu_magic.messages import Fatal, Outcomes, decode_event, encode
from mgpu_magic.outcomes import Failure, RemoteError
from mgpu_magic.redaction import redacted

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "hf_" + "aB3" * 11
NOWHERE = {"HF_TOKEN_PATH": "/nowhere"}


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "WANDB_APIKEY", "KAGGLE_KEY",
        "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "CLIENT_SECRET", "JPY_API_TOKEN", "OPENAI_KEY",
        "GITHUB_PAT", "openai_key", "KEY", "DB_PASS", "MYSQL_PWD", "GPG_PASSPHRASE",
    ],
)  # fmt: skip
def test_the_value_of_a_variable_that_says_secret(name: str) -> None:
    """It is masked wherever it stands, as often as it stands."""
    environ = {name: "s3cr3t-value", **NOWHERE}
    assert redacted("as3cr3t-valueb s3cr3t-value", environ) == "a***b ***"


@pytest.mark.parametrize(
    "environ",
    [
        {"TOKENIZERS_PARALLELISM": "falsehood"},
        {"HF_TOKEN": ""},
        {"HF_TOKEN": "short"},
        {"MAX_TOKENS": "123456789"},
        {"PATH": "falsehood", "PWD": "falsehood", "MONKEY": "falsehood", "COMPASS": "falsehood"},
        {},
    ],
)
def test_what_is_no_secret_stays(environ: dict[str, str]) -> None:
    """Other variables, values that stand in many words, and words that look a little alike."""
    text = (
        "falsehood short 123456789 hf_hub_download hf_123 https://host:80/a a:b@c "
        "ssh://git@host/x https://host/longer-name@1.0 'http://host:80','a@b'"
    )
    assert redacted(text, {**environ, **NOWHERE}) == text


def test_a_token_that_no_variable_holds() -> None:
    """A token of the hub is known by its form, a password by its place in an address."""
    assert redacted(f"Bearer {TOKEN}.", NOWHERE) == "Bearer hf_***."
    text = "via http://me:pa55@proxy:3128/x and https://:key@host"
    assert redacted(text, NOWHERE) == "via http://***@proxy:3128/x and https://***@host"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://ghp_0123456789@github.com/x", "https://***@github.com/x"),
        ("http://me:pa/55@proxy:3128/x", "http://***@proxy:3128/x"),
        ("http://me:p@/55@proxy:3128", "http://***@proxy:3128"),
        ("git+https://me:pa55@host and http://b:c@d", "git+https://***@host and http://***@d"),
    ],
)
def test_who_one_is_within_an_address(text: str, shown: str) -> None:
    """A token alone, a password with any sign in it."""
    assert redacted(text, NOWHERE) == shown


@pytest.mark.parametrize("secret", ['it\'s "so" \\ secret', "ä/b c+d=e&f", "two\nlines of it"])
def test_a_secret_in_another_form(secret: str) -> None:
    """As `repr`, a `repr` of that, JSON and an address write it."""
    forms = [secret, repr(secret), repr([secret, "'"]), repr(repr(secret)), json.dumps(secret)]
    forms += [repr(f"{secret}'\""), quote(secret), quote(secret, safe=""), quote_plus(secret)]
    forms.append(quote(secret, safe="").lower())
    for form in forms:
        shown = redacted(form, {"MY_PASSWORD": secret, **NOWHERE})
        assert "***" in shown
        assert not {"secret", "b", "lines"} & set(re.findall("[a-z]+", shown))


def test_an_error_that_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that the notebook set after the worker began counts; answers stay as they are."""
    told = RemoteError("E", "with key-of-mine", "at key-of-mine")
    answer = completion(1, "key-of-mine")
    sent = [encode(Fatal(told)), encode(Outcomes(1, (Failure(0, told), answer)))]
    monkeypatch.setenv("LATE_API_KEY", "key-of-mine")
    masked = RemoteError("E", "with ***", "at ***")
    assert [decode_event(event) for event in sent] == [
        Fatal(masked),
        Outcomes(1, (Failure(0, masked), answer)),
    ]


def test_one_secret_within_another() -> None:
    """No end of the longer one is left over."""
    environ = {"A_TOKEN": "12345678", "B_TOKEN": "12345678-the-rest", **NOWHERE}
    assert redacted("12345678-the-rest 12345678", environ) == "*** ***"


@pytest.mark.parametrize("variable", ["HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME", "HOME"])
def test_the_token_of_a_login(tmp_path: Path, variable: str) -> None:
    """It lies in a file, which the same variables move as for the hub's own library."""
    places = {
        "HF_TOKEN_PATH": "token",
        "HF_HOME": "token",
        "XDG_CACHE_HOME": "huggingface/token",
        "HOME": ".cache/huggingface/token",
    }
    file = tmp_path / places[variable]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("of-my-login\n")
    path = file if variable == "HF_TOKEN_PATH" else tmp_path
    assert redacted("(of-my-login)", {variable: str(path)}) == "(***)"


def test_an_error_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its message nor its traceback, with the errors that led to it, holds the secret."""
    monkeypatch.setenv("MY_API_KEY", "key-of-mine")
    try:
        try:
            raise ValueError("key-of-mine")
        except ValueError as cause:
            raise RuntimeError(f"refused {TOKEN}") from cause
    except RuntimeError as error:
        told = RemoteError.of(error)
    assert told.message == "refused hf_***"
    assert "ValueError: ***" in told.traceback
    assert "RuntimeError: refused hf_***" in told.traceback
    assert "key-of-mine" not in told.traceback


@pytest.mark.parametrize("lines", [0, 1, 30])
@pytest.mark.parametrize("size", [20, 100, 1000])
def test_the_end_of_a_log(tmp_path: Path, lines: int, size: int) -> None:
    """A secret is masked, also where the end that is shown begins within it."""
    log = tmp_path / "log"
    log.write_text(f"{TOKEN}\n" * lines + f"x {TOKEN} y")
    tail = log_tail(log, size)
    assert len(tail) <= size
    assert "aB3" not in tail
    assert tail.endswith("hf_*** y")
