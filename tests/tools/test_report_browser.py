# SPDX-License-Identifier: Apache-2.0
"""The report in a real headless browser: no scroll, no network, no complaint."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, browser, missing
from reports import judged_project
from support import run

pytestmark = pytest.mark.tools

WIDTHS = (320, 360, 768, 1280)
LONG = "Wortungetuem" * 12


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    project = judged_project(folder / "project", f'<b onclick="x()">{LONG}</b>')
    done = run("report", "-C", project.folder, "--out", folder / "out", "--json")
    assert done.code == 0, done.out
    return folder / "out" / "index.html"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if missing():
        pytest.skip(f"{missing()} is not installed")
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_and_asks_for_nothing(
    session: Browser, page: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    session.forget()
    session.open(page, width, dark=dark)
    assert session.console() == []
    assert session.requests() == [page.as_uri()]
    wide = session.script(
        "return [document.documentElement.scrollWidth, window.innerWidth]"
    )
    assert wide[0] <= wide[1] == width
    outside = session.script(
        "return [...document.querySelectorAll('main *')].filter(e => {"
        "  const box = e.getBoundingClientRect();"
        "  return box.width && !e.closest('.wide,.unseen')"
        "    && (box.right > innerWidth + 1 || box.left < -1)"
        "}).map(e => e.outerHTML.slice(0, 80))"
    )
    assert outside == []
    session.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000


def test_a_script_of_the_page_would_not_run(session: Browser, page: Path) -> None:
    session.forget()
    session.open(page, 1280)
    session.script(
        "const s = document.createElement('script'); s.textContent = 'window.bad = 1';"
        "document.body.append(s)"
    )
    assert session.script("return window.bad === undefined")
    assert "Content Security Policy" in " ".join(session.console())
    assert session.script("return document.querySelectorAll('[onclick]').length") == 0


def test_the_matrix_is_a_table_on_a_screen_and_cards_on_a_phone(
    session: Browser, page: Path
) -> None:
    code = "return getComputedStyle(document.querySelector('.matrix tr')).display"
    session.open(page, 1280)
    assert session.script(code) == "table-row"
    session.open(page, 360)
    assert session.script(code) == "block"
    # On cards every verdict still says which set it is for.
    shown = session.script(
        "return [...document.querySelectorAll('.matrix .label')]"
        ".every(e => e.getClientRects().length)"
    )
    assert shown


def test_text_is_large_enough_and_ends_up_readable(
    session: Browser, page: Path
) -> None:
    session.open(page, 360)
    small = session.script(
        "return [...document.querySelectorAll('main *')].filter(e => {"
        "  const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());"
        "  return own && parseFloat(getComputedStyle(e).fontSize) < 11"
        "}).map(e => e.outerHTML.slice(0, 80))"
    )
    assert small == []
    scaled = session.script(
        "return [...document.querySelectorAll('svg')].map(e =>"
        " e.getBoundingClientRect().width / e.viewBox.baseVal.width)"
    )
    assert all(ratio > 0.85 for ratio in scaled)


def test_colours_follow_the_scheme(session: Browser, page: Path) -> None:
    code = "return getComputedStyle(document.body).backgroundColor"
    session.open(page, 360)
    light = session.script(code)
    session.open(page, 360, dark=True)
    assert session.script(code) != light


def test_links_can_be_reached_by_keyboard(session: Browser, page: Path) -> None:
    session.open(page, 1280)
    skip = session.script(
        "const a = document.querySelector('.skip'); a.focus();"
        "const box = a.getBoundingClientRect(); return box.left >= 0"
    )
    assert skip
