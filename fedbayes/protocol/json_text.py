"""JSON that may come from anybody: what it says, or a ValueError in words."""

import json
from typing import Any


def parse_json(text: str) -> Any:
    """ValueError for all that is no JSON, is nested beyond what Python reads, or holds text that no file can hold."""
    try:
        found = json.loads(text)
        if "\\ud" in text.casefold():  # halves of characters, which Python takes in and cannot write
            json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it has halves of characters") from None
    return found
