# SPDX-License-Identifier: Apache-2.0
"""The page's style sheet: light and dark, from a narrow phone to a wide screen.

Each pair of colours has a contrast of at least 4.5 to 1 (WCAG 2.2 AA); a test computes
it from these tables.
"""

from typing import Final

LIGHT: Final = {
    "bg": "#ffffff", "fg": "#1b1f24", "quiet": "#57606a", "line": "#d0d7de",
    "panel": "#f6f8fa", "link": "#0a58b5", "bad": "#a40e26",
    "qualified-bg": "#d7f2de", "qualified-fg": "#0b4f22",
    "rejected-bg": "#ffdfdc", "rejected-fg": "#86061d",
    "insufficient-evidence-bg": "#fdeebd", "insufficient-evidence-fg": "#5a4100",
    "not-tested-bg": "#e4e9ee", "not-tested-fg": "#3a434d",
    "invalid-bg": "#ecdcfb", "invalid-fg": "#54228a",
    "plot": "#0a58b5", "shade": "#cfe2fb", "ask": "#a40e26",
}  # fmt: skip
"""Colours of the light scheme by name."""

DARK: Final = {
    "bg": "#0e1116", "fg": "#e6edf3", "quiet": "#9da7b3", "line": "#343b44",
    "panel": "#171b22", "link": "#79b8ff", "bad": "#ff9a93",
    "qualified-bg": "#113a20", "qualified-fg": "#8fe3a8",
    "rejected-bg": "#4a1216", "rejected-fg": "#ffb3ad",
    "insufficient-evidence-bg": "#43330a", "insufficient-evidence-fg": "#f2d479",
    "not-tested-bg": "#2a313a", "not-tested-fg": "#c3ccd6",
    "invalid-bg": "#37225a", "invalid-fg": "#d9bdfb",
    "plot": "#79b8ff", "shade": "#1d3553", "ask": "#ff9a93",
}  # fmt: skip
"""Colours of the dark scheme by name."""

TEXT_PAIRS: Final = (
    ("fg", "bg"), ("fg", "panel"), ("quiet", "bg"), ("quiet", "panel"),
    ("link", "bg"), ("link", "panel"), ("bad", "bg"), ("bad", "panel"),
    ("ask", "panel"), ("ask", "bg"),
    *((f"{name}-fg", f"{name}-bg") for name in (
        "qualified", "rejected", "insufficient-evidence", "not-tested", "invalid")),
)  # fmt: skip
"""Colours of text and of what it stands on."""


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def _verdicts() -> str:
    rules = []
    for name in (
        "qualified",
        "rejected",
        "insufficient-evidence",
        "not-tested",
        "invalid",
    ):
        rules.append(
            f".v-{name}{{background:var(--{name}-bg);color:var(--{name}-fg);"
            f"fill:var(--{name}-bg)}}\n.s-{name}{{fill:var(--{name}-fg)}}"
        )
    return "\n".join(rules)


