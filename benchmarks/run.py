"""All measurements, one after the other, as one table: `python -m benchmarks.run` (9 minutes)."""

from __future__ import annotations

import sys

from benchmarks import again, load_ext, one_device, plain_loop, skewed, start_up, three_models
from benchmarks.common import show

if __name__ == "__main__":
    measurements = (load_ext, again, one_device, skewed, plain_loop, three_models, start_up)
    sys.exit(show([figure for module in measurements for figure in module.measure()]))
