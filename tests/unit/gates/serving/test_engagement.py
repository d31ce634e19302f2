# SPDX-License-Identifier: Apache-2.0
"""What units look for to show that the features of a server were on."""

from pathlib import Path

import pytest
from faulty_server import Script, faulty_server

from stackctl.gates.accuracy.plan import AccuracyPlan, PromptSet
from stackctl.gates.accuracy.unit import measure as ask_all
from stackctl.gates.kinds.shape import check
from stackctl.gates.serving.engagement import LINE, count_lines, metric_values
from stackctl.gates.serving.plan import Sign
from stackctl.gates.serving.unit import Target

from .conftest import cell, server_command

SAYS = "Side streams are used."
LOG = Sign(arm="on", feature="overlap", log=SAYS)
FORKS = Sign(arm="on", feature="forks", metric="faulty:forks_total")
SIDE = Sign(
    arm="on", feature="side", metric="faulty:forks_total", labels={"kind": "side"}
)
# No other looks at the metrics, and other work on the machine must not decide a test.
UNPROBED = {"metrics": "none", "probe_factor": 1000}
SHORT = (cell(concurrency=1, requests=1, output=8),)


def counted(folder: Path, content: bytes, *patterns: str) -> list[int] | None:
    """How many lines of a log have each pattern."""
    log = folder / "server.log"
    log.write_bytes(content)
    signs = [Sign(arm="on", feature=f"f{n}", log=p) for n, p in enumerate(patterns)]
    return count_lines(log, signs)


def test_lines_are_found_behind_any_prefix(tmp_path: Path) -> None:
    log = (
        b"\x1b[36m(Worker_TP0 pid=7)\x1b[0;0m INFO 11-30 Side streams are used.\n"
        b"(Worker_TP1 pid=8) INFO Side streams are used. Really.\r\n"
        b"Side streams\nare used.\n"
        b"L2 weight prefetch on NVIDIA H200: 44 layers, 3 windows\n"
        b"\xff\xfe Side streams are used."
    )
    found = counted(tmp_path, log, SAYS, "prefetch on *: * layers", "layers*prefetch")
    assert found == [3, 1, 0]


def test_what_a_progress_bar_writes_over_is_a_line(tmp_path: Path) -> None:
    bar = b"".join(b"\r%3d %% " % n + b"#" * 200 for n in range(200))
    assert len(bar) > LINE
    assert counted(tmp_path, bar + b"\r" + SAYS.encode() + b"\n", SAYS) == [1]


def test_a_huge_line_costs_and_shows_nothing(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with log.open("wb") as file:
        file.truncate(100 << 20)  # a line of 100 MiB, which takes no room
        file.seek(0, 2)
        file.write(f"{SAYS}\n{SAYS}\n".encode())
    assert count_lines(log, [LOG]) == [1]  # the end of the long line is not looked at


def test_lines_without_what_is_looked_for_are_not_looked_at_one_by_one(
    tmp_path: Path,
) -> None:
    # 100 million lines, of which each alone would take a second for a million.
    flood = b"\n" * (100 << 20)
    log = SAYS.encode() + b"\n" + flood + SAYS.encode()
    assert counted(tmp_path, log, SAYS, "side*used*used") == [2, 0]


@pytest.mark.parametrize("before", range((1 << 18) - 30, (1 << 18) + 3, 3))
def test_a_line_is_found_wherever_it_is_cut_in_two(tmp_path: Path, before) -> None:
    log = b"x" * (before - 9) + b"\nINFO " + SAYS.encode() + b"\nmore\n"
    assert counted(tmp_path, log, SAYS, "INFO*used", "used*INFO") == [1, 1, 0]


def test_no_line_makes_a_pattern_go_back(tmp_path: Path) -> None:
    # Nested repetitions of a regular expression would take years for this.
    pattern = "*".join("a" * 40) + "*b"
    assert counted(tmp_path, b"a" * LINE + b"\n", pattern) == [0]
    assert counted(tmp_path, b"a" * 100 + b"b\n", pattern) == [1]


def test_what_is_no_plain_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "real").write_text(SAYS)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert count_lines(tmp_path / "link", [LOG]) is None
    assert count_lines(tmp_path / "none", [LOG]) is None
    assert count_lines(tmp_path, [LOG]) is None


