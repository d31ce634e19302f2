# SPDX-License-Identifier: Apache-2.0
"""Submitting a series as stacked pull requests, and bringing them up to date."""

from pathlib import Path

import pytest
from github_server import Call, FakeGitHub
from stacks import ALPHA, BETA, Team, core, three, words


@pytest.fixture
def team(tmp_path: Path, server: FakeGitHub) -> Team:
    return Team(three(tmp_path / "project"), server)


def test_a_series_becomes_a_stack(team: Team) -> None:
    before = team.text
    shown = team.call("submit", "--dry-run")
    assert team.github.writes == [] and team.text == before
    assert [each["kind"] for each in shown["plan"]].count("create") == 3
    done = team.call("submit")
    assert done["done"] == len(done["plan"])
    pulls = team.github.pulls
    assert [(each.head, each.base) for each in pulls.values()] == [
        ("stack/demo/alpha", "main"),
        ("stack/demo/beta", "stack/demo/alpha"),
        ("stack/demo/gamma", "stack/demo/beta"),
    ]
    assert all(each.draft for each in pulls.values())
    assert pulls[1].title == "Set alpha"
    assert "because of alpha" in pulls[1].body
    for number in (1, 3):
        assert f"| #{number} |" in pulls[2].body
    assert "| → | `beta` | this one | Set beta |" in pulls[2].body
    assert (pulls[1].labels, pulls[1].asked) == (["fast"], ["bob"])
    # Who opened it is not asked.
    assert (pulls[3].asked, pulls[3].teams) == ([], ["core"])
    # Each shows its own set only.
    assert "+forty" in team.github.shown(2) and "+ten" not in team.github.shown(2)
    added = 'pull = { repo = "o/r", number = 1 }'
    assert added in team.text
    assert [line for line in team.text.splitlines() if "pull = " not in line] == (
        before.splitlines()
    )


def test_a_second_run_does_nothing(team: Team) -> None:
    team.call("submit")
    team.github.calls.clear()
    again = team.call("submit")
    assert again["plan"] == [] and team.github.writes == []
    status = team.call("status")
    assert [each["state"] for each in status["sets"]] == ["open"] * 3
    assert team.call("sync")["plan"] == []


def test_branches_are_the_composed_commits(team: Team) -> None:
    from support import run

    team.call("submit")
    made = run("compose", "-C", team.project.folder, "--json").json
    commits = {step["set"]: step["commit"] for step in made["steps"]}
    assert {name: team.branch(name) for name in commits} == commits


def test_words_of_a_plan(team: Team) -> None:
    text = team.run("submit", "--dry-run").out
    assert "open a draft pull request for beta: stack/demo/beta into" in text
    assert words(team.call("submit", "--dry-run"))[0].startswith("push ")


ALPHA_2 = ("alpha: TEN\n", {"pkg/core.py": core(_10="TEN")})
BETA_2 = ("beta: forty\n", {"pkg/core.py": core(_10="TEN", _40="forty")})


def test_unreviewed_branches_are_kept_clean(team: Team) -> None:
    team.call("submit")
    old = team.branch("alpha")
    team.patch("alpha", ALPHA_2)
    plan = team.call("submit", "--dry-run")["plan"]
    pushes = {each["set"]: each for each in plan if each["kind"] == "push"}
    assert pushes["alpha"]["how"] == "rewrite" and pushes["alpha"]["old"] == old
    assert [pushes[name]["change"] for name in ("alpha", "beta", "gamma")] == [
        "content", "rebase", "rebase",
    ]  # fmt: skip
    team.call("submit")
    assert not team.github.has(old, team.branch("alpha"))
    assert "+TEN" in team.github.shown(1) and "+TEN" not in team.github.shown(2)
    assert team.call("submit")["plan"] == []
    assert all(each.comments == [] for each in team.github.pulls.values())


def test_other_words_for_the_same_change(team: Team) -> None:
    team.call("submit")
    team.github.review(2)
    for name, files in (("alpha", ALPHA[1]), ("beta", BETA[1])):
        team.patch(name, (f"{name}: said better\n", files))
    assert team.call("sync")["plan"] == []
    team.call("submit")
    said = [
        team.github.git("log", "-1", "--format=%s", team.branch(name))
        for name in ("alpha", "beta", "gamma")
    ]
    assert said == ["alpha: said better", "Update beta to the series", "gamma: words"]
    assert team.call("submit")["plan"] == []


