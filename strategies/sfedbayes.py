"""sFedBayes, the server's half: pFedBayes with spike-and-slab distributions (μ, ρ, λ).

λ is averaged as a probability (its mean is also the KL-optimal one) and clamped after extrapolation.
"""

from strategies.pfedbayes import PFedBayes


class SFedBayes(PFedBayes):
    """One sparse prior for all clients."""

    def family_name(self) -> str:
        return "spike-slab"


METHOD = SFedBayes