def test_samples_are_taken_by_exact_name_and_labels() -> None:
    page = (
        "# TYPE faulty:forks counter\n"
        'faulty:forks_total{kind="side"} 2\n'
        'faulty:forks_total{kind="side",rank="1"} 3\n'
        'faulty:forks_total{kind="main"} 10\n'
        'faulty:forks_created{kind="side"} 99\n'
    )
    none = Sign(arm="on", feature="x", metric="faulty:forks")
    assert metric_values(page, [SIDE, FORKS, none, LOG]) == [5.0, 15.0, None, None]


def shown(answer, arm: str = "on"):
    """The engagement of an answer: sums, and each feature with what was seen."""
    check("serving" if "cells" in answer["samples"] else "accuracy", answer)
    found = answer["engagement"][arm]
    assert set(answer["engagement"]) == {arm}
    seen = {
        item["feature"]: item.get("why", item["seen"]) for item in found["features"]
    }
    return found["expected"], found["counted"], seen


@pytest.mark.parametrize(
    ("says", "seen"),
    [
        ([f"INFO {SAYS}\n"], 1),
        (["INFO Side str", "eams are used.\n"], 1),  # cut in two writes
        ([SAYS], 1),  # without an end
        (["INFO Side streams are not used.\n"], 0),
        ([], 0),
    ],
)
def test_a_line_of_a_started_server(run, says, seen) -> None:
    answer = run({"says": says}, cells=SHORT, engagement=(LOG,), arm="on")
    assert shown(answer) == (1, seen, {"overlap": seen})


@pytest.mark.parametrize(
    ("forks", "seen"),
    [
        ([2, 9], 7),
        ([None, 9], 9),  # a sample with labels appears with its first count
        ([9, 9], 0),
        ([None], 0),
        ([9, 2], "the metric fell, as that of a server that was started again"),
        ([9, None], "the metric fell, as that of a server that was started again"),
        ([2, "NaN"], "the metric is not a number"),
        (["NaN", 3], "the metric is not a number"),
        ([2, "+Inf"], "the metric is not a number"),
        ([2, "many"], "the metrics could not be read"),
    ],
)
def test_a_metric_of_a_server(run, forks, seen) -> None:
    answer = run(
        {"forks": forks}, cells=SHORT, engagement=(SIDE,), arm="on", **UNPROBED
    )
    assert shown(answer) == (1, int(isinstance(seen, int) and seen > 0), {"side": seen})


def test_a_server_without_metrics(run) -> None:
    answer = run(
        {"metrics": False}, cells=SHORT, engagement=(SIDE,), arm="on", **UNPROBED
    )
    assert shown(answer) == (1, 0, {"side": "the metrics could not be read"})


def test_the_reference_arm_is_asked_for_the_features_of_all(run) -> None:
    other = Sign(arm="more", feature="more", log="Something else is used.")
    script = {"says": [SAYS + "\n"], "forks": [1, 1]}
    answer = run(
        script,
        cells=SHORT,
        engagement=(LOG, other, SIDE),
        arm="base",
        reference="base",
        **UNPROBED,
    )
    assert shown(answer, "base") == (0, 1, {"overlap": 1, "more": 0, "side": 0})
    # Another arm has no part in it.
    answer = run(script, cells=SHORT, engagement=(LOG,), arm="more", reference="base")
    assert "engagement" not in answer


def test_the_output_of_a_server_at_an_address_is_not_ours(run) -> None:
    with faulty_server(Script(forks=[1, 4])) as server:
        answer = run(
            cells=SHORT,
            engagement=(LOG, SIDE),
            arm="on",
            base_url=f"http://127.0.0.1:{server.port}/v1",
            **UNPROBED,
        )
    why = "what a server at an address writes cannot be read"
    assert shown(answer) == (2, 1, {"overlap": why, "side": 3})


def test_a_unit_that_may_not_be_used_shows_nothing(run) -> None:
    answer = run({"exit_after": 1}, cells=SHORT, engagement=(LOG,), arm="on")
    assert "stop" in answer and "engagement" not in answer


def test_a_unit_of_an_accuracy_gate(tmp_path: Path) -> None:
    plan = AccuracyPlan(
        server=server_command(says=[SAYS], forks=[1, 5], tokens=["ANSWER: 1"]),
        ready_seconds=60,
        sets=(PromptSet(kind="ledger", items=2, tokens=500),),
        engagement=(LOG, SIDE),
    )
    answer = ask_all(plan, Target(arm="on", reference="base", folder=tmp_path / "u"))
    assert shown(answer) == (2, 2, {"overlap": 1, "side": 4})
