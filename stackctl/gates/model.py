# SPDX-License-Identifier: Apache-2.0
"""Gates as data: `ci/gates/<name>.toml`, read as strictly as `series.toml`.

The classes below are the only description of the file: the reader, the JSON schema and
the reference in docs/gates.md are made from them.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stackctl.errors import InputError, UsageError
from stackctl.fsutil import read_regular
from stackctl.gates.accuracy.plan import ACCURACY, AccuracyPlan
from stackctl.gates.evidence import EXTERNAL, KINDS, SERVED_KINDS, UnitKind
from stackctl.gates.rule.model import CLAIM, RULE, STATISTICS, Claim, Rule
from stackctl.gates.rule.model import problems as rule_problems
from stackctl.gates.serving.plan import SERVING, ServingPlan, cell_metrics
from stackctl.model.fields import (
    NAME,
    At,
    Choice,
    Inside,
    Integer,
    Many,
    Names,
    Record,
    Text,
    Value,
    key,
    nearest,
    read_record,
    show,
)
from stackctl.model.toml import decode, toml_report

SCHEMA: Final = 1
"""Newest version of the format that this code reads."""

FOLDER: Final = "ci/gates"
"""Where the gates of a project are, relative to it."""

MAX_BYTES: Final = 1024 * 1024
"""Largest accepted file."""

SCRIPTED: Final = ("parity", "kernel", "compile")
"""Kinds whose units are a script of the project."""

IN_A_TREE: Final = ("tests", "image")
"""Kinds that ask about the files of a tree, so that no server will do."""

TIMED: Final = ("kernel", "serving")
"""Kinds that measure time: nothing else of ours may run beside them."""

_LINE = Text("a text of one line", r"[^\x00-\x1f\x7f]+")
_WORDS = Text("a text", r"[^\x00-\x08\x0b-\x1f\x7f]+")
_ARGUMENT = Text("a text of one line", r"[^\x00-\x1f\x7f]+")
_SETS = r"[a-z0-9-]+(?:,[a-z0-9-]+)*"
_DEFINITION = Text(
    "`base`, `composed`, `only:SET`, `without:SET`, `upto:SET`, `tree:ID`, `external`",
    rf"base|composed|external|(?:only|without):{_SETS}|upto:[a-z0-9-]+"
    r"|tree:[0-9a-f]{40}",
)
_VARIABLE = Text(
    "a name of an environment variable", r"(?!STACKCTL_)[A-Za-z_][A-Za-z0-9_]*"
)
_REQUIREMENT = Text(
    "a package with its versions like `torch>=2.11`",
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:[=!<>~]=?[A-Za-z0-9.*+!_,<>=~-]+)?",
)
_COMMAND = Text("a program's name without a folder", r"[A-Za-z0-9._+-]+")
_MODEL = Text("words of a GPU's name", r"[A-Za-z0-9]+(?:[ -][A-Za-z0-9]+)*")
_FILE = Inside()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSpec:
    """One side of the comparison."""

    tree: str = field(
        metadata=key(
            _DEFINITION,
            "The tree it runs in. `external` is no tree of ours: a server at a URL.",
            example='"composed"',
        )
    )
    env: Mapping[str, str] = field(
        default_factory=dict,
        metadata=key(
            Names(Value(), _VARIABLE),
            "Switches by environment. Where several arms share a process the script "
            "sets them (`STACKCTL_GATE_ARMS`); else they are set for it.",
            example='{ VLLM_SWITCH = "1" }',
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must be there for the gate to run; else it is not tested."""

    gpus: int = field(
        default=0,
        metadata=key(
            Integer(0, 16),
            "GPUs. With 0 the units see none.",
            example="1",
        ),
    )
    gpu_memory_mib: int = field(
        default=0,
        metadata=key(Integer(0, 1 << 24), "Memory of each GPU, MiB.", example="16384"),
    )
    gpu_models: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(_MODEL),
            "Models that will do, as words of the names that the driver gives them. On "
            "a Ray cluster also the label `ray.io/accelerator-type`.",
            example='["H100", "H200"]',
        ),
    )
    packages: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(_REQUIREMENT),
            "Packages of the Python that runs the units, or of the site.",
            example='["torch>=2.11", "triton"]',
        ),
    )
    commands: tuple[str, ...] = field(
        default=(),
        metadata=key(Many(_COMMAND), "Programs on the path.", example='["ncu"]'),
    )
    parameters: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(Text("`site`, `model` or `base-url`", "site|model|base-url")),
            "What the user must name: `site` (`--site`), `model` (`--model`), "
            "`base-url` (`--base-url`).",
            example='["site"]',
        ),
    )


