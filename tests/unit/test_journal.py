"""The file of a journal, and what a job takes from it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fakes import completion
from journals import keys, opened, taken, written

from mgpu_magic.errors import SpecError
from mgpu_magic.journal import Journal
from mgpu_magic.matching import Asked
from mgpu_magic.outcomes import Failure, RemoteError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A journal with the answers A and B to the prompts a and b of `"abc"`."""
    file = tmp_path / "answers.jsonl"
    journal = opened(file)
    assert journal.notes == (f"new journal {file}",)
    assert written(journal, completion(0, "A"), completion(1, "B")) == ()
    return file


def test_what_it_looks_like(file: Path) -> None:
    """A line that says who wrote it, and one for each outcome; nobody else may read it."""
    header, first, second = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    assert (header["journal"], header["format"]) == ("mgpu_magic", 1)
    assert sorted(header["versions"]) == ["numpy", "python"]
    assert header["created"].endswith("+00:00")
    assert first == {
        "key": "akey-of-16-bytes",
        "model": "m",
        "index": 0,
        "prompt": "a",
        "texts": ["A"],
        "finish_reasons": ["stop"],
        "prompt_tokens": 1,
        "output_tokens": 1,
        "seconds": 0.0,
        "device": "cpu:0",
    }
    assert second["texts"] == ["B"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_what_is_there_is_taken(file: Path) -> None:
    """Wherever the prompts stand now."""
    assert taken(file) == [(0, "A"), (1, "B")]
    assert taken(file, "cba") == [(1, "B"), (2, "A")]
    assert taken(file, "xb") == [(1, "B")]
    assert taken(file, "") == []


def test_a_prompt_that_is_there_twice_has_two_answers(file: Path) -> None:
    """The first of them takes the first answer; the second is asked, and has its own from then."""
    assert taken(file, "aba") == [(0, "A"), (1, "B")]
    journal = opened(file, "aba")
    written(journal, completion(2, "A again"))
    assert taken(file, "aba") == [(0, "A"), (1, "B"), (2, "A again")]
    assert taken(file, "aaaa") == [(0, "A"), (2, "A again")]
    assert taken(file, "ba") == [(0, "B"), (1, "A")]


def test_equal_prompts_keep_their_own_answers(tmp_path: Path) -> None:
    """With a seed each has a sample of its own, and never gets that of another."""
    file = tmp_path / "answers.jsonl"
    written(opened(file, "xxxx"), completion(2, "third"))
    assert taken(file, "xxxx") == [(2, "third")]
    written(opened(file, "xxxx"), completion(3, "fourth"), completion(0, "first"))
    assert taken(file, "xxxx") == [(0, "first"), (2, "third"), (3, "fourth")]
    assert taken(file, "x") == [(0, "first")]  # though it stands last
    assert taken(file, "xx") == [(0, "first"), (1, "third")]
    assert taken(file, "yx") == [(1, "third")]


def test_a_line_that_is_broken_takes_no_row(file: Path) -> None:
    """The next of that row does."""
    header, a, b = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(header + a.replace(b'["A"]', b"5") + a.replace(b":0,", b":[],", 1) + a + b)
    journal = opened(file)
    journal.abandon()
    assert journal.recorded["m"] == [completion(0, "A"), completion(1, "B")]
    assert journal.notes[-1] == f"journal {file}: 2 lines cannot be read; left out."


def test_models_share_a_journal(tmp_path: Path) -> None:
    """Each takes what it was asked; two that are the same take one answer each."""
    file = tmp_path / "answers.jsonl"
    one, two = Asked("one", keys("ab"), ["a", "b"]), Asked("two", keys("xa"), ["x", "a"])
    written(Journal(str(file), [one, two], []), completion(1, "X"), model="one")
    written(Journal(str(file), [one, two], []), completion(0, "Y"), completion(1, "Z"), model="two")
    journal = Journal(str(file), [one, two], [])
    journal.abandon()
    assert journal.recorded["one"] == [completion(1, "X")]
    assert journal.recorded["two"] == [completion(0, "Y"), completion(1, "Z")]
    renamed = Journal(str(file), [Asked("a", two.keys, two.prompts)], [])
    renamed.abandon()
    assert renamed.recorded["a"] == [completion(0, "Y"), completion(1, "Z")]


def test_what_the_cell_says(file: Path) -> None:
    """How much was taken, and what else is there."""

    def notes(prompts: str) -> list[str]:
        journal = opened(file, prompts)
        journal.abandon()
        return [note.replace(str(file), "FILE") for note in journal.notes]

    assert notes("abc") == ["2 of 3 answers came from the journal FILE."]
    assert notes("bc") == [
        "1 of 2 answers came from the journal FILE.",
        "journal FILE also holds 1 outcome of other jobs.",
    ]
    assert notes("xy") == [
        "journal FILE holds 2 outcomes of other prompts, settings or models, and none of this "
        "job's; these are added."
    ]


def test_a_journal_of_another_job_is_kept(file: Path) -> None:
    """New outcomes are added; not a byte of the old ones changes."""
    before = file.read_bytes()
    written(opened(file, "xy"), completion(0, "X"))
    assert file.read_bytes().startswith(before)
    assert taken(file, "abxy") == [(0, "A"), (1, "B"), (2, "X")]


@pytest.mark.parametrize("kept", range(1, 140, 7))
def test_a_torn_last_line_is_cut_off(file: Path, kept: int) -> None:
    """Wherever a crash tore it; what is added later is whole."""
    *_, last = file.read_bytes().splitlines(keepends=True)
    os.truncate(file, file.stat().st_size - len(last) + kept)
    assert taken(file) == [(0, "A")]
    written(opened(file), completion(1, "B2"))
    assert taken(file) == [(0, "A"), (1, "B2")]
    assert len(file.read_bytes().splitlines()) == 3


def test_a_torn_line_of_zeros(file: Path) -> None:
    """As a machine that lost its power leaves it, however long."""
    with file.open("ab") as appended:
        appended.write(bytes(200_000))
    assert taken(file) == [(0, "A"), (1, "B")]
    assert file.read_bytes().endswith(b"}\n")


@pytest.mark.parametrize("kept", [0, 25, 60])
def test_a_torn_header_is_written_anew(file: Path, kept: int) -> None:
    """There was nothing behind it yet; an empty file is a new journal too."""
    os.truncate(file, kept)
    assert taken(file) == []
    written(opened(file), completion(1, "B"))
    assert taken(file) == [(1, "B")]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"{}",
        b"5",
        b"\xff\xfe",
        b'{"key": 5}',
        b'{"key":"bkey-of-16-bytes"}',
        b'{"key":"bkey-of-16-bytes","texts":5}',
        b'{"key":"bkey-of-16-bytes","texts":["x"]',
        b'{"key":"bkey-of-16-bytes","value":' + b"[" * 100_000 + b"}",
    ],
)
def test_a_line_that_cannot_be_read_is_left_out(file: Path, line: bytes) -> None:
    """The others count, and the cell says how many there were."""
    header, a, b = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([header, a, line, b, b""]))
    journal = opened(file)
    journal.abandon()
    assert [outcome.index for outcome in journal.recorded["m"]] == [0, 1]
    assert journal.notes[-1] == f"journal {file}: 1 line cannot be read; left out."


