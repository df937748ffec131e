"""Commands whose help is plain text: without the marks that Typer writes for rich, with the words of every argument."""

from typing import Any, get_type_hints

import click
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

LONG = 200  # characters; no first sentence has more


class Command(TyperCommand):
    """One command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        hints = get_type_hints(self.callback, include_extras=True) if self.callback else {}
        for param in self.params:  # some versions of click drop what Typer tells them of arguments
            told = [
                one
                for one in getattr(hints.get(param.name or ""), "__metadata__", ())
                if isinstance(one, ArgumentInfo)
            ]
            if told and not getattr(param, "help", None):
                param.help = told[0].help

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Nothing: newer versions of click tell of arguments here, and Typer does so among the options."""

    def get_short_help_str(self, limit: int = 0) -> str:
        """The whole first sentence in the list of commands, on two lines if need be."""
        return super().get_short_help_str(LONG)

    def get_help(self, ctx: click.Context) -> str:
        return super().get_help(ctx).replace("\\[", "[")


class Group(TyperGroup):
    """All of them."""

    def get_help(self, ctx: click.Context) -> str:
        return super().get_help(ctx).replace("\\[", "[")
