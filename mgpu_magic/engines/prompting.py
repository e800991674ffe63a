"""What engines say alike about a prompt that no model can read. Pure; imports nothing."""

from __future__ import annotations


def refuse_surrogates(text: object) -> None:
    """Raise for text that cannot be encoded; what is no text is somebody else's to judge.

    Raises:
        ValueError: The text holds a lone surrogate; tokenizers say something misleading of it.
    """
    if not isinstance(text, str):
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the prompt contains a lone surrogate at position {error.start}, which is no text; "
            'clean it with text.encode("utf-8", "replace").decode()'
        ) from None
