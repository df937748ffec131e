"""Images a little changed for every batch, so that a network does not learn them by heart."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

MARGIN = 4  # pixels on every side
Augment = Callable[[Tensor], Tensor]


class FlipCrop:
    """Each image of a batch (b, channels, height, width) mirrored with probability ½, and moved by up to 4 pixels.

    The usual recipe for photographs (He et al., 2016): an image is padded by 4 pixels on every side, with `fill`, and
    a window of its own size is cut out. All on the device of the images, whose `generator` it must be.
    """

    def __init__(self, generator: torch.Generator, fill: float) -> None:
        self.generator, self.fill = generator, fill

    def __call__(self, x: Tensor) -> Tensor:
        b, channels, height, width = x.shape
        top, left = (self._draw(2 * MARGIN + 1, b) for _ in range(2))
        mirrored = self._draw(2, b).bool()
        rows = top + torch.arange(height, device=x.device)
        columns = left + torch.arange(width, device=x.device)
        columns = torch.where(mirrored, columns.flip(1), columns)
        padded = pad(x, (MARGIN,) * 4, value=self.fill)
        image = torch.arange(b, device=x.device)[:, None, None, None]
        channel = torch.arange(channels, device=x.device)[:, None, None]
        return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]

    def _draw(self, below: int, b: int) -> Tensor:
        return torch.randint(below, (b, 1), generator=self.generator, device=self.generator.device)
