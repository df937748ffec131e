"""The HTML of the pages that `fedbayes watch` serves: as the report, but they renew themselves while they are open.

Their one script asks for the page again and puts what has changed in its place. It is named in the page's policy by its
hash, so that nothing else that a page might contain is run.
"""

from base64 import b64encode
from hashlib import sha256

STYLE = """
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: 0 0 .8rem; font-size: .9rem; }
.advance { display: flex; flex-wrap: wrap; gap: .3rem .9rem; align-items: center; margin: .8rem 0; }
.advance progress { flex: 1 1 14rem; max-width: 40rem; height: .7rem; accent-color: var(--pm); }
pre.log { margin: 0; padding: .7rem .8rem; max-height: 22rem; overflow: auto; white-space: pre-wrap;
  overflow-wrap: anywhere; font: .8rem/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, monospace;
  background: var(--card); border: 1px solid var(--line); border-radius: .5rem; }
.badge.running, .badge.starting { color: var(--pm); }
.badge.interrupted, .badge.unreadable { color: var(--bad); }
button { font: inherit; color: var(--page); background: var(--link); border: 0; border-radius: .4rem;
  padding: .35rem .9rem; cursor: pointer; }
td.when { white-space: nowrap; } td input { margin: 0; width: 1rem; height: 1rem; vertical-align: -.15rem; }
#live { position: fixed; right: .7rem; bottom: .6rem; margin: 0; padding: .15rem .6rem; font-size: .8rem;
  color: var(--muted); background: var(--card); border: 1px solid var(--line); border-radius: 1rem; }
#live.lost { color: var(--bad); border-color: currentColor; } #live:empty, .gone { display: none; }
@media print { nav, #live, form button { display: none; } }
"""

SCRIPT = """
(() => {
  const note = document.getElementById('live'), main = () => document.querySelector('main');
  const name = one => (one.closest('[id]') || {id: ''}).id + '/' + one.querySelector('summary').textContent;
  let tag = '', heard = '';
  const put = fresh => {
    const before = main(), log = before.querySelector('pre.log');
    const open = new Set([...before.querySelectorAll('details[open]')].map(name));
    const ticked = new Set([...before.querySelectorAll('input:checked')].map(one => one.value));
    const focus = document.activeElement && document.activeElement.value;
    const above = log && log.scrollTop + log.clientHeight < log.scrollHeight - 8 ? log.scrollTop : -1;
    before.replaceWith(fresh);
    fresh.querySelectorAll('details').forEach(one => { one.open = open.has(name(one)); });
    fresh.querySelectorAll('input[type=checkbox]').forEach(one => {
      one.checked = ticked.has(one.value);
      if (focus && one.value === focus) one.focus();
    });
    end(above);
  };
  const end = above => {
    const log = document.querySelector('pre.log');
    if (log) log.scrollTop = above < 0 ? log.scrollHeight : above;
  };
  const look = async () => {
    try {
      const answer = await fetch(location.href, {headers: {'If-None-Match': tag}, cache: 'no-store'});
      if (answer.status === 200 && getSelection().type !== 'Range') {
        const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
        put(document.adoptNode(page.querySelector('main')));
        document.title = page.title;
        tag = answer.headers.get('ETag');
      }
      heard = answer.status < 400 ? '' : answer.status === 404 ? 'the run is not there any more' :
        answer.status === 403 ? 'another `fedbayes watch` has taken its place' : 'it cannot be read now';
    } catch (error) {
      heard = '`fedbayes watch` does not answer any more';
    }
    say();
    setTimeout(look, 1000 * Number(main().dataset.every || 2));
  };
  const say = () => {
    const since = Math.max(0, Math.round(Date.now() / 1000 - Number(main().dataset.changed || 0)));
    const ago = since < 100 ? since + ' s' : since < 6000 ? Math.round(since / 60) + ' min' :
      Math.round(since / 3600) + ' h';
    note.className = heard ? 'lost' : '';
    note.textContent = heard ? 'Shown as last seen: ' + heard + '.' :
      main().dataset.changed ? 'last change ' + ago + ' ago' : '';
  };
  end(-1);
  setInterval(say, 1000);
  setTimeout(look, 1000 * Number(main().dataset.every || 2));
  say();
})();
"""

