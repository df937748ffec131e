"""pFedBayes, the client's half: R alternating steps on q (kept here) and w (uploaded)."""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor

from bayes_core import ClientState, Gaussian, Recipe, client_update
from bayes_core.families import Family
from bayes_core.inference.recipe import zeta_for
from bayes_core.predict.predictor import Predictor
from client_app.method import ClientMethod, Tensors, Trained
from fedbayes.protocol.settings import Count, Options, Positive, RhoInit, Steps, Zeta, takes


class UpdateOptions(Options):
    personal_steps: Steps
    mc_samples: Count
    zeta: Zeta
    lr_personal: Positive
    compile: Annotated[Literal["auto"] | bool, takes("auto, true or false")]
    rho_init: RhoInit
    personal_init: Annotated[Literal["keep", "reset"], takes("keep or reset")]


class PFedBayes(ClientMethod):
    """A distribution over the weights for this client, with the server's as its prior."""

    reads: ClassVar[type[Options]] = UpdateOptions
    options: UpdateOptions

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.family = self.make_family()

    def make_family(self) -> Family:
        return Gaussian()

    @property
    def rho_origin(self) -> float:
        return self.options.rho_init

    def start(self, received: Tensors) -> dict[str, Tensor]:
        w = self.family.unconstrain(received["w"])
        start = ClientState.start(w, self.network, self.settings.optimizer)
        return replace(start, buffers=self.first_buffers(w, received)).state_dict()

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        w = received["w"]
        before = ClientState.load_state_dict(state)
        if self.options.personal_init == "reset":  # the paper's sFedBayes box restarts q from the global
            before = replace(before, q=self.family.unconstrain(w))
        updated = client_update(
            self.network,
            self.family,
            before,
            w,
            self.x,
            self.y,
            self.recipe(server_round),
            self.stream(server_round, "train"),
            self.likelihood,
            gates=self.stream(server_round, "gates"),
            augment=self.augmentation and self.augmentation(server_round),
        )
        return Trained(updated.personal.state_dict(), {"w": updated.w}, {"loss": updated.loss})

    def recipe(self, server_round: int) -> Recipe:
        settings, options, n = self.settings, self.options, len(self.x)
        steps = self.personal_steps(options.personal_steps)
        pace = steps**0.5 if options.personal_steps == "auto" else 1.0  # of w, so that it keeps up with q
        return Recipe(
            local_steps=settings.local_steps,
            personal_steps=steps,
            batch_size=settings.batch_size,
            mc_samples=options.mc_samples,
            zeta=zeta_for(n) if options.zeta == "auto" else options.zeta,
            optimizer=settings.optimizer,
            lr_personal=options.lr_personal,
            lr_global=settings.lr_global * pace,
            lr_lambda=options.lr_personal,  # a Gaussian has no λ
            adam_beta2=settings.adam_beta2,
            compile=None if options.compile == "auto" else options.compile,
        )

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        gm = self.family.unconstrain(received["w"])
        return {"pm": self.weights(state["q"], state), "gm": self.weights(gm, state, received)}


METHOD = PFedBayes