def test_a_journal_that_another_program_wrote_anew(file: Path) -> None:
    """The order of the fields and the spaces between them say nothing."""
    header, *rest = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    lines = [dict(reversed(line.items())) for line in rest]
    texts = [json.dumps(header, separators=(",", ":")), *map(json.dumps, lines)]
    file.write_text("\n".join([*texts, ""]), encoding="utf-8")
    assert taken(file) == [(0, "A"), (1, "B")]


@pytest.mark.parametrize(
    ("held", "what"),
    [
        (b"a,b\n1,2\n", "no journal of mgpu_magic"),
        (b"no line", "no journal of mgpu_magic"),
        (b"{", "no journal of mgpu_magic"),
        (b'{"journal":', "no journal of mgpu_magic"),
        (b'{"journal":"mgpu_magic"' + b" " * 5000, "no journal of mgpu_magic"),
        (b'{"prompt": "a"}\n', "no journal of mgpu_magic"),
        (b'{"journal":"mgpu_magic", oh\n', "no journal of mgpu_magic"),
        (bytes(10_000), "no journal of mgpu_magic"),
        (b'{"journal":"mgpu_magic","format":2}\n', "a journal of format 2, not 1"),
        (b'{"journal":"mgpu_magic"}\n', "a journal of format None, not 1"),
    ],
)
def test_a_file_that_is_no_journal_is_not_touched(tmp_path: Path, held: bytes, what: str) -> None:
    """Neither the user's data nor the journal of another version."""
    file = tmp_path / "data"
    file.write_bytes(held)
    with pytest.raises(SpecError) as caught:
        opened(file)
    assert str(caught.value) == (
        f"journal {file}: there is such a file, and it is {what}; it was not touched. Name another "
        "file"
    )
    assert file.read_bytes() == held


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    """A folder that is not there, a folder, a place where nothing can be written, no file."""
    with pytest.raises(SpecError, match=r"there is no folder .*/none; make it, or name a file"):
        opened(tmp_path / "none" / "answers.jsonl")
    for place, why in [(tmp_path, "Is a directory"), (Path("/proc/answers.jsonl"), "")]:
        with pytest.raises(SpecError, match=rf"it cannot be opened to read and to write \({why}"):
            opened(place)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SpecError, match="it is no regular file; it was not touched"):
        opened(tmp_path / "pipe")