_HASH = b64encode(sha256(SCRIPT.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{_HASH}'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'"
)

PAGE = """\
{% extends "page" %}
{% import "parts" as parts %}
{% block style %}{{ live_style }}{% endblock %}
{% block head %}<link rel="icon" href="data:,">{% endblock %}
{% block attributes %} data-every="{{ every }}" data-changed="{{ changed }}"{% endblock %}
{% block tail %}<p id="live" role="status"></p><script>{{ script }}</script>{% endblock %}
"""

RUN = """\
{% extends "watched" %}
{% import "parts" as parts %}
{% block body %}
<nav><a href="/?{{ key }}">All runs</a>
{% for words, place in links %}<a href="{{ place }}?{{ key }}">{{ words }}</a>
{% endfor %}</nav>
<header><h1>{{ title }}</h1><span class="badge {{ state }}">{{ state }}</span>
<small>started {{ created }} · fedbayes {{ version }}</small></header>
<div class="advance"><b>round {{ done }} of {{ rounds }}</b>
<progress max="{{ rounds }}" value="{{ done }}">{{ done }} of {{ rounds }}</progress>
<span class="note">{{ left }}</span></div>
{{ parts.paragraphs(words) }}
{{ parts.tiles(tiles) }}
{{ parts.section("Curves", figures) }}
{% if sites.rows %}
<section id="sites"><h2>Sites</h2>{{ parts.table(sites) }}</section>
{% endif %}
{% set failures %}
{% if failed %}{{ parts.failures(failed, more_failed) }}
{% else %}<p>None so far: every reply could be used.</p>{% endif %}
{% endset %}
{{ parts.section("Failures", failed_figures, failures | trim) }}
<section id="log"><h2>Log</h2>
{% if log %}<pre class="log" tabindex="0">{% for line in log %}{{ line }}
{% endfor %}</pre>{% else %}<p>There is no log.txt in the run folder.</p>{% endif %}
</section>
{{ parts.section("What is not here", (), parts.paragraphs(missing) | trim) }}
{% endblock %}
"""

WAITING = """\
{% extends "watched" %}
{% block body %}
<nav><a href="/?{{ key }}">All runs</a></nav>
<header><h1>{{ title }}</h1><span class="badge {{ state }}">{{ state }}</span></header>
<p>{{ words }}</p>
{% if log %}<section id="log"><h2>Log</h2><pre class="log" tabindex="0">{% for line in log %}{{ line }}
{% endfor %}</pre></section>{% endif %}
{% endblock %}
"""

LIST = """\
{% extends "watched" %}
{% import "parts" as parts %}
{% block body %}
<header><h1>{{ title }}</h1><small>{{ folder }}</small></header>
{% if runs %}
<form action="/compare" method="get"><input type="hidden" name="token" value="{{ token }}">
<p>Tick two runs or more to see them side by side. <button>Compare</button></p>
<div class="scroll"><table><thead><tr><th></th><th>run</th><th>method</th><th>dataset</th><th>state</th>
<th class=n>rounds</th><th class=n>PM</th><th class=n>GM</th><th>started</th><th></th></tr></thead><tbody>
{% for run in runs %}
<tr><td>{% if run.readable %}
<input type="checkbox" name="run" value="{{ run.name }}" aria-label="compare {{ run.name }}">
{% endif %}</td>
<td class="why"><a href="{{ run.place }}?{{ key }}">{{ run.name }}</a></td><td>{{ run.method }}</td>
<td>{{ run.dataset }}</td><td><span class="badge {{ run.state }}">{{ run.state }}</span></td>
<td class=n>{{ run.rounds }}</td><td class=n>{{ run.personal }}</td><td class=n>{{ run.global_ }}</td>
<td class="when">{{ run.started }}</td>
<td>{% if run.readable %}<a href="{{ run.place }}/report?{{ key }}">report</a>{% endif %}</td></tr>
{% endfor %}
</tbody></table></div></form>
{% else %}
<p>There are no runs in this folder yet; <code>fedbayes run</code> makes one, and this page shows it.</p>
{% endif %}
{% endblock %}
"""

REFUSED = """\
{% extends "page" %}
{% block style %}{{ live_style }}{% endblock %}
{% block head %}<link rel="icon" href="data:,">{% endblock %}
{% block body %}
<nav><a href="/?{{ key }}">All runs</a></nav>
<header><h1>{{ title }}</h1></header>
<p>{{ words }}</p>
{% endblock %}
"""

WATCHED = {
    "watched": PAGE,
    "watched run": RUN,
    "watched start": WAITING,
    "watched list": LIST,
    "watched refusal": REFUSED,
}
