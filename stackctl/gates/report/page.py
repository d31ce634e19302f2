# SPDX-License-Identifier: Apache-2.0
"""The page: one file that needs no network, no script, and no wide screen."""

from collections.abc import Sequence
from typing import Any, Final

from stackctl import __version__
from stackctl.gates.receipt.current import Judged
from stackctl.gates.receipt.model import FOLDER, VERDICTS, Receipt
from stackctl.gates.receipt.words import (
    SYMBOLS,
    asked,
    claims_of,
    engagement,
    figure,
    hardware,
    interval,
    real,
    sides,
    when,
)
from stackctl.gates.report import picture
from stackctl.gates.report.collect import GateAnswer, Report
from stackctl.gates.report.html import Html, el, join, text
from stackctl.gates.report.style import CSS
from stackctl.model.series import PatchSet

GENERATOR: Final = "stackctl report"
"""What a page of ours says of itself; another file is never overwritten."""

_NO_SET: Final = "(no set)"  # no name of a set has brackets

_PAIRS: Final = {"count": "Cases", "difference": "Items"}

MAX_EXTRA: Final = 24
"""Most further figures of a claim that are shown."""


MAX_KINDS: Final = 3
"""Most different figures of one feature that are shown."""


def page(report: Report) -> str:
    """Return the page.

    Args:
        report: What it shows.

    Returns:
        HTML; the same for the same report.
    """
    name = report.series.name
    head = el(
        "head",
        Html('\n<meta charset="utf-8">\n'),
        el("title", f"{name}: stack and gates"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="generator", content=GENERATOR),
        el("meta", name="color-scheme", content="light dark"),
        el(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; style-src 'unsafe-inline'; img-src data:",
        ),
        el("link", rel="icon", href="data:,"),
        el("style", Html(CSS)),
    )
    body = el(
        "body",
        el("a", "Skip to the verdicts", class_="skip", href="#verdicts"),
        _header(report),
        el(
            "main",
            join(
                [
                    _stack(report),
                    _matrix(report),
                    _gates(report),
                    _files(report),
                ]
            ),
        ),
        el(
            "footer",
            el(
                "p",
                f"Made by stackctl {__version__} from series.toml and {FOLDER}/. "
                "Nothing here was judged by hand: `stackctl receipt verify` decides "
                "each receipt again from its samples.",
            ),
        ),
    )
    return f"<!DOCTYPE html>\n{el('html', head, body, lang='en')}\n"


def link(receipt: Receipt) -> str:
    """Return where a page finds a receipt, relative to itself."""
    return f"{FOLDER}/{receipt.gate}/{receipt.digest}.json"


def badge(verdict: str, counts: bool = True) -> Html:
    """Return a verdict with its sign; without its colour where it does not count."""
    words = verdict.replace("-", " ")
    sign = el("span", SYMBOLS.get(verdict, ""), aria_hidden="true")
    kind = f"v-{verdict}" if counts else "was"
    return el("span", sign, " ", words, class_=f"badge {kind}")


def _state(judged: Judged) -> list[Html]:
    """Return what keeps a verdict from counting, or from being signed, as marks."""
    marks = []
    if not judged.check.ok:
        marks.append(el("span", "not believed", class_="mark bad"))
    if judged.changes is None:
        marks.append(el("span", "staleness unknown", class_="mark"))
    elif judged.changes:
        marks.append(el("span", "stale", class_="mark bad"))
    state = judged.check.signature.state
    if state != "trusted":
        marks.append(el("span", str(judged.check.signature), class_="mark"))
    return marks


def _header(report: Report) -> Html:
    facts = []
    if report.base:
        facts.append(_fact("Base", report.base["identity"]))
    if report.composition:
        facts.append(_fact("Composition", report.composition))
        facts.append(_fact("Tree", report.tree))
    if report.problem:
        facts.append(_fact("Composition", f"not known: {report.problem}"))
    return el(
        "header",
        el("h1", report.series.name),
        el("p", _sentence(report), class_="lead"),
        el("dl", join(facts), class_="facts"),
    )


def _sentence(report: Report) -> str:
    needed = [gate for gate in report.gates if gate.required]
    good = sum(gate.qualified for gate in needed)
    sets = [item for item in report.series.sets if item.composed]
    return (
        f"{len(sets)} {'set' if len(sets) == 1 else 'sets'} on one base. Required "
        f"gates that are qualified by receipts which are believed and about this "
        f"composition: {good} of {len(needed)}."
    )


def _fact(name: str, value: str) -> Html:
    return _pair(name, el("code", value))


