# SPDX-License-Identifier: Apache-2.0
"""`stackctl receipt`: what gates answered, and whether to believe it still."""

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import (
    Outcome,
    Styled,
    columns,
    labelled,
    of_file,
    printable,
    table,
)
from stackctl.errors import ExitCode, InputError, RemoteError, UsageError

if TYPE_CHECKING:
    from stackctl.gates.receipt import Receipt
    from stackctl.gates.receipt.store import Shelf

EXAMPLE = (
    "Examples: stackctl receipt show kpool-speed; stackctl receipt verify; "
    "stackctl receipt stale --json"
)

_FILES = typer.Argument(
    metavar="[FILE]...",
    help="Receipts: files, gates, or starts of digests; all of the project by default.",
    show_default=False,
)

_COLOURS = {
    "qualified": "green",
    "rejected": "red",
    "insufficient-evidence": "yellow",
    "not-tested": "cyan",
    "invalid": "magenta",
}
_BARS = " ▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.:-=+*#%"


class Asked(NamedTuple):
    """One receipt that was asked for."""

    path: Path
    receipt: "Receipt | None"
    error: InputError | None


def _asked(
    session: Session, names: Sequence[str] | None
) -> "tuple[list[Asked], Shelf]":
    """Read the receipts that a user names; a bad one is an answer, not the end."""
    from stackctl.gates.receipt import find, read

    shelf = find(session.project)
    found = [Asked(item.path, item.receipt, item.error) for item in shelf.found]
    if not names:
        return found, shelf
    chosen: list[Asked] = []
    for name in names:
        path = Path(name)
        if path.exists() or "/" in name or path.suffix == ".json":
            try:
                chosen.append(Asked(path, read(path), None))
            except InputError as error:
                chosen.append(Asked(path, None, error))
            continue
        matching = [item for item in found if _named(item, name)]
        if not matching:
            raise UsageError(
                f"no receipt `{printable(name)}`: neither a file, a gate with receipts "
                "nor the start of a digest",
                kind="no-receipt",
                hint="`stackctl receipt show` lists them",
            )
        chosen += matching
    return list({item.path: item for item in chosen}.values()), shelf


def _named(item: Asked, name: str) -> bool:
    # A file that cannot be read is taken to be of the gate whose folder it is in.
    gate = item.receipt.gate if item.receipt else item.path.parent.name
    if gate == name:
        return True
    return bool(re.fullmatch("[0-9a-f]{4,64}", name)) and item.path.name.startswith(
        name
    )


def _shown_path(session: Session, path: Path) -> str:
    try:
        return str(path.absolute().relative_to(session.project))
    except ValueError:
        return str(path)


def _bad(session: Session, item: Asked) -> dict[str, Any]:
    assert item.error is not None
    return {
        "file": _shown_path(session, item.path),
        "ok": False,
        "reasons": [item.error.message],
        "kind": item.error.kind,
        "where": item.error.where,
    }


def _code(documents: Sequence[dict[str, Any]]) -> int:
    """Bad files come before a plain no."""
    if any("kind" in each for each in documents):
        return ExitCode.BAD_INPUT
    return ExitCode.OK if all(each["ok"] for each in documents) else ExitCode.NO


def _list_text(
    documents: Sequence[dict[str, Any]], shelf: "Shelf", word: str
) -> Iterable[str]:
    from stackctl.gates.receipt.words import when

    if not documents:
        yield "no receipts; `stackctl gate run` writes them"
    else:
        yield from table(
            ["receipt", "gate", "verdict", word, "started", "hardware", "signature"],
            [
                [
                    Path(each["file"]).name[:12],
                    each.get("gate", "-"),
                    each.get("verdict", "-"),
                    _word(each, word),
                    when(each.get("started")) if "gate" in each else "-",
                    each.get("hardware", "-"),
                    each.get("signature", "-"),
                ]
                for each in documents
            ],
        )
    for each in documents:
        for reason in (*each["reasons"], *each.get("notes", ())):
            yield of_file(each["file"], reason)
    if shelf.others:
        count = len(shelf.others)
        are = "file below receipts/ is" if count == 1 else "files below receipts/ are"
        yield f"{count} JSON {are} raw figures, not receipts"


