"""A Chromium without a window, for the tests of pages: driven by selenium of .deps/pages."""
import os
import pathlib
import shutil
import sys

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
PAGES_PYTHON = SOURCE / ".deps/pages/bin/python"
CAN_BROWSE = bool(PAGES_PYTHON.exists() and shutil.which("chromium") and shutil.which("chromedriver"))


def run_in_pages_python():
    """The script goes on in the Python that has selenium; it is skipped (77) where that, or Chromium, is not installed."""
    if not CAN_BROWSE:
        print("skipped: .deps/pages, chromium or chromedriver is not there (scripts/setup.sh --tests)")
        sys.exit(77)
    if pathlib.Path(sys.prefix) != PAGES_PYTHON.parents[1]:
        os.execv(PAGES_PYTHON, [PAGES_PYTHON, *sys.argv])


def open_browser(profile, width=1280, height=900):
    """A driver with a fresh profile in that folder; quit() ends the browser. It loads nothing by itself from anywhere."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
                 "--disable-component-update", "--no-first-run", f"--window-size={width},{height}", f"--user-data-dir={profile}"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(60)
    return driver


def resize_to_phone(driver):
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                           {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True})


def prefer_scheme(driver, scheme):
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
