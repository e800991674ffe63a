"""A kernel that stands in a phase until something ends it: `python -m faults.kernel PHASE [END]`.

With an `END` it ends itself by that: an expression such as `os._exit(0)`.
"""

from __future__ import annotations

import os
import sys
import time
from typing import cast

from faults.strikes import prepare
from faults.struck import SCENES, Phase, asked, caught, warm_up
from mgpu_magic import Session


def _stand(phase: Phase, end: str) -> None:
    prepare()
    scene = SCENES[phase]
    session = Session("cpu:2")
    if scene.warm:
        warm_up(session, scene)
    if phase != "idle":
        caught(session.submit(asked(scene.prompts, scene)), phase, scene)
    sys.stdout.write("now\n")
    sys.stdout.flush()
    if end:
        eval(end, {"os": os})
    time.sleep(60)


if __name__ == "__main__":
    _stand(cast("Phase", sys.argv[1]), "".join(sys.argv[2:]))
