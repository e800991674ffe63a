"""Questions that the small model answers right."""

from __future__ import annotations

CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Japan": "Tokyo",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Peru": "Lima",
}


def question(country: str) -> str:
    """Asks for the capital, in the form that the model was trained on."""
    return f"<|im_start|>user\nWhat is the capital of {country}?<|im_end|>\n<|im_start|>assistant\n"


QUESTIONS = [question(country) for country in CAPITALS]