def _word(document: dict[str, Any], word: str) -> str:
    if "kind" in document:
        return "bad file"
    yes, no = {"verify": ("ok", "not ok"), "stale": ("fresh", "stale")}.get(
        word, ("", "")
    )
    return yes if document["ok"] else no


def _summary(session: Session, receipt: "Receipt") -> dict[str, Any]:
    from stackctl.gates.receipt.signature import judge, parse_signers
    from stackctl.gates.receipt.words import hardware

    signers = parse_signers(session.series.policy.receipt_signers, session.series.file)
    assert receipt.path is not None
    return {
        "file": _shown_path(session, receipt.path),
        "gate": receipt.gate,
        "verdict": receipt.verdict,
        "signature": str(judge(receipt, signers, session.project)),
        "sets": list(receipt.predicate.gate.set or ()),
        "started": receipt.predicate.run.started,
        "hardware": hardware(receipt.predicate.scope),
    }


def _one_way(
    session: Session,
    ssh_key: Path | None,
    gpg_key: str | None,
    sigstore: bool,
    config: Path | None,
    browser: bool,
) -> None:
    """Refuse options of `sign` that do not say one way to sign."""
    if (ssh_key is not None) + (gpg_key is not None) + sigstore != 1:
        raise UsageError(
            "name one way to sign: --ssh-key FILE, --gpg-key ID or --sigstore"
        )
    if not sigstore:
        if config is not None or browser:
            option = "--browser" if browser else "--sigstore-config"
            raise UsageError(f"{option} belongs to --sigstore")
        return
    if session.offline:
        raise RemoteError(
            "--sigstore signs over the network, and --offline forbids it",
            kind="offline",
            hint="sign with --ssh-key or --gpg-key",
        )
    if browser and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            "--browser needs a terminal: it prints an address and waits for you",
            hint="without it, the identity of the CI service or cloud is taken",
        )


