"""The panel in JupyterLab, seen through a real browser."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from notebook.servers import FILE, LAB, LOAD, opened

if TYPE_CHECKING:
    from pathlib import Path

RUN = """\
%%multigpu --engine echo --devices cpu:2 -o answers
model = "tiny<b>model"
prompts = [f"one two <i>{i}" if i % 20 == 9 else "one two three" for i in range(80)]
engine_args = {"delay": 0.1, "fail_on": "<i>"}"""
LONG = """\
%%multigpu --background --engine echo --devices cpu:2 -o answers
model = "m"
prompts = ["one two"] * 400
engine_args = {"delay": 0.1}"""
BUSY = "import time\ntime.sleep(2)\nprint('mine')"
KEPT = """\
last = %multigpu last
print("kept", sum(text is not None for text in last.texts))"""


def test_the_panel_moves_while_the_cell_runs_and_ends_right(tmp_path: Path) -> None:
    """It is there within a second, counts up while the kernel is busy, and is saved as it ends.

    An open fold stays open. Who does not trust the file that is sent around reads the same.
    """
    with opened(LAB, tmp_path, LOAD, RUN) as sheet:
        page, panel = sheet.page, sheet.outputs
        sheet.run(0)
        began = sheet.begin(1)
        appeared = sheet.wait("of 80 prompts") - began
        page.get_by_text("Failed prompts").press("Enter")
        logs = page.get_by_text("The workers have printed nothing.")
        failures: list[int] = []
        seen = [sheet.count(r"(\d+) of 80 prompts")]
        while seen[-1] < 80:
            page.wait_for_timeout(100)
            failures.append(page.locator(".mgpu-bodies b:visible").count())
            assert not logs.is_visible()
            seen.append(sheet.count(r"(\d+) of 80 prompts"))
            if 60 <= seen[-1] < 80 and seen[-2] < 60:
                sheet.picture("panel_running")
                assert page.get_by_text("[*]").count() == 1
        sheet.wait("[2]")
        sheet.picture("panel_done")
        output = panel.inner_text()
        sheet.save()
        sheet.open()
        saved = panel.inner_text()
        other = sheet.file.read_text().replace("load_ext", "reload_ext")
        (tmp_path / "other.ipynb").write_text(other)
        page.goto(page.url.replace(f"tree/{FILE}", "workspaces/other/tree/other.ipynb"))
        sheet.wait("reload_ext")
        untrusted = panel.inner_text()
        sheet.picture("panel_untrusted")
        styled = panel.locator("[style*=flex]").count()
    assert appeared < 1
    assert seen == sorted(seen)
    assert len(set(seen)) >= 8
    assert max(failures[:-5]) >= 1
    assert re.match(r"✓ Done\s+80 of 80 prompts \(100 %\)", output)
    assert "✗ 4 failed" in output
    assert "4 failed prompts" in output
    assert output.count("tiny<b>model") == 2
    assert "running" not in output
    done = [int(count) for count in re.findall(r"(\d+) of 80\b(?! prompts)", output)]
    assert sum(done) == 80
    assert saved == output
    assert untrusted.split() == output.split()
    assert styled >= 5


def test_a_job_in_the_background_moves_and_is_stopped_by_a_click(tmp_path: Path) -> None:
    """Its panel goes on below its cell while another runs; Stop ends it, keeping its answers."""
    with opened(LAB, tmp_path, LOAD, LONG, BUSY, KEPT) as sheet:
        stop = sheet.page.get_by_role("button", name="Stop", exact=True)
        sheet.run(0)
        sheet.run(1)
        sheet.begin(2)
        seen: set[int] = set()
        while not sheet.page.get_by_text("[3]").count():
            sheet.page.wait_for_timeout(100)
            seen.add(sheet.count(r"(\d+) of 400 prompts"))
        sheet.picture("background_running")
        assert stop.count() == 1
        clicked = time.monotonic()
        stop.click()
        stopped = sheet.wait("Interrupted") - clicked
        stop.wait_for(state="detached")
        sheet.run(3)
        sheet.picture("background_stopped")
        panel, mine, kept = sheet.outputs.all_inner_texts()
    assert len(seen) >= 4
    assert stopped < 2
    count = re.match(r"■ Interrupted\s+(\d+) of 400 prompts", panel)
    assert count
    assert mine.strip() == "mine"
    assert 0 < int(count[1]) < 400
    assert kept.strip() == f"kept {count[1]}"


def test_a_click_stops_a_cell_that_runs(tmp_path: Path) -> None:
    """Where clicks arrive meanwhile, there is a button; the answers until then are kept."""
    with opened(LAB, tmp_path, LOAD, LONG.replace("--background ", ""), KEPT) as sheet:
        stop = sheet.page.get_by_role("button", name="Stop", exact=True)
        sheet.run(0)
        sheet.begin(1)
        sheet.wait("of 400 prompts")
        stop.wait_for()
        sheet.picture("blocking_stop")
        clicked = time.monotonic()
        stop.click()
        sheet.wait("[2]")
        stopped = time.monotonic() - clicked
        stop.wait_for(state="detached")
        sheet.begin(2)
        sheet.wait("kept")
        sheet.wait("[3]")
        texts = "".join(sheet.outputs.all_inner_texts())
    assert stopped < 2
    count = re.search(r"stopped with (\d+) of 400 prompts answered", texts)
    assert count
    assert 0 < int(count[1]) < 400
    assert f"kept {count[1]}" in texts
