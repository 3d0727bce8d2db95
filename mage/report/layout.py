"""The layout of the page: a Jinja template with its own style, light or dark as the reader's system is."""

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --card: #f6f7f9; --ink: #1c2024; --quiet: #60646c; --line: #e2e4e9;
  --accent: #0072b2; --note: #fff7e6;
  --mono: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181d; --card: #1e2127; --ink: #eceef2; --quiet: #a0a5b0; --line: #30343d; --accent: #6cb8f0; --note: #2a2618; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 2.5rem 1.5rem 5rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .25rem; letter-spacing: -.01em; }
h2 { font-size: 1.35rem; margin: 3rem 0 .75rem; padding-top: 1.25rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.02rem; margin: 2rem 0 .2rem; }
p.quiet, .quiet { color: var(--quiet); margin: 0 0 .75rem; }
dl.facts { display: flex; flex-wrap: wrap; gap: .4rem 2rem; margin: 1rem 0 0; }
dl.facts dt { color: var(--quiet); font-size: .8rem; }
dl.facts dd { margin: 0; font-variant-numeric: tabular-nums; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(185px, 1fr)); gap: .75rem; margin: 1rem 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .8rem 1rem; }
.tile b { display: block; font-size: 1.55rem; line-height: 1.25; font-weight: 650; font-variant-numeric: tabular-nums; }
.tile span { color: var(--quiet); font-size: .82rem; display: block; line-height: 1.35; }
.tile span.name { color: var(--ink); margin-top: .35rem; }
ul.verdict { margin: 1rem 0; padding: .7rem 1rem .7rem 2rem; background: var(--card);
  border-left: 3px solid var(--accent); border-radius: 0 8px 8px 0; }
img { display: block; width: 100%; height: auto; border: 1px solid var(--line); border-radius: 10px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; min-width: 55%; }
th, td { text-align: right; padding: .32rem .8rem; white-space: nowrap; vertical-align: baseline; }
th { color: var(--quiet); font-weight: 500; font-size: .8rem;
  white-space: normal; vertical-align: bottom; border-bottom: 1px solid var(--quiet); }
th:first-child, td:first-child, table.plain td { text-align: left; }
tr.first td { border-top: 1px solid var(--line); }
table.wide { font-size: .82rem; }
table.wide th, table.wide td { padding: .28rem .42rem; }
table.wide th { font-size: .74rem; }
table.wide td small { font-size: .72rem; }
td small { display: block; color: var(--quiet); font-size: .78rem; line-height: 1.2; }
details { border: 1px solid var(--line); border-radius: 10px; margin: .6rem 0; background: var(--card); }
summary { cursor: pointer; padding: .6rem 1rem; font-weight: 550; }
summary span { color: var(--quiet); font-weight: 400; }
details > div { padding: 0 1rem 1rem; }
h4 { margin: 1.1rem 0 .4rem; font-size: .95rem; }
.move { display: grid; grid-template-columns: 8.2rem 1fr; gap: .1rem .8rem; padding: .18rem 0; font-size: .9rem; align-items: baseline; }
.move > span { color: var(--quiet); font-size: .8rem; text-align: right; }
.move pre { margin: 0; padding: 0; background: none; border: 0; display: inline; }
.move em { color: var(--quiet); font-size: .8rem; font-style: normal; margin-left: .6rem; }
.move.reflects, .move.memory { background: var(--note); border-radius: 6px; }
.move.result pre { font-weight: 650; }
pre { font: .86rem/1.5 var(--mono); white-space: pre-wrap; overflow-wrap: anywhere; }
pre.block { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem; margin: 0; }
@media (max-width: 640px) { .move { grid-template-columns: 1fr; } .move > span { text-align: left; } }
@media print { details { break-inside: avoid; } }
"""

PAGE = (
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{ title }} · {{ environment }} · MAGE</title>
<style>"""
    + STYLE
    + """</style>
</head>
<body>
<main>
<header>
<h1>{{ title }}</h1>
<p class="quiet">{{ environment }} · a MAGE run</p>
<dl class="facts">
{% for name, value in facts %}
<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{% endfor %}
</dl>
</header>

{% for panel in panels %}
<h2>Result on the {{ panel.split }} panel</h2>
<div class="tiles">
{% for name, value in panel.tiles %}
<div class="tile"><b>{{ value.text }}</b><span>{{ value.interval }}</span><span class="name">{{ name }}</span></div>
{% endfor %}
</div>
<ul class="verdict">
{% for sentence in panel.verdict %}
<li>{{ sentence }}</li>
{% endfor %}
</ul>
{% else %}
<h2>Result</h2>
<p class="quiet">No final panel has been played yet.</p>
{% endfor %}

<h2>Curves</h2>
<picture>
<source media="(prefers-color-scheme: dark)" srcset="data:image/png;base64,{{ dark }}">
<img alt="Scores by episode over training and on the final panel, entropy, illegal replies" src="data:image/png;base64,{{ light }}">
</picture>

{% for panel in panels %}
<h2>Tables, {{ panel.split }} panel</h2>
{% for table in panel.tables %}
<h3>{{ table.title }}</h3>
<p class="quiet">{{ table.note }}</p>
<div class="scroll"><table{% if table.header | length > 8 %} class="wide"{% endif %}>
<thead><tr>{% for name in table.header %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}
{% set again = not loop.first and row[0].text == loop.previtem[0].text %}
<tr{% if not again %} class="first"{% endif %}>
{% for value in row %}
<td>{{ "" if again and loop.first else value.text }}{% if value.interval %}<small>{{ value.interval }}</small>{% endif %}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table></div>
{% endfor %}
{% endfor %}

<h2>Transcripts</h2>
{% for section in sections %}
{% set outer = loop %}
<h3>{{ section.title }}</h3>
<p class="quiet">{{ section.note }}</p>
{% for transcript in section.transcripts %}
<details{% if outer.first and loop.first %} open{% endif %}>
<summary>{{ transcript.title }} <span>· {{ transcript.reason }}</span></summary>
<div>
<p class="quiet">{{ transcript.details }}</p>
{% for told in transcript.episodes %}
<h4>Episode {{ told.number }}: {{ told.headline }}</h4>
{% for line in told.lines %}
<div class="move {{ line.kind }}"><span>{{ labels[line.kind] }}</span><div><pre>{{ line.text or "empty" }}</pre>
{%- if line.remark %}<em>{{ line.remark }}</em>{% endif %}</div></div>
{% endfor %}
{% endfor %}
</div>
</details>
{% endfor %}
{% else %}
<p class="quiet">No episodes are stored yet.</p>
{% endfor %}

<h2>Recipe</h2>
<p class="quiet">All options that have an effect, as resolved when the run began.</p>
<pre class="block">{{ recipe }}</pre>

<h2>Versions</h2>
<div class="scroll"><table class="plain">
<tbody>
{% for name, value in versions %}
<tr><td>{{ name }}</td><td>{{ value }}</td></tr>
{% endfor %}
</tbody>
</table></div>
</main>
</body>
</html>
"""
)
