"""FedRep, the server's half: FedPer's.

Collins, Hassani, Mokhtari, Shakkottai: "Exploiting Shared Representations for Personalized Federated Learning", 2021.
"""

from typing import ClassVar

from pydantic import Field

from fedbayes.protocol.settings import Natural, Options, Settings, SettingsError
from strategies.fedper import BodyOptions, FedPer


class PhaseOptions(BodyOptions):
    head_steps: Natural = Field(alias="fedrep.head-steps")


class FedRep(FedPer):
    """The mean of the clients' bodies."""

    title = "FedRep"
    idea = "clients share the body of their networks, and each first fits a head of its own to it"
    paper = "Collins et al. 2021"
    reads: ClassVar[type[Options]] = PhaseOptions
    options: PhaseOptions

    @classmethod
    def check(cls, settings: Settings) -> None:
        super().check(settings)
        head, steps = PhaseOptions.parse(settings.as_config()).head_steps or 1, settings.local_steps
        if head >= steps:
            raise SettingsError(
                f"method=fedrep takes steps on the head, then on the body: {head} of local-steps={steps} for the head "
                "leave none for the body; make local-steps larger."
            )


METHOD = FedRep
