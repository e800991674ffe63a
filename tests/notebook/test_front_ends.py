"""The panel in the other notebook front ends, seen through a real browser."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from notebook.live import PYTHON
from notebook.servers import LOAD, NBCLASSIC, NOTEBOOK_7, opened

if TYPE_CHECKING:
    from pathlib import Path

    from notebook.servers import FrontEnd

WIDGETS = ".jupyter-widgets"
NAME = "m<img src=x onerror=hit=1><script>hit=1"
RUN = f"""\
%%multigpu --engine echo --devices cpu:2 -o answers
model = "{NAME}"
prompts = [f"one two <i>{{i}}" if i % 20 == 9 else "one two three" for i in range(80)]
engine_args = {{"delay": 0.1, "fail_on": "<i>"}}"""


@pytest.mark.parametrize(
    ("front", "name"),
    [
        pytest.param(NOTEBOOK_7, "notebook_7", id="notebook 7"),
        pytest.param(
            NBCLASSIC,
            "nbclassic",
            id="nbclassic",
            marks=pytest.mark.skipif(
                PYTHON not in os.environ, reason=f"{PYTHON} names no Python that has Notebook 6"
            ),
        ),
    ],
)
def test_the_panel_lives_and_stays(front: FrontEnd, name: str, tmp_path: Path) -> None:
    """It appears within a second, moves while the cell blocks, and is in the saved notebook, once.

    What looks like markup in the name of a model is text.
    """
    with opened(front, tmp_path, LOAD, RUN) as sheet:
        sheet.run(0)
        began = sheet.begin(1)
        appeared = sheet.wait("of 80 prompts") - began
        alive = sheet.page.locator(WIDGETS).count()
        seen = [sheet.count(r"(\d+) of 80 prompts")]
        while seen[-1] < 80:
            sheet.page.wait_for_timeout(100)
            seen.append(sheet.count(r"(\d+) of 80 prompts"))
            if seen[-1] >= 40 > seen[-2]:
                sheet.picture(f"{name}_running")
                assert sheet.page.get_by_text("[*]").count() == 1
        sheet.wait("[2]")
        sheet.picture(f"{name}_done")
        [ended] = sheet.outputs.all_inner_texts()
        left = sheet.page.locator(WIDGETS).count()
        [output] = sheet.save().cells[1].outputs
        sheet.end_kernels()
        sheet.open()
        sheet.picture(f"{name}_saved")
        [saved] = sheet.outputs.all_inner_texts()
        left += sheet.page.locator(WIDGETS).count()
        executed = sheet.page.evaluate("'hit' in window")
    assert appeared < 1
    assert seen == sorted(seen)
    assert len(set(seen)) >= 8
    assert re.match(r"✓ Done\s+80 of 80 prompts \(100 %\)", ended)
    assert "✗ 4 failed" in ended
    assert sum(int(n) for n in re.findall(r"(\d+) of 80\b(?! prompts)", ended)) == 80
    assert ended.count(NAME) == 2
    assert not executed
    assert saved == ended
    assert alive > 0
    assert left == 0
    assert set(output.data) == {"text/html", "text/plain"}