def _check_needs(values: dict[str, Any], table: Mapping[str, Any], at: At) -> None:
    if not values.get("packages"):
        return
    from packaging.requirements import InvalidRequirement, Requirement

    for n, text in enumerate(values["packages"]):
        try:
            Requirement(text)
        except InvalidRequirement:
            (at / "packages" / n).wrong(_REQUIREMENT.words, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a unit is ended from outside."""

    seconds: int = field(
        default=600,
        metadata=key(
            Integer(1, 7 * 24 * 3600), "Wall-clock seconds of a unit.", example="600"
        ),
    )
    memory_mib: int = field(
        default=16384,
        metadata=key(
            Integer(64, 1 << 24),
            "Memory of all processes of a unit together, MiB.",
            example="16384",
        ),
    )
    output_mib: int = field(
        default=64,
        metadata=key(
            Integer(1, 4096), "What a unit may print, MiB a stream.", example="64"
        ),
    )


def _check_tests(values: dict[str, Any], table: Mapping[str, Any], at: At) -> None:
    if "paths" not in table and "of" not in table:
        at.problem(f"{at} needs `paths` or `of`: what to select")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tests:
    """A selection of pytest in the arm's tree."""

    paths: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(Inside("a path inside the tree, or a pytest id there")),
            "Files, folders or ids, inside the tree.",
            example='["tests/models/glm5next"]',
        ),
    )
    of: str | None = field(
        default=None,
        metadata=key(
            NAME,
            "A set: every `test_*.py` below `tests/` that its patches add or change.",
            example='"parallel-prefill"',
        ),
    )
    options: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(_ARGUMENT, unique=None), "Further options of pytest.", example='["-x"]'
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCheck:
    """The image to verify; without `ref` the images that the series names."""

    ref: str | None = field(
        default=None,
        metadata=key(
            _LINE, "The image with its transport.", example='"oci:build/image"'
        ),
    )
    options: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(_ARGUMENT),
            "Further options of `verify-image`.",
            example='["--strict"]',
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One question about composed trees."""

    name: str
    path: Path
    sha256: str
    schema: int = field(
        metadata=key(Integer(1, SCHEMA), "Version of the format.", example="1")
    )
    kind: UnitKind = field(
        metadata=key(
            Choice(*KINDS),
            "What is asked, and so what the samples are.",
            example='"kernel"',
        )
    )
    title: str = field(
        metadata=key(
            _LINE, "The question, in one line.", example='"Is the writer faster?"'
        )
    )
    about: str = field(
        default="",
        metadata=key(
            _WORDS,
            "What it shows and what it does not, for the receipt's reader.",
            example='"Small shapes only."',
        ),
    )
    limitations: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(_LINE),
            "What a run does not show; goes into every receipt.",
            example='["small shapes"]',
        ),
    )
    arms: Mapping[str, ArmSpec] = field(
        default_factory=lambda: {"on": ArmSpec(tree="composed")},
        metadata=key(
            Names(Record(ArmSpec), NAME, least=1),
            "The sides of the comparison by name; by default one arm `on`, composed.",
            example='{ base = { tree = "base" }, on = { tree = "composed" } }',
        ),
    )
    script: str | None = field(
        default=None,
        metadata=key(
            _FILE,
            "The script of a unit (parity, kernel, compile). It and what it imports "
            "from beside it are bound to the receipt.",
            example='"ci/gates/kpool_speed.py"',
        ),
    )
    arguments: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(_ARGUMENT, unique=None),
            "Its arguments, with `{tree:ARM}` (an arm's tree), `{site:ARM}` (the same "
            "as an importable installation), `{python}`, `{site}`, `{project}`, "
            "`{model}`, `{base-url}` and `{scratch}`.",
            example='["{tree:base}", "{tree:on}"]',
        ),
    )
    files: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(_FILE),
            "Further files that the answer depends on; bound to the receipt.",
            example='["ci/gates/prompts.json"]',
        ),
    )
    pythonpath: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(
                Text(
                    "`{tree:ARM}`, `{site:ARM}` or a path inside the project",
                    r"\{(?:tree|site):[a-z0-9-]+\}"
                    r"|(?!/|(?:.*/)?\.\.(?:/|$))[^\x00-\x1f:\\{}]+",
                )
            ),
            "`PYTHONPATH` of the units.",
            example='["{site:on}", "ci/cpu"]',
        ),
    )
    env: Mapping[str, str] = field(
        default_factory=dict,
        metadata=key(
            Names(Value(), _VARIABLE),
            "Environment of every unit. Nothing of the user's is passed on but a "
            "short list (docs/gates.md).",
            example='{ TRITON_INTERPRET = "1" }',
        ),
    )
    units: int = field(
        default=1,
        metadata=key(
            Integer(1, 1000),
            "Processes that share the work, where the rule makes no schedule.",
            example="4",
        ),
    )
    parallel: int = field(
        default=1,
        metadata=key(Integer(1, 64), "How many of them may run at once.", example="4"),
    )
    tests: Tests | None = field(
        default=None,
        metadata=key(Record(Tests, _check_tests), "What to run, for kind `tests`."),
    )
    image: ImageCheck | None = field(
        default=None,
        metadata=key(Record(ImageCheck), "What to verify, for kind `image`."),
    )
    serving: ServingPlan | None = field(
        default=None,
        metadata=key(SERVING, "What to measure, for kind `serving`."),
    )
    accuracy: AccuracyPlan | None = field(
        default=None,
        metadata=key(ACCURACY, "What to ask, for kind `accuracy`."),
    )
    needs: Needs = field(
        default=Needs(),
        metadata=key(Record(Needs, _check_needs), "What must be there to run."),
    )
    limits: Limits = field(
        default=Limits(), metadata=key(Record(Limits), "When a unit is ended.")
    )
    rule: Rule = field(
        default=Rule(statistic="counts"),
        metadata=key(
            RULE,
            "How the verdict follows (docs/decision-rule.md).",
            computed="for tests, parity, compile and image: every claim, exactly",
        ),
    )
    claims: tuple[Claim, ...] = field(
        default=(),
        metadata=key(
            Many(CLAIM, unique="name"),
            "What has to hold, each with its margin.",
            name="claim",
        ),
    )

    @property
    def timed(self) -> bool:
        """Whether it measures time, so that nothing of ours may run beside it."""
        return self.kind in TIMED


_PLACEHOLDER = re.compile(r"\{([a-z0-9:-]*)\}")
PLACEHOLDERS: Final = ("python", "site", "project", "model", "base-url", "scratch")
"""Names in braces that arguments may use, beside `{tree:ARM}` and `{site:ARM}`."""


def placeholders(text: str) -> list[str]:
    """Return the names in braces of an argument."""
    return _PLACEHOLDER.findall(text)


def _check_gate(values: dict[str, Any], table: Mapping[str, Any], at: At) -> None:
    kind = values.get("kind")
    if kind in SCRIPTED and "script" not in table:
        (at / "script").problem(f'kind "{kind}" needs the key `script`: {_FILE.words}')
    for name in ("script", "arguments"):
        if name in table and kind is not None and kind not in SCRIPTED:
            (at / name).problem(f"`{name}` goes with the kinds {', '.join(SCRIPTED)}")
    for name in ("tests", "image", "serving", "accuracy"):
        if name in table and kind is not None and kind != name:
            (at / name).problem(f'[{name}] goes with kind "{name}", not with "{kind}"')
        if kind == name and name not in table and name != "image":
            (at / name).problem(f'kind "{kind}" needs the table [{name}]')
    if kind in TIMED:
        for name in ("units", "parallel"):
            if name in table:
                (at / name).problem(
                    f'`{name}` does not go with kind "{kind}": its rule makes the '
                    "schedule, and a timed unit runs alone"
                )
    if "rule" not in table and kind is not None:
        values["rule"] = Rule(statistic=STATISTICS[kind])
    claims_read = "claims" in values or "claim" not in table
    if kind is not None and "rule" in values and claims_read:
        for text in rule_problems(kind, values["rule"], values.get("claims", ())):
            (at / "rule").problem(text)
    arms = values.get("arms", {"on": None})
    if "arms" not in values and isinstance(table.get("arms"), Mapping):
        arms = table["arms"]  # one of them is wrong; none has another name for it
    for name in ("engaged", "captured"):
        for n, arm in enumerate(getattr(values.get("rule"), name, ())):
            if arm not in arms:
                (at / "rule" / name / n).problem(
                    f"`{name}` names no arm {show(arm)}{nearest(arm, sorted(arms))}"
                )
    for n, claim in enumerate(values.get("claims", ())):
        for name in ("arm", "against"):
            arm = getattr(claim, name)
            if arm and arm not in arms:
                (at / "claim" / n / name).problem(
                    f"{at / 'claim' / n} names no arm with `{name}` = {show(arm)}"
                    f"{nearest(arm, sorted(arms))}"
                )
    known_cells = _claimable(values)
    for n, claim in enumerate(values.get("claims", ())):
        if known_cells and claim.cell not in known_cells:
            (at / "claim" / n / "cell").problem(
                f"{at / 'claim' / n} is about {show(claim.cell)}, which is not "
                f"measured{nearest(claim.cell, known_cells)}"
            )
    if kind in ("tests", "image") and len(arms) != 1:
        (at / "arms").problem(f'kind "{kind}" has one arm; found {len(arms)}')
    for name, arm in arms.items():
        if kind in IN_A_TREE and getattr(arm, "tree", None) == EXTERNAL:
            place = at / "arms" / name / "tree"
            place.problem(f'{place} is "{EXTERNAL}", and kind "{kind}" needs a tree')
    _check_engagement(values, arms, at)
    for name in ("arguments", "pythonpath"):
        for n, text in enumerate(values.get(name, ())):
            for found in placeholders(text):
                arm = found.removeprefix("tree:").removeprefix("site:")
                if arm != found and arm not in arms:
                    (at / name / n).problem(
                        f"{show(text)} names no arm{nearest(arm, sorted(arms))}"
                    )
                elif arm == found and found not in PLACEHOLDERS:
                    known = [*PLACEHOLDERS, "tree:ARM", "site:ARM"]
                    (at / name / n).problem(
                        f"unknown placeholder `{{{found}}}`{nearest(found, known)}"
                    )


def _check_engagement(
    values: Mapping[str, Any], arms: Mapping[str, Any], at: At
) -> None:
    """Check what a gate of servers says of the features of its arms."""
    kind = values.get("kind")
    plan = values.get("serving") or values.get("accuracy")
    if plan is None or kind not in SERVED_KINDS:
        return
    rule, claims = values.get("rule"), values.get("claims", ())
    if getattr(rule, "captured", ()):
        (at / "rule" / "captured").problem(
            f'`captured` does not go with kind "{kind}": no server tells how many '
            "nodes its graphs have"
        )
    reference = next((claim.against for claim in claims if claim.against), None)
    engaged = getattr(rule, "engaged", ())
    seen: set[tuple[str, str]] = set()
    for n, sign in enumerate(plan.engagement):
        place = at / kind / "engagement" / n
        if sign.arm not in arms:
            (place / "arm").problem(
                f"{place} names no arm {show(sign.arm)}"
                f"{nearest(sign.arm, sorted(arms))}"
            )
        elif sign.arm == reference:
            (place / "arm").problem(
                f"{place}: {sign.arm} is the reference arm, which has no feature"
            )
        elif rule is not None and sign.arm not in engaged:
            (place / "arm").problem(
                f"{place}: `engaged` in [rule] does not name the arm {sign.arm}"
            )
        if (sign.arm, sign.feature) in seen:
            (place / "feature").problem(
                f"{place}: {sign.feature} of the arm {sign.arm} is declared twice"
            )
        seen.add((sign.arm, sign.feature))
        if sign.log is not None and (
            not plan.server or getattr(arms.get(sign.arm), "tree", None) == EXTERNAL
        ):
            (place / "log").problem(
                f"{place}: what a server at an address writes cannot be read; declare "
                "a `metric`"
            )
    for n, name in enumerate(engaged):
        if name in arms and not any(sign.arm == name for sign in plan.engagement):
            (at / "rule" / "engaged" / n).problem(
                f"`engaged` names {name}, and no [[{kind}.engagement]] says what its "
                "server shows"
            )


def _claimable(values: Mapping[str, Any]) -> list[str]:
    """Return what claims may name as their cell; empty where that is not known."""
    serving, accuracy = values.get("serving"), values.get("accuracy")
    if serving is not None:
        return cell_metrics(serving)
    if accuracy is not None:
        return ["", *(wanted.kind for wanted in accuracy.sets)]
    return []


RECORD: Final = Record(Gate, _check_gate)


def load_gate(path: Path) -> Gate:
    """Read a gate's file strictly.

    Args:
        path: The file; its stem is the gate's name.

    Returns:
        The gate.

    Raises:
        InputError: The file is missing, not TOML, or breaks a rule of the format; the
            message lists every problem.
    """
    data = read_regular(path, MAX_BYTES)
    file = str(path)
    text = decode(data, file)
    report = toml_report(
        text,
        file,
        schema=SCHEMA,
        kind="bad-gate",
        hint="docs/gates.md describes every key of the file",
    )
    name = path.stem
    if not re.fullmatch("[a-z0-9-]+", name):
        report.top.problem(
            f"the file's name {show(path.name)} must be {NAME.words}, and `.toml`"
        )
    extra = {"name": name, "path": path, "sha256": hashlib.sha256(data).hexdigest()}
    gate = read_record(RECORD, report.document, report.top, extra=extra)
    report.raise_problems()
    assert isinstance(gate, Gate)  # otherwise there was a problem to raise
    return gate


@dataclass(frozen=True, slots=True)
class GateFiles:
    """The gates of a project, by name, in the order of their names.

    Attributes:
        good: Those that could be read.
        bad: What is wrong with the files of the others.
    """

    good: dict[str, Gate]
    bad: dict[str, InputError]


def read_gates(project: Path) -> GateFiles:
    """Read every gate of a project; a bad file keeps none of the others away.

    Args:
        project: The project folder.
    """
    files = GateFiles({}, {})
    for path in sorted((project / FOLDER).glob("*.toml")):
        try:
            files.good[path.stem] = load_gate(path)
        except InputError as error:
            files.bad[path.stem] = error
    return files


def find_gate(files: GateFiles, name: str) -> Gate:
    """Return the gate of a name; the files of others may be as they like.

    Args:
        files: The gates of the project.
        name: The name.

    Raises:
        InputError: Its file is bad.
        UsageError: There is none; the message names the nearest.
    """
    if name in files.bad:
        raise files.bad[name]
    if name in files.good:
        return files.good[name]
    raise UsageError(
        f"there is no gate `{name}`{nearest(name, sorted({*files.good, *files.bad}))}",
        kind="unknown-gate",
        hint=f"gates are files {FOLDER}/NAME.toml; `stackctl gate list` lists them",
        where={"gate": name},
    )
