# SPDX-License-Identifier: Apache-2.0
"""Following what happens on GitHub: landings, closed pull requests, native stacks."""

from pathlib import Path

import pytest
from github_server import Call, FakeGitHub, Pull
from stacks import ALPHA, Team, core, three
from support import Project


@pytest.fixture
def team(tmp_path: Path, server: FakeGitHub) -> Team:
    made = Team(three(tmp_path / "project"), server)
    made.call("submit", "--ready", "alpha,beta,gamma")
    return made


@pytest.mark.parametrize("reviewed", [False, True], ids=["fresh", "reviewed"])
@pytest.mark.parametrize("moved", [False, True], ids=["still", "moved"])
@pytest.mark.parametrize("how", ["squash", "merge", "rebase"])
def test_the_next_set_moves_up(
    team: Team, how: str, moved: bool, reviewed: bool
) -> None:
    server = team.github
    if reviewed:
        server.review(2)
    if moved:
        server.commit("main", {"elsewhere": "upstream\n"})
    old = team.branch("beta")
    landed = server.merge(1, how)
    done = team.call("sync")
    kinds = [each["kind"] for each in done["plan"]]
    assert kinds.index("push") < kinds.index("retarget") < kinds.index("delete")
    assert server.pulls[2].base == "main"
    assert "stack/demo/alpha" not in server.heads()
    assert [each.state for each in server.pulls.values()] == ["closed", "open", "open"]
    # It shows its own set, nothing that landed and nothing of upstream's.
    shown = server.shown(2)
    assert "+forty" in shown and "ten" not in shown.replace(" ten", "")
    assert "elsewhere" not in shown and "+Other." in server.shown(3)
    assert server.has(landed, team.branch("beta"))
    assert server.has(old, team.branch("beta")) == reviewed
    (note,) = (each for each in done["notes"] if each["set"] == "alpha")
    assert f"landed as {landed}" in note["text"]
    assert team.call("sync")["plan"] == [] and team.call("submit")["plan"] == []
    assert all(
        each["change"] == "rebase" for each in done["plan"] if each["kind"] == "push"
    )


def test_github_deletes_the_branch_itself(team: Team) -> None:
    server = team.github
    server.delete_on_merge = True
    server.merge(1)
    assert server.pulls[2].base == "main"  # GitHub's own doing
    team.call("sync")
    assert "ten" not in server.shown(2).replace(" ten", "")
    assert team.call("sync")["plan"] == []


def test_one_after_the_other_to_the_end(team: Team) -> None:
    server = team.github
    for number in (1, 2, 3):
        server.merge(number)
        team.call("sync")
    assert server.git("show", "main:README.md") == "# Fork\n\nOther."
    assert list(server.heads()) == ["main"]
    assert team.call("status")["plan"] == []


def test_a_set_in_the_base_is_superseded(team: Team) -> None:
    server, before = team.github, team.text
    landed = server.merge(1)
    team.call("sync")
    team.project.repo.git("fetch", "-q", str(server.git_dir), "main")
    tree = server.git("rev-parse", f"{landed}^{{tree}}")
    text = team.text.replace(team.project.base_commit, landed)
    team.text = text.replace(team.project.base_tree, tree)
    done = team.call("sync")
    assert [each["kind"] for each in done["plan"]] == ["retire"]
    assert 'disposition = "superseded"' in team.text
    assert f'why = "already-in-base: o/r#1 landed as {landed}"' in team.text
    assert len(team.text.splitlines()) == len(before.splitlines()) + 2
    assert team.call("sync")["plan"] == []
    assert team.call("submit")["plan"] == []


def test_sync_does_not_push_what_the_author_changed(team: Team) -> None:
    server = team.github
    team.patch("beta", ("beta: 40\n", {"pkg/core.py": core(_10="ten", _40="40")}))
    old = server.heads()
    done = team.call("sync")
    assert done["plan"] == [] and server.heads() == old
    assert any("differs from the series" in each["text"] for each in done["notes"])
    assert team.call("status", code=1)["plan"]


def test_sync_does_not_change_the_order(team: Team) -> None:
    server, text = team.github, team.text
    a, b = text.index('[[set]]\nname = "beta"'), text.index('[[set]]\nname = "gamma"')
    end = text.index("[github]")
    team.text = text[:a] + text[b:end] + "\n" + text[a:b] + text[end:]
    heads = server.heads()
    done = team.call("sync")
    assert server.heads() == heads
    assert [each for each in done["plan"] if each["kind"] != "edit"] == []
    assert any("is to stand on" in each["text"] for each in done["notes"])
    assert [each.base for each in server.open_pulls()] == [
        "main", "stack/demo/alpha", "stack/demo/beta",
    ]  # fmt: skip
    team.call("submit")
    assert team.call("sync")["plan"] == []


