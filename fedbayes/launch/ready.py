"""A run that may start: planned, and its data and model looked at, in this process."""

from collections.abc import Mapping
from typing import Any

from fedbayes.errors import CommandError
from fedbayes.launch.plan import Plan, plan_resume, plan_run
from fedbayes.protocol.settings import Settings
from server_app.rows import counted


def ready(words: Mapping[str, Any], clients: int | None = None, resume: str | None = None) -> Plan:
    """The plan of a new run, or of one that goes on; CommandError or SettingsError says what is wrong."""
    plan = plan_run(words, clients) if resume is None else plan_resume(resume, words, clients)
    if plan.finished:
        raise CommandError(
            f"The run {plan.settings.run_name} is finished ({counted(plan.settings.rounds, 'round')}); "
            f"train longer with `{plan.resume_command} rounds={2 * plan.settings.rounds}`."
        )
    check_data(plan.settings, plan.clients)
    return plan


def check_data(settings: Settings, clients: int) -> None:
    """Whether the data is there and can be shared among so many clients, and whether the model takes it.

    Everything is read anew: in a notebook, files and functions change from run to run.
    """
    from client_app.data import DataError, check
    from client_app.examples import require_private_data
    from client_app.site import forget
    from fedbayes.protocol.models import build
    from fedbayes.protocol.user_code import UserCodeError, look_here

    if settings.user_code:
        look_here()
    forget()
    try:
        one = check(settings, clients)
        settings.require_fit(one.classes)
        shape, noise = one.x_train.shape[1:], settings.noise_level
        settings.require_images(shape)
        if settings.dp_example_noise:
            require_private_data(one, settings)
        build(settings.model, shape, len(one.classes), settings.seed, noise, one.many)
    except (DataError, UserCodeError) as error:
        raise CommandError(str(error)) from None
