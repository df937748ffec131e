"""`dp-noise` at the client: no more of its change leaves than the clip lets through. The server clips again."""

from typing import TYPE_CHECKING

import torch

from bayes_core.privacy import clip_jointly
from client_app.method import ClientMethod

if TYPE_CHECKING:
    from client_app.stages import Departure


class Clip:
    def __init__(self, scales: tuple[float, ...]) -> None:
        self.scales = scales

    def leave(self, departure: "Departure") -> None:
        trained, uploads = departure.trained, departure.uploads
        bases = {name: departure.received[trained.bases[name]] for name in uploads}
        moved = [uploads[name] - base for name, base in bases.items()]
        for (name, base), unit in zip(bases.items(), clip_jointly(moved, self.scales), strict=True):
            scale = torch.tensor(self.scales[: len(unit)], dtype=torch.float64)
            uploads[name] = (base.cpu().double() + unit * scale[:, None]).to(base)


def stage(method: ClientMethod) -> Clip | None:
    return Clip(method.settings.dp_scales) if method.settings.dp_noise else None
