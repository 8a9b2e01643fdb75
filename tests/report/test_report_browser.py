"""The report in a real browser: no error, no request, sortable, readable on a phone, in the dark and on paper."""

import base64
import json
import os
import shutil

import pytest
from selenium.webdriver.common.keys import Keys

from fl_app.experiment.config import Experiment
from fl_app.report import write_report
from helpers.small_study import make_sweep

PHONE = 390
OVERLAPS = """
const boxes = [...document.querySelectorAll(".chart")].map((chart) =>
  [...chart.querySelectorAll(".floor-name, .limit-name, .tick, .label, .end")].map((one) => one.getBoundingClientRect()));
return boxes.flatMap((own) => own.flatMap((a, i) => own.slice(i + 1).filter((b) =>
  a.left + 1 < b.right && b.left + 1 < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom))).length;
"""


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver

    found = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if found is None or driver is None:
        pytest.fail("this test needs chromium and chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = found
    for word in (
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


@pytest.fixture(scope="module")
def address(pictures, tmp_path_factory):
    small = Experiment(dataset=f"imagefolder(path='{pictures}', size=12)", model="lenet", clients=3)
    return write_report(make_sweep(small, tmp_path_factory.mktemp("browser"), hostile=True)).resolve().as_uri()


def shape(browser, width, *, dark=False):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


@pytest.fixture
def opened(browser, address):
    shape(browser, 1280)
    browser.get("about:blank")
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(address)
    return browser


def requested(browser):
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith("data:")]


def test_nothing_goes_wrong_and_nothing_leaves_the_page(opened, address):
    assert opened.get_log("browser") == []
    assert requested(opened) == [address]
    assert opened.execute_script("return window.hacked") is None
    images = opened.execute_script("return [...document.images].map((one) => one.complete && one.naturalWidth)")
    assert len(images) == 48
    assert all(images)
    told = opened.execute_async_script("""
        const done = arguments[0];
        document.addEventListener("securitypolicyviolation", (event) => done(event.violatedDirective));
        fetch("http://127.0.0.1:9/").catch(() => {});
    """)
    assert told == "connect-src"  # a page that were changed to send something could not


def test_tables_sort(opened):
    head = opened.find_element("css selector", "#summary thead tr:last-child th:nth-child(4)")
    assert head.get_attribute("aria-sort") == "none"

    def names():
        cells = opened.find_elements("css selector", "#summary tbody td:nth-child(2)")
        return [cell.text.partition(", note")[0] for cell in cells]

    accuracy = ["prune(ratio=0.9)", "prune(ratio=0.5)", "none", "sign"]  # what has no number stays at the end
    button = head.find_element("css selector", "[role=button]")
    button.click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert names() == accuracy
    button.send_keys(" ")  # the keyboard sorts, too
    assert head.get_attribute("aria-sort") == "descending"
    assert names() == ["none", "prune(ratio=0.5)", "prune(ratio=0.9)", "sign"]
    opened.find_element("css selector", "#summary thead tr:last-child th:nth-child(2) [role=button]").click()
    assert names() == ["none", "prune(ratio=0.5)", "prune(ratio=0.9)", "sign"]
    assert head.get_attribute("aria-sort") == "none"


@pytest.mark.parametrize("width", [PHONE, 820, 1280])
def test_the_page_never_scrolls_sideways_and_labels_do_not_overlap(opened, address, width):
    shape(opened, width)
    opened.get(address)
    assert opened.execute_script("return document.documentElement.scrollWidth") <= width
    assert opened.execute_script(OVERLAPS) == 0
    letters = opened.execute_script("""
        return [...document.querySelectorAll("p, td, th, li, figcaption, .chart text")].filter((one) => one.textContent.trim())
          .map((one) => {
            const chart = one.closest("svg.chart");
            const scale = chart ? chart.getBoundingClientRect().width / chart.viewBox.baseVal.width : 1;
            return parseFloat(getComputedStyle(one).fontSize) * scale;
          });
    """)
    assert min(letters) > 7.5
    assert sorted(letters)[len(letters) // 2] >= 11
    widths = opened.execute_script("return [...document.images].map((one) => one.getBoundingClientRect().width)")
    assert min(widths) >= 40


def test_nothing_is_cut_off_on_a_phone(opened, address):
    """No table scrolls sideways, and no text reaches beyond the page or the box that it is in."""
    shape(opened, PHONE)
    opened.get(address)
    for details in opened.find_elements("css selector", "details:not([open]) > summary"):
        details.click()
    cut = opened.execute_script("""
        const beyond = [...document.querySelectorAll("td, th, p, li, pre, dt, dd, h1, h2, h3, text")].filter((one) => {
          const box = one.getBoundingClientRect();
          return box.width && (box.right > innerWidth + 1 || box.left < -1);
        });
        const boxes = [...document.querySelectorAll(".scroll, pre, td, p")].filter((one) =>
          one.clientWidth && one.scrollWidth > one.clientWidth + 1);
        return [...beyond, ...boxes].map((one) => one.outerHTML.slice(0, 120));
    """)
    assert cut == []
    label = opened.find_element("css selector", "#summary tbody tr td:nth-child(6)")
    shown = opened.execute_script("return getComputedStyle(arguments[0], '::before').content", label)
    assert shown == '"PSNR, naive attacker"'


@pytest.mark.parametrize("width", [PHONE, 1280])
def test_pictures_enlarge_without_script(opened, address, width):
    shape(opened, width)
    opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    opened.get(address)
    image = opened.find_element("css selector", ".targets img")
    cover = opened.find_element("css selector", ".cover")
    before = image.size["width"]
    cover.click()
    assert image.size["width"] > 1.3 * before
    assert image.rect["x"] >= 0
    assert image.rect["x"] + image.size["width"] <= width
    cover.click()
    assert image.size["width"] == before
    opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    opened.get(address)
    opened.find_element("css selector", ".cover").click()
    opened.find_element("css selector", "body").send_keys(Keys.ESCAPE)
    assert opened.find_element("css selector", ".targets img").size["width"] == before


def test_light_and_dark(opened, address):
    def paper():
        return opened.execute_script("return getComputedStyle(document.documentElement).backgroundColor")

    light, button = paper(), opened.find_element("id", "theme")
    button.click()
    assert paper() != light
    button.click()
    assert paper() == light
    shape(opened, 1280, dark=True)
    opened.get(address)
    assert paper() != light


def test_it_prints(opened):
    opened.find_element("id", "theme").click()
    printed = opened.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    assert base64.b64decode(printed).startswith(b"%PDF")
    assert opened.execute_script("return [...document.querySelectorAll('details')].every((one) => one.open)")
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert opened.execute_script("return getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
