"""The one exception that the command's own parts raise on purpose."""


class CommandError(Exception):
    """Something the user can put right; its text is one sentence, shown without a traceback."""


class ModelError(CommandError):
    """A model file, or what is given to a model, that cannot be used."""
