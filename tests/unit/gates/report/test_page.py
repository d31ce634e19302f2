# SPDX-License-Identifier: Apache-2.0
"""The page: what it says, that it is whole, safe, readable and always the same."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from reports import Page, answer, judged_project
from support import Project, run

from stackctl import __version__
from stackctl.gates.receipt.model import VERDICTS
from stackctl.gates.report.html import Html, el, text
from stackctl.gates.report.picture import pairs, ticks
from stackctl.gates.report.style import CSS, DARK, LIGHT, TEXT_PAIRS

GOLDEN = Path(__file__).parents[3] / "golden" / "report" / "page.txt"
HOSTILE = '</title><script>alert(1)</script><img src=x onerror="a()">&lt; \'"\u202e'


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return judged_project(tmp_path_factory.mktemp("report") / "project")


def report(project: Project, out: Path, *args: str):
    return run("report", "-C", project.folder, "--out", out, "--json", *args)


@pytest.fixture(scope="module")
def html(project: Project, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("out") / "site"
    done = report(project, out)
    assert done.code == 0, done.out
    return (out / "index.html").read_text("utf-8")


def test_it_says_what_is_so(html: str) -> None:
    said = Page(html).text.replace(__version__, "VERSION")
    said = re.sub(r"\b(?:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{12})\b", "<id>", said)
    assert said == GOLDEN.read_text("utf-8")


def test_the_answers_are_in_the_document(project: Project, tmp_path: Path) -> None:
    found = report(project, tmp_path / "out").json
    told = {each["gate"]: (each["verdict"], each["counts"]) for each in found["gates"]}
    assert told == {
        "fast": ("qualified", True),
        "slow": ("rejected", True),
        "wide": ("insufficient-evidence", True),
        "old": ("qualified", False),
        "gone": (None, False),
        "never": (None, False),
        "extra": ("qualified", False),
    }
    old = next(each for each in found["gates"] if each["gate"] == "old")
    (stale,) = old["receipts"]
    assert stale["stale"] and stale["changes"][0].startswith("arm on (composed)")
    assert found["receipts"] == 5


def test_twice_is_the_same_to_the_byte(project: Project, tmp_path: Path) -> None:
    def files() -> dict[str, bytes]:
        found = (path for path in (tmp_path / "out").rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in found}

    report(project, tmp_path / "out")
    first = files()
    report(project, tmp_path / "out")
    assert files() == first
    report(project, tmp_path / "other")
    assert (tmp_path / "other/index.html").read_bytes() == first[
        str(tmp_path / "out/index.html")
    ]


def test_links_lead_somewhere(project: Project, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report(project, out)
    page = Page((out / "index.html").read_text("utf-8"))
    inside = [link for link in page.attribute("href") if link.startswith("#")]
    assert {link[1:] for link in inside} <= set(page.ids)
    receipts = [link for link in page.attribute("href") if link.endswith(".json")]
    assert len(receipts) == 5
    for link in receipts:
        assert (out / link).read_bytes() == (project.folder / link).read_bytes()
    for name in ("aria-labelledby",):
        for value in page.attribute(name):
            assert set(value.split()) <= set(page.ids)


def test_nothing_is_fetched_or_run(html: str) -> None:
    page = Page(html)
    assert {tag for tag, _ in page.tags} & {
        "script", "iframe", "object", "embed", "img", "form", "base", "audio",
    } == set()  # fmt: skip
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("href", "src", "action", "poster", "srcset"):
            value = attributes.get(name) or ""
            assert not re.match(r"[a-z]+:(?!,)|//", value), value
    assert "url(" not in CSS and "@import" not in CSS
    assert str(Path.home()) not in html
    policy = [a["content"] for _, a in page.tags if a.get("http-equiv")]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_pictures_say_in_words_what_they_show(html: str) -> None:
    page = Page(html)
    pictures = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(pictures) == 6  # the stack, and a plot for each receipt's claim
    assert all(attrs["role"] == "img" for attrs in pictures)
    assert "beta (1 patch, 1 of 2 required gates, requires alpha)" in page.text
    assert "alpha (2 patches, 1 of 1 required gate)" in page.text
    assert "9 figures from -20.6 % to -18.6 %; estimate -19.9 %" in page.text


def test_headings_have_no_gaps(html: str) -> None:
    levels = [int(tag[1]) for tag, _ in Page(html).tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_a_verdict_is_told_by_more_than_its_colour(html: str) -> None:
    words = Page(html).text
    for said in ("qualified", "rejected", "insufficient evidence", "not tested"):
        assert said in words
    for sign in "✔✖?":
        assert sign in words
    for mark in ("stale", "unsigned", "no receipt"):
        assert mark in words


def test_a_verdict_that_does_not_count_has_no_colour(html: str) -> None:
    rows = re.findall(r"<tr><th scope=\"row\">.*?</tr>", html)
    by_gate = {re.findall(r"#gate-([a-z]+)", row)[0]: row for row in rows}
    assert 'class="badge v-qualified"' in by_gate["fast"]
    for gate in ("old", "extra"):
        assert 'class="badge was"' in by_gate[gate]
        assert "v-qualified" not in by_gate[gate]


def contrast(first: str, second: str) -> float:
    """Contrast of two colours (WCAG 2.2, relative luminance)."""

    def luminance(colour: str) -> float:
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4
                  for p in parts]  # fmt: skip
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_stands_out_from_its_ground(colours: dict[str, str]) -> None:
    for front, back in TEXT_PAIRS:
        found = contrast(colours[front], colours[back])
        assert found >= 4.5, (front, back, found)
    for back in ("bg", "panel", "shade"):  # graphics: 3 to 1
        assert contrast(colours["plot"], colours[back]) >= 3, back
    assert {f"{verdict}-fg" for verdict in VERDICTS} <= {pair[0] for pair in TEXT_PAIRS}


def test_hostile_words_are_only_words(tmp_path: Path) -> None:
    clean = judged_project(tmp_path / "clean")
    bad = judged_project(tmp_path / "bad", HOSTILE)
    pages = []
    for project in (clean, bad):
        out = tmp_path / f"out-{project.folder.name}"
        assert report(project, out).code == 0
        pages.append(Page((out / "index.html").read_text("utf-8")))
    assert "<script>alert(1)</script>" in pages[1].text
    assert "\u202e" not in pages[1].text
    assert "\\u202e" in pages[1].text
    assert [tag for tag, _ in pages[0].tags] == [tag for tag, _ in pages[1].tags]


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.text() | st.text("<>&\"'/=` \n\u202e\x00", max_size=20))
@example("</p><p x='")
def test_any_text_stays_inside_its_element(words: str) -> None:
    markup = el("p", words, title=words, class_="x")
    page = Page(markup)
    assert [tag for tag, _ in page.tags] == ["p"]
    assert set(page.tags[0][1]) == {"title", "class"}
    assert el("p", Html(text(words))) == el("p", words)


def test_one_that_rejects_answers_else_the_newest(tmp_path: Path) -> None:
    project = judged_project(tmp_path / "project")
    composed = run("compose", "--json", cwd=project.folder).json

    def verdicts(gate: str) -> list[str]:
        found = report(project, tmp_path / "out").json["gates"]
        told = next(each for each in found if each["gate"] == gate)
        assert told["verdict"] == told["receipts"][0]["verdict"]
        return [each["verdict"] for each in told["receipts"]]

    late = "2026-11-29T23:59:59Z"
    answer(project, composed, "wide", 0.8, 0.01, started=late)
    assert verdicts("wide") == ["qualified", "insufficient-evidence"]
    # Run again until it qualifies, a rejected gate stays rejected.
    answer(project, composed, "slow", 0.8, 0.01, started=late)
    assert verdicts("slow") == ["rejected", "qualified"]
    page = (tmp_path / "out/index.html").read_text("utf-8")
    assert "Receipts that count do not agree" in page


def test_a_forged_receipt_is_not_believed(tmp_path: Path) -> None:
    import json
    from hashlib import sha256

    from stackctl.model.canonical import canonical_json

    project = judged_project(tmp_path / "project")
    (path,) = (project.folder / "receipts/slow").glob("*.json")
    value = json.loads(path.read_bytes())
    value["predicate"]["decision"]["verdict"] = "qualified"
    path.unlink()
    data = canonical_json(value) + b"\n"
    path.with_name(f"{sha256(data).hexdigest()}.json").write_bytes(data)
    broken = next((project.folder / "receipts/wide").glob("*.json"))
    broken.write_bytes(broken.read_bytes()[:-2])
    done = report(project, tmp_path / "out")
    assert done.code == 0
    slow = next(each for each in done.json["gates"] if each["gate"] == "slow")
    assert not slow["counts"]
    page = Page((tmp_path / "out/index.html").read_text("utf-8"))
    assert "not believed" in page.text
    assert "Files that are no receipts" in page.text
    assert str(project.folder) not in page.text
    assert str(project.folder) not in done.json["bad"][0]["file"]


def test_a_series_that_does_not_compose_still_has_a_page(tmp_path: Path) -> None:
    project = judged_project(tmp_path / "project")
    patch = project.patch("alpha")
    patch.write_text(patch.read_text().replace("-line 10", "-line 11"))
    done = report(project, tmp_path / "out")
    assert done.code == 0
    assert done.json["composition"] is None
    page = Page((tmp_path / "out/index.html").read_text("utf-8"))
    assert "not known:" in page.text
    assert "staleness unknown" in page.text
    assert str(project.folder) not in page.text


def test_another_page_is_not_overwritten(project: Project, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<h1>mine</h1>")
    (tmp_path / "notes.txt").write_text("kept")
    done = report(project, tmp_path)
    assert (done.code, done.json["error"]["kind"]) == (2, "not-ours")
    assert (tmp_path / "index.html").read_text() == "<h1>mine</h1>"
    assert not (tmp_path / "receipts").exists()
    (tmp_path / "index.html").unlink()
    assert report(project, tmp_path).code == 0
    assert (tmp_path / "notes.txt").read_text() == "kept"


def test_copies_do_not_become_receipts(project: Project) -> None:
    shelf = project.folder / "receipts"
    before = sorted(shelf.rglob("*"))
    done = report(project, shelf / "page")
    assert done.code == 2 and "is inside" in done.json["error"]["message"]
    assert sorted(shelf.rglob("*")) == before


def test_a_folder_that_cannot_be_made_is_an_error(
    project: Project, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    done = report(project, tmp_path / "file" / "out")
    assert done.code == 3
    assert done.json["error"]["where"]["file"].startswith(str(tmp_path / "file"))


def test_a_project_without_gates_has_a_page(tmp_path: Path) -> None:
    from support import three_sets

    project = three_sets(tmp_path / "project")
    assert report(project, tmp_path / "out").code == 0
    page = Page((tmp_path / "out/index.html").read_text("utf-8"))
    assert "The series names no gate, and there is no receipt." in page.text


def test_answers_without_pairs_show_their_figures(tmp_path: Path) -> None:
    from gates import document
    from rules import ACCURACY, ON, RIGHT, accuracy, evidence, unit
    from support import three_sets

    from stackctl.gates.receipt import write
    from stackctl.gates.rule.model import Rule

    project = three_sets(tmp_path / "project")
    none = {"base": None, "files": [], "image": None, "model": None}
    tests = Rule(statistic="counts")
    outcomes = [
        {"id": f"tests/t.py::test_{n}", "outcome": "passed" if n else "failed", "ns": 5}
        for n in range(9)
    ]
    for found, rule, claims in (
        (accuracy(200, on=set(range(5)), base={3, 4, 5}), ACCURACY, [RIGHT]),
        (
            evidence("tests", tests, [unit(0, {"tests": outcomes})], arms={"on": ON}),
            tests,
            [],
        ),
    ):
        plain = found.document() | {"gate": f"an-{found.kind}", "inputs": none}
        told = {
            name: getattr(rule, name)
            for name in ("statistic", "blocks", "pairs", "looks", "engaged")
        }
        stated = [
            {"name": c.name, "arm": c.arm, "against": c.against, "margin": c.margin,
             "better": c.better}
            for c in claims
        ]  # fmt: skip
        write(document(plain, told, stated, set=None), project.folder)
    done = report(project, tmp_path / "out")
    assert done.code == 0, done.json
    text = Page((tmp_path / "out/index.html").read_text("utf-8")).text
    assert "estimate -1 points; interval -3.88 points to +1.43 points" in text
    assert "mcnemar p\n" in text and "shares arm wilson\n" in text
    assert "Items\n200\n" in text
    seen = "base: fork (log) 0 in 2 units; on: fork (log) 1 in 1 unit"
    assert f"Features seen: {seen}\n" in text
    assert "counts passed\n8\n" in text and "counts failed\n1\n" in text
    assert "Count\n8\n" in text


@pytest.mark.parametrize(
    ("low", "high"),
    [(-0.25, 0.02), (0, 1), (3, 4000), (-1e-9, 1e-9), (99.99, 100.01), (-7, -6)],
)
def test_ticks_are_few_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    assert all(low <= tick <= high for tick in found)
    assert found == sorted(found)


# Figures that somebody may have measured: what is next to nothing is not drawn.
FIGURES = st.floats(-1e6, 1e6).map(lambda x: x if abs(x) > 1e-100 else 0.0)


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(FIGURES, max_size=100),
    target=st.none() | FIGURES,
    unit=st.sampled_from(["change", "times", "value", "difference", "count", ""]),
)
def test_every_plot_stays_in_its_frame(
    values: list[float], target: float | None, unit: str
) -> None:
    claim = {"name": "x", "values": values, "target": target, "unit": unit}
    if values:
        claim |= {"low": min(values), "high": max(values), "estimate": values[0]}
    drawn = pairs("p", claim)
    if not values:
        assert drawn is None
        return
    assert drawn is not None
    page = Page(drawn)
    frame = next(attrs for tag, attrs in page.tags if tag == "svg")
    _, _, width, height = map(float, str(frame["viewbox"]).split())
    for tag, attrs in page.tags:
        if tag == "circle":
            assert 0 <= float(str(attrs["cx"])) <= width
            assert 0 <= float(str(attrs["cy"])) <= height
        if tag == "text":
            assert 0 <= float(str(attrs["x"])) <= width
