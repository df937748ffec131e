"""Both halves of a method, as a command sees them: it alone may look at the two."""

from functools import cache
from typing import Any

import strategies
from client_app import method as client
from fedbayes.errors import CommandError
from fedbayes.launch.app_bundle import methods
from fedbayes.protocol.settings import Settings, SettingsError, defaults
from fedbayes.protocol.user_code import UserCodeError


def keys_of(method: str) -> set[str]:
    """The settings that this method has beside those of all methods."""
    halves = strategies.load(method), client.load(method)
    return {key for half in halves for key in half.reads.names()}


def own_defaults(method: str) -> dict[str, Any]:
    """Of a method from elsewhere: the defaults in its own models."""
    found: dict[str, Any] = {}
    for half in (strategies.load(method), client.load(method)):
        fields = half.reads.model_fields.values()
        found |= {
            str(one.alias): one.default
            for one in fields
            if not one.is_required() and one.alias not in defaults()
        }
    return found


def checked(settings: Settings) -> Settings:
    """The settings with those of the method as its halves read them; SettingsError where one does not fit.

    A setting that the method does not use, and that differs from its default, is refused: nobody sets it for nothing.
    """
    name = settings.method
    try:
        server, site = strategies.load(name), client.load(name)
    except (strategies.StrategyError, UserCodeError) as error:
        raise CommandError(str(error)) from None
    config, usual = settings.as_config(), defaults()
    options = [half.reads.parse(config).as_config() for half in (server, site)]
    server.check(settings)
    common = {str(field.alias) for field in Settings.model_fields.values()}
    for key, value in config.items():
        if key in common or any(key in one for one in options):
            continue
        if key not in usual:
            raise SettingsError(f'There is no setting "{key}" of method={name}.')
        if not _same(value, usual[key]):
            raise SettingsError(_unused(key, name))
    return Settings.parse(config | options[0] | options[1])


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


def _unused(key: str, method: str) -> str:
    return f'method={method} does not use the setting "{key}"; {", ".join(_users(key)) or "no method"} would.'
