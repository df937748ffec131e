"""A recipe for tests: whatever a test does not say is the paper's."""

from bayes_core import Recipe


def recipe_of(
    local_steps: int = 20,
    personal_steps: int = 1,
    batch_size: int = 100,
    mc_samples: int = 1,
    zeta: float = 10.0,
    optimizer: str = "adam",
    lr_personal: float = 0.001,
    lr_global: float = 0.001,
    lr_lambda: float = 0.001,
    *,
    adam_beta2: float = 0.999,
    compile: bool | None = None,
) -> Recipe:
    return Recipe(
        local_steps=local_steps,
        personal_steps=personal_steps,
        batch_size=batch_size,
        mc_samples=mc_samples,
        zeta=zeta,
        optimizer=optimizer,
        lr_personal=lr_personal,
        lr_global=lr_global,
        lr_lambda=lr_lambda,
        adam_beta2=adam_beta2,
        compile=compile,
    )
