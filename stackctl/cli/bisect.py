# SPDX-License-Identifier: Apache-2.0
"""`stackctl bisect`: which patch, set or pair broke it."""

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.gate_options import (
    BaseUrlOption,
    GpuOption,
    ModelOption,
    PythonOption,
    SiteOption,
    Where,
)
from stackctl.cli.output import Outcome
from stackctl.errors import UsageError

if TYPE_CHECKING:
    from stackctl.bisect.command import Evaluator
    from stackctl.bisect.gate import GateEvaluator
    from stackctl.bisect.report import Culprit, Neighbour, Report
    from stackctl.bisect.search import Ground
    from stackctl.gates.here import Here

EXAMPLE = (
    "Examples: stackctl bisect --run 'python -m pytest -q tests/test_x.py'; "
    'stackctl bisect --run "$PWD/check.sh" --good prefetch --workers 2 --keep; '
    'stackctl bisect --run "$PWD/check.sh" --subsets'
)
EXPORT_EXAMPLE = "Example: stackctl bisect export --into ../vllm"

GoodOption = Annotated[
    str,
    typer.Option(
        metavar="PLACE",
        help="The good end: base, SET (all of it), SET:N, SET/PATCH or a composed "
        "commit.",
    ),
]
BadOption = Annotated[
    str, typer.Option(metavar="PLACE", help="The bad end: full, or as for --good.")
]


def _watch(session: Session, workers: int, commands: str) -> Any:
    from stackctl.cli.live import LiveWatch, PlainWatch, can_be_live

    if session.quiet:
        return nullcontext(None)
    if can_be_live():
        return LiveWatch(workers, commands)
    return nullcontext(PlainWatch())


def _culprit_text(culprit: "Culprit") -> Iterable[str]:
    yield f"set          {culprit.set}: {culprit.title}"
    if culprit.patch is not None:
        yield f"patch        {culprit.patch}"
        yield f"subject      {culprit.subject}"
        yield f"author       {culprit.author}, {culprit.date}"
        yield f"commit       {culprit.commit}"
    if culprit.pull:
        name = f"{culprit.pull['repo']}#{culprit.pull['number']}"
        yield f"reviewed in  {culprit.pull['url'] or name}"


def _neighbour_text(title: str, neighbour: "Neighbour | None") -> Iterable[str]:
    if neighbour is None:
        return
    line = f"{title:<12} {neighbour.name}"
    tried = neighbour.last
    if tried is None:
        yield line + ": not tried"
        return
    answer = tried.answer
    status = f"exit {answer.exit}" if answer.exit is not None else answer.why
    if len(neighbour.runs) > 1:
        yield f"{line}: {neighbour.bad_runs} of {len(neighbour.runs)} runs bad"
    else:
        yield f"{line}: {answer.verdict} ({status})"
    for name, value in (("receipt", answer.receipt), ("output", answer.output)):
        if value:
            yield f"{'':<12} {name} {value}"


def report_text(report: "Report") -> Iterable[str]:
    """Return the lines of a report for a person."""
    from stackctl.gates.rule.words import counted

    yield report.message
    for culprit in report.culprits:
        yield from _culprit_text(culprit)
    if report.confidence is not None:
        yield f"confidence   {100 * report.confidence:.1f} %"
    for suspect in report.suspects if not report.culprits else ():
        yield f"suspect      {suspect}"
    for name in report.needs_without:
        yield f"hidden by    {name}"
    for each in report.not_composing:
        yield f"no tree      {each['subset']}: {each['why']}"
    yield from _neighbour_text("without it", report.good)
    yield from _neighbour_text("with it", report.bad)
    for kept in report.kept:
        mark = " (was there already, left as it was)" if kept.existed else ""
        yield f"kept         {kept.path}{mark}"
    for line in report.reproduce:
        yield f"reproduce    {line}"
    for note in report.notes:
        yield f"note         {note}"
    work = report.work
    replayed = f", {work.replayed} of them from the log" if work.replayed else ""
    yield f"tried        {counted(work.evaluations, 'run')}{replayed}"
    yield (
        f"time         {work.ns / 1e9:.1f} s, {work.run_ns / 1e9:.1f} s in commands, "
        f"{work.first_ns / 1e9:.2f} s to write whole trees, "
        f"{work.switch_ns / 1e9:.2f} s to change them {counted(work.switches, 'time')}"
    )
    yield f"log          {report.log}"
    for culprit in report.culprits:
        if culprit.diff:
            yield ""
            yield from culprit.diff.splitlines()


def _check(run: str | None, gate: str | None, timeout: float | None) -> None:
    if (run is None) == (gate is None):
        raise UsageError("one of --run and --gate says what good and bad mean")
    if gate is not None and timeout is not None:
        raise UsageError(
            "--timeout goes with --run", hint="a gate's own file sets its limits"
        )


