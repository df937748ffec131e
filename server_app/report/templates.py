"""The pages' HTML, as jinja2 templates. They are strings in a module because Flower carries an app's .py files only.

Autoescape is on: whatever a page is given is text, unless it is Markup (drawings, and what these templates made).
"""

from server_app.report.watched import WATCHED

PAGE = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ title }} · fedbayes</title><style>{{ style }}{% block style %}{% endblock %}</style>
{% block head %}{% endblock %}</head>
<body><main{% block attributes %}{% endblock %}>
{% block body %}
{% endblock %}
</main>{% block tail %}{% endblock %}</body></html>
"""

PARTS = """\
{% macro paragraphs(sentences) %}
{% for sentence in sentences if sentence %}
<p>{{ sentence }}</p>
{% endfor %}
{% endmacro %}

{# Numbers with their signs and units stay on one line. #}
{% macro whole(words) %}
{% set joined = words | replace("± ", "±\u00a0") | replace(" %", "\u00a0%") %}
{{- joined | replace("–", "–\u2060") if words | length > 1 else words }}
{%- endmacro %}

{% macro line(cells, tag, kinds) %}
<tr>
{%- for cell in cells %}
<{{ tag }}{% if kinds[loop.index0] %} class={{ kinds[loop.index0] }}{% endif %}>
{{- whole(cell) }}</{{ tag }}>
{%- endfor %}
</tr>
{% endmacro %}

{% macro table(content, kind="") %}
<div class="scroll"><table class="{{ kind }}"><thead>
{{ line(content.header, "th", content.kinds) }}
</thead><tbody>
{% for row in content.rows %}
{{ line(row, "td", content.kinds) }}
{%- endfor %}
</tbody></table></div>
{% endmacro %}

{% macro details(summary, content) %}
<details><summary>{{ summary }}</summary>{{ content }}</details>
{% endmacro %}

{% macro tiles(entries) %}
<ul class="tiles">
{% for kind, number, words in entries %}
<li><b class="{{ kind }}">{{ number }}</b><span>{{ whole(words) }}</span></li>
{% endfor %}
</ul>
{% endmacro %}

{# The legend's sample of a line, a dot or a colour. #}
{% macro mark(kinds) %}
<svg viewBox="0 0 22 12" aria-hidden="true">
{%- if kinds.split()[0] == "line" -%}
<path d="M1 6H21" class="{{ kinds }}"/>
{%- elif kinds.split()[0] == "dot" -%}
<circle cx="11" cy="6" r="4.5" class="{{ kinds }}"/>
{%- else -%}
<rect x="5" y="0" width="12" height="12" rx="2" class="{{ kinds }}"/>
{%- endif -%}
</svg>
{%- endmacro %}

{% macro figure(one) %}
<figure id="{{ one.key }}"><h3>{{ one.title }}</h3>
{% if one.legend %}
<ul class="legend">{% for kinds, words in one.legend %}<li>{{ mark(kinds) }}{{ words }}</li>{% endfor %}</ul>
{% endif %}
{{ one.svg }}
<figcaption>{{ one.caption | replace(" %", "\u00a0%") }}</figcaption>
{% if one.table %}
{{ details("Numbers", table(one.table)) }}
{% endif %}
</figure>
{% endmacro %}

{# Round, site and reason of failed replies. #}
{% macro failures(failed, more) %}
<div class="scroll"><table><thead>
<tr><th class=n>round</th><th>site</th><th>what happened</th></tr></thead><tbody>
{% for round, site, reason in failed %}
<tr><td class="n">{{ round }}</td><td>{{ site }}</td><td class="why">{{ reason }}</td></tr>
{% endfor %}
</tbody></table></div>
{% if more > 0 %}
<p>… and {{ more }} more in clients.csv.</p>
{% endif %}
{% endmacro %}

{# A heading with its figures, `first` before them; nothing at all where there is nothing to show. #}
{% macro section(title, figures=(), more="", first="") %}
{% set drawn = figures | select | list %}
{% if drawn or more or first %}
<section><h2>{{ title }}</h2>
{{ more }}
{% if drawn or first %}
<div class="figures">
{{ first }}
{% for one in drawn %}
{{ figure(one) }}
{% endfor %}
</div>
{% endif %}
</section>
{% endif %}
{% endmacro %}
"""

REPORT = """\
{% extends "page" %}
{% import "parts" as parts %}
{% block body %}
<header><h1>{{ title }}</h1><span class="badge {{ state }}">{{ state }}</span>
<small>started {{ created }} · fedbayes {{ version }}</small></header>
{{ parts.paragraphs(summary) }}
{{ parts.tiles(tiles) }}
{% set first %}
{% if result.rows %}
<figure id="result"><h3>{{ method }}</h3>{{ parts.table(result) }}
<figcaption>The last measured round, all clients' test examples together.</figcaption></figure>
{% endif %}
{% endset %}
{{ parts.section("Result", figures.result, first=first | trim) }}
{% set every %}
{% if sites.rows | length > 40 %}{{ parts.details("All " ~ sites.rows | length ~ " sites", parts.table(sites)) }}
{% elif sites.rows %}{{ parts.table(sites) }}{% endif %}
{% endset %}
{{ parts.section("Sites", (), every | trim) }}
{% set each %}{% if by_class.rows %}{{ parts.table(by_class) }}{% endif %}{% endset %}
{{ parts.section("Classes", figures.classes, each | trim) }}
{{ parts.section("Calibration and uncertainty", figures.certainty) }}
{{ parts.section("Clusters", figures.clusters) }}
{{ parts.section(method, figures.own) }}
{{ parts.section("Weights, time and bytes", figures.cost) }}
{% set failures %}
{% if failed %}
{{ parts.failures(failed, more_failed) }}
{% elif clients_told %}
<p>None: every reply could be used.</p>
{% endif %}
{% endset %}
{{ parts.section("Failures", figures.failures, failures | trim) }}
{% set all %}
{% if changed.rows %}{{ parts.table(changed) }}{% else %}<p>All at their defaults.</p>{% endif %}

{{ parts.details("All settings", parts.table(settings)) }}
{% endset %}
{{ parts.section("Settings", (), all) }}
{{ parts.section("What is not here", (), parts.paragraphs(missing) | trim) }}
{% endblock %}
"""

COMPARISON = """\
{% extends "page" %}
{% import "parts" as parts %}
{% block body %}
<header><h1>{{ title }}</h1></header>
{{ parts.paragraphs(words) }}
{{ parts.table(compared, "compared") }}
{{ parts.details("Every run", parts.table(runs)) }}
{{ parts.section("Convergence", figures.convergence) }}
{{ parts.section("Calibration and uncertainty", figures.certainty) }}
{{ parts.section("Time and bytes", figures.cost) }}
{{ parts.section("What to know", (), parts.paragraphs(remarks) | trim) }}
{% endblock %}
"""

REPRODUCTION = """\
{% extends "page" %}
{% import "parts" as parts %}
{% block body %}
<header><h1>{{ title }}</h1><small>fedbayes {{ version }}</small></header>
{{ parts.paragraphs(words) }}
{{ parts.tiles(tiles) }}
{% set judged %}
<div class="scroll"><table><thead><tr><th>the paper's statement</th><th>here</th><th>in how many places</th>
<th>not in</th><th>by the paper's own figures</th></tr></thead><tbody>
{% for badge, mark, says, counts, against, own in verdicts %}
<tr><td>{{ says }}</td><td><span class="badge {{ badge }}">{{ mark }}</span></td><td>{{ counts }}</td>
<td>{{ against or "–" }}</td><td>{{ own }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endset %}
{{ parts.section("What the paper says of it", (), judged) }}
{{ parts.section("Figures", figures) }}
{% for name, content in sheets %}
{{ parts.section(name, (), parts.table(content)) }}
{% endfor %}
{{ parts.section("What is not here", (), parts.paragraphs(missing) | trim) }}
{% endblock %}
"""

TEMPLATES = {
    **WATCHED,
    "page": PAGE,
    "parts": PARTS,
    "report": REPORT,
    "comparison": COMPARISON,
    "reproduction": REPRODUCTION,
}
