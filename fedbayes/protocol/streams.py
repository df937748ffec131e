"""Random streams that depend on what they are for, and on nothing else.

Every stream comes from SHA-256 of its words, such as (seed, site, round, "train"), so a result does not
depend on the order in which clients answer, nor on Python's `hash()`.
"""

import hashlib
import json

import torch

PREDICT = "predict"  # the purpose of draws for new examples


def seed_of(*words: int | str) -> int:
    """A 63-bit seed from the words; different words, different seed."""
    text = json.dumps(words)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def stream(*words: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own for these words."""
    return torch.Generator(device).manual_seed(seed_of(*words))


def reseed(device: torch.device, *words: int | str) -> None:
    """PyTorch's own generators, from which dropout and the like draw on this device.

    `torch.manual_seed` also notes the whole stack for GPUs that may come later: a millisecond a message, for nothing.
    """
    seed = seed_of(*words)
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