def test_changed_and_landed_at_once(team: Team) -> None:
    server = team.github
    team.patch("beta", ("beta: 40\n", {"pkg/core.py": core(_10="ten", _40="40")}))
    server.merge(1)
    team.call("sync")
    assert server.pulls[2].base == "main"
    team.call("submit")
    assert "+40" in server.shown(2)
    assert team.call("sync")["plan"] == []


def test_branches_of_closed_ones_stay_unless_asked(team: Team) -> None:
    server = team.github
    server.close(2)
    done = team.call("sync")
    assert "stack/demo/beta" in server.heads()
    assert any("--delete-closed" in each["text"] for each in done["notes"])
    assert server.pulls[3].base == "stack/demo/beta.carried"
    team.call("sync", "--delete-closed")
    assert "stack/demo/beta" not in server.heads()
    assert server.pulls[3].state == "open"
    assert team.call("sync")["plan"] == []
    # Once nothing is based on it, what carried the set goes too.
    team.call("submit", "--again", "beta")
    assert "stack/demo/beta.carried" in server.heads()
    team.call("sync")
    assert "stack/demo/beta.carried" not in server.heads()
    assert [each.state for each in server.pulls.values()] == [
        "open", "closed", "open", "open",
    ]  # fmt: skip


def test_a_set_that_left_the_series(team: Team) -> None:
    server, text = team.github, team.text
    a, b = text.index('[[set]]\nname = "gamma"'), text.index("[github]")
    team.text = text[:a] + text[b:]
    notes = [each["text"] for each in team.call("sync")["notes"]]
    assert any("stack/demo/gamma belongs to no set" in each for each in notes)
    assert "stack/demo/gamma" in server.heads() and server.pulls[3].state == "open"


def test_a_branch_that_something_needs_stays(team: Team) -> None:
    server = team.github
    team.text = team.text.replace('requires = ["alpha"]', "requires = []")
    server.merge(1)
    # Somebody bases work of their own on the branch of the landed set.
    server.commit("stack/demo/alpha", {"own": "x\n"})
    done = team.call("sync")
    assert "stack/demo/alpha" in server.heads()
    assert any("has moved since" in each["text"] for each in done["notes"])


def test_work_of_others_on_a_landed_branch(team: Team) -> None:
    server = team.github
    server.git("update-ref", "refs/heads/their-work", team.branch("beta"))
    theirs = Pull(
        9, "Mine", "", "their-work", "stack/demo/alpha", team.branch("beta"), "cyd"
    )
    server.pulls[9] = theirs
    server.merge(1)
    for _ in range(2):
        done = team.call("sync")
        assert any("stays" in each["text"] for each in done["notes"])
        assert theirs.state == "open" and "stack/demo/alpha" in server.heads()
    assert done["plan"] == []
    server.close(9)
    server.calls.clear()

    def fault(call: Call) -> None:
        # It is opened again after we have looked.
        asked = call.query.get("base") == "stack/demo/alpha"
        if asked and sum(c.query.get("base") is not None for c in server.calls) > 1:
            theirs.state = "open"

    server.faults = [fault]
    done = team.call("sync")
    assert [each["kind"] for each in done["plan"]] == ["delete"]
    assert theirs.state == "open" and "stack/demo/alpha" in server.heads()


def test_merged_into_the_set_below(team: Team) -> None:
    server = team.github
    server.merge(2, "merge")
    done = team.call("status", code=5)
    (blocked,) = done["blocked"]
    assert blocked["kind"] == "merged-below" and "--again beta" in blocked["hint"]
    heads = server.heads()
    assert team.call("submit", code=5)["blocked"] and server.heads() == heads
    team.call("submit", "--again", "beta", "--over", "alpha")
    assert "forty" not in server.shown(1) and "+forty" in server.shown(4)
    assert server.pulls[4].head == "stack/demo/beta.2"
    assert team.call("submit")["plan"] == []


