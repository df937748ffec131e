"""The one exception that the command's own parts raise on purpose, and how words are shown."""


class CommandError(Exception):
    """Something the user can put right; its text is one sentence, shown without a traceback."""


class ModelError(CommandError):
    """A model file, or what is given to a model, that cannot be used."""


def printable(text: str) -> str:
    """Words that may be quoted from somebody else's file, without what would steer a terminal; lines stay."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)
