# SPDX-License-Identifier: Apache-2.0
"""`stackctl gate`: list, run, pack and decide gates."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.gate_options import (
    BaseUrlOption,
    FreshOption,
    GpuOption,
    ModelOption,
    PythonOption,
    SiteOption,
    Where,
)
from stackctl.cli.output import Outcome, table
from stackctl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stackctl.gates import run as running
    from stackctl.gates.cluster.executor import StoredTrees
    from stackctl.gates.here import Here
    from stackctl.gates.model import ArmSpec, Gate

RUN_EXAMPLE = (
    "Examples: stackctl gate run kpool-parity-cpu; "
    "stackctl gate run kpool-speed --python /opt/venv/bin/python --json; "
    "stackctl gate run kpool-parity --arm on=only:parallel-prefill; "
    "stackctl gate run kpool-speed --executor ray --ray-address 10.0.0.5:6379 "
    "--ray-label ray.io/accelerator-type=H200"
)
PACK_EXAMPLE = (
    "Examples: stackctl gate pack kpool-speed --out pack --lib; "
    "PYTHONPATH=pack/lib python3 -m stackctl gate run kpool-speed --from pack"
)
DECIDE_EXAMPLE = (
    "Example: stackctl gate decide .stackctl/gates/kpool-speed/000001/evidence.json"
)
LIST_EXAMPLE = "Examples: stackctl gate list; stackctl gate list --json"

ArmOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=TREE",
        help="Another tree for an arm: base, composed, only:SET, without:SET, "
        "upto:SET (several times).",
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=2**32 - 1,
        help="Seed of the schedule and of random inputs; drawn, and recorded, by "
        "default.",
    ),
]
VERDICT_CODES = {
    "qualified": ExitCode.OK,
    "rejected": ExitCode.NO,
    "insufficient-evidence": ExitCode.INSUFFICIENT,
    "not-tested": ExitCode.NOT_TESTED,
    "invalid": ExitCode.INVALID,
    None: ExitCode.NOT_TESTED,
}


def verdict_code(verdicts: "Iterable[str | None]") -> int:
    """Return the exit code of the worst verdict."""
    order = ("invalid", "rejected", "insufficient-evidence", "not-tested", None)
    found = set(verdicts)
    worst = next((verdict for verdict in order if verdict in found), "qualified")
    return VERDICT_CODES[worst]


def check_named(gate: "Gate", here: "Here") -> None:
    """Check what the options name against a gate, before anything runs."""
    from stackctl.gates.evidence import SERVED_KINDS

    address = here.parameters.get("base-url")
    if address and gate.kind in SERVED_KINDS:
        from stackctl.gates.kinds.served import check_addresses

        check_addresses(gate, address)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    gate = typer.Typer(
        name="gate",
        help="Ask one question about composed trees, always the same way.",
        epilog=LIST_EXAMPLE,
        no_args_is_help=True,
        rich_markup_mode=None,
    )

    @gate.callback()
    def _group() -> None:
        pass

    app.add_typer(gate)

    @command(gate, "list", epilog=LIST_EXAMPLE)
    def gate_list(
        session: Session,
        python: PythonOption = None,
        site: SiteOption = None,
        model: ModelOption = None,
        base_url: BaseUrlOption = None,
        gpu: GpuOption = None,
    ) -> Outcome:
        """List the gates, who asks for them, and which can run here.

        Gates are the files ci/gates/NAME.toml of the project. One that the series names
        and that has no file is listed as not defined. Exits with 3 where a file cannot
        be read; the others are listed all the same.
        """
        from stackctl.gates.asked import Askers, askers
        from stackctl.gates.bound import lacking
        from stackctl.gates.kinds.served import shown_by, unshown
        from stackctl.gates.model import read_gates

        project, series = session.project, session.series
        files = read_gates(project)
        gates = files.good
        here = Where(
            python=python, site=site, model=model, base_url=base_url, gpu=gpu
        ).here()
        asked = askers(series)
        entries: list[dict[str, Any]] = []
        for name in sorted({*gates, *files.bad, *asked}):
            sets = asked.get(name, Askers())
            roles = {"required": list(sets.required), "advisory": list(sets.advisory)}
            if name not in gates:
                error = files.bad.get(name)
                why = f"no ci/gates/{name}.toml" if error is None else error.message
                entries.append(
                    {"name": name, "kind": None, "title": "", **roles, "arms": []}
                    | {"unshown": [], "can_run": False, "missing": [why]}
                    | ({"error": None} if error is None else error.document())
                )
                continue
            found = gates[name]
            missing = [*lacking(project, found, series), *here.missing(found)]
            arms = [
                {"name": arm, "tree": spec.tree, "env": dict(spec.env)}
                | {"engagement": shown_by(found, arm)}
                for arm, spec in found.arms.items()
            ]
            entries.append(
                {"name": name, "kind": found.kind, "title": found.title, **roles}
                | {"arms": arms, "unshown": unshown(found)}
                | {"can_run": not missing, "missing": missing, "error": None}
            )
        code = ExitCode.BAD_INPUT if files.bad else ExitCode.OK
        return Outcome({"gates": entries}, lambda: _listing(entries), code)

    @command(gate, "run", epilog=RUN_EXAMPLE)
    def gate_run(
        session: Session,
        gates: Annotated[
            list[str], typer.Argument(metavar="GATE...", help="Gates to run.")
        ],
        pack: Annotated[
            Path | None,
            typer.Option(
                "--from",
                metavar="DIR",
                help="Run from a pack (`gate pack`): no project, git or network.",
            ),
        ] = None,
        arm: ArmOption = None,
        *,
        where: Where,
        seed: SeedOption = None,
        fresh: FreshOption = False,
    ) -> Outcome:
        """Run gates in the composed trees of their arms and write their receipts.

        A run that was interrupted, also by kill -9, is taken up again: a finished unit
        is not repeated, unless something it depends on has changed. Output is kept
        below .stackctl/gates. Exits with the worst verdict: 0 qualified, 1 rejected, 7
        insufficient evidence, 8 not tested, 9 invalid.
        """
        from stackctl.gates.model import find_gate, read_gates
        from stackctl.gates.run import Engine

        project, trees = _trees(session, pack)
        known = read_gates(project)
        wanted = [find_gate(known, name) for name in dict.fromkeys(gates)]
        changes = _arm_changes(arm)
        here = where.here()
        for each in wanted:
            check_named(each, here)
        outcomes = []
        with Engine(project, trees, here, progress=session.progress) as engine:
            where.use_executor(engine, trees, session.progress)
            for each in wanted:
                specs = _with_changes(each.arms, changes, each.name)
                outcomes.append(engine.run(each, specs, seed=seed, fresh=fresh))
            shipped = list(engine.executor.shipped)
        documents = [outcome.document(project) for outcome in outcomes]
        if where.executor == "ray":
            # What went to which node belongs to the call: later gates find it there.
            documents[0]["shipped"] = shipped
        return Outcome(
            documents[0] if len(documents) == 1 else documents,
            lambda: [
                line
                for each in outcomes
                for line in (*_report(each, project), *_elsewhere(each, pack))
            ],
            verdict_code(outcome.verdict for outcome in outcomes),
        )

    @command(gate, "pack", epilog=PACK_EXAMPLE)
    def gate_pack(
        session: Session,
        gates: Annotated[
            list[str], typer.Argument(metavar="GATE...", help="Gates to pack.")
        ],
        out: Annotated[
            Path, typer.Option("--out", metavar="DIR", help="A new or empty folder.")
        ],
        tree: Annotated[
            list[str] | None,
            typer.Option(
                metavar="TREE",
                help="A further tree that arms may be given there (several times).",
            ),
        ] = None,
        lib: Annotated[
            bool,
            typer.Option("--lib", help="Also copy the packages that stackctl needs."),
        ] = False,
    ) -> Outcome:
        """Write gates with their trees into a folder, to run on another machine.

        That machine needs Python and what the gates need, but no git, network or
        project: `gate run GATE --from DIR` checks every file and tree by its digest and
        writes receipts to DIR/project/receipts.
        """
        from stackctl.gates.here import Here
        from stackctl.gates.model import find_gate, read_gates
        from stackctl.gates.pack import write_pack
        from stackctl.gates.run import Engine

        project, trees = _trees(session, None)
        known = read_gates(project)
        wanted = [find_gate(known, name) for name in dict.fromkeys(gates)]
        with Engine(project, trees, Here(), progress=session.progress) as engine:
            made = write_pack(
                engine,
                wanted,
                out.absolute(),
                definitions=tree or (),
                libraries=lib,
                progress=session.progress,
            )

        def text() -> list[str]:
            counts = ", ".join(
                f"{len(made[what])} {what if len(made[what]) != 1 else what[:-1]}"
                for what in ("gates", "trees")
            )
            return [f"{out}: {counts}, {made['bytes'] / 1e6:.1f} MB"]

        return Outcome(made, text)

    @command(gate, "decide", epilog=DECIDE_EXAMPLE)
    def gate_decide(
        session: Session,
        files: Annotated[
            list[Path],
            typer.Argument(metavar="FILE...", help="evidence.json of finished runs."),
        ],
    ) -> Outcome:
        """Decide runs that could not be decided where they ran, and write receipts.

        For machines that have no statistics packages. The gate's file must be the one
        that the run was bound to. Exits as `gate run` does.
        """
        from stackctl.gates.run import decide_evidence

        project = session.project
        outcomes = [decide_evidence(file, project) for file in files]
        documents = [outcome.document(project) for outcome in outcomes]
        return Outcome(
            documents[0] if len(documents) == 1 else documents,
            lambda: [line for each in outcomes for line in _report(each, project)],
            verdict_code(outcome.verdict for outcome in outcomes),
        )


def who_asks(
    required: "Sequence[str]", advisory: "Sequence[str]", known: "Sequence[str]"
) -> str:
    """Say which sets ask for a gate, those that only want to know in brackets.

    Args:
        required: Sets that require it.
        advisory: Sets that only want to know.
        known: All sets that ask for any gate.
    """
    named = [*required, *(f"({name})" for name in advisory)]
    if len(named) > 2 and not (required and advisory):
        others = [name for name in known if name not in (*required, *advisory)]
        words = {0: "all sets", 1: f"all sets but {', '.join(others)}"}.get(len(others))
        if words is not None:
            return words if required else f"({words})"
    return ", ".join(named)


def all_askers(askers: "Iterable[Iterable[str]]") -> list[str]:
    """Return the sets that ask for any gate, each once.

    Args:
        askers: The sets that ask, gate by gate.
    """
    return list(dict.fromkeys(name for names in askers for name in names))


def _listing(entries: list[dict[str, Any]]) -> list[str]:
    sets = all_askers((*each["required"], *each["advisory"]) for each in entries)
    rows = [
        [
            entry["name"],
            entry["kind"] or ("bad file" if entry["error"] else "not defined"),
            who_asks(entry["required"], entry["advisory"], sets),
            "; ".join(
                [
                    "yes" if entry["can_run"] else "no: " + "; ".join(entry["missing"]),
                    *(
                        f"not-tested in any case: nothing shows what {arm} has on"
                        for arm in entry["unshown"]
                    ),
                ]
            ),
        ]
        for entry in entries
    ]
    lines = table(["gate", "kind", "sets (advisory)", "can run here"], rows)
    return lines if rows else ["no gates: there is no ci/gates/NAME.toml"]


def _arm_changes(options: list[str] | None) -> dict[str, str]:
    changes = {}
    for option in options or ():
        name, equals, tree = option.partition("=")
        if not equals or not name or not tree:
            raise UsageError(
                f"--arm {option}: expected NAME=TREE",
                hint="like --arm on=only:prefetch",
            )
        changes[name] = tree
    return changes


def _with_changes(
    specs: "Mapping[str, ArmSpec]", changes: "Mapping[str, str]", gate: str
) -> "dict[str, ArmSpec]":
    from dataclasses import replace

    for name in changes:
        if name not in specs:
            known = ", ".join(specs)
            raise UsageError(f"the gate {gate} has no arm `{name}`; it has {known}")
    return {
        name: replace(spec, tree=changes[name]) if name in changes else spec
        for name, spec in specs.items()
    }


def _trees(session: Session, pack: Path | None) -> "tuple[Path, StoredTrees]":
    """Return the project folder and where its trees come from."""
    if pack is not None:
        from stackctl.gates.pack import PackedTrees

        packed = PackedTrees(pack.absolute(), session.progress)
        return packed.project, packed
    from stackctl.gates.arms import ComposedTrees

    trees = ComposedTrees(
        session.series, session.cache, session.offline, session.progress
    )
    return session.project, trees


def _report(outcome: "running.Outcome", project: Path) -> list[str]:
    lines = [f"{outcome.gate}: {outcome.verdict or 'not decided'}{_extent(outcome)}"]
    lines += [f"  {reason}" for reason in outcome.reasons]
    lines += [f"  {text}" for text in outcome.problems if text not in outcome.reasons]
    lines += [f"  (limitation) {text}" for text in outcome.limitations]
    document = outcome.document(project)
    lines += words_of(document)
    if outcome.nodes:
        lines.append(f"  ran on: {', '.join(outcome.nodes)}")
    if outcome.lost:
        lines.append(f"  lost while it ran: {', '.join(outcome.lost)}")
    for name in ("receipt", "output"):
        if document[name]:
            lines.append(f"  {name}: {document[name]}")
    return lines


def words_of(document: "Mapping[str, Any]", most: int = 12) -> list[str]:
    """Return what failed units said last, for the terminal.

    Args:
        document: The document of `gate run`.
        most: Most lines of each.
    """
    lines = []
    for words in document.get("last_words", ()):
        lines.append(f"  unit {words['unit']} said last, in {words['file']}:")
        lines += [f"    | {line}" for line in words["lines"][-most:]]
    return lines


def _extent(outcome: "running.Outcome") -> str:
    """Say how much was run, and how long it took."""
    if outcome.folder is None or not outcome.ns or outcome.evidence is None:
        return ""
    count = len(outcome.evidence.units)
    units = f"{count} unit" if count == 1 else f"{count} units"
    before = f", {outcome.resumed} of them before" if outcome.resumed else ""
    return f" ({units}{before}, {outcome.ns / 1e9:.0f} s)"


def _elsewhere(outcome: "running.Outcome", pack: Path | None) -> list[str]:
    """Say how a gate that cannot run here is run on a machine that has all."""
    if outcome.folder is not None or outcome.verdict != "not-tested" or pack:
        return []
    return [f"  for another machine: stackctl gate pack {outcome.gate} --out DIR --lib"]
