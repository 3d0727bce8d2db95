"""The local page with 10,000 stored meta-episodes: time from navigation to the first rows.

Chromium itself reports the times: its first-contentful-paint entry, and a mark that the page gets
in the frame after the first rows are in the document. Processor time of the server (`mage view`)
and of the browser is reported beside them, because wall times grow with the load of the machine.
Needs Debian's chromium and chromium-driver, and the package selenium.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Skipped

COUNT = 10_000
REPEATS = 5
UPDATE = 6
VIEWS = {  # name: hash of the address, selector of the first rows
    "list of runs": ("", "#runs tbody tr"),
    "a run": ("#/run/many", "table tbody tr"),
    "meta-episodes": ("#/run/many/episodes?set=step_000006", "a.vrow"),
    "one meta-episode": (f"#/run/many/meta/step_000006/{COUNT - 1}", ".turn"),
    "adaptation strip": ("#/run/many/strip", ".strip"),
}
# It waits for the rows, then for the frame that paints them.
MARK = """
new MutationObserver((_, observer) => {
  if (!document.querySelector(%r)) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => performance.mark("rows")));
}).observe(document, {childList: true, subtree: true});
"""
READ = """
const entry = (name) => (performance.getEntriesByName(name)[0] || {startTime: null}).startTime;
return [entry("rows"), entry("first-contentful-paint")];
"""


@dataclass(frozen=True, slots=True)
class Opened:
    """Milliseconds of one navigation: first rows, first content, processor times.

    `page` is the main thread of the page; `browser` are all processes of Chromium.
    """

    rows: float
    content: float
    page: float
    server: float
    browser: float


def measure() -> Iterator[str]:
    driver = shutil.which("chromedriver")
    if driver is None or not _has_selenium():
        raise Skipped("skipped: needs chromium, chromium-driver and selenium")
    with tempfile.TemporaryDirectory(prefix="mage-viewer-") as place:
        _store(Path(place))
        with _serve(Path(place)) as (server, address):
            for name in VIEWS:
                yield _line(name, [_open(driver, server, address, name) for _ in range(REPEATS)])


def _line(name: str, found: list[Opened]) -> str:
    def median(field: str) -> str:
        return f"{statistics.median(getattr(one, field) for one in found):,.0f}"

    most, load = max(one.rows for one in found), os.getloadavg()[0]
    return (
        f"{name:<18} first rows {median('rows')} ms (at most {most:,.0f}), first content "
        f"{median('content')} ms; CPU: server {median('server')} ms, page {median('page')} ms, all "
        f"of Chromium {median('browser')} ms (median of {len(found)}, load {load:.1f})"
    )


def _has_selenium() -> bool:
    try:
        import selenium  # noqa: F401
    except ImportError:
        return False
    return True


def _store(place: Path) -> None:
    from tests.view_runs import make_run, store_many

    store_many(make_run(place / "many", updates=UPDATE), UPDATE, COUNT)


@contextmanager
def _serve(place: Path) -> Iterator[tuple[int, str]]:
    """The process of `mage view`, and its address."""
    words = [sys.executable, "-u", "-m", "mage", "view", str(place), "--no-open"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None, "a pipe was asked for"
    try:
        found = None
        while found is None and (line := process.stdout.readline()):
            found = re.search(r"http://\S+/", line)
        assert found is not None, "the server shows its address"
        yield process.pid, found[0]
    finally:
        process.terminate()
        process.wait()


def _open(driver: str, server: int, address: str, name: str) -> Opened:
    """Open a view in a new browser: nothing is cached, the start of the browser does not count."""
    from selenium.webdriver.support.ui import WebDriverWait

    hash, selector = VIEWS[name]
    browser = _start_browser(driver)
    try:
        browser.get("about:blank")
        browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        browser.execute_cdp_cmd(
            "Page.addScriptToEvaluateOnNewDocument", {"source": MARK % selector}
        )
        before = _seconds([server]), _seconds(_below(browser.service.process.pid))
        browser.get(address + hash)
        WebDriverWait(browser, 120).until(lambda page: page.execute_script(READ)[0] is not None)
        rows, content = browser.execute_script(READ)
        page = _main_thread(browser)
        after = _seconds([server]), _seconds(_below(browser.service.process.pid))
    finally:
        browser.quit()
    used = [1e3 * (late - early) for late, early in zip(after, before, strict=True)]
    return Opened(rows, content, 1e3 * page, *used)


def _main_thread(browser: Any) -> float:
    found = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return float(next(one["value"] for one in found if one["name"] == "TaskDuration"))


def _start_browser(driver: str) -> Any:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium") or shutil.which("google-chrome"))
    flags = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage"
    for flag in (*flags.split(), "--window-size=1440,1000"):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=Service(driver))


def _below(pid: int) -> list[int]:
    """A process and all processes that it has started."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):  # of all its threads
        with suppress(OSError):  # it has just ended
            found += [one for child in path.read_text().split() for one in _below(int(child))]
    return found


def _seconds(processes: list[int]) -> float:
    """User and system time of processes that run."""
    total = 0
    for pid in processes:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")
