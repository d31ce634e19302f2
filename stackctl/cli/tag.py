# SPDX-License-Identifier: Apache-2.0
"""`stackctl tag`: integration tags that carry their proof."""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.image_options import (
    AuthHostOption,
    CaFileOption,
    PlainHttpOption,
    transport,
)
from stackctl.cli.output import Outcome, table
from stackctl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from stackctl.release.cut import Cut
    from stackctl.release.statement import Check
    from stackctl.release.verify import Verified

CUT_EXAMPLE = (
    "Examples: stackctl tag cut v0.33.0+glm53.1 --into ../vllm --sign; "
    "stackctl tag cut v0.33.0+glm53.1 --dry-run"
)
VERIFY_EXAMPLE = (
    "Examples: stackctl tag verify v0.33.0+glm53.1 --repo ../vllm; "
    "stackctl tag verify v0.33.0+glm53.1 --repo ../vllm --offline --json"
)


def _checks(checks: "Iterable[Check]") -> list[str]:
    return table(
        ["check", "", "why"],
        [[each.name, "ok" if each.ok else "NO", _short(each.why)] for each in checks],
    )


def _short(why: str) -> str:
    """Shorten the names of receipts, which are digests: `--json` has them whole."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\.json\b", r"\1...json", why)


def _cut_text(done: "Cut", into: Path | None) -> Iterable[str]:
    yield from _checks(done.checks)
    yield ""
    yield f"commit          {done.commit}"
    yield f"tree            {done.composition.tree}"
    yield f"composition     {done.composition.composition}"
    if done.forced:
        yield f"forced          {done.forced}"
    if done.written or done.exists:
        yield f"proof           {done.proof}"
        state = "written" if done.written else "was there already"
        yield f"tag             {done.tag} {state}{'' if done.signed else ', unsigned'}"
        where = shlex.quote(str(into))
        refs = [f"refs/tags/{done.tag}", f"refs/stackctl/{done.tag}"]
        pushed = " ".join(shlex.quote(f"{ref}:{ref}") for ref in refs)
        yield f"push it with    git -C {where} push --atomic REMOTE {pushed}"
    elif done.missing and not done.forced:
        count = len(done.missing)
        do = "does" if count == 1 else "do"
        yield f"not cut: {count} of {len(done.checks)} checks {do} not hold"
    else:
        yield "nothing is written (--dry-run)"


def _verify_text(found: "Verified") -> Iterable[str]:
    yield from _checks(found.checks)
    yield ""
    if found.composition is not None:
        yield f"commit          {found.commit}"
        yield f"tree            {found.composition.tree}"
        yield f"composition     {found.composition.composition}"
    bad = [each.name for each in found.checks if not each.ok]
    if bad:
        yield f"{found.tag} does not hold: {', '.join(bad)}"
    elif found.message and found.message.forced:
        yield f"{found.tag} is what it says, and it says that something was missing"
    else:
        yield f"{found.tag} holds"


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(
        name="tag",
        help="Integration tags that carry their proof.",
        epilog="Example: stackctl tag verify v0.33.0+glm53.1 --repo ../vllm",
        no_args_is_help=True,
        rich_markup_mode=None,
    )

    @group.callback()
    def _group() -> None:
        pass

    @command(group, "cut", epilog=CUT_EXAMPLE)
    def cut(
        session: Session,
        name: Annotated[str, typer.Argument(help="Name of the tag.")],
        into: Annotated[
            Path | None,
            typer.Option(metavar="REPO", help="Repository that gets the tag."),
        ] = None,
        sign: Annotated[
            bool,
            typer.Option("--sign", help="Sign it, as your git configuration says."),
        ] = False,
        shape: Annotated[
            str,
            typer.Option(
                metavar="SHAPE",
                help="`linear`: the composition's commits; `merges`: one first-parent "
                "merge per set.",
            ),
        ] = "linear",
        force_missing: Annotated[
            str | None,
            typer.Option(
                metavar="REASON",
                help="Cut it although something is missing; the tag says so, and why.",
            ),
        ] = None,
        component: Annotated[
            list[Path] | None,
            typer.Option(
                metavar="FILE",
                help="The series.lock of a further component of the release, with its "
                "series beside it (several times).",
            ),
        ] = None,
        plain_http: PlainHttpOption = False,
        ca_file: CaFileOption = None,
        auth_host: AuthHostOption = None,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Check all of it and write nothing.")
        ] = False,
    ) -> Outcome:
        """Check what a release asks for, then write the tag and its proof, or nothing.

        Composes by both routes, holds the lock, the pins, the receipts of the required
        gates, the change fragments and the images. Exits 1, with nothing written,
        where something is missing. Nothing is pushed.
        """
        from stackctl.release.cut import Cutter, Wish
        from stackctl.release.shape import SHAPES

        shapes = {each: each for each in SHAPES}
        if shape not in shapes:
            raise UsageError(f"--shape {shape}: expected one of {', '.join(SHAPES)}")
        if into is None and not dry_run:
            raise UsageError("--into names the repository that gets the tag")
        if force_missing is not None and not force_missing.strip():
            raise UsageError("--force-missing needs a reason: it is kept in the tag")
        wish = Wish(
            name,
            shapes[shape],
            sign,
            force_missing,
            session.offline,
            tuple(component or ()),
            transport(plain_http, ca_file, auth_host),
        )
        cutter = Cutter(session.series, session.cache, into, session.progress)
        done = cutter.cut(wish, write=not dry_run)
        code = ExitCode.NO
        if done.written or done.exists or not done.missing or done.forced:
            code = ExitCode.OK
        return Outcome(done.document(), lambda: _cut_text(done, into), code)

    @command(group, "verify", epilog=VERIFY_EXAMPLE)
    def verify(
        session: Session,
        name: Annotated[str, typer.Argument(help="Name of the tag.")],
        repo: Annotated[
            Path, typer.Option(metavar="REPO", help="Repository that has the tag.")
        ],
        signed: Annotated[
            bool,
            typer.Option("--signed", help="Insist on a signature that is trusted."),
        ] = False,
        complete: Annotated[
            bool,
            typer.Option("--complete", help="Refuse a tag of --force-missing."),
        ] = False,
        images: Annotated[
            bool, typer.Option("--images", help="Verify the images again, too.")
        ] = False,
        allowed_signers: Annotated[
            Path | None,
            typer.Option(
                metavar="FILE",
                help="ssh keys that may sign, instead of gpg.ssh.allowedSignersFile.",
            ),
        ] = None,
        base: Annotated[
            Path | None,
            typer.Option(
                metavar="PATH",
                help="Where a base lies that the series names by a path.",
            ),
        ] = None,
        policy: Annotated[
            Path | None,
            typer.Option(
                metavar="FILE",
                help="A series.toml whose [policy] counts, not the one that the tag "
                "carries.",
            ),
        ] = None,
        plain_http: PlainHttpOption = False,
        ca_file: CaFileOption = None,
        auth_host: AuthHostOption = None,
    ) -> Outcome:
        """Compose a tag again from its proof and the pinned base, and compare it.

        Exits 1 where tag, tree, lock, statements or receipts disagree; each check says
        what it found. Needs no project.
        """
        from stackctl.release.verify import Demands, Verifier

        for file in (allowed_signers, base, policy):
            if file is not None and not file.exists():
                raise UsageError(f"{file} does not exist")
        demands = Demands(
            signed,
            complete,
            images,
            allowed_signers,
            base,
            policy,
            session.offline,
            transport(plain_http, ca_file, auth_host),
        )
        found = Verifier(repo, session.cache, session.progress).verify(name, demands)
        code = ExitCode.OK if found.good else ExitCode.NO
        return Outcome(found.document(), lambda: _verify_text(found), code)

    app.add_typer(group)