def test_reviewed_commits_stay(team: Team) -> None:
    team.call("submit")
    old = {name: team.branch(name) for name in ("alpha", "beta")}
    team.github.review(1)
    team.github.review(2, "cyd", "COMMENTED")
    team.patch("alpha", ALPHA_2)
    done = team.call("submit")
    how = {e["set"]: e["how"] for e in done["plan"] if e["kind"] == "push"}
    assert how == {"alpha": "on-top", "beta": "on-top", "gamma": "rewrite"}
    for name, before in old.items():
        assert team.github.has(before, team.branch(name))
    # What beta shows is still only its own.
    assert "+TEN" in team.github.shown(1) and "TEN" not in team.github.shown(2)
    assert "+forty" in team.github.shown(2) and "forty" not in team.github.shown(3)
    text = team.github.git("log", "-1", "--format=%B", team.branch("beta"))
    assert "rebase: its change is the same as before" in text
    assert team.call("submit")["plan"] == []
    # And once more on top of that.
    team.patch("beta", ("beta: 40\n", {"pkg/core.py": core(_10="TEN", _40="40")}))
    how = {
        e["set"]: (e["how"], e["change"])
        for e in team.call("submit")["plan"]
        if e["kind"] == "push"
    }
    assert how == {"beta": ("on-top", "content"), "gamma": ("rewrite", "rebase")}
    assert team.call("submit")["plan"] == []


def test_rewriting_what_was_reviewed_is_told(team: Team) -> None:
    team.call("submit")
    old = team.branch("alpha")
    team.github.review(1)
    team.patch("alpha", ALPHA_2)
    done = team.call("submit", "--rewrite")
    kinds = [each["kind"] for each in done["plan"]]
    assert kinds.index("comment") < kinds.index("push")
    (comment,) = team.github.pulls[1].comments
    assert f"from {old} to {team.branch('alpha')}" in comment["body"]
    assert "+TEN" in comment["body"] and "```diff" in comment["body"]
    assert team.call("submit", "--rewrite")["plan"] == []


def test_what_people_write_stays(team: Team) -> None:
    team.call("submit")
    pull = team.github.pulls[1]
    mine = "Please look at line 10.\r\n\r\n"
    pull.body = mine + pull.body.replace("\n", "\r\n") + "\r\nThanks | all"
    assert team.call("submit")["plan"] == []
    team.text = team.text.replace("because of alpha", "because of <!-- speed -->")
    assert [each["kind"] for each in team.call("submit")["plan"]] == ["edit"]
    assert pull.body.startswith(mine) and pull.body.endswith("\r\nThanks | all")
    assert "&lt;!-- speed --&gt;" in pull.body
    # A title that somebody chose stays, one of ours follows the series.
    pull.title = "My own"
    team.text = team.text.replace("Set alpha", "Alpha set").replace("Set beta", "B")
    done = team.call("submit")
    assert (pull.title, team.github.pulls[2].title) == ("My own", "B")
    assert any("a title of its own" in each["text"] for each in done["notes"]) or (
        "a title of its own" in str(team.call("submit")["notes"])
    )
    # Without its markers the block is written anew; half of them is left alone.
    pull.body = "only mine"
    team.call("submit")
    assert pull.body.startswith("only mine\n\n<!-- stackctl:begin")
    pull.body = pull.body.replace("<!-- stackctl:end -->", "")
    kept = pull.body
    notes = team.call("submit")["notes"]
    assert pull.body == kept and any("damaged" in each["text"] for each in notes)


def test_what_people_write_meanwhile_stays(team: Team) -> None:
    team.call("submit")
    team.text = team.text.replace("because of alpha", "because of speed")
    team.patch("alpha", ALPHA_2)

    def fault(call: Call) -> None:
        if call.path.endswith("git-receive-pack"):
            team.github.pulls[1].body += "\n\nJust written."

    team.github.faults = [fault]
    team.call("submit")
    body = team.github.pulls[1].body
    assert "because of speed" in body and body.endswith("\n\nJust written.")


