"""A size one can ask for: tilting the server's λ until a given share of the weights is on.

Nothing in sFedBayes pulls towards a particular sparsity: λ moves away from its initial value only as far as KL and
likelihood push it. With a target, after each aggregation the weights of the server's distribution are ranked by
|μ|/σ, the signal of a weight against its uncertainty; the logits of the share that is wanted go up by `step`, those
of the rest go down. Clients follow through KL(q ‖ w). As the gates become certain, their noise vanishes.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

STEP = 0.1  # a round, in logits
LIMIT = 5.0  # λ ends between 0.7 % and 99.3 %


def tilt(v: Tensor, target: float, step: float = STEP) -> Tensor:
    """The spike-and-slab distribution (μ, ρ, λ) with λ moved one step towards `target`·T weights being on."""
    on = max(1, round(target * v.shape[1]))
    signal = v[0].abs() / softplus(v[1])
    kept = torch.zeros_like(v[2], dtype=torch.bool)
    kept[signal.topk(on).indices] = True
    logit = torch.logit(v[2].double(), eps=1e-6) + torch.where(kept, step, -step)
    return torch.cat([v[:2], logit.clamp(-LIMIT, LIMIT).sigmoid().to(v.dtype)[None]])
