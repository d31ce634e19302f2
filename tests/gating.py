"""Projects with gates, for tests: real scripts in real trees."""

import json
import os
from pathlib import Path
from typing import Any

from support import Project, three_sets

ANSWER = """
import json, os, sys
from pathlib import Path
arms = json.loads(os.environ["STACKCTL_GATE_ARMS"])
def cases(*equal):
    return {"schema": 1, "samples": {"cases": [
        {"id": str(n), "equal": e, "elements": 1, "differing": int(not e)}
        for n, e in enumerate(equal)]}}
def say(document):
    print(json.dumps(document))
"""


def gate_project(folder: Path) -> Project:
    """A project of three sets, without gates so far."""
    project = three_sets(folder)
    (project.folder / "ci/gates").mkdir(parents=True)
    return project


def add_gate(
    project: Project, name: str, script: str = "", toml: str = "", kind: str = "parity"
) -> Path:
    """Write a gate and its script; returns the script."""
    folder = project.folder / "ci/gates"
    path = folder / f"{name.replace('-', '_')}.py"
    lines = ["schema = 1", f'kind = "{kind}"', f'title = "Is {name} so?"']
    if script:
        path.write_text(ANSWER + script)
        lines.append(f'script = "ci/gates/{path.name}"')
    (folder / f"{name}.toml").write_text("\n".join(lines) + "\n" + toml)
    return path


def arms(**trees: str) -> str:
    """The table [arms] of a gate's file."""
    return "".join(
        f'\n[arms.{name}]\ntree = "{tree}"\n' for name, tree in trees.items()
    )


def unit_environment(
    folder: Path, arms: dict[str, Any], answer: Path
) -> dict[str, str]:
    """What the engine tells the only unit of a gate.

    Args:
        folder: Where the unit may write.
        arms: Its arms: tree, site and environment of each.
        answer: Where its answer goes.
    """
    return {
        "PATH": "/usr/bin:/bin",
        "STACKCTL_GATE_ARMS": json.dumps(arms),
        "STACKCTL_GATE_UNIT": "0",
        "STACKCTL_GATE_UNITS": "1",
        "STACKCTL_GATE_SEED": "0",
        "STACKCTL_GATE_DIR": str(folder),
        "STACKCTL_GATE_OUT": str(answer),
    }


def processes_of(folder: Path) -> list[str]:
    """Command lines of running processes that name a folder."""
    found = []
    for name in os.listdir("/proc"):
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if name.isdigit() and int(name) != os.getpid() and os.fsencode(folder) in line:
            found.append(line.replace(b"\0", b" ").decode("utf-8", "replace"))
    return found


def read_json(path: Path) -> Any:
    """Parse a JSON file."""
    return json.loads(path.read_bytes())
