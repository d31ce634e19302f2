# SPDX-License-Identifier: Apache-2.0
"""`stackctl gate`: list, run, pack and decide gates."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome, table

if TYPE_CHECKING:
    from stackctl.gates.here import Here

LIST_EXAMPLE = "Examples: stackctl gate list; stackctl gate list --json"

PythonOption = Annotated[
    str | None,
    typer.Option(
        metavar="PROGRAM",
        help="Python that runs the units; by default STACKCTL_GATE_PYTHON, else the "
        "one that runs stackctl.",
    ),
]
SiteOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder with an installed vLLM: each arm's files are laid over it.",
    ),
]
ModelOption = Annotated[
    str | None, typer.Option(metavar="PATH", help="Model, for gates that need one.")
]
BaseUrlOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Server that is asked, for gates that need one."),
]
GpuOption = Annotated[
    str | None,
    typer.Option(metavar="UUID|NUMBER", help="GPU to use; by default the first."),
]


def here_of(
    python: str | None,
    site: Path | None,
    model: str | None,
    base_url: str | None,
    gpu: str | None,
) -> "Here":
    """Return what the options name."""
    from stackctl.gates.here import Here, default_python

    named = {"model": model, "base-url": base_url}
    return Here(
        python or default_python(),
        None if site is None else site.absolute(),
        {name: value for name, value in named.items() if value},
        gpu or "",
    )


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
        and that has no file is listed as not defined.
        """
        from stackctl.gates.model import load_gates

        gates = load_gates(session.project)
        here = here_of(python, site, model, base_url, gpu)
        asked: dict[str, dict[str, list[str]]] = {}
        for patch_set in session.series.sets:
            wanted = patch_set.gates
            lists = {"required": wanted.required, "advisory": wanted.advisory}
            for role, names in lists.items():
                for name in names:
                    entry = asked.setdefault(name, {"required": [], "advisory": []})
                    entry[role].append(patch_set.name)
        entries: list[dict[str, Any]] = []
        for name in sorted({*gates, *asked}):
            roles = asked.get(name, {"required": [], "advisory": []})
            if name not in gates:
                entries.append(
                    {"name": name, "kind": None, "title": "", **roles, "arms": []}
                    | {"can_run": False, "missing": [f"no ci/gates/{name}.toml"]}
                )
                continue
            found = gates[name]
            missing = here.missing(found)
            arms = [
                {"name": arm, "tree": spec.tree, "env": dict(spec.env)}
                for arm, spec in found.arms.items()
            ]
            entries.append(
                {"name": name, "kind": found.kind, "title": found.title, **roles}
                | {"arms": arms, "can_run": not missing, "missing": missing}
            )
        return Outcome({"gates": entries}, lambda: _listing(entries))


def _listing(entries: list[dict[str, Any]]) -> list[str]:
    def names(entry: dict[str, Any]) -> str:
        return ", ".join(
            [*entry["required"], *(f"({name})" for name in entry["advisory"])]
        )

    rows = [
        [
            entry["name"],
            entry["kind"] or "not defined",
            names(entry),
            "yes" if entry["can_run"] else "no: " + "; ".join(entry["missing"]),
        ]
        for entry in entries
    ]
    lines = table(["gate", "kind", "sets (advisory)", "can run here"], rows)
    return lines if rows else ["no gates: there is no ci/gates/NAME.toml"]
