"""The page's style: light, dark and paper from one set of variables; no file beside the page, no script."""

STYLE = """
:root { color-scheme: light dark;
  --page: #ffffff; --card: #f7f8fa; --line: #dfe3e8; --ink: #191d23; --muted: #58626e; --link: #1558b0;
  --pm: #1663c7; --gm: #b34a00; --bad: #b3261e; --good: #1a7f4b; --plain: #6b7683;
  --c0: #7a3ea8; --c1: #14866d; --c2: #b07d00; --c3: #c22f77; --c4: #3f6f96; --c5: #86592d; --c6: #5b8a00;
  --c7: #a43a3a;
  --h0: #f3f6fb; --h1: #dfe9f7; --h2: #c7daf1; --h3: #a9c6ea; --h4: #86aee0; --h5: #6294d4; --h6: #427bc3;
  --h7: #2660a8; --h8: #134583; }
@media screen and (prefers-color-scheme: dark) { :root {
  --page: #13161a; --card: #1b1f25; --line: #2f353d; --ink: #e7eaee; --muted: #9ba6b2; --link: #8ab8ff;
  --pm: #6aacff; --gm: #ff9f57; --bad: #ff8a80; --good: #62d39a; --plain: #8d98a5;
  --c0: #c792ea; --c1: #4fd1b0; --c2: #e7c04a; --c3: #ff85b8; --c4: #82b1d9; --c5: #cf9b6a; --c6: #a5cf52;
  --c7: #ee8585;
  --h0: #1a222d; --h1: #1d2c40; --h2: #213855; --h3: #27476e; --h4: #305a8c; --h5: #3d70ab; --h6: #5389c9;
  --h7: #74a6e4; --h8: #a3c9fb; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 1.5rem 1.25rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .8rem; padding-bottom: .35rem;
  border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 0 0 .35rem; }
p { margin: .6rem 0; max-width: 62rem; overflow-wrap: anywhere; }
a { color: var(--link); }
header { display: flex; flex-wrap: wrap; gap: .4rem .8rem; align-items: baseline; }
header small, .note { color: var(--muted); }
.badge { font-size: .8rem; font-weight: 600; padding: .1rem .55rem; border-radius: 1rem;
  border: 1px solid currentColor; color: var(--muted); }
.badge.finished { color: var(--good); } .badge.failed, .badge.stopped, b.bad { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem;
  margin: 1.2rem 0; padding: 0; list-style: none; }
.tiles li { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .6rem .8rem; }
.tiles b { display: block; font-size: 1.2rem; line-height: 1.4; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.tiles .pm { color: var(--pm); } .tiles .gm { color: var(--gm); } .tiles .bad { color: var(--bad); }
.tiles span { color: var(--muted); font-size: .85rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr));
  gap: 1.1rem; align-items: start; }
figure { margin: 0; padding: .9rem 1rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; min-width: 0; break-inside: avoid; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { color: var(--muted); font-size: .85rem; line-height: 1.45; margin-top: .5rem;
  overflow-wrap: anywhere; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem .9rem; margin: 0 0 .4rem; padding: 0; list-style: none;
  font-size: .85rem; }
.legend li { display: flex; align-items: center; gap: .4rem; }
figure .legend svg { width: 22px; height: 12px; flex: none; }
details { margin-top: .5rem; font-size: .85rem; } summary { cursor: pointer; color: var(--link); }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; margin: .5rem 0; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem .25rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th { color: var(--muted); font-weight: 600; } td.n, th.n { text-align: right; }
  td.why { overflow-wrap: anywhere; min-width: 12rem; }
table.compared td:first-child { min-width: 9rem; overflow-wrap: anywhere; }
  tr.changed td { font-weight: 600; }
svg text { font-size: 12.5px; fill: var(--muted); font-family: inherit; } svg text.name { fill: var(--ink); }
  svg text.small { font-size: 10.5px; }
.grid { stroke: var(--line); stroke-width: 1; } .axis { stroke: var(--muted); stroke-width: 1; }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }
  .stem { stroke-width: 2.5; }
.line.thin { stroke-width: 1.4; opacity: .75; } .line.faint { stroke-width: 1.2; opacity: .4; }
  .dot.faint { opacity: .55; }
.line.ideal { stroke: var(--muted); stroke-width: 1.3; stroke-dasharray: 4 4; }
  .line.link { stroke: var(--plain); stroke-width: 2; opacity: .45; }
.dot { stroke: var(--card); stroke-width: 1; } .area { stroke: none; opacity: .2; } .gap { fill: var(--pm);
  opacity: .14; }
.line.gm, .line.traffic-down { stroke-dasharray: 6 3.5; } .line.gm.thin { stroke-dasharray: none; }
.line.mutual { stroke: var(--c0); stroke-dasharray: 2 4; }
.line.traffic-up { stroke: var(--c1); } .line.traffic-down { stroke: var(--c0); }
  .fill.ink { fill: var(--ink); }
COLOURS
@media (max-width: 480px) { main { padding: 1rem .75rem 2rem; } figure { padding: .75rem .7rem; } }
@media print { main { max-width: none; padding: 0; } body { font-size: 10.5pt; } h2 { break-after: avoid; }
  .figures { display: block; } figure { max-width: 15cm; margin: 0 0 .6cm; }
  details:not([open]) { display: none; } }"""

_NAMES = ("pm", "gm", "bad", "plain", *(f"c{i}" for i in range(8)))
_GROUPS = ("pm", "gm", *(f"c{i}" for i in range(8)))  # the colours of compared groups, in their order
_HEAT = "".join(f".fill.h{i} {{ fill: var(--h{i}); }} " for i in range(9))
_LAST_BRIGHT, _LAST_DARK = 6, 5  # shades of the light page on which black can be read, of the dark one, white


def _on(black: range) -> str:
    """Numbers on shades: black on some, white on the others."""
    tones = ("#000" if i in black else "#fff" for i in range(9))
    return "".join(f".on.h{i} {{ fill: {tone}; }} " for i, tone in enumerate(tones))


_ON = (
    f"{_on(range(_LAST_BRIGHT + 1))}\n"
    f"@media screen and (prefers-color-scheme: dark) {{ {_on(range(_LAST_DARK + 1, 9))}}}"
)
_COLOURS = "\n".join(
    f".line.{name}, .stem.{name} {{ stroke: var(--{name}); }} "
    f".dot.{name}, .bar.{name}, .fill.{name}, .area.{name} {{ fill: var(--{name}); }}"
    for name in _NAMES
)
_COMPARED = "\n".join(
    f".line.g{i}, .stem.g{i} {{ stroke: var(--{name}); }} .dot.g{i}, .fill.g{i}, .area.g{i} {{ fill: var(--{name}); }}"
    for i, name in enumerate(_GROUPS)
)
STYLE = STYLE.replace("COLOURS", f"{_COLOURS}\n{_COMPARED}\n{_HEAT}\n{_ON}").strip()
