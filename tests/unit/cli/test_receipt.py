# SPDX-License-Identifier: Apache-2.0
"""`stackctl receipt` through the program."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gates import document, kernel_evidence
from support import Project, program, program_environment, run

from stackctl.cli.receipt import spark
from stackctl.gates.receipt import write

GOLDEN = Path(__file__).parents[2] / "golden" / "receipt"


@pytest.fixture
def written(project: Project) -> Path:
    return write(document(kernel_evidence()), project.folder)


def receipt(project: Project, *args: str | Path) -> Any:
    return run("receipt", args[0], "-C", project.folder, *args[1:])


def test_verify_tells_each_file_and_says_yes(project: Project, written: Path) -> None:
    result = receipt(project, "verify", "--json")
    assert result.code == 0
    assert result.json == {
        "receipts": [
            {
                "file": str(written.relative_to(project.folder)),
                "gate": "kpool-speed",
                "verdict": "qualified",
                "signature": "unsigned",
                "sets": ["parallel-prefill"],
                "started": "2026-11-29T22:05:00Z",
                "hardware": "NVIDIA H200",
                "ok": True,
                "reasons": [],
                "notes": [],
            }
        ]
    }


def test_a_forged_verdict_is_1(project: Project, written: Path) -> None:
    from hashlib import sha256

    from stackctl.model.canonical import canonical_json

    value = json.loads(written.read_bytes())
    value["predicate"]["decision"]["verdict"] = "rejected"
    data = canonical_json(value) + b"\n"
    other = written.with_name(f"{sha256(data).hexdigest()}.json")
    other.write_bytes(data)
    result = receipt(project, "verify", other, "--json")
    assert result.code == 1
    (found,) = result.json["receipts"]
    assert not found["ok"]
    assert "its samples give qualified" in found["reasons"][0]


def test_a_changed_file_is_3_and_the_others_are_still_told(
    project: Project, written: Path
) -> None:
    other = write(document(kernel_evidence(seed=4)), project.folder)
    text = other.read_text()
    other.write_text(text.replace('"cpus":16', '"cpus":8', 1))
    result = receipt(project, "verify", "--json")
    assert result.code == 3
    found = {each["file"].rpartition("/")[2]: each for each in result.json["receipts"]}
    assert found[written.name]["ok"]
    assert found[other.name]["kind"] == "receipt-digest"
    plain = receipt(project, "verify")
    assert plain.code == 3
    assert "changed after it was written" in plain.out
    shown = receipt(project, "show", other, "--json")
    assert shown.code == 3
    assert shown.json["error"]["kind"] == "receipt-digest"


@pytest.mark.parametrize("command", ["show", "verify"])
def test_raw_figures_are_told_apart(project: Project, command: str) -> None:
    raw = project.folder / "receipts" / "prefetch" / "l2.json"
    raw.parent.mkdir(parents=True)
    raw.write_text('{"gate": "l2", "verdict": "qualified"}')
    result = receipt(project, command)
    assert result.code == 0
    assert "1 JSON file below receipts/ is raw figures, not receipts" in result.out
    named = receipt(project, command, raw, "--json")
    assert named.code == 3
    told = json.dumps(named.json)
    assert "not-a-receipt" in told
    assert "is not a receipt but other JSON (with `gate`, `verdict`)" in told


def test_a_receipt_is_found_by_gate_and_by_digest(
    project: Project, written: Path
) -> None:
    for name in ("kpool-speed", written.name[:8], str(written)):
        result = receipt(project, "show", name, "--json")
        assert result.code == 0, name
        (found,) = result.json["receipts"]
        assert found["statement"] == json.loads(written.read_bytes())
    result = receipt(project, "show", "nothing", "--json")
    assert result.code == 2
    assert result.json["error"]["kind"] == "no-receipt"


def test_show_in_a_pipe_is_plain(project: Project, written: Path) -> None:
    result = receipt(project, "show", "kpool-speed")
    assert result.code == 0
    assert "\x1b" not in result.out
    assert result.out == (GOLDEN / "show.txt").read_text("utf-8")


def test_show_on_a_terminal_has_colours_and_fits(
    project: Project, written: Path
) -> None:
    out = on_terminal(project, {"TERM": "xterm-256color", "COLUMNS": "100"})
    assert "\x1b[" in out
    assert "qualified" in out
    assert "▂▇▄▃█▁▁▁▂" in out
    plain = on_terminal(project, {"TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"})
    assert "\x1b" not in plain


def on_terminal(project: Project, env: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    command = program("receipt", "show", "-C", project.folder, "kpool-speed")
    extra = {"PYTHONIOENCODING": "utf-8", **env}
    with subprocess.Popen(
        command, stdout=theirs, stderr=theirs, env=program_environment(**extra)
    ) as process:
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            parts.append(part)
    os.close(ours)
    assert process.returncode == 0
    return b"".join(parts).decode("utf-8")


def test_a_hostile_text_cannot_drive_a_terminal(project: Project) -> None:
    evidence = kernel_evidence(limitations=["safe [bold]words"])
    write(document(evidence), project.folder)
    out = on_terminal(project, {"TERM": "xterm", "COLUMNS": "100"})
    assert "[bold]words" in out  # shown, not obeyed


def test_without_the_statistics_it_says_what_to_install(
    project: Project, written: Path
) -> None:
    code = (
        "import sys\n"
        "for name in ('numpy', 'scipy', 'statsmodels'): sys.modules[name] = None\n"
        "from stackctl import cli\n"
        "sys.exit(cli.run(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "receipt", "verify", "-C", str(project.folder)],
        capture_output=True,
        text=True,
        env=program_environment(),
    )
    assert done.returncode == 2
    assert "pip install 'stackctl[gates]'" in done.stderr
    assert "Traceback" not in done.stderr
    done = subprocess.run(
        [sys.executable, "-c", code, "receipt", "show", "-C", str(project.folder)],
        capture_output=True,
        text=True,
        env=program_environment(),
    )
    assert done.returncode == 0  # showing judges nothing


def test_signers_of_the_policy_count(
    project: Project, written: Path, tmp_path: Path
) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    key = tmp_path / "ada"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ada", "-f"]
    subprocess.run([*command, str(key)], check=True)
    public = key.with_suffix(".pub").read_text().strip()
    series = project.folder / "series.toml"
    series.write_text(
        series.read_text() + f'\n[policy]\nreceipt_signers = ["{public}"]\n'
    )
    before = receipt(project, "verify", "--json")
    assert before.code == 1
    assert "unsigned; the policy asks for" in before.json["receipts"][0]["reasons"][0]
    signed = receipt(project, "sign", "kpool-speed", "--ssh-key", key, "--json")
    assert signed.code == 0
    assert signed.json["receipts"][0]["signature"] == "signed by ada"
    after = receipt(project, "verify", "--json")
    assert after.code == 0
    assert after.json["receipts"][0]["signature"] == "signed by ada"
    assert "signed by ada" in receipt(project, "show").out


def test_a_signer_that_is_no_key_is_told_with_its_place(
    project: Project, written: Path
) -> None:
    series = project.folder / "series.toml"
    series.write_text(series.read_text() + '\n[policy]\nreceipt_signers = ["ada"]\n')
    result = receipt(project, "verify", "--json")
    assert result.code == 3
    assert result.json["error"]["where"] == {
        "file": str(series),
        "key": "policy.receipt_signers[0]",
    }


def test_sign_wants_one_key(project: Project, written: Path) -> None:
    assert receipt(project, "sign", "kpool-speed").code == 2


@pytest.mark.parametrize(
    ("values", "bars"),
    [([], ""), ([1.0], "▄"), ([1, 1, 1], "▄▄▄"), ([0, 1], "▁█"), ([4, 2, 1], "█▃▁")],
)
def test_a_sparkline_spans_low_to_high(values: list[float], bars: str) -> None:
    assert spark(values) == bars
