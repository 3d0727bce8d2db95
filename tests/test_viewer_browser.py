"""The viewer in a real browser: every view opens, filters filter, numbers equal the stored ones.

Needs Debian's chromium and chromium-driver; skipped where they are not installed.
"""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mage.evaluation.statistics import Estimate
from mage.reproduce.action_shares import read_choices
from mage.reproduce.page import choices_json
from mage.reproduce.pictures import draw_choices, draw_curves, draw_habits
from mage.reproduce.reflections import quote_reflections
from mage.reproduce.results import ArmCurve, CurvePanel
from mage.run_folder import RunFolder
from mage.viewer.export import collect, write_file, write_folder
from mage.viewer.library import Library
from mage.viewer.server import Server
from tests.marks import end_to_end
from tests.toys import meta
from tests.view_runs import WARNING, make_run, store_many

DRIVER = shutil.which("chromedriver")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    not (DRIVER and CHROMIUM), reason="needs chromium and chromium-driver"
)
RESOURCES = "return performance.getEntriesByType('resource').map((one) => ({name: one.name}))"
ESCAPE = "\ue00c"  # the key, as WebDriver names it
PATIENCE = 120.0  # seconds; a busy machine is slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    make_run(place / "one")
    make_run(place / "two", updates=4, lr=5e-4)
    return place


@contextmanager
def serving(runs: Path) -> Iterator[str]:
    """The address of a server."""
    server = Server(Library([runs]))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server.address
    finally:
        server.stop()
        thread.join()


@pytest.fixture(scope="module")
def address(runs):
    with serving(runs) as found:
        yield found


@pytest.fixture(scope="module")
@end_to_end
def browser():
    webdriver = pytest.importorskip("selenium.webdriver")  # it takes a second
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.add_argument("--window-size=1440,1000")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield found
    found.quit()


@pytest.fixture
def visit(browser, address):
    """Opens a view and waits for a text; fails on any script error of the page."""
    browser.get_log("browser")

    def go(hash: str, text: str, base: str = address) -> Any:
        browser.get("about:blank")
        browser.get(base + hash)
        wait_for(browser, text)
        return browser

    yield go
    errors = [one["message"] for one in browser.get_log("browser") if one["level"] == "SEVERE"]
    assert errors == []
    assert browser.title.endswith("MAGE"), "no text of a model ran as a script"


def wait_for(browser: Any, text: str) -> None:
    def has_text(driver: Any) -> bool:
        return text in driver.find_element("tag name", "body").text

    wait_until(browser, has_text, f"the page does not show {text!r}")


def wait_until(browser: Any, condition: Callable[[Any], bool], message: str = "") -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, PATIENCE).until(condition, message)


def choose(page: Any, name: str, value: str) -> None:
    from selenium.webdriver.support.ui import Select

    Select(page.find_element("name", name)).select_by_value(value)


def body(browser: Any) -> str:
    return str(browser.find_element("tag name", "main").text)


def last_score(run: Path, name: str) -> str:
    stored = json.loads((run / "evaluations" / f"{name}.json").read_text())
    value = stored["overall"]["episodes"][-1]["score"]["value"]
    return f"{value:+.3f}".replace("-", "−")


# --- Views


def test_the_list_shows_the_stored_scores_and_search_filters_it(visit, runs):
    page = visit("", "two")
    rows = page.find_elements("css selector", "#runs tbody tr")
    assert len(rows) == 2
    assert all(last_score(runs / "one", "after_test") in row.text for row in rows)
    search = page.find_element("css selector", "input[type=search]")
    search.send_keys("two")
    rows = page.find_elements("css selector", "#runs tbody tr")
    assert [row.get_attribute("data-id") for row in rows] == ["two"]
    search.send_keys(ESCAPE)
    assert page.switch_to.active_element.tag_name == "body", "Esc leaves the search box"


