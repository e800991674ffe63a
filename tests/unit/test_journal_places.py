"""A journal whose disk is full, whose folder is closed, whose file goes away."""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from fakes import completion
from journals import opened, taken, written

from mgpu_magic import journal
from mgpu_magic.errors import SpecError
from mgpu_magic.journal_file import JournalFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MISSING = (
    "journal {} cannot be written ({}); the run goes on, and what is missing there is in the "
    "results, in memory."
)
LACKS_NOTHING = "journal {} could be written again and lacks nothing."


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A journal with the answers A and B to the prompts a and b of `"abc"`."""
    file = tmp_path / "answers.jsonl"
    written(opened(file), completion(0, "A"), completion(1, "B"))
    return file


@contextmanager
def disk(space: int) -> Iterator[None]:
    """A disk that takes so many bytes more."""
    left, write = space, os.write

    def writing(file: int, content: Any) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = write(file, content[:left])
        left -= count
        return count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", writing)
        yield


@contextmanager
def writing_is_refused(code: int) -> Iterator[None]:
    """A file system that can be read alone; root may write everywhere else."""
    opening = os.open

    def open_(path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(code, os.strerror(code))
        return opening(path, flags, mode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", open_)
        yield


@pytest.mark.parametrize("space", [0, 30])
def test_a_full_disk_at_the_start(tmp_path: Path, space: int) -> None:
    """The job goes on without a journal and says it; no empty file is left."""
    file = tmp_path / "answers.jsonl"
    with disk(space):
        new = opened(file)
        assert not file.exists()
        said = MISSING.format(file, "there is no space for a new file on its disk")
        assert new.notes == (said,)
        assert written(new, completion(0, "A")) == (
            MISSING.format(file, "No space left on device"),
        )
    assert not file.exists()


@pytest.mark.parametrize("held", [b"", b'{"journal":"mgpu_magic","f'])
def test_space_that_is_there_again(tmp_path: Path, held: bytes) -> None:
    """What came meanwhile is written; an empty file that was there is used."""
    file = tmp_path / "answers.jsonl"
    if held:
        file.write_bytes(held)
    with disk(10):
        new = opened(file)
    assert written(new, completion(0, "A")) == (LACKS_NOTHING.format(file),)
    assert taken(file) == [(0, "A")]


def test_what_a_full_disk_holds_is_taken(file: Path) -> None:
    """Reading needs no space."""
    with disk(0):
        assert taken(file) == [(0, "A"), (1, "B")]


@pytest.mark.parametrize("fits", [0, 1])
def test_whole_lines_that_fit_are_kept(tmp_path: Path, fits: int) -> None:
    """A block of several lines of which the last ones do not fit."""
    whole = JournalFile(str(tmp_path / "journal"), dict)
    with disk(fits * 6 + 3):
        kept, error = whole.append(b"first\nsecond\nthird\n")
    assert (kept, error and error.errno) == (fits * 6, errno.ENOSPC)
    assert list(whole.lines()) == [b"first\n"] * fits
    assert whole.append(b"second\n") == (7, None)
    whole.close()
    assert (tmp_path / "journal").read_bytes().splitlines()[1:] == [b"first"] * fits + [b"second"]


def test_lines_are_never_glued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where a torn one cannot be cut off."""
    torn = JournalFile(str(tmp_path / "journal"), dict)

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "ftruncate", refuse)
    with disk(8):
        assert torn.append(b"first\nsecond\n")[0] == 6
    with disk(0):
        assert torn.append(b"second\n")[0] == 0
    with disk(1):
        assert torn.append(b"second\n")[0] == 0
    assert torn.append(b"second\n") == (7, None)
    torn.close()
    *_, first, cut, second = (tmp_path / "journal").read_bytes().split()
    assert (first, cut, second) == (b"first", b"se", b"second")


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_journal_that_can_only_be_read(file: Path, code: int) -> None:
    """Its answers count, the run goes on, and the cell says that new ones are not kept."""
    before = file.read_bytes()
    with writing_is_refused(code):
        old = opened(file)
        again = opened(file)  # nobody writes it, so that others may read it too
    assert [outcome.index for outcome in old.recorded["m"]] == [0, 1]
    assert old.notes == again.notes
    assert old.notes == (
        f"2 of 3 answers came from the journal {file}.",
        f"journal {file} can be read and not written: new answers are not kept there; copy it to "
        "a folder where you may write to go on with it.",
    )
    assert written(old, completion(2, "C")) == ()
    assert written(again) == ()
    assert file.read_bytes() == before


