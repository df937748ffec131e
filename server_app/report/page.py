"""The HTML around words and figures: pages that open offline, without a script."""

from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from server_app.report.style import STYLE
from server_app.report.templates import TEMPLATES

# No script, no request to anywhere: whatever a hostile site's words contain, a browser does nothing with it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

_PAGES = Environment(
    loader=DictLoader(TEMPLATES),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)


def page(template: str, policy: str = POLICY, **content: Any) -> str:
    """A whole page. Everything in `content` becomes text, unless it is Markup."""
    return _PAGES.get_template(template).render(policy=Markup(policy), style=Markup(STYLE), **content) + "\n"