def test_selected_runs_open_in_a_comparison_with_their_differences(visit):
    page = visit("", "two")
    for box in page.find_elements("css selector", "#runs input[type=checkbox]"):
        box.click()
    page.find_element("id", "compare").click()
    wait_for(page, "Options that differ")
    assert "learn.lr" in page.find_element("id", "options").text
    wait_for(page, "−")
    assert "Paired difference" in body(page)


def test_a_run_shows_warnings_figures_exact_lines_and_plots(visit, runs):
    page = visit("#/run/one", "Score by episode")
    text = body(page)
    assert WARNING in text
    assert last_score(runs / "one", "after_test") in text
    assert "+0.125" in text
    assert "+0.238" in text
    assert len(page.find_elements("css selector", ".plot [role=img][aria-label] canvas")) >= 3
    assert page.title == "one · MAGE"


def test_filters_of_the_meta_episodes_filter(visit, runs):
    page = visit("#/run/one/episodes", "36 of 36 meta-episodes")
    metas = RunFolder.open(runs / "one").read_episodes_of("after_test")
    choose(page, "set", "after_test")
    wait_for(page, "12 of 36 meta-episodes")
    choose(page, "opponent", "aggressive")
    expected = sum(meta.task.opponent == "aggressive" for meta in metas)
    wait_for(page, f"{expected} of 36 meta-episodes")
    choose(page, "outcome", "w")
    won = [
        meta
        for meta in metas
        if meta.task.opponent == "aggressive" and meta.episodes[-1].outcome == "won"
    ]
    wait_for(page, f"{len(won)} of 36 meta-episodes")


def test_a_row_leads_to_its_meta_episode(visit):
    page = visit("#/run/one/episodes", "36 of 36 meta-episodes")
    page.find_element("css selector", ".virtual .vrow a").click()
    wait_for(page, "Episode 3")
    assert page.current_url.endswith("#/run/one/meta/after_test/0")


def test_a_meta_episode_shows_boards_memory_and_hostile_text_as_text(visit):
    page = visit("#/run/one/meta/after_test/2", "Episode 3")
    text = body(page)
    assert "<script>document.title='broken'</script>" in text
    assert "It bets often." in text
    assert "␇" in text, "control characters are visible"
    assert page.find_elements("css selector", "svg.board")
    assert not page.find_elements("css selector", "main img")
    loaded = [one["name"] for one in page.execute_script(RESOURCES) if "/data/" in one["name"]]
    assert len(loaded) == len(set(loaded)), "views that need the same data load it once"


def test_the_probabilities_of_all_legal_moves_are_shown(visit):
    """The first turn of the first task has stored probabilities: 62.5 %, 27.5 %, 10 % illegal."""
    page = visit("#/run/one/meta/after_test/0", "Episode 3")
    (box,) = page.find_elements("css selector", ".chances")
    assert box.text.split("\n") == ["pass", "62.5 %", "bet", "27.5 %", "no legal move", "10.0 %"]


def test_why_this_credit_names_the_parts_and_links_to_members(visit):
    page = visit("#/run/one/meta/step_000006/0", "why?")
    page.find_element("css selector", "button.credit").click()
    wait_for(page, "(episode)")
    page.find_element("css selector", ".why details summary").click()
    link = page.find_elements("css selector", ".why details[open] li a")[-1]
    target = link.get_attribute("href")
    link.click()
    wait_until(page, lambda driver: driver.current_url == target)
    wait_for(page, "member")


def test_the_adaptation_strip_draws_every_task(visit):
    page = visit("#/run/one/strip", "tasks; won")
    assert len(page.find_elements("css selector", ".strip canvas")) == 3, "one for an opponent"


def test_keys_move_and_open(visit):
    page = visit("", "two")
    main = page.find_element("tag name", "body")
    main.send_keys("j")
    assert page.find_elements("css selector", "tr.at")
    main.send_keys("?")
    wait_for(page, "previous, next meta-episode")


def test_the_recipe_is_shown_and_an_unknown_page_says_so(visit):
    assert "[advantages]" in body(visit("#/run/one/recipe", "Resolved recipe"))
    visit("#/nothing", "There is no page nothing.")


