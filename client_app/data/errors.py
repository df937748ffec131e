"""The one error of this package, in a file of its own so that every other file can raise it."""


class DataError(Exception):
    """Data that a client cannot use or get; its text is one clear sentence for the user."""
