"""sFedBayes, the client's half: pFedBayes with spike-and-slab distributions; λ steps in its logit."""

from client_app.methods.pfedbayes import PFedBayes


class SFedBayes(PFedBayes):
    """A sparse distribution over the weights for this client."""

    def family_name(self) -> str:
        return "spike-slab"


METHOD = SFedBayes