def test_a_new_file_where_nothing_may_be_written(tmp_path: Path) -> None:
    """It is refused with what to do: nothing could be taken from it either."""
    with (
        writing_is_refused(errno.EROFS),
        pytest.raises(SpecError, match=r"\(Read-only file system\); name a file in a folder where"),
    ):
        opened(tmp_path / "answers.jsonl")


def interfered(file: Path, interfere: Callable[[], object]) -> list[str]:
    """Have something happen to the file of a run between two of its answers; what it says."""
    said: list[str] = []
    run = opened(file)
    run.begin(said.append)
    interfere()
    run.add("m", [completion(2, "C")])
    run.end(lambda: None)
    run.wait(10)
    return said


def test_a_journal_that_is_deleted_is_written_anew(file: Path) -> None:
    """With all that it held, and a word about it."""
    what = "deleted meanwhile; it was written anew with all that it held"
    assert interfered(file, file.unlink) == [f"journal {file} was {what}."]
    assert taken(file) == [(0, "A"), (1, "B"), (2, "C")]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_took_its_place_is_not_touched(file: Path) -> None:
    """What is missing then is said."""

    def replace() -> None:
        other = file.with_name("other")
        other.write_text("mine", encoding="utf-8")
        other.replace(file)

    said = interfered(file, replace)
    why = "it was deleted, and another file has its place"
    assert said == [MISSING.format(file, why)]
    assert file.read_text(encoding="utf-8") == "mine"


def test_a_journal_that_is_moved(file: Path) -> None:
    """The run goes on with it where it is, whatever stands in its place."""
    moved = file.with_name("moved")

    def move() -> None:
        file.rename(moved)
        file.write_text("mine", encoding="utf-8")

    assert interfered(file, move) == [
        f"journal {file} was moved; this run goes on with it at {moved}."
    ]
    assert taken(moved) == [(0, "A"), (1, "B"), (2, "C")]
    assert file.read_text(encoding="utf-8") == "mine"


def test_a_folder_that_is_deleted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said; once the folder is back, so is the journal."""
    monkeypatch.setattr(journal, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(journal, "FLUSH_SECONDS", 0.01)
    folder = file.parent / "folder"
    folder.mkdir()
    place = file.rename(folder / "answers.jsonl")
    said: list[str] = []
    run = opened(place)

    def tell(note: str) -> None:
        said.append(note)
        folder.mkdir(exist_ok=True)

    run.begin(tell)
    place.unlink()
    folder.rmdir()
    run.add("m", [completion(2, "C")])
    while len(said) < 2:
        time.sleep(0.01)
    run.end(lambda: None)
    run.wait(10)
    assert said[0] == MISSING.format(place, "No such file or directory")
    assert taken(place) == [(0, "A"), (1, "B"), (2, "C")]


def test_the_working_directory_does_not_count(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A journal stays where it was opened."""
    monkeypatch.chdir(file.parent)
    assert (
        interfered(type(file)(file.name), lambda: os.chdir(tmp_path_factory.mktemp("elsewhere")))
        == []
    )
    assert taken(file) == [(0, "A"), (1, "B"), (2, "C")]


def test_an_older_journal_becomes_private(file: Path) -> None:
    """Where others could read it before."""
    file.chmod(0o644)
    assert taken(file) == [(0, "A"), (1, "B")]
    assert file.stat().st_mode & 0o777 == 0o600