def test_github_keeps_the_bases_of_its_own_stacks(team: Team) -> None:
    server = team.github
    first = server.make_stack(1, 2, 3)
    text = team.text
    a, b = text.index('[[set]]\nname = "beta"'), text.index('[[set]]\nname = "gamma"')
    end = text.index("[github]")
    assert any("own stack 1" in each["text"] for each in team.call("status")["notes"])
    team.text = text[:a] + text[b:end] + "\n" + text[a:b] + text[end:]
    done = team.call("submit", code=5)
    assert done["blocked"][0]["kind"] == "native-stack"
    team.text = text
    server.merge(1)
    done = team.call("sync")
    assert "retarget" not in [each["kind"] for each in done["plan"]]
    assert server.make_stack(2, 3) != first


def test_reviews_and_checks_are_shown(team: Team) -> None:
    server = team.github
    server.review(1, "bob", "APPROVED")
    server.review(1, "bob", "COMMENTED")
    server.review(2, "bob", "CHANGES_REQUESTED")
    server.checks[server.pulls[1].sha] = [("a", "success"), ("b", "skipped")]
    server.checks[server.pulls[2].sha] = [("a", "success"), ("b", "failure")]
    server.checks[server.pulls[3].sha] = [("a", "")]
    sets = team.call("status")["sets"]
    assert [(each["review"], each["checks"]) for each in sets] == [
        ("approved", "success"), ("changes-requested", "failure"), ("asked", "pending"),
    ]  # fmt: skip
    server.statuses[server.pulls[1].sha] = "failure"
    assert team.call("status")["sets"][0]["checks"] == "failure"
    assert "changes-requested" in team.run("status").out


def test_what_landed_on_a_changed_upstream(team: Team) -> None:
    server = team.github
    server.commit("main", {"pkg/core.py": core(_40="upstream")})
    server.merge(1)
    heads = server.heads()
    error = team.call("sync", code=5)["error"]
    assert error["where"]["set"] == "beta" and "move the base there" in error["hint"]
    assert server.heads() == heads


def test_patches_that_upstream_took_by_another_way(
    tmp_path: Path, server: FakeGitHub
) -> None:
    project = (
        Project(tmp_path / "project")
        .base()
        .add(
            "alpha",
            ALPHA,
            ("alpha: file\n", {"new": "new\n"}),
            ("alpha: more\n", {"more": "more\n"}),
        )
        .add("beta", ("beta: words\n", {"README.md": "# Fork\n\nOther.\n"}))
        .save()
    )
    team = Team(project, server)
    team.call("submit")
    assert team.call("status")["notes"] == []
    server.commit("main", {"upstream": "own\n"})
    took = server.commit("main", {"new": "new\n"}, "Take a file\n")
    server.commit("main", {"README.md": "# Fork\n\nOther.\n"})
    for command in ("status", "sync"):
        notes = {e["set"]: e["text"] for e in team.call(command)["notes"]}
        assert f"1 of 3 patches are in main, the last as {took}" in notes["alpha"]
        assert "all of it is in main" in notes["beta"]
    # All patches of alpha in one commit, like a squash by hand.
    server.commit("main", {"new": None, "upstream": None})
    squashed = server.commit(
        "main", {"pkg/core.py": core(_10="ten"), "new": "new\n", "more": "more\n"}
    )
    notes = {e["set"]: e["text"] for e in team.call("sync")["notes"]}
    assert f"all of it is in main, as {squashed}" in notes["alpha"]


def test_sets_that_are_reviewed_elsewhere_are_carried(
    tmp_path: Path, server: FakeGitHub
) -> None:
    project = three(tmp_path / "project")
    repo = project.repo
    repo.git("checkout", "-q", "--detach", project.base_commit)
    head = repo.commit("pinned: one\n", {"pinned": "1\n"})
    repo.git("update-ref", "refs/pull/7/head", head)
    pinned = (
        f'[[set]]\nname = "pinned"\npull = {{ repo = "up/stream", number = 7, '
        f'head = "{head}", url = "{repo.path}" }}\n'
    )
    project.sets.insert(1, pinned)
    project.sets[2] += 'pull = { repo = "o/other", number = 3 }\n'
    team = Team(project.save(), server)
    done = team.call("submit")
    assert [each.head for each in server.pulls.values()] == [
        "stack/demo/alpha", "stack/demo/gamma",
    ]  # fmt: skip
    assert server.pulls[2].base == "stack/demo/beta.carried"
    assert "pinned" not in server.shown(2) and "forty" not in server.shown(2)
    assert "reviewed in up/stream#7" in server.pulls[1].body
    states = {each["set"]: each["state"] for each in done["sets"]}
    assert states["pinned"] == states["beta"] == "carried"
    assert team.call("submit")["plan"] == [] and team.call("sync")["plan"] == []
    server.pulls[1].draft = False
    server.merge(1)
    team.call("sync")
    assert server.pulls[2].base == "stack/demo/beta.carried"
    assert team.call("sync")["plan"] == []