def _pair(name: str, value: str) -> Html:
    return Html(el("dt", name) + el("dd", value))


def _worst(gates: Sequence[GateAnswer]) -> str:
    """Return the verdict of a set: one that does not count was not tested."""
    found = [
        gate.current.verdict
        if gate.current is not None and gate.current.counts
        else "not-tested"
        for gate in gates
    ]
    return min(found, key=VERDICTS.index) if found else ""


def _note(report: Report, item: PatchSet) -> str:
    count = report.patches.get(item.name)
    patches = {None: "", 1: "1 patch"}.get(count, f"{count} patches")
    if not item.composed:
        return "draft" if item.draft else item.disposition
    gates = report.of(item)
    good = sum(gate.qualified for gate in gates)
    noun = "required gate" if len(gates) == 1 else "required gates"
    asked = f"{good} of {len(gates)} {noun}" if gates else "no required gate"
    return ", ".join(part for part in (patches, asked) if part)


def _stack(report: Report) -> Html:
    layers = [
        picture.Layer(
            item.name,
            _note(report, item),
            _worst(report.of(item)),
            item.composed,
            item.requires,
        )
        for item in report.series.sets
    ]
    identity = report.base.get("identity", "base").partition("@")[0]
    base = picture.Layer(identity, f"tree {report.base.get('tree', 'unknown')[:12]}")
    told = f"{identity} at the bottom; on it, in this order: " + "; ".join(
        f"{layer.name} ({layer.note}"
        + (f", requires {', '.join(layer.requires)}" if layer.requires else "")
        + ")"
        for layer in layers
    )
    sets = [_set(report, item) for item in report.series.sets]
    return el(
        "section",
        el("h2", "The stack", id="stack"),
        el(
            "div",
            el("figure", picture.stack(base, layers, told)),
            el("ol", join(sets), class_="sets"),
            class_="side",
        ),
        aria_labelledby="stack",
    )


def _set(report: Report, item: PatchSet) -> Html:
    pull = f"{item.pull}" if item.pull else ""
    why = [
        ("Why", item.reason),
        ("Until", item.retire),
        ("Left out", item.why),
        ("Reviewed in", pull),
    ]
    return el(
        "li",
        el("h3", el("code", item.name), id=f"set-{item.name}"),
        el("p", item.title) if item.title else None,
        el(
            "dl",
            join(
                [Html(el("dt", name) + el("dd", value)) for name, value in why if value]
            ),
        ),
    )


def _matrix(report: Report) -> Html:
    sets = [item.name for item in report.series.sets]
    rest = any(not gate.required and not gate.advisory for gate in report.gates)
    columns = [*sets, *([_NO_SET] if rest else [])]
    header = el(
        "tr",
        el("th", "Gate", scope="col"),
        *[el("th", name, scope="col") for name in columns],
    )
    rows = [_row(gate, columns) for gate in report.gates]
    legend = [
        el("li", badge(verdict), " ", meaning)
        for verdict, meaning in (
            ("qualified", "the declared bar is met with the declared confidence"),
            ("rejected", "the bar is missed with that confidence"),
            ("insufficient-evidence", "neither; more pairs are needed"),
            ("not-tested", "it could not run, or was never run"),
            ("invalid", "it ran, and the run may not be used"),
        )
    ]
    marks = [
        el("li", el("span", name, class_="mark"), " ", meaning)
        for name, meaning in (
            ("stale", "what it is about has changed since: it no longer counts"),
            ("unsigned", "anyone could have written it"),
            ("not believed", "the verdict does not follow from its samples, or the "
             "signature is not what the policy asks for"),
        )
    ]  # fmt: skip
    return el(
        "section",
        el("h2", "Verdicts", id="verdicts"),
        el(
            "div",
            el(
                "table",
                el("caption", "Every gate, and the sets that name it"),
                el("thead", header),
                el("tbody", join(rows)),
                class_="matrix",
            ),
            class_="wide",
            role="region",
            aria_labelledby="verdicts",
            tabindex="0",
        )
        if rows
        else el("p", "The series names no gate, and there is no receipt."),
        el(
            "details",
            el("summary", "What the words mean"),
            el("ul", join([*legend, *marks]), class_="legend"),
        ),
        aria_labelledby="verdicts",
    )