# --- Size


def test_a_thousand_meta_episodes_are_listed_in_parts(browser, tmp_path):
    store_many(make_run(tmp_path / "large"), 5, 1_000)
    with serving(tmp_path) as address:
        browser.get("about:blank")
        browser.get(f"{address}#/run/large/episodes")
        wait_for(browser, "1,036 of 1,036 meta-episodes")
        assert len(browser.find_elements("css selector", ".vrow")) < 120, "only visible rows"
        wait_for(browser, "after training")


# --- Static copies


def test_static_copies_open_from_disk(visit, runs, tmp_path):
    data = list(collect(Library([runs])))
    for copy in (write_folder(tmp_path / "page", data), write_file(tmp_path / "page.html", data)):
        base = copy.as_uri()
        page = visit("#/run/one", "Score by episode", base)
        assert last_score(runs / "one", "after_test") in body(page)
        visit("#/run/one/meta/step_000006/0", "why?", base)
        visit("#/compare/one%2Ctwo", "Paired difference", base)


# --- Tables

TABLE = Path(__file__).parents[1] / "results" / "paper_small" / "table1.json"


def write_table(path: Path, **more: Any) -> str:
    """The page of a kept table, with further parts for its first environment."""
    found = json.loads(TABLE.read_text("utf-8"))
    rest = [None] * (len(found["results"]) - 1)
    found |= {name: [value, *rest] for name, value in more.items()} | {"rule": "The rule."}
    data = [("runs", {"runs": [], "tables": []}), ("table/table1", found)]
    return write_file(path, data, start="table/table1").as_uri()


def test_a_table_of_an_earlier_version_opens(visit, tmp_path):
    page = visit("", "Holm", write_table(tmp_path / "table1.html"))
    assert "LaMer" in body(page)
    assert page.find_elements("css selector", "img.picture") == []


@pytest.mark.parametrize("width", [1440, 390])
def test_a_table_shows_its_pictures_and_quotes(visit, tmp_path, width):
    metas = {"mage": [meta((-1.0, 1.0))], "react": [meta((-1.0, -1.0))]}
    choices = read_choices(metas)
    assert choices is not None
    rates = tuple(Estimate(one, one - 0.1, one + 0.1, 12) for one in (0.4, 0.6))
    panel = CurvePanel("test", "", "pass_at", (ArmCurve("mage", True, rates, ((2, 0.9),)),))
    pictures = [draw_curves(panel)], draw_choices(choices), draw_habits(choices)
    base = write_table(
        tmp_path / "table1.html",
        choices=choices_json(choices),
        curves=[asdict(panel)],
        pictures=dict(zip(("curves", "choices", "habits"), pictures, strict=True)),
        quotes=[asdict(one) for one in quote_reflections(metas)],
    )
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}
    page = visit("", "Reflections by trial", base)
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        images = page.find_elements("css selector", "img.picture")
        assert [one.get_property("naturalWidth") > 100 for one in images] == [True] * 5
        assert "Diamonds are the paper's values" in body(page)
        assert "no such task among the 1 stored ones" in body(page)
        wide = page.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width, "only tables scroll sideways"
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


# --- Live runs


def test_the_page_follows_an_active_run(browser, tmp_path):
    folder = make_run(tmp_path / "live")
    (folder.path / "summary.json").unlink()
    with serving(tmp_path) as address:
        browser.get("about:blank")
        browser.get(f"{address}#/run/live")
        wait_for(browser, "running")
        folder.append_metrics({"update": 7, "episodes": 36, "score_1": 0.1})
        wait_for(browser, "7 of 6 updates")


def test_the_exact_prompt_is_shown_on_demand(visit, runs):
    page = visit("#/run/one/meta/after_test/0", "prompt,")
    buttons = page.find_elements("css selector", ".badges button.badge:not(.credit)")
    buttons[0].click()
    expected = Library([runs]).get("run/one/prompts/after_test/0")["episodes"][0]["turns"][0]
    wait_for(page, expected.strip().splitlines()[0][:40])
