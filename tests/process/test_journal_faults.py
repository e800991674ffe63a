"""What a journal stands: a kernel that dies, a disk that is full or hangs, a second run."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from mgpu_magic import Session, SpecError, endings
from mgpu_magic.journal_file import JournalFile
from process.jobs import echo, job, lines, result
from process.living import eventually, marked, run_script, start_script

if TYPE_CHECKING:
    from pathlib import Path


KERNEL = """
import json, mgpu_magic
prompts = [f"prompt {i % 2000}" for i in range(3000)]
with mgpu_magic.Session("cpu:2") as session:
    print("begin", flush=True)
    answers = session.generate(
        "m", prompts, engine="echo", journal="answers.jsonl", engine_args={"delay": delay}
    )
print(json.dumps(answers.texts))
"""


def test_a_kernel_that_is_killed_twenty_times(tmp_path: Path, mark: str) -> None:
    """Run again each time, it ends with every prompt answered exactly once, and nothing is left."""
    moments = random.Random(5)
    held = [0]
    for _ in range(20):
        script = start_script(tmp_path, "delay = 0.012\n" + KERNEL)
        assert script.stdout is not None
        assert script.stdout.readline() == "begin\n"
        time.sleep(moments.uniform(0.0, 1.2))
        script.kill()
        script.communicate()
        whole = (tmp_path / "answers.jsonl").read_bytes().rpartition(b"\n")[0]
        held.append(whole.count(b"\n"))
    assert held == sorted(held)  # no answer was lost again
    assert 0 < held[-1] < 3000
    prompts = [f"prompt {i % 2000}" for i in range(3000)]
    script = start_script(tmp_path, "delay = 0.0\n" + KERNEL)
    output, errors = script.communicate(timeout=60)
    assert json.loads(output.splitlines()[-1]) == prompts
    assert f"{held[-1]:,} of 3,000 answers came from the journal answers.jsonl." in errors
    answered = lines(tmp_path / "answers.jsonl")
    assert Counter(line["texts"][0] for line in answered) == Counter(prompts)
    assert all(line["prompt"] == line["texts"][0] for line in answered)
    assert eventually(lambda: not marked(mark))


def test_a_second_run_on_one_journal_is_refused(session: Session, tmp_path: Path) -> None:
    """In this kernel and in another; the first is not disturbed, and afterwards it may."""
    journal = tmp_path / "answers.jsonl"
    run = session.submit(job(["a"] * 100, engine_args={"delay": 0.02}, journal=journal))
    with (
        Session("cpu:1") as other,
        pytest.raises(SpecError, match=r"answers\.jsonl: another run is writing it; wait for its"),
    ):
        echo(other, ["b"], journal=journal)
    refused = run_script(
        tmp_path,
        "import json, mgpu_magic\n"
        "with mgpu_magic.Session('cpu:1') as session:\n"
        "    try: session.generate('m', ['b'], engine='echo', journal='answers.jsonl')\n"
        "    except mgpu_magic.SpecError as error: print(json.dumps(str(error)))\n",
    )
    assert "another run is writing it" in refused
    run.result(30)
    assert echo(session, ["b"], journal=journal).texts == ["b"]
    assert len(lines(journal)) == 101


FULL_DISK = """
import json, mgpu_magic, resource
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, most))

class Freed:
    def update(self, snapshot):
        if freed and len(snapshot.job.notes) > 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    def finish(self, snapshot):
        self.notes = snapshot.job.notes

watch = Freed()
with mgpu_magic.Session("cpu:2") as session:
    answers = session.generate(
        "m", [f"prompt {i}" for i in range(300)], engine="echo", journal="answers.jsonl",
        engine_args={"delay": 0.005}, observer=watch,
    )
print(json.dumps([answers.texts, watch.notes]))
"""


@pytest.mark.parametrize("freed", [False, True])
def test_a_disk_that_is_full_in_the_middle(session: Session, tmp_path: Path, freed: bool) -> None:
    """The run goes on and says it; what is there can be read; with space again, all is there."""
    prompts = [f"prompt {i}" for i in range(300)]
    texts, notes = run_script(tmp_path, f"freed = {freed}\n{FULL_DISK}")
    assert texts == prompts
    assert notes[0] == f"new journal {tmp_path}/answers.jsonl"
    assert notes[1] == (
        "journal answers.jsonl cannot be written (File too large); the run goes on, and what is "
        "missing there is in the results, in memory."
    )
    held = lines(tmp_path / "answers.jsonl")
    if freed:
        assert notes[2:] == ["journal answers.jsonl could be written again and lacks nothing."]
        assert len(held) == 300
    else:
        assert len(notes) == 2
        assert 0 < len(held) < 300
    again = echo(session, prompts, journal=tmp_path / "answers.jsonl")
    assert again.texts == prompts
    assert again.stats.recorded == len(held)
    assert len(lines(tmp_path / "answers.jsonl")) == 300


def test_a_disk_that_hangs_at_the_end(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results come, with a word about it; once the disk is back the journal is whole."""
    back = threading.Event()
    sync = JournalFile.sync

    def hanging(file: JournalFile) -> None:
        assert back.wait(30)
        sync(file)

    monkeypatch.setattr(JournalFile, "sync", hanging)
    monkeypatch.setattr(endings, "END_SECONDS", 0.2)
    journal = tmp_path / "answers.jsonl"
    run = session.submit(job(["a", "b"], journal=journal))
    assert result(run).texts == ["a", "b"]
    assert run.snapshot.job.notes == (
        f"new journal {journal}",
        f"journal {journal} is still being written; the results are in memory.",
    )
    with pytest.raises(SpecError, match="another run is writing it"):
        echo(session, ["a"], journal=journal)
    assert echo(session, ["a"]).texts == ["a"]
    back.set()
    assert eventually(lambda: len(lines(journal)) == 2)
    assert eventually(lambda: _is_free(session, journal))


def _is_free(session: Session, journal: Path) -> bool:
    try:
        return echo(session, ["a", "b"], journal=journal).stats.recorded == 2
    except SpecError:
        return False
