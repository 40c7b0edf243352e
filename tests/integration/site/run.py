#!/usr/bin/env python3
"""The site of the documentation: scripts/site.sh makes it, and each of its pages opens in a real Chromium, as on a phone, without an
error or a request to anywhere else. Its pages of the API have what comments of headers say, and lack none. Run by ctest."""
import functools
import html.parser
import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.parse

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "scripts/site"))
import api_pages  # noqa: E402
from browser import SOURCE, open_browser, prefer_scheme, resize_to_phone, run_in_pages_python  # noqa: E402

run_in_pages_python()

from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

PATIENCE = 60
# Folders of pages that one script makes: the browser opens every tenth of them, and all with ACCEL_TEST_LONG=1.
GENERATED = ("reference/api/", "reference/commands/")
# What a browser loads by itself, beside the links that a reader follows.
LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src")}


class Links(html.parser.HTMLParser):
    """The links of one page, the places in it that links can name, and the lines of its text."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.places = [], [], {""}
        self.text, self.in_code, self.in_article = "", 0, False
        self.feed(text)

    def handle_endtag(self, tag):
        self.in_code -= tag in ("pre", "code")
        self.in_article = self.in_article and tag != "article"

    def handle_data(self, data):
        if self.in_article and not self.in_code:
            self.text += data

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.in_code += tag in ("pre", "code")
        self.in_article = self.in_article or tag == "article"
        self.places |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        for name in ("href", "src"):
            if attributes.get(name):
                self.links.append(attributes[name])
                if (tag, name) in LOADED and attributes.get("rel") not in ("canonical", "next", "prev"):
                    self.loaded.append(attributes[name])


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def brightness(colour):
    """0 to 255, of what the browser calls rgb(r, g, b)."""
    red, green, blue = (float(part) for part in colour[colour.index("(") + 1:-1].split(",")[:3])
    return 0.299 * red + 0.587 * green + 0.114 * blue


class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name) / "site"
        made = subprocess.run([SOURCE / "scripts/site.sh", cls.folder], capture_output=True, text=True, timeout=300)
        if made.returncode != 0 or made.stderr:
            raise AssertionError(f"scripts/site.sh ended with {made.returncode} and said:\n{made.stdout}{made.stderr}")
        cls.pages = sorted(page.relative_to(cls.folder).as_posix() for page in cls.folder.rglob("*.html"))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=cls.folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cls.addClassCleanup(server.server_close)
        cls.addClassCleanup(server.shutdown)
        cls.address = f"http://127.0.0.1:{server.server_port}"
        cls.driver = open_browser(pathlib.Path(scratch.name) / "profile")
        cls.addClassCleanup(cls.driver.quit)

    def requests(self):
        """Where the browser has sent requests since this was last asked."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def is_here(self, url):
        return url.startswith((f"{self.address}/", f"{self.folder.as_uri()}/", "data:", "blob:", "about:"))

    def test_no_link_is_broken_and_nothing_is_loaded_from_elsewhere(self):
        pages = {page: Links((self.folder / page).read_text()) for page in self.pages}
        faults = []
        for page, found in pages.items():
            for link in found.links:
                parts = urllib.parse.urlsplit(link)
                if parts.scheme or parts.netloc:
                    if link in found.loaded and parts.scheme != "data":
                        faults.append(f"{page} loads {link}")
                    continue
                # The page of errors of a server stands wherever the address does that was not found.
                base = "" if page == "404.html" else page
                path = urllib.parse.unquote(urllib.parse.urljoin(f"/{base}", parts.path or f"/{base}")).lstrip("/")
                target = path + "index.html" if path == "" or path.endswith("/") else path
                if not (self.folder / target).is_file():
                    faults.append(f"{page} links {link}, which is not there")
                elif target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].places:
                    faults.append(f"{page} links {link}: {target} has no such place")
        self.assertEqual(faults, [])

    def test_no_page_shows_markdown_as_text(self):
        raw = re.compile(r"^ *(?:[-*] \w|\| ?[\w-]|```|#+ \w).*|.*\*\*\w.*|.*\]\([\w./-]+\.md", re.M)
        faults = [f"{page}: {found[0]}" for page in self.pages
                  for found in raw.finditer(Links((self.folder / page).read_text()).text)]
        self.assertEqual(faults, [])

    def opened_pages(self):
        made = [page for page in self.pages if page.startswith(GENERATED)]
        step = 1 if os.environ.get("ACCEL_TEST_LONG") == "1" else 10
        return [page for page in self.pages if page not in made] + made[::step]

    def test_every_page_opens_on_a_phone_without_an_error_or_a_request_elsewhere(self):
        faults = []
        resize_to_phone(self.driver)
        try:
            self.requests(), self.driver.get_log("browser")
            for page in self.opened_pages():
                self.driver.get(f"{self.address}/{page}")
                wide, shown = self.driver.execute_script(
                    "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
                if wide > shown:
                    faults.append(f"{page} is {wide} pixels wide on a phone of {shown}")
                faults += [f"{page}: {entry['message']}" for entry in self.driver.get_log("browser")]
                faults += [f"{page} asks {url}" for url in self.requests() if not self.is_here(url)]
        finally:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.assertEqual(faults, [])

    def search(self, base, words):
        """The addresses that the search of the site answers."""
        self.driver.get(f"{base}/index.html")
        field = self.driver.find_element(By.CSS_SELECTOR, ".md-search__input")
        field.click()
        field.send_keys(words)
        links = WebDriverWait(self.driver, PATIENCE).until(
            lambda driver: driver.find_elements(By.CSS_SELECTOR, ".md-search-result__link"))
        return [link.get_attribute("href").split("?")[0] for link in links]

    def test_the_search_finds_a_page_from_a_server_and_from_the_disk(self):
        for base in (self.address, self.folder.as_uri()):
            with self.subTest(base=base):
                found = self.search(base, "hang_timeout")
                self.assertIn(f"{base}/reference/flags.html", found)
                found = self.search(base, "accel-drain")
                self.assertIn(f"{base}/reference/commands/accel-drain.html", found)
        self.assertEqual([url for url in self.requests() if not self.is_here(url)], [])

    def contrast(self):
        """How much brighter the text is than what it stands on."""
        text, ground = self.driver.execute_script(
            "return [getComputedStyle(document.querySelector('article p')).color, getComputedStyle(document.body).backgroundColor]")
        return brightness(text) - brightness(ground)

    def test_both_colour_schemes_are_readable(self):
        for page in ("index.html", "reference/errors.html"):
            for scheme in ("light", "dark"):
                with self.subTest(page=page, scheme=scheme):
                    prefer_scheme(self.driver, scheme)
                    self.driver.get(f"{self.address}/{page}")
                    WebDriverWait(self.driver, PATIENCE).until(
                        lambda _, scheme=scheme: self.contrast() > 100 if scheme == "dark" else self.contrast() < -100,
                        f"the text is not readable in the {scheme} scheme")

    def test_a_reader_can_choose_the_scheme(self):
        prefer_scheme(self.driver, "light")
        self.driver.get(f"{self.address}/index.html")

        for scheme in ("Light", "Dark"):
            self.driver.find_element(By.CSS_SELECTOR, f"label.md-header__button[title={scheme}]").click()

        WebDriverWait(self.driver, PATIENCE).until(
            lambda driver: driver.find_element(By.TAG_NAME, "body").get_attribute("data-md-color-scheme") == "slate")
        self.driver.execute_script("localStorage.clear()")


NO_PAGE = "none.md"  # apart from its folder: the test of the documents looks for names of pages in this file too
HEADER = """// Thing: what a test wants to read of.
//
//   Thing thing;   // as in a program
//
// Threads:  any,
//           at any time.
#pragma once

namespace accel {

class Thing {
 public:
  Thing() = default;
  // How many there are, below accel/none.h and docs/NO_PAGE.
  int count(int first, int last);
  void reset();  // to none

  template <typename T>
  void add(const T& value) {
    // Not for readers.
    if (value) reset();
  }
  int width = 3;  // in metres
};

// Both are wide.
bool is_wide(const Thing& thing);
bool is_very_wide(const Thing& thing);

void paint(const Thing& thing);

}  // namespace accel
"""


class Api(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        include = pathlib.Path(scratch.name) / "include"
        (include / "accel").mkdir(parents=True)
        (include / "accel/thing.h").write_text(HEADER.replace("NO_PAGE", NO_PAGE))
        cls.headers = api_pages.read_headers(api_pages.run_doxygen(pathlib.Path(scratch.name), [include]))

    def test_what_has_no_comment_and_what_is_not_there_is_named(self):
        self.assertEqual(list(api_pages.faults(self.headers)), [
            "accel/thing.h: function Thing::add has no comment",
            "accel/thing.h: function paint has no comment",
            "accel/thing.h: a comment names accel/none.h, which is no public header",
            f"accel/thing.h: a comment names docs/{NO_PAGE}, which is not there"])

    def test_a_page_has_the_comments_of_its_header(self):
        page = api_pages.page_text(self.headers["accel/thing.h"], self.headers)
        self.assertIn("# accel/thing.h\n\nThing: what a test wants to read of.\n\n```cpp\nThing thing;   // as in a program\n```\n\n"
                      "**Threads:** any, at any time.\n\n## Thing\n", page)
        self.assertIn("### reset\n\n```cpp\nvoid reset();\n```\n\nto none\n", page)
        self.assertIn("- `int width = 3`\n\n    in metres\n", page)
        self.assertIn("```cpp\nbool is_wide(const Thing &thing);\n```", page)
        self.assertEqual(page.count("Both are wide."), 2)
        self.assertNotIn("Not for readers", page)


if __name__ == "__main__":
    unittest.main()
