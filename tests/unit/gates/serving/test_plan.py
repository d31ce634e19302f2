# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from stackctl.errors import InputError
from stackctl.gates.model import load_gate

GOOD = """\
schema = 1
kind = "serving"
title = "t"
[arms]
base = {{ tree = "base" }}
on = {{ tree = "composed" }}
[rule]
statistic = "paired-log-ratio"
blocks = true
[[claim]]
name = "speed"
cell = "c2/ctx100:{metric}"
arm = "on"
against = "base"
better = "higher"
margin = -0.05
[serving]
{keys}
[[serving.cell]]
concurrency = 2
context = 100
output = 10
{cell}
"""


def load(
    folder: Path,
    keys: str = "",
    cell: str = "requests = 4",
    more: str = "",
    metric: str = "tokens_per_s",
):
    path = folder / "serving-x.toml"
    path.write_text(GOOD.format(keys=keys, cell=cell, metric=metric) + more)
    return load_gate(path)


def test_defaults(tmp_path: Path) -> None:
    plan = load(tmp_path).serving
    assert plan is not None
    assert plan.cells[0].name == "c2/ctx100"
    assert (plan.metrics, plan.loops, plan.server) == ("vllm", "refuse", ())


@pytest.mark.parametrize(
    ("keys", "cell", "words"),
    [
        ("", "", "exactly one of `requests`, `seconds`"),
        ("", "requests = 4\nseconds = 3", "exactly one of `requests`, `seconds`"),
        ("", "requests = 1", "less than the concurrency 2"),
        ('prompt = "token-ids"', "requests = 4", "need `vocabulary`"),
        (
            'prompt = "token-ids"\nvocabulary = 500\napi = "chat"',
            "requests = 4",
            "takes no token ids",
        ),
        ('server = ["{pyton}", "{port}"]', "requests = 4", "unknown placeholder"),
        ('server = ["{port", "{port}"]', "requests = 4", "a brace itself"),
        ('server = ["vllm"]', "requests = 4", "does not use {port}"),
        ("body = { max_tokens = 3 }", "requests = 4", "may not set `max_tokens`"),
        ("stall_second = 3", "requests = 4", "stall_seconds"),
        ('metrics = "vlm"', "requests = 4", "vllm"),
        ("temperature = nan", "requests = 4", "temperature"),
    ],
)
def test_faults_are_named(tmp_path: Path, keys: str, cell: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, keys, cell)
    assert words in caught.value.message
    assert caught.value.where["line"]


def test_two_cells_of_one_name(tmp_path: Path) -> None:
    more = "[[serving.cell]]\nconcurrency = 2\ncontext = 100\noutput = 5\nseconds = 1\n"
    with pytest.raises(InputError, match="c2/ctx100"):
        load(tmp_path, more=more)


@pytest.mark.parametrize("metric", ["token_per_s", "requests", ""])
def test_a_claim_about_what_is_not_measured(tmp_path: Path, metric: str) -> None:
    with pytest.raises(InputError, match="which is not measured"):
        load(tmp_path, metric=metric)


def test_a_claim_about_a_cell_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "serving-x.toml"
    text = GOOD.format(keys="", cell="requests = 4", metric="tokens_per_s")
    path.write_text(text.replace("c2/ctx100", "c3/ctx100"))
    with pytest.raises(InputError, match="c2/ctx100"):
        load_gate(path)


SIGN = """\
[[serving.engagement]]
arm = "on"
feature = "overlap"
log = "Side streams are used."
"""


def declared(folder: Path, sign: str = SIGN, engaged: str = '["on"]', keys=""):
    """A gate that says what shows its features."""
    path = folder / "serving-x.toml"
    text = GOOD.format(keys=keys, cell="requests = 4", metric="tokens_per_s")
    rule = f"blocks = true\nengaged = {engaged}"
    path.write_text(text.replace("blocks = true", rule) + sign)
    return load_gate(path)


SERVER = 'server = ["vllm", "{{port}}"]'.replace("{{", "{").replace("}}", "}")


def test_what_shows_a_feature_is_read(tmp_path: Path) -> None:
    metric = SIGN.replace(
        'log = "Side streams are used."',
        'metric = "vllm:forks_total"\nlabels = { engine = "0" }',
    ).replace("overlap", "forks")
    gate = declared(tmp_path, SIGN + metric, keys=SERVER)
    assert gate.serving is not None
    log, grows = gate.serving.engagement
    assert (log.log, log.metric, dict(log.labels)) == (
        "Side streams are used.",
        None,
        {},
    )
    assert (grows.metric, dict(grows.labels)) == ("vllm:forks_total", {"engine": "0"})


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"on"', '"onn"', "names no arm `onn`"),
        ('"on"', '"base"', "base is the reference arm"),
        ("log = ", 'metric = "a_total"\nlog = ', "exactly one of `log`, `metric`"),
        ('log = "Side streams are used."', "", "exactly one of `log`, `metric`"),
        ("log = ", 'labels = { a = "1" }\nlog = ', "goes with `metric`"),
        ("Side streams are used.", "*****short*", "fewer than 8 characters beside"),
        ("log = ", "metric = ", "a name of a Prometheus metric"),
        (SIGN, SIGN + SIGN, "overlap of the arm on is declared twice"),
        (SIGN, "", "no [[serving.engagement]] says what its server shows"),
    ],
)
def test_faults_in_what_shows_a_feature(tmp_path: Path, old, new, words) -> None:
    with pytest.raises(InputError) as caught:
        declared(tmp_path, SIGN.replace(old, new), keys=SERVER)
    assert words in caught.value.message.replace('"onn"', "`onn`")
    assert caught.value.where["line"]


def test_what_shows_a_feature_and_the_rule_belong_together(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not name the arm on"):
        declared(tmp_path, engaged="[]", keys=SERVER)
    with pytest.raises(InputError, match="declare a `metric`"):
        declared(tmp_path)  # no server of ours, so no output of ours
    with pytest.raises(InputError, match="`captured` does not go with"):
        declared(tmp_path, engaged='["on"]\ncaptured = ["on"]', keys=SERVER)
