"""Drives a real `Scheduler` in virtual time: a heap of events, and devices that are formulas."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mgpu_magic.messages import (
    Completion,
    Event,
    Exited,
    Loading,
    Outcome,
    Outcomes,
    Ready,
    RemoteError,
    Request,
    Started,
)
from mgpu_magic.scheduler import (
    AbortAt,
    Action,
    GrantLoad,
    Record,
    Retire,
    Scheduler,
    StartWorker,
    SubmitTo,
)
from mgpu_magic.spec import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