def spark(values: Sequence[float], bars: str = _BARS) -> str:
    """Return figures as a row of bars between their smallest and largest.

    Args:
        values: The figures.
        bars: Characters from low to high; the first is left for nothing at all.
    """
    if not values:
        return ""
    low, high = min(values), max(values)
    steps = len(bars) - 2
    span = high - low
    return "".join(
        bars[1 + (round((value - low) / span * steps) if span else steps // 2)]
        for value in values
    )


def _bars() -> str:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        _BARS.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return _ASCII_BARS
    return _BARS


class Part(NamedTuple):
    """A part of what `show` prints: a table under a heading."""

    title: str
    header: tuple[str, ...]
    rows: list[list[str]]


def _parts(receipt: "Receipt", summary: dict[str, Any]) -> list[Part]:
    from stackctl.gates.receipt.words import claims_of, hardware, sides

    predicate = receipt.predicate
    bound, run, decision = predicate.bound, predicate.run, predicate.decision
    facts = [
        ["file", summary["file"]],
        ["gate", f"{predicate.gate.kind}{_asking(predicate.gate.set)}"],
        ["signature", summary["signature"]],
    ]
    if run.started:
        facts.append(["started", run.started])
    facts.append(["hardware", hardware(predicate.scope)])
    if bound.base:
        facts.append(["base", f"{bound.base.identity}, tree {bound.base.tree[:12]}"])
    if bound.model:
        revision = bound.model.revision or "no known revision"
        facts.append(["model", f"{bound.model.name} ({revision})"])
    if bound.image:
        facts.append(["image", bound.image])
    facts += [["because", reason] for reason in receipt.reasons]
    facts += [["command", " ".join(run.argv)]]
    facts += [["limitation", text] for text in predicate.limitations]
    parts = [Part("", ("", ""), facts)]
    parts.append(
        Part(
            "arms",
            ("arm", "definition", "tree", "composition", "switches"),
            [
                [
                    name,
                    arm.definition,
                    (arm.tree or "-")[:12],
                    (arm.composition or "-")[:12],
                    " ".join(f"{key}={value}" for key, value in arm.env.items()),
                ]
                for name, arm in sorted(bound.arms.items())
            ],
        )
    )
    claims = claims_of(decision)
    if claims:
        header = ("claim", "verdict", "estimate", "interval", "asked", "pairs", "each")
        better = sides(bound.claims)
        parts.append(
            Part("claims", header, [_claim(claim, better) for claim in claims])
        )
    parts.append(_units(receipt))
    if shown := _engagement(receipt):
        parts.append(Part("engagement", ("arm", "what", "seen"), shown))
    parts.append(
        Part(
            "bound files",
            ("role", "path", "sha256"),
            [[file.role, file.path, file.sha256[:12]] for file in bound.files],
        )
    )
    scope = _scope(predicate.scope)
    if scope:
        parts.append(Part("scope", ("what", "value"), scope))
    return parts


def _asking(sets: Sequence[str] | None) -> str:
    if not sets:
        return ""
    return f", for the {'set' if len(sets) == 1 else 'sets'} {', '.join(sets)}"


def _claim(claim: dict[str, Any], better: Mapping[str, str]) -> list[str]:
    from stackctl.gates.receipt.words import asked, figure, figures_of, interval

    unit = str(claim.get("unit", ""))
    name = str(claim.get("name"))
    return [
        name if claim.get("required", True) else f"{name} (advisory)",
        str(claim.get("verdict")),
        figure(claim.get("estimate"), unit),
        interval(claim),
        asked(claim, better.get(name, "lower")),
        str(claim.get("pairs", "-")),
        spark(figures_of(claim), _bars()),
    ]


def _units(receipt: "Receipt") -> Part:
    predicate = receipt.predicate
    slots = {slot.unit: slot for slot in predicate.run.schedule.slots}
    rows = []
    for unit in predicate.units:
        slot = slots[unit.unit]
        load = unit.host.get("load_mean")
        rows.append(
            [
                str(unit.unit),
                str(slot.block),
                " ".join(slot.arms),
                "-" if unit.exit is None else str(unit.exit),
                f"{unit.ns / 1e9:.2f}",
                f"{load:.2f}" if isinstance(load, (int, float)) else "-",
                "; ".join(unit.problems),
            ]
        )
    title = "units"
    if missing := len(slots) - len(rows):
        decision = predicate.decision
        look, looks = decision.get("look"), decision.get("looks")
        title = f"units ({missing} of {len(slots)} did not run)"
        if isinstance(look, int) and isinstance(looks, list) and look < len(looks):
            title = f"units (decided at look {look} of {len(looks)})"
    header = ("unit", "block", "arms", "exit", "s", "load", "problems")
    return Part(title, header, rows)


def _engagement(receipt: "Receipt") -> list[list[str]]:
    """Return what each unit saw of the features of its arms."""
    from stackctl.gates.receipt.words import engagement

    return [[arm, what, _alike(seen)] for arm, what, seen in engagement(receipt)]


def _alike(figures: Sequence[str]) -> str:
    """Return the figures of all units, once where they are the same."""
    if len(figures) > 1 and len(set(figures)) == 1:
        return f"{figures[0]} in each of {len(figures)} units"
    return ", ".join(figures)


def _scope(scope: Any) -> list[list[str]]:
    rows = []
    for name in ("hardware", "host", "versions"):
        rows += _flat(name, getattr(scope, name))
    return rows


def _flat(name: str, value: Any) -> list[list[str]]:
    if isinstance(value, dict):
        return [
            row for key in sorted(value) for row in _flat(f"{name}.{key}", value[key])
        ]
    if isinstance(value, list) and any(
        isinstance(item, (dict, list)) for item in value
    ):
        return [
            row for n, item in enumerate(value) for row in _flat(f"{name}[{n}]", item)
        ]
    if isinstance(value, list):
        return [[name, ", ".join(map(str, value))]]
    return [[name, "-" if value is None else str(value)]]


def _plain(title: str, verdict: str, parts: Sequence[Part]) -> Iterable[str]:
    yield f"{title}: {verdict}"
    for part in parts:
        if not part.title:
            for name, value in part.rows:
                yield from labelled(f"  {name:<10} ", value)
            continue
        yield ""
        yield part.title
        room = columns()
        lines = table(part.header, part.rows, room - 2 if room else None)
        yield from (f"  {line}" for line in lines)


def _rich(title: str, verdict: str, parts: Sequence[Part]) -> Iterable[str]:
    """Draw the same with colours, as wide as the terminal."""
    from io import StringIO

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = StringIO()
    width = Console().width
    console = Console(file=out, force_terminal=True, width=width, highlight=False)
    colour = _COLOURS.get(verdict, "white")
    heading = Text(f"{printable(title)}  ", "bold")
    console.print(heading.append(f" {verdict} ", f"bold reverse {colour}"))
    for part in parts:
        lines = table(part.header, part.rows, width) if part.title else []
        if len(lines) > len(part.rows) + 1:  # too wide: folded, as without colours
            console.print(Text(printable(part.title), "bold"))
            for line in lines:
                shown = Text(line, no_wrap=True, overflow="ignore")
                for word, style in _COLOURS.items():
                    shown.highlight_words([word], style)
                console.print(shown)
            console.print()
            continue
        drawn = Table(
            title=printable(part.title) or None,
            title_justify="left",
            title_style="bold",
            show_header=bool(part.title),
            box=None,
            pad_edge=False,
        )
        for n, name in enumerate(part.header):
            dim = not part.title and n == 0
            drawn.add_column(name, style="dim" if dim else None, overflow="fold")
        for row in part.rows:
            drawn.add_row(
                *[Text(printable(cell), _COLOURS.get(cell, "")) for cell in row]
            )
        console.print(drawn)
        console.print()
    yield from (Styled(line) for line in out.getvalue().rstrip().split("\n"))


def _fancy() -> bool:
    """Whether standard output is a terminal that wants colours."""
    return (
        sys.stdout is not None
        and sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(
        name="receipt",
        help="What gates answered, and whether to believe it still.",
        epilog=EXAMPLE,
        no_args_is_help=True,
        rich_markup_mode=None,
    )

    @command(group, "show", epilog="Example: stackctl receipt show kpool-speed")
    def show(
        session: Session, files: Annotated[list[str] | None, _FILES] = None
    ) -> Outcome:
        """Show receipts: verdict, claims with every pair, arms, units, scope.

        Nothing is judged here; `receipt verify` does that. Without FILE, a list.
        """
        asked, shelf = _asked(session, files)
        if files:
            for item in asked:
                if item.error is not None:
                    raise item.error
        documents = []
        shown: list[tuple[Receipt, dict[str, Any]]] = []
        for item in asked:
            if item.receipt is None:
                documents.append(_bad(session, item))
                continue
            summary = _summary(session, item.receipt)
            shown.append((item.receipt, summary))
            document = summary | {"ok": True, "reasons": list(item.receipt.reasons)}
            if files:
                document["statement"] = item.receipt.document()
            documents.append(document)
        code = ExitCode.BAD_INPUT if len(shown) < len(asked) else ExitCode.OK

        def text() -> Iterable[str]:
            if not files:
                yield from _list_text(
                    [each | {"reasons": each["reasons"] if "kind" in each else []}
                     for each in documents],
                    shelf,
                    "",
                )  # fmt: skip
                return
            draw = _rich if _fancy() else _plain
            for n, (receipt, summary) in enumerate(shown):
                if n:
                    yield ""
                parts = _parts(receipt, summary)
                yield from draw(receipt.gate, receipt.verdict, parts)

        return Outcome({"receipts": documents}, text, code)

    @command(group, "verify", epilog="Example: stackctl receipt verify --json")
    def verify(
        session: Session, files: Annotated[list[str] | None, _FILES] = None
    ) -> Outcome:
        """Check schema, digest and signature, and decide again from the samples.

        Exits 1 where a receipt may not be believed, 3 where a file is no receipt or was
        changed. Deciding again needs `stackctl[gates]`.
        """
        from stackctl.gates.receipt.verify import check

        asked, shelf = _asked(session, files)
        documents = []
        for number, item in enumerate(asked):
            session.progress.update("verify", number, len(asked))
            if item.receipt is None:
                documents.append(_bad(session, item))
                continue
            result = check(
                item.receipt,
                session.series.policy.receipt_signers,
                session.project,
                series_file=session.series.file,
            )
            documents.append(
                _summary(session, item.receipt)
                | {
                    "ok": result.ok,
                    "reasons": list(result.reasons),
                    "notes": list(result.notes),
                }
            )
        return Outcome(
            {"receipts": documents},
            lambda: _list_text(documents, shelf, "verify"),
            _code(documents),
        )

    @command(group, "stale", epilog="Example: stackctl receipt stale kpool-speed")
    def stale(
        session: Session,
        files: Annotated[list[str] | None, _FILES] = None,
        model: Annotated[
            str | None,
            typer.Option(
                metavar="PATH", help="The model in use: compare its name and files too."
            ),
        ] = None,
    ) -> Outcome:
        """Say which receipts are about something else than the project as it is now.

        Compared are the arms' trees, the gate's files, the rule and the claims, and
        with --model the model. Exits 1 where anything changed.
        """
        from stackctl.gates.receipt.stale import ProjectState
        from stackctl.gates.receipt.stale import stale as changes

        asked, shelf = _asked(session, files)
        identity = None
        if model is not None:
            from stackctl.gates.bound import model_identity

            identity = model_identity(model)
        state = ProjectState(
            session.series,
            session.cache,
            offline=session.offline,
            progress=session.progress,
            model=identity,
        )
        documents = []
        for item in asked:
            if item.receipt is None:
                documents.append(_bad(session, item))
                continue
            changed = changes(item.receipt, state)
            documents.append(
                _summary(session, item.receipt)
                | {"ok": not changed, "reasons": changed}
            )
        return Outcome(
            {"receipts": documents},
            lambda: _list_text(documents, shelf, "stale"),
            _code(documents),
        )

    @command(
        group,
        "sign",
        epilog="Example: stackctl receipt sign kpool-speed --ssh-key ~/.ssh/id_ed25519",
    )
    def sign(
        session: Session,
        files: Annotated[
            list[str],
            typer.Argument(
                metavar="FILE...",
                help="Receipts: files, gates, or starts of digests.",
            ),
        ],
        ssh_key: Annotated[
            Path | None, typer.Option(metavar="FILE", help="Sign with this SSH key.")
        ] = None,
        gpg_key: Annotated[
            str | None,
            typer.Option(metavar="ID", help="Sign with this OpenPGP key."),
        ] = None,
        sigstore: Annotated[
            bool,
            typer.Option(
                "--sigstore",
                help="Sign with the identity that the CI service or cloud gives; "
                "needs `stackctl[sigstore]` and the network.",
            ),
        ] = False,
        sigstore_config: Annotated[
            Path | None,
            typer.Option(
                metavar="FILE",
                help="With --sigstore: other services than the public ones.",
            ),
        ] = None,
        browser: Annotated[
            bool,
            typer.Option(
                "--browser", help="With --sigstore: log in with a browser instead."
            ),
        ] = False,
    ) -> Outcome:
        """Sign receipts with a key or an identity of yours, each in a file beside it.

        Whose signatures count is `[policy] receipt_signers` of series.toml. With the
        public services of --sigstore, the identity (a mail address, say) and the
        receipt's digest enter a public log for good.
        """
        from stackctl.gates.receipt.signature import sign as sign_receipt

        _one_way(session, ssh_key, gpg_key, sigstore, sigstore_config, browser)
        asked, _ = _asked(session, files)
        for item in asked:
            if item.error is not None:
                raise item.error
        receipts = [item.receipt for item in asked if item.receipt is not None]
        if sigstore:
            from stackctl.gates.receipt.keyless import sign_bundles

            config = sigstore_config.expanduser() if sigstore_config else None
            bundles = iter(sign_bundles(receipts, config=config, browser=browser))
        documents = []
        for item in asked:
            assert item.receipt is not None
            if sigstore:
                made = next(bundles)
            else:
                made = sign_receipt(
                    item.receipt,
                    ssh_key=ssh_key.expanduser() if ssh_key else None,
                    gpg_key=gpg_key,
                )
            documents.append(
                _summary(session, item.receipt)
                | {"ok": True, "reasons": [], "signed": _shown_path(session, made)}
            )
        return Outcome(
            {"receipts": documents},
            lambda: [f"{each['signed']}: {each['signature']}" for each in documents],
        )

    app.add_typer(group)
