"""What a classifier's config says of its logits. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mgpu_magic.outcomes import Activation


def activation(problem_type: str | None, labels: int) -> Activation:
    """What makes probabilities of a classifier's logits, as its config's `problem_type` says."""
    match problem_type:
        case "regression":
            return "none"
        case "multi_label_classification":
            return "sigmoid"
        case _:
            return "sigmoid" if labels == 1 else "softmax"
