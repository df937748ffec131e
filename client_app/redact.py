"""What a site may say of its troubles: the coordinator hears no path and no content, the site's log hears all.

A node whose own configuration names its site (`site-id`) is a real site. In a simulation coordinator and
clients are one user, who sees every sentence in full.
"""

from fedbayes.protocol.settings import SettingsError


class SiteError(ValueError):
    """Something that a site reports in words that may leave it: without a path, without data."""


class Refusal(SiteError):
    """A site takes no part in training, for a reason of its own, and still measures models."""


def redact(error: BaseException) -> str:
    """The part of an error that may leave a site; a path stands only in what is left out."""
    if isinstance(error, SiteError | SettingsError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}; the site's own log says more"
