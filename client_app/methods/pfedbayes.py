"""pFedBayes, the client's half: R alternating steps on q (kept here) and w (uploaded)."""

import torch
from torch import Tensor

from bayes_core import Gaussian, Personal, Recipe, client_update
from bayes_core.optimisers import Memory
from client_app.method import ClientMethod, Tensors, Trained, buffers_in, with_buffers


class PFedBayes(ClientMethod):
    """A Gaussian over the weights for this client, with the server's as its prior."""

    family = Gaussian()

    def start(self, received: Tensors) -> dict[str, Tensor]:
        return to_tensors(Personal.start(received["w"], self.network, self.settings.optimizer))

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        settings, w = self.settings, received["w"]
        personal = from_tensors(state)
        if settings.personal_init == "reset":  # the paper's sFedBayes box restarts q from the global
            personal = Personal(w, personal.q_memory, personal.w_memory, personal.buffers)
        recipe = Recipe(
            local_steps=settings.local_steps,
            personal_steps=settings.personal_steps,
            batch_size=settings.batch_size,
            mc_samples=settings.mc_samples,
            zeta=settings.zeta,
            optimizer=settings.optimizer,
            lr_personal=settings.lr_personal,
            lr_global=settings.lr_global,
        )
        generator = self.stream(server_round, "train")
        updated = client_update(self.network, self.family, personal, w, self.x, self.y, recipe, generator)
        return Trained(to_tensors(updated.personal), updated.w, {"loss": updated.loss})

    def models(self, state: Tensors, received: Tensors) -> dict[str, Tensor]:
        return {"pm": state["q"], "gm": received["w"]}


def to_tensors(personal: Personal) -> dict[str, Tensor]:
    """A personal state in the form in which it is stored."""
    tensors = {
        "q": personal.q,
        "q_moments": personal.q_memory.moments,
        "w_moments": personal.w_memory.moments,
        "steps": torch.tensor([personal.q_memory.steps, personal.w_memory.steps]),
    }
    return with_buffers(tensors, personal.buffers)


def from_tensors(state: Tensors) -> Personal:
    q_steps, w_steps = state["steps"].tolist()
    q_memory, w_memory = Memory(state["q_moments"], q_steps), Memory(state["w_moments"], w_steps)
    return Personal(state["q"], q_memory, w_memory, buffers_in(state))


METHOD = PFedBayes