def _row(gate: GateAnswer, columns: Sequence[str]) -> Html:
    cells = []
    for name in columns:
        need = "required" if name in gate.required else "advisory"
        alone = name == _NO_SET and not gate.required and not gate.advisory
        if not alone and name not in (*gate.required, *gate.advisory):
            cells.append(el("td", class_="none"))
            continue
        cells.append(
            el(
                "td",
                el("span", name, class_="label"),
                _answer(gate),
                None if alone else el("span", need, class_="need"),
            )
        )
    return el(
        "tr",
        el("th", el("a", gate.name, href=f"#gate-{gate.name}"), scope="row"),
        *cells,
    )


def _answer(gate: GateAnswer) -> Html:
    current = gate.current
    if current is None:
        return Html(badge("not-tested") + " " + el("span", "no receipt", class_="mark"))
    return Html(" ".join([badge(current.verdict, current.counts), *_state(current)]))


def _gates(report: Report) -> Html:
    answered = [gate for gate in report.gates if gate.judged]
    rest = [gate for gate in report.gates if not gate.judged]
    parts = []
    if answered:
        told = (
            "In the plots every dot is a pair, the first one at the top. Shaded is the "
            "interval that decides, dashed what is asked for; the bar at the foot is "
            "the bootstrap interval."
        )
        parts += [el("p", told, class_="quiet"), *[_gate(gate) for gate in answered]]
    if rest:
        parts.append(el("h3", "Without a receipt", class_="apart"))
        parts.append(el("ul", join([_waiting(gate) for gate in rest]), class_="rest"))
    return el(
        "section",
        el("h2", "Gates", id="gates"),
        join(parts) if parts else el("p", "There is none."),
        aria_labelledby="gates",
    )


def _waiting(gate: GateAnswer) -> Html:
    """A gate that nothing answers: one entry of a list."""
    question = gate.gate.title if gate.gate is not None else ""
    return el(
        "li",
        el("strong", gate.name, id=f"gate-{gate.name}"),
        f": {question}" if question else None,
        el("span", f" ({_named(gate)})", class_="quiet") if _named(gate) else None,
        *_declared(gate),
    )


def _named(gate: GateAnswer) -> str:
    """Return the gate's kind, and who names it."""
    return ", ".join(
        [
            *([gate.kind] if gate.kind else []),
            *[f"required by {name}" for name in gate.required],
            *[f"advisory for {name}" for name in gate.advisory],
        ]
    )


def _declared(gate: GateAnswer) -> list[Html]:
    """Say where the project's own file of a gate is bad or missing."""
    if gate.problem:
        return [el("p", f"Its file is bad: {gate.problem}", class_="bad")]
    if gate.gate is None:
        return [el("p", "The project declares no gate of this name.", class_="quiet")]
    return []


def _gate(gate: GateAnswer) -> Html:
    current = gate.judged[0]
    parts = [el("h3", gate.name, id=f"gate-{gate.name}")]
    if gate.gate is not None:
        parts.append(el("p", gate.gate.title, class_="question"))
    parts.append(el("p", _named(gate), class_="quiet"))
    if gate.gate is not None and gate.gate.about:
        parts.append(el("p", gate.gate.about, class_="quiet"))
    parts += [
        *_declared(gate),
        el("p", _answer(gate)),
        _receipt(gate.name, current),
        _list(gate),
    ]
    return el("article", join(parts), aria_labelledby=f"gate-{gate.name}")


def _receipt(name: str, judged: Judged) -> Html:
    receipt = judged.receipt
    said: list[Html] = [el("li", reason) for reason in receipt.reasons]
    said += [
        el("li", f"not believed: {why}", class_="bad") for why in judged.check.reasons
    ]
    said += [
        el("li", f"stale: {change}", class_="bad") for change in judged.changes or ()
    ]
    if judged.changes is None:
        said.append(el("li", f"whether it is stale is not known: {judged.unknown}"))
    claims = claims_of(receipt.predicate.decision)
    limits = receipt.predicate.limitations
    better = sides(receipt.predicate.bound.claims)
    return join(
        [
            el("ul", join(said), class_="reasons"),
            el(
                "div",
                join(
                    [
                        _claim(
                            f"p-{name}-{n}",
                            claim,
                            judged.counts,
                            better.get(str(claim.get("name")), "lower"),
                        )
                        for n, claim in enumerate(claims)
                    ]
                ),
                class_="claims",
            ),
            _engaged(receipt),
            el("h4", "Limitations") if limits else Html(""),
            el("ul", join([el("li", limit) for limit in limits]))
            if limits
            else Html(""),
        ]
    )