def test_commits_of_others_are_not_undone(team: Team) -> None:
    team.call("submit")
    new = team.github.commit("stack/demo/beta", {"extra": "mine\n"})
    team.patch("beta", ("beta: 40\n", {"pkg/core.py": core(_10="ten", _40="40")}))
    team.github.calls.clear()
    done = team.call("submit", code=5)
    (blocked,) = done["blocked"]
    assert blocked["kind"] == "foreign-commits" and new in blocked["why"]
    assert "stackctl export beta" in blocked["hint"]
    assert team.github.writes == [] and team.branch("beta") == new
    team.call("submit", "--over", "beta")
    assert team.github.has(new, team.branch("beta"))
    assert "extra" not in team.github.shown(2)


def test_ready(team: Team) -> None:
    team.call("submit", "--ready", "alpha")
    assert [each.draft for each in team.github.pulls.values()] == [False, True, True]
    team.call("submit", "--ready", "alpha,beta")
    assert [each.draft for each in team.github.pulls.values()] == [False, False, True]
    assert [c.path for c in team.github.calls if c.path == "/api/graphql"] == [
        "/api/graphql"
    ]
    assert team.call("submit", "--ready", "nobody", code=2)["error"]


def test_a_new_order_merges_nothing_by_accident(team: Team) -> None:
    team.call("submit")
    text = team.text
    a, b = text.index('[[set]]\nname = "beta"'), text.index('[[set]]\nname = "gamma"')
    end = text.index("[github]")
    team.text = text[:a] + text[b:end] + "\n" + text[a:b] + text[end:]
    done = team.call("submit")
    assert done["plan"][0]["kind"] == "retarget"
    pulls = team.github.pulls
    assert [each.state for each in pulls.values()] == ["open"] * 3
    assert [each.events for each in pulls.values()] == [[], [], []]
    assert pulls[3].base == "stack/demo/alpha" and pulls[2].base == "stack/demo/gamma"
    assert "forty" in team.github.shown(2) and "forty" not in team.github.shown(3)
    assert team.call("submit")["plan"] == []


def test_sets_that_come_and_go(team: Team) -> None:
    team.call("submit")
    team.project.add("delta", ("delta\n", {"delta": "d\n"}))
    block = team.project.sets[-1]
    text = team.text
    at = text.index('[[set]]\nname = "beta"')
    team.text = text[:at] + block + "\n" + text[at:]
    team.call("submit")
    pulls = team.github.pulls
    assert pulls[4].head == "stack/demo/delta" and pulls[4].base == "stack/demo/alpha"
    assert pulls[2].base == "stack/demo/delta"
    assert "| #4 |" in pulls[1].body
    assert team.call("submit")["plan"] == []


def test_a_closed_one_gets_a_new_branch_only_when_asked(team: Team) -> None:
    team.call("submit")
    old = team.branch("beta")
    team.github.close(2)
    done = team.call("submit")
    assert len(team.github.pulls) == 3
    assert any("--again beta" in each["text"] for each in done["notes"])
    assert team.github.pulls[3].base == "stack/demo/beta.carried"
    assert "forty" not in team.github.shown(3)
    assert team.call("submit")["plan"] == []
    team.call("submit", "--again", "beta")
    assert team.github.pulls[4].head == "stack/demo/beta.2"
    assert team.github.pulls[3].base == "stack/demo/beta.2"
    assert team.branch("beta") == old
    assert "number = 4" in team.text
    assert team.call("submit")["plan"] == []


def test_a_base_from_elsewhere_gets_a_branch(
    tmp_path: Path, server: FakeGitHub
) -> None:
    team = Team(three(tmp_path / "project", kind="path"), server, "")
    done = team.call("submit")
    trunk = done["trunk"]
    assert trunk.startswith("stack/demo/base.")
    assert server.pulls[1].base == trunk
    assert server.git("log", "--format=%P", trunk) == ""
    assert "+ten" in server.shown(1)
    assert team.call("submit")["plan"] == []
