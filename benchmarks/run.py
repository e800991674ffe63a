"""All measurements, one after the other, as one table: `python -m benchmarks.run` (6 minutes)."""

from __future__ import annotations

import sys

from benchmarks import again, load_ext, one_device, skewed
from benchmarks.common import show

if __name__ == "__main__":
    measurements = (load_ext, again, one_device, skewed)
    sys.exit(show([figure for module in measurements for figure in module.measure()]))