CSS: Final = f"""
:root{{color-scheme:light dark;{_variables(LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}
*{{box-sizing:border-box}}
html{{-webkit-text-size-adjust:100%}}
body{{margin:0 auto;max-width:76rem;padding:1rem;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif;
overflow-wrap:anywhere}}
code{{font:0.9em/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}}
a{{color:var(--link)}}
a:focus-visible,summary:focus-visible,.wide:focus-visible{{
outline:2px solid var(--link);outline-offset:2px}}
h1{{font-size:1.75rem;line-height:1.2;margin:0.5rem 0}}
h2{{font-size:1.35rem;line-height:1.25;margin:2.5rem 0 0.75rem;padding-bottom:0.25rem;
border-bottom:1px solid var(--line)}}
h3{{font-size:1.1rem;margin:0 0 0.25rem}}
h4{{font-size:1rem;margin:1rem 0 0.25rem}}
p{{margin:0.25rem 0 0.5rem}}
ul,ol{{padding-left:1.25rem;margin:0.25rem 0 0.75rem}}
.lead{{font-size:1.05rem}}
.quiet,.need,.note{{color:var(--quiet)}}
.quiet{{font-size:0.9rem}}
.bad{{color:var(--bad)}}
.question{{font-size:1.05rem}}
.skip{{position:absolute;left:-999rem}}
.skip:focus{{left:1rem;top:0.5rem;background:var(--bg);padding:0.5rem;z-index:1}}
.unseen{{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);
white-space:nowrap}}
dl{{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:0.15rem 0.75rem;
margin:0.5rem 0;align-items:baseline}}
dt{{color:var(--quiet);font-size:0.9rem}}
dd{{margin:0}}
figure{{margin:0}}
svg{{display:block;max-width:100%;height:auto}}
svg text{{font:11px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
fill:var(--fg)}}
svg .name{{font-size:13px;font-weight:600}}
svg .note{{fill:var(--quiet);font-size:11px}}
svg .tick{{fill:var(--quiet)}}
svg .ask{{fill:var(--ask)}}
svg .base{{fill:var(--panel);stroke:var(--quiet);stroke-width:1.5}}
svg .layer{{fill:var(--panel);stroke:var(--line)}}
svg .out{{stroke-dasharray:4 3;fill:none}}
svg .needs,svg .axis{{fill:none;stroke:var(--quiet)}}
svg .interval{{fill:var(--shade)}}
svg .estimate{{stroke:var(--plot);stroke-width:2}}
svg .pair{{fill:var(--plot);stroke:var(--bg)}}
svg .zero{{stroke:var(--quiet);stroke-dasharray:1 3}}
svg .target{{stroke:var(--ask);stroke-width:1.5;stroke-dasharray:5 3}}
svg .boot{{stroke:var(--fg);stroke-width:2.5}}
{_verdicts()}
svg text[class^=s-]{{font-size:15px;font-weight:700}}
.badge,.mark{{display:inline-block;border-radius:0.35rem;padding:0 0.4rem;
font-size:0.85rem;line-height:1.5;font-weight:600;overflow-wrap:normal}}

.was{{border:1px dashed var(--quiet);color:var(--quiet)}}
.mark{{border:1px solid var(--line);font-weight:400;color:var(--fg)}}
.mark.bad{{border-color:currentColor;color:var(--bad)}}
.side{{display:grid;gap:1.25rem}}
.sets{{list-style-position:inside;padding:0;margin:0;display:grid;gap:0.75rem}}
.sets li::marker{{color:var(--quiet)}}
.sets h3{{display:inline}}
.sets p{{margin-top:0.25rem}}
article{{border:1px solid var(--line);border-radius:0.5rem;padding:0.9rem;
margin:0 0 1rem}}
article>p:last-child{{margin-bottom:0}}
.rest{{display:grid;gap:0.4rem}}
.apart{{margin-top:1.5rem}}
.claims{{display:grid;gap:1rem;margin-top:0.5rem}}
.claim{{background:var(--panel);border-radius:0.5rem;padding:0.75rem}}
.claim h4{{margin-top:0}}
figcaption{{color:var(--quiet);font-size:0.85rem}}
.legend{{list-style:none;padding:0;display:grid;gap:0.35rem;margin-top:0.5rem}}
caption{{text-align:left;color:var(--quiet);font-size:0.9rem;padding-bottom:0.5rem}}
table{{border-collapse:collapse;width:100%}}
th,td{{text-align:left;vertical-align:top}}
.matrix,.matrix caption,.matrix tbody,.matrix tr,.matrix th,.matrix td{{display:block}}
.matrix thead,.matrix .none{{display:none}}
.matrix tr{{border:1px solid var(--line);border-radius:0.5rem;padding:0.6rem 0.75rem;
margin-bottom:0.6rem}}
.matrix td{{padding:0.3rem 0 0}}
.matrix .label{{display:block;font-weight:600;font-size:0.9rem}}
.matrix .need{{font-size:0.85rem;padding-left:0.35rem}}
footer{{margin-top:2.5rem;border-top:1px solid var(--line);color:var(--quiet);
font-size:0.9rem}}
@media (min-width:48rem){{
body{{padding:1.5rem 2rem}}
.side{{grid-template-columns:320px minmax(0,1fr);align-items:start}}
.claims{{grid-template-columns:repeat(auto-fit,minmax(21.5rem,1fr))}}
.claim:only-child{{display:grid;grid-template-columns:320px minmax(0,1fr);
column-gap:2rem;align-items:start}}
.claim:only-child>h4,.claim:only-child>p{{grid-column:1/-1}}
.wide{{overflow-x:auto}}
.matrix{{display:table}}
.matrix caption{{display:table-caption}}
.matrix thead{{display:table-header-group}}
.matrix tbody{{display:table-row-group}}
.matrix tr{{display:table-row}}
.matrix th,.matrix td,.matrix .none{{display:table-cell;border:1px solid var(--line);
padding:0.5rem 0.6rem}}
.matrix thead th{{background:var(--panel)}}
.matrix .label{{display:none}}
.matrix .need{{display:block;padding:0.2rem 0 0}}
}}
@media print{{body{{max-width:none}}article,.claim{{break-inside:avoid}}}}
"""
