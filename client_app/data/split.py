"""The settings that a client's data depend on, and nothing else: the key of the caches."""

from dataclasses import dataclass, fields

from fedbayes.protocol.settings import Settings


@dataclass(frozen=True)
class Split:
    """See docs/settings.md for each of them."""

    dataset: str
    data_dir: str
    layout: str
    size: str
    groups: int
    dirichlet_alpha: float
    class_names: tuple[str, ...]
    task: str
    inputs: str
    target: str
    ignore: str
    kinds: str
    categories: str
    na: str
    rare: int
    image_size: int
    test_fraction: float
    seed: int

    @classmethod
    def of(cls, settings: Settings) -> "Split":
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})
