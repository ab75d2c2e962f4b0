"""The style sheet of the report: system fonts, light and dark, one column on small screens."""

from __future__ import annotations

from collections.abc import Sequence

META = (
    '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
)
"""The beginning of the page."""

STYLE = """<style>
:root { --page: #fbfbf9; --ink: #1c2127; --soft: #59626d; --line: #dcdfe3;
  --first: #25629f; --second: #a4500f; --alarm: #a3201a; --good: #2c7a3f; --fill: #b9cfe4; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15181c; --ink: #e4e7ea; --soft: #a0a9b4; --line: #343b44;
    --first: #86b6ea; --second: #e3a566; --alarm: #f2938b; --good: #7cc992; --fill: #34506d; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 75rem; padding: 1.5rem clamp(1rem, 4vw, 3rem) 4rem; background: var(--page);
  color: var(--ink); font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
header { margin: 1rem 0 1.5rem; }
header p { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
.kind { text-transform: uppercase; letter-spacing: .08em; font-size: .8rem; }
h1 { margin: .2rem 0; font-size: 1.8rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 0 0 .5rem; font-size: 1.3rem; }
h3 { margin: 1.5rem 0 .4rem; font-size: 1rem; overflow-wrap: anywhere; }
h3 span { font-weight: normal; color: var(--soft); }
section { border-top: 1px solid var(--line); margin-top: 2.5rem; padding-top: 1.5rem; }
section > p { max-width: 46rem; color: var(--soft); margin: .3rem 0 1rem; }
p.alarm { color: var(--alarm); font-weight: 600; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: 1rem; margin: 0; }
.tiles div { border-left: 3px solid var(--first); padding: .1rem 0 .1rem .8rem; }
.tiles dt { color: var(--soft); font-size: .85rem; }
.tiles dd { margin: 0; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
.tiles .good { border-color: var(--good); } .tiles .look { border-color: var(--second); }
.tiles .bad { border-color: var(--alarm); }
.tiles .good dt::after { content: ": good"; } .tiles .look dt::after { content: ": look"; }
.tiles .bad dt::after { content: ": bad"; }
section.first > p.lead { color: var(--ink); font-size: 1.1rem; }
.causes { padding-left: 2rem; } .causes li { margin: .3rem 0; overflow-wrap: anywhere; }
.causes small { display: block; color: var(--soft); }
.helps p { color: var(--soft); margin: .6rem 0 0; }
.helps code { display: block; padding: .3rem .5rem; border: 1px solid var(--line); user-select: all; }
.helps span { display: inline-block; max-width: 100%; }
.sorted > span { color: var(--soft); margin-right: .5rem; } .sorted label { margin-right: .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); }
th, td { padding: .4rem .9rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td small { display: block; color: var(--soft); }
.models td { width: 42%; } .models td:first-child { width: 16%; min-width: 8rem; color: var(--soft); }
.models b { font-weight: 600; }
.figures :is(th, td):not(:first-child) { text-align: right; padding: .4rem 0 .4rem .9rem; }
.layers { min-width: 52rem; }
.layers :is(th, td):nth-child(n+5) { text-align: right; padding-left: .9rem; padding-right: 0; }
.layers td:nth-child(2) { max-width: 22rem; overflow-wrap: anywhere; }
.layers td:last-child { white-space: nowrap; }
code { font: .87em ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(27rem, 100%), 1fr)); gap: 1rem; }
svg { display: block; width: 100%; min-width: 24rem; height: auto; }
svg text { fill: var(--soft); font-family: inherit; font-size: 12px; }
svg .label { fill: var(--ink); }
.rule { stroke: var(--line); fill: none; }
.dot { fill: var(--first); } .ring { fill: none; stroke: var(--second); stroke-width: 1.4; }
.bad { fill: var(--alarm); }
.area { fill: var(--fill); } .outline { fill: none; stroke: var(--second); stroke-width: 1.5; }
.stem path { stroke: var(--second); } .stem circle { fill: var(--second); }
details { margin: .5rem 0; } summary { cursor: pointer; padding: .3rem 0; }
summary:focus-visible { outline: 2px solid var(--first); }
ul { columns: 20rem; column-gap: 2.5rem; padding-left: 1.2rem; }
@media (max-width: 34rem) {
  .scroll :is(table, tbody, tr, td) { display: block; min-width: 0; max-width: none; }
  .scroll thead { display: none !important; }
  .scroll table :is(td, td:nth-child(n)) { width: auto; min-width: 0; max-width: none; padding: .1rem 0;
    border: 0; text-align: left; white-space: normal; overflow-wrap: anywhere; }
  .scroll table td:first-child { border-top: 1px solid var(--line); padding-top: .4rem; }
  .scroll td::before { color: var(--soft); margin-right: .5rem; }
}
@media print { .plots, tr { break-inside: avoid; } }
</style>"""


def stacked(kind: str, titles: Sequence[str]) -> str:
    """Return a style that labels the cells of a class of tables with their column on small screens.

    There the cells of a row are stacked, so that no column is cut off.
    """
    labels = "".join(
        f'.{kind} td:nth-child({place})::before{{content:"{title}"}}'
        for place, title in enumerate(titles, 1)
        if title
    )
    return f"<style>@media (max-width: 34rem){{{labels}}}</style>"