def test_a_pull_request_that_somebody_opened_by_hand(
    tmp_path: Path, server: FakeGitHub
) -> None:
    project = three(tmp_path / "project")
    team = Team(project, server)
    server.seed(project.repo, project.tips["alpha"], "my-work")
    server.pulls[1] = Pull(
        1, "Mine", "I did this.", "my-work", "main", project.tips["alpha"], "ada"
    )
    team.text = team.text.replace(
        'name = "alpha"\n', 'name = "alpha"\npull = { repo = "o/r", number = 1 }\n'
    )
    team.call("submit")
    pull = server.pulls[1]
    # The same result: nothing is pushed over it.
    assert (pull.head, pull.sha, pull.title) == (
        "my-work", project.tips["alpha"], "Mine",
    )  # fmt: skip
    assert pull.body.startswith("I did this.\n\n<!-- stackctl:begin")
    assert server.pulls[2].base == "my-work"
    assert team.call("submit")["plan"] == []
    pull.draft = False
    server.merge(1)
    team.call("sync")
    assert server.pulls[2].base == "main" and "my-work" in server.heads()
    assert team.call("sync")["plan"] == []


def test_landing_where_no_upstream_is(tmp_path: Path, server: FakeGitHub) -> None:
    """A series on a folder or an sdist lands on the branch that holds its base."""
    team = Team(three(tmp_path / "project", kind="path"), server, "")
    trunk = team.call("submit", "--ready", "alpha,beta")["trunk"]
    server.review(2)
    for number in (1, 2):
        server.merge(number)
        team.call("sync")
        assert server.pulls[number + 1].base == trunk
    assert "+Other." in server.shown(3) and "forty" not in server.shown(3)
    assert team.call("sync")["plan"] == [] and team.call("submit")["plan"] == []
    # On another base, what landed on the old one is a set like any other.
    upstream = team.project.folder / "upstream"
    (upstream / "news").write_text("new\n")
    lines = [line for line in team.text.splitlines() if not line.startswith("tree =")]
    team.text = "\n".join(lines) + "\n"
    done = team.call("submit")
    assert done["trunk"] != trunk
    assert server.pulls[3].base == "stack/demo/beta.carried"
    assert any("which the series does not stand" in e["text"] for e in done["notes"])
    assert "news" not in server.shown(3) and "forty" not in server.shown(3)
    assert team.call("submit")["plan"] == []
    team.call("submit", "--again", "alpha,beta")
    assert [each.base for each in server.open_pulls()] == [
        "stack/demo/beta.2", done["trunk"], "stack/demo/alpha.2",
    ]  # fmt: skip


def test_a_team_is_asked_once(team: Team) -> None:
    server = team.github
    assert server.pulls[3].teams == ["core"]
    server.review(3, "cyd")
    assert server.pulls[3].teams == []
    assert team.call("submit")["plan"] == [] and server.pulls[3].teams == []
    notes = team.call("submit", "--again", "alpha", "--ready", "alpha")["notes"]
    assert any("gets no new pull request" in each["text"] for each in notes)


def test_a_pull_request_from_a_fork(tmp_path: Path, server: FakeGitHub) -> None:
    project = three(tmp_path / "project")
    team = Team(project, server)
    server.seed(project.repo, project.tips["alpha"], "theirs")
    server.git("update-ref", "-d", "refs/heads/theirs")
    server.refs.pop("theirs")
    server.pulls[1] = Pull(
        1, "Mine", "Hi.", "patch-1", "main", project.tips["alpha"], "cyd",
        fork="cyd/r",
    )  # fmt: skip
    team.text = team.text.replace(
        'name = "alpha"\n', 'name = "alpha"\npull = { repo = "o/r", number = 1 }\n'
    )
    done = team.call("submit")
    assert any("is from a fork" in each["text"] for each in done["notes"])
    assert server.pulls[1].body == "Hi." and len(server.pulls) == 3
    assert server.pulls[2].base == "stack/demo/alpha.carried"
    assert "#1, from a fork" in server.pulls[2].body
    assert team.call("submit")["plan"] == []
    server.merge(1)
    team.call("sync")
    assert server.pulls[2].base == "main"
    assert "ten" not in server.shown(2).replace(" ten", "")
    assert team.call("sync")["plan"] == []
