"""Both halves of a method, as a command sees them: it alone may look at the two."""

from collections.abc import Collection
from functools import cache
from typing import Any

import strategies
from client_app import method as client
from fedbayes.errors import CommandError
from fedbayes.launch.app_bundle import methods
from fedbayes.protocol.settings import Settings, SettingsError, defaults
from fedbayes.protocol.user_code import UserCodeError
from strategies.rounds.stages import stages_of

NAMED = 6  # methods in a sentence


def keys_of(method: str) -> set[str]:
    """The settings that this method has beside those of all methods."""
    return {key for half in halves(method) for key in half.reads.names()}


def own_defaults(method: str) -> dict[str, Any]:
    """Of a method from elsewhere: the defaults in its own models."""
    found: dict[str, Any] = {}
    for half in halves(method):
        fields = half.reads.model_fields.values()
        found |= {
            str(one.alias): one.default
            for one in fields
            if not one.is_required() and one.alias not in defaults()
        }
    return found


def read(settings: Settings) -> Settings:
    """The settings with those of the method as its halves read them; SettingsError where one does not fit."""
    config = settings.as_config()
    for half in halves(settings.method):
        config |= half.reads.parse(config).as_config()
    return Settings.parse(config)


def checked(settings: Settings, given: Collection[str] = ()) -> Settings:
    """Likewise, of a new run: what the method cannot do is refused.

    So is a setting that it does not use and that differs from its default: nobody sets it for nothing. `given` are the
    keys that the user wrote, be it with their defaults.
    """
    server, other = halves(settings.method)
    settings = read(settings)
    server.check(settings)
    other.check(settings)
    if other.plain_sgd:
        _require_plain_sgd(settings, given)
    # SettingsError where a stage cannot do what is asked for.
    stages_of(settings, server(server.reads.parse(settings.as_config())))
    used = {str(field.alias) for field in Settings.model_fields.values()} | keys_of(settings.method)
    usual = defaults()
    for key, value in settings.as_config().items():
        if key in used:
            continue
        if key not in usual:
            raise SettingsError(f'There is no setting "{key}" of method={settings.method}.')
        if not _same(value, usual[key]):
            users = ", ".join(_users(key)[:NAMED]) or "no method"
            users += ", …" if len(_users(key)) > NAMED else ""
            raise SettingsError(f'method={settings.method} does not use the setting "{key}"; {users} would.')
    return settings


def _require_plain_sgd(settings: Settings, given: Collection[str]) -> None:
    for key in client.PLAIN_SGD_LACKS:
        value = settings.as_config()[key]
        if value != "sgd" and (key in given or not _same(value, defaults()[key])):
            own = ", ".join(sorted(name for name in keys_of(settings.method) if ".lr" in name))
            raise SettingsError(
                f"method={settings.method} takes plain SGD steps at rates of its own ({own}); leave {key} out."
            )


def halves(method: str) -> tuple[type[strategies.ServerMethod], type[client.ClientMethod]]:
    try:
        return strategies.load(method), client.load(method)
    except (strategies.StrategyError, UserCodeError) as error:
        raise CommandError(str(error)) from None


def _same(given: Any, usual: Any) -> bool:
    """Words of a command line are text."""
    if isinstance(given, str) and not isinstance(usual, str):
        try:
            return bool(given.lower() == str(usual).lower() or float(given) == float(usual))
        except ValueError:
            return False
    return bool(given == usual)


@cache
def _users(key: str) -> tuple[str, ...]:
    return tuple(method for method in methods() if key in keys_of(method))
