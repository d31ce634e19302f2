# SPDX-License-Identifier: Apache-2.0
"""`stackctl replay`: rebuild published integration locks."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome, of_file, table
from stackctl.errors import ExitCode, StackctlError

if TYPE_CHECKING:
    from stackctl.published.replay import Replay

EXAMPLE = (
    "Examples: stackctl replay integration.lock.json --repo mirror.git; "
    "stackctl replay locks/*.json --repo mirror.git --json"
)

_WORST = (
    ExitCode.INTERNAL,
    ExitCode.BAD_INPUT,
    ExitCode.PIN,
    ExitCode.REMOTE,
    ExitCode.CONFLICT,
    ExitCode.NO,
)


def _answer(value: bool | None) -> str:
    return {True: "equal", False: "NOT EQUAL", None: "-"}[value]


def _text(results: "list[tuple[Path, Replay | StackctlError]]") -> Iterable[str]:
    rows = []
    for path, result in results:
        if isinstance(result, StackctlError):
            rows.append([path.name, "", "error", "", "", result.kind])
            continue
        counts = [step.disposition for step in result.steps]
        steps = ", ".join(
            f"{counts.count(word)} {word}" for word in dict.fromkeys(counts)
        )
        tree = "conflict" if result.conflict else _answer(result.equal)
        rows.append(
            [
                path.name,
                result.lock.name,
                tree,
                _answer(result.patch_equal),
                (result.tree or "")[:12],
                steps,
            ]
        )
    yield from table(["file", "name", "tree", "patch", "result", "steps"], rows)
    for path, result in results:
        if isinstance(result, StackctlError):
            yield of_file(path, result.message)
            if result.hint:
                yield f"  {result.hint}"
            continue
        yield from _details(path, result)


def _details(path: Path, result: "Replay") -> Iterable[str]:
    for note in result.notes:
        yield f"{path}: {note}"
    variant = result.patch_variant
    if result.patch_equal and variant and variant.startswith("without"):
        yield f"{path}: the published patch was made {variant}"
    if result.patch_equal is False and result.equal:
        yield (
            f"{path}: the patch has the digest {result.patch_sha256}, the lock says "
            f"{result.lock.patch_sha256}; no known way of making it gives that"
        )
    if result.conflict is not None:
        yield f"{path}: {result.conflict.name} does not merge"
        for conflict in result.conflict.conflicts:
            yield f"  {conflict.path.decode('utf-8', 'backslashreplace')}"
    difference = result.difference
    if difference is None:
        return
    yield f"{path}: expected tree {result.lock.tree}, got {result.tree}"
    if difference.equal_after is not None:
        yield f"  the published tree is the one after step {difference.equal_after}"
    if difference.step is not None:
        step = result.steps[difference.step - 1].name if difference.step else "the base"
        how = "" if difference.certain else " (concluded from the paths)"
        yield f"  the trees part at step {difference.step}: {step}{how}"
    for each in (difference.paths or ())[:10]:
        yield f"  {each.path.decode('utf-8', 'backslashreplace')}"
    if difference.count and difference.count > 10:
        yield f"  ... {difference.count} paths in all"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @command(app, "replay", epilog=EXAMPLE)
    def replay(
        session: Session,
        locks: Annotated[
            list[Path], typer.Argument(metavar="LOCK...", help="Published locks.")
        ],
        repo: Annotated[
            Path,
            typer.Option(metavar="GITDIR", help="Repository with their objects."),
        ],
        no_patch: Annotated[
            bool,
            typer.Option("--no-patch", help="Compare the tree only, not the patch."),
        ] = False,
        patches: Annotated[
            Path | None,
            typer.Option(metavar="DIR", help="Where source patches are looked for."),
        ] = None,
    ) -> Outcome:
        """Rebuild published integration locks and compare tree and patch.

        Exits 1 where one is not equal, 5 where a merge conflicts, 4 where a pinned
        object is missing.
        """
        from stackctl.compose.publish import repository_of
        from stackctl.published.formats import Published, read_published
        from stackctl.published.replay import replay as rebuild

        started = time.perf_counter_ns()
        repository = repository_of(repo)
        read: list[Published | StackctlError] = []
        for path in locks:
            try:
                read.append(read_published(path))
            except StackctlError as error:
                read.append(error)
        good = [each for each in read if isinstance(each, Published)]
        answers = iter(
            rebuild(
                good,
                repository,
                session.cache.folder / "scratch",
                patch=not no_patch,
                patch_folder=patches,
                progress=session.progress,
            )
        )
        results = [
            (path, next(answers) if isinstance(each, Published) else each)
            for path, each in zip(locks, read, strict=True)
        ]
        ns = time.perf_counter_ns() - started
        documents: list[dict[str, Any]] = []
        codes = []
        for path, result in results:
            if isinstance(result, StackctlError):
                if len(locks) == 1:
                    raise result
                documents.append({"lock": str(path), **result.document()})
                codes.append(result.exit_code)
                continue
            documents.append(result.document())
            if result.conflict is not None:
                codes.append(ExitCode.CONFLICT)
            elif not result.right:
                codes.append(ExitCode.NO)
        code = next((each for each in _WORST if each in codes), ExitCode.OK)
        if len(documents) == 1:
            documents[0]["ns"] = ns
        document: object = documents[0] if len(documents) == 1 else documents
        return Outcome(document, lambda: _text(results), code)