def _gate_evaluator(
    session: Session, ground: "Ground", name: str, good: str, here: "Here"
) -> "GateEvaluator":
    from stackctl.bisect.gate import GateEvaluator
    from stackctl.bisect.stack import find_place
    from stackctl.gates.arms import ComposedTrees
    from stackctl.gates.model import find_gate, read_gates

    gate = find_gate(read_gates(session.project), name)
    place = ground.places[find_place(ground.places, good)]
    trees = ComposedTrees(
        session.series, session.cache, session.offline, session.progress
    )
    state = session.cache.folder / "bisect" / "gates" / f"{name}-{place.tree[:12]}"
    return GateEvaluator(gate, place, trees, here, session.project, state)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(name="bisect", rich_markup_mode=None)

    @command(group, None, epilog=EXAMPLE)
    def bisect(
        session: Session,
        run: Annotated[
            str | None,
            typer.Option(
                metavar="CMD",
                help="Shell command, run inside of the tree: 0 is good, 125 skips, 1 "
                "to 127 is bad, more stops the search.",
            ),
        ] = None,
        gate: Annotated[
            str | None,
            typer.Option(
                metavar="GATE",
                help="Gate of ci/gates: qualified is good, rejected is bad, not tested "
                "skips.",
            ),
        ] = None,
        good: GoodOption = "base",
        bad: BadOption = "full",
        workers: Annotated[
            int,
            typer.Option(
                "-j",
                "--workers",
                min=1,
                max=256,
                metavar="K",
                help="Try K trees at once, each in a folder of its own.",
            ),
        ] = 1,
        timeout: Annotated[
            float | None,
            typer.Option(
                min=0.001, metavar="SECONDS", help="A longer run is ended and is bad."
            ),
        ] = None,
        python: PythonOption = None,
        site: SiteOption = None,
        model: ModelOption = None,
        base_url: BaseUrlOption = None,
        gpu: GpuOption = None,
        keep: Annotated[
            bool,
            typer.Option(
                "--keep", help="Leave two folders: without the culprit, and with it."
            ),
        ] = False,
        keep_in: Annotated[
            Path | None,
            typer.Option(
                metavar="DIR", help="Where --keep puts them; here by default."
            ),
        ] = None,
        log: Annotated[
            Path | None,
            typer.Option(
                metavar="FILE",
                help="Keep the log here; what it tells already is not run again.",
            ),
        ] = None,
        subsets: Annotated[
            bool,
            typer.Option(
                "--subsets",
                help="Search subsets of the sets instead of prefixes: the smallest bad "
                "set, or sets that are bad only together.",
            ),
        ] = False,
        confidence: Annotated[
            float | None,
            typer.Option(
                min=0.5,
                max=0.9999,
                metavar="P",
                help="The command is flaky: run trees again until the answer has this "
                "confidence, like 0.95.",
            ),
        ] = None,
        repeats: Annotated[
            int,
            typer.Option(
                min=5,
                max=1000,
                metavar="N",
                help="With --confidence: at most so many runs of each end.",
            ),
        ] = 20,
        restart: Annotated[
            bool,
            typer.Option("--restart", help="Forget what an interrupted run learned."),
        ] = False,
        work: Annotated[
            Path | None,
            typer.Option(
                metavar="DIR", help="Where the work folders lie; by default the cache."
            ),
        ] = None,
    ) -> Outcome:
        """Find the patch, the set or the pair of sets that made it bad.

        Tries the composed prefixes of the series between a good and a bad end. Exit
        code 0: named; 1: nothing is bad; 7: noise, or only narrowed down; 8: an end
        cannot be tried; 9: the good end is bad, or the command stopped the search.
        """
        from stackctl.bisect.command import CommandEvaluator
        from stackctl.bisect.driver import UNWATCHED
        from stackctl.bisect.search import Options, find_patch, prepare
        from stackctl.bisect.sets import find_set

        _check(run, gate, timeout)
        kept = (keep_in or Path()) if keep or keep_in else None
        options = Options(
            good=good,
            bad=bad,
            workers=workers,
            log=log,
            restart=restart,
            keep=kept,
            work=work,
            offline=session.offline,
            confidence=confidence,
            repeats=repeats,
        )
        ground = prepare(
            session.series, session.cache, session.offline, session.progress
        )
        gate_evaluator = None
        if gate is not None:
            here = Where(
                python=python, site=site, model=model, base_url=base_url, gpu=gpu
            ).here()
            gate_evaluator = _gate_evaluator(session, ground, gate, good, here)
            if gate_evaluator.timed and workers > 1:
                raise UsageError(
                    f"the gate {gate} measures time, so it is run alone",
                    hint="leave --workers out",
                )
        evaluator: Evaluator = gate_evaluator or CommandEvaluator(run or "", timeout)
        with _watch(session, workers, run or gate or "") as watch:
            find = find_set if subsets else find_patch
            report = find(
                ground,
                evaluator,
                options,
                watch=watch or UNWATCHED,
            )
        if gate_evaluator is not None:
            gate_evaluator.forget_runs()
        return Outcome(report.document(), lambda: report_text(report), report.code)

    @command(group, "export", epilog=EXPORT_EXAMPLE)
    def export(
        session: Session,
        into: Annotated[
            Path, typer.Option(metavar="REPO", help="Repository to write into.")
        ],
        good: GoodOption = "base",
        bad: BadOption = "full",
        ref: Annotated[
            str,
            typer.Option(
                metavar="PREFIX", help="The two refs are PREFIX/good and PREFIX/bad."
            ),
        ] = "refs/stackctl",
    ) -> Outcome:
        """Write the composed commits into a repository, for plain `git bisect`.

        One commit per patch, with the patch's author; the trees are those that
        `stackctl bisect` tries. Nothing else in the repository changes.
        """
        from stackctl.bisect.export import export_commits

        written = export_commits(
            session.series,
            session.cache,
            into,
            ref,
            good,
            bad,
            offline=session.offline,
            progress=session.progress,
        )
        document = written.document()
        return Outcome(document, written.text)

    app.add_typer(group)