def _engaged(receipt: Receipt) -> Html:
    """Say in one line what units saw of the features of their arms."""
    said = []
    for arm, what, figures in engagement(receipt):
        # Many units on a narrow screen: what differs is counted.
        kinds = list(dict.fromkeys(figures))
        seen = ", ".join(kinds[:MAX_KINDS])
        if len(kinds) > MAX_KINDS:
            seen += f" and {len(kinds) - MAX_KINDS} other figures"
        units = "1 unit" if len(figures) == 1 else f"{len(figures)} units"
        said.append(f"{arm}: {what} {seen} in {units}")
    if not said:
        return Html("")
    return el("p", f"Features seen: {'; '.join(said)}", class_="quiet")


def _claim(name: str, claim: dict[str, Any], counts: bool, better: str) -> Html:
    unit = str(claim.get("unit", ""))
    shown = picture.pairs(name, claim)
    arms = str(claim.get("arm", ""))
    if claim.get("against"):
        arms += f" against {claim['against']}"
    facts = [
        (
            "Count" if unit == "count" else "Estimate",
            figure(_real(claim.get("estimate")), unit),
        ),
        ("Interval", interval(claim)),
        ("Asked for", asked(claim, better)),
        (_PAIRS.get(unit, "Pairs"), str(claim.get("pairs", "-"))),
        ("More pairs", str(claim.get("more_pairs") or "-")),
        ("Cell", str(claim.get("cell") or "")),
        ("Arms", arms),
    ]
    control = claim.get("control")
    if isinstance(control, dict):
        told = unit if unit == "times" else "change"
        facts.append(("Control A/A", interval({**control, "unit": told})))
    facts += _flat("", claim.get("extra"))[:MAX_EXTRA]
    rows = [_pair(key, value) for key, value in facts if value not in ("", "-")]
    return el(
        "section",
        el(
            "h4",
            str(claim.get("name")),
            " ",
            badge(str(claim.get("verdict")), counts),
        ),
        None
        if claim.get("required", True)
        else el("p", "advisory: it does not decide", class_="quiet"),
        el("figure", shown, _key(claim)) if shown is not None else None,
        el("dl", join(rows)),
        class_="claim",
    )


def _key(claim: dict[str, Any]) -> Html:
    share = real(claim.get("confidence"))
    wide = f"{100 * claim['confidence']:.4g} % interval" if share else "interval"
    return el("figcaption", f"Shaded: the {wide} that decides")


def _flat(name: str, value: object) -> list[tuple[str, str]]:
    """Return further figures, which may be nested, each under one name."""
    if isinstance(value, dict):
        return [
            row
            for key in sorted(value)
            for row in _flat(f"{name} {key}".strip().replace("_", " "), value[key])
        ]
    if isinstance(value, list) and value and all(map(real, value)):
        return [(name, " to ".join(f"{item:.4g}" for item in value))]
    if real(value):
        return [(name, f"{value:.6g}")]
    return [(name, value)] if isinstance(value, str) else []


def _real(value: Any) -> float | None:
    return float(value) if real(value) else None


def _list(gate: GateAnswer) -> Html:
    items = []
    for each in gate.judged:
        receipt = each.receipt
        predicate = receipt.predicate
        items.append(
            el(
                "li",
                el(
                    "a",
                    el("code", receipt.digest[:12]),
                    el("span", f" receipt of {gate.name}", class_="unseen"),
                    href=link(receipt),
                ),
                " ",
                badge(each.verdict, each.counts),
                " ",
                Html(" ".join(_state(each))),
                f" {when(predicate.run.started)}, {hardware(predicate.scope)}",
            )
        )
    count = len(items)
    differ = {each.verdict for each in gate.judged if each.counts}
    title = "Its receipt" if count == 1 else f"Its {count} receipts, the answer first"
    return join(
        [
            el("h4", title),
            el(
                "p",
                "Receipts that count do not agree: one that rejects stands before the "
                "others, else the newest is the answer.",
                class_="bad",
            )
            if len(differ) > 1
            else Html(""),
            el("ul", join(items), class_="receipts"),
        ]
    )


def _files(report: Report) -> Html:
    if not report.bad and not report.others:
        return Html("")
    parts = []
    if report.bad:
        items = [el("li", el("code", file), " ", why) for file, why in report.bad]
        parts.append(el("ul", join(items)))
    if report.others:
        parts.append(
            el(
                "p",
                f"{report.others} further JSON files below {FOLDER}/ are raw figures, "
                "not receipts.",
            )
        )
    return el(
        "section",
        el("h2", "Files that are no receipts", id="files"),
        join(parts),
        aria_labelledby="files",
    )


__all__ = ["GENERATOR", "badge", "link", "page", "text"]