def test_it_belongs_to_one_job_at_a_time(file: Path) -> None:
    """Until that is over or was given up; then to the next."""
    first = opened(file)
    with pytest.raises(SpecError, match="another run is writing it; wait for its end"):
        opened(file)
    first.abandon()
    first.abandon()
    second = opened(file)
    second.begin(lambda _: None)
    second.abandon()  # too late: it has begun
    with pytest.raises(SpecError, match="another run is writing it"):
        opened(file)
    second.end(lambda: None)
    second.wait(10)
    assert taken(file) == [(0, "A"), (1, "B")]


def test_a_job_that_was_given_up_cannot_begin(file: Path) -> None:
    """Its journal may be another's by then."""
    journal = opened(file)
    journal.abandon()
    with pytest.raises(SpecError, match="given up before it began"):
        journal.begin(lambda _: None)


def test_an_interrupt_while_it_is_read_leaves_it_free(file: Path) -> None:
    """The next cell can have it, even while the error is kept somewhere."""
    header, a, b = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(header + a * 300_000 + b)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.03)
        with pytest.raises(KeyboardInterrupt) as caught:
            opened(file, "a" * 400_000)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert taken(file, "b") == [(0, "B")]
    assert caught.value is not None


def test_what_says_nothing_of_a_prompt_is_not_written(file: Path) -> None:
    """What was interrupted or never tried; an error of the prompt is, and is tried again."""
    before = len(file.read_bytes().splitlines())
    written(
        opened(file),
        Failure(0, RemoteError("Interrupted", "stopped"), 1),
        Failure(1, RemoteError("EngineError", "could not be loaded"), 0),
        Failure(2, RemoteError("ValueError", "too long"), 3),
    )
    *_, last = file.read_text(encoding="utf-8").splitlines()
    assert len(file.read_bytes().splitlines()) == before + 1
    failure: dict[str, Any] = json.loads(last)
    assert (failure["prompt"], failure["error"], failure["attempts"]) == ("c", "ValueError", 3)
    assert [index for index, _ in taken(file)] == [0, 1]


def test_any_text_can_be_written(tmp_path: Path) -> None:
    """Lone surrogates, line ends of every kind; of a long prompt only the beginning."""
    file = tmp_path / "answers.jsonl"
    texts = ["\ud800", "a\n\u2028\r\x00", "ü" * 10]
    prompts = ["x" * 10**6, " a\n\tb\ud800", 5]
    journal = Journal(str(file), [Asked("m", keys("abc"), prompts)], [])
    written(journal, *(completion(index, text) for index, text in enumerate(texts)))
    assert taken(file) == list(enumerate(texts))
    heads = [json.loads(line).get("prompt") for line in file.read_bytes().split(b"\n")[1:-1]]
    assert heads == ["x" * 79 + "…", "a b\ud800", "5"]
    assert "ü" * 10 in file.read_text(encoding="utf-8")


def test_it_leaves_no_descriptor(file: Path) -> None:
    """However it went: done, given up, refused."""
    before = os.listdir("/proc/self/fd")
    written(opened(file), completion(2, "C"))
    taken(file)
    other = file.with_name("data")
    other.write_text("data\n", encoding="utf-8")
    for _ in range(3):
        with pytest.raises(SpecError):
            opened(other)
    assert os.listdir("/proc/self/fd") == before
