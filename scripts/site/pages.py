"""What MkDocs does not do by itself for the site: the navigation out of docs/README.md, a page for each man page and each public header,
and Markdown as GitHub reads it. ACCEL_API_XML is the folder of what Doxygen wrote."""
import os
import pathlib
import posixpath
import re
import sys

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts/site"))
from api_pages import api_pages  # noqa: E402
from man_page import markdown_of  # noqa: E402

COMMANDS = "reference/commands"
# Pages of the site that are made of files outside of docs/, or of folders of it.
ELSEWHERE = {"../CONTRIBUTING.md": "contributing.md", "man/": f"{COMMANDS}/index.md", "../libaccel/include/accel/": "reference/api/index.md"}
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
WHOLE_LINK = re.compile(r"\[([^]]*)\]\((?!https?:|#)([^)#\s]+)(?:#[^)\s]*)?\)")
MENTION = re.compile(r"`?docs/([\w/-]+\.md)(#[\w-]+)?`?")
NAMED_BY_FILE = re.compile(r"\[([\w\\-]+\.md)\]\(([^)#\s]+)")
LIST_ITEM = re.compile(r"(\s*)(?:[-*]|\d+\.) ")


API = api_pages(pathlib.Path(os.environ["ACCEL_API_XML"]))


def man_pages():
    return sorted((ROOT / "docs/man").iterdir(), key=lambda page: (page.suffix, page.stem))


def man_name(page):
    return f"{page.stem}({page.suffix[1:]})"


def heading_of(markdown):
    return markdown.partition("\n")[0].removeprefix("# ").replace("\\", "")


def nav_of(index):
    """[{section: [{title: page}]}] of the headings and links of the index."""
    sections = [{"Home": "README.md"}]
    for heading, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", index, re.M | re.S):
        pages = {}
        for title, target in re.findall(r"\[([^]]+)\]\(([\w/-]+\.md)\)", body):
            pages.setdefault(target, title)
        entries = [{title: page} for page, title in pages.items()]
        if heading == "Reference":
            commands = [{"All commands": f"{COMMANDS}/index.md"}]
            commands += [{man_name(page): f"{COMMANDS}/{page.stem}.md"} for page in man_pages()]
            api = [{"All headers": "reference/api/index.md"}]
            api += [{heading_of(text): name} for name, text in API.items() if name != "reference/api/index.md"]
            entries += [{"Commands": commands}, {"C++ API": api}]
        if heading == "Internals":
            entries.append({"Contributing": "contributing.md"})
        sections.append({heading: entries})
    return sections


INDEX = (ROOT / "docs/README.md").read_text()
TITLES = {target: title for title, target in re.findall(r"\[([^]]+)\]\(([\w/-]+\.md)\)", INDEX)}


def on_config(config):
    config.nav = nav_of(INDEX)
    return config


def commands_index():
    rows = []
    for page in man_pages():
        summary = re.search(r"^\.SH NAME\n.*? \\- (.*)$", page.read_text(), re.M)[1].replace("\\-", "-")
        rows.append(f"| [{man_name(page)}]({page.stem}.md) | {summary} |")
    return "# Commands\n\nThe pages of `man`, one for each command and file.\n\n| page | |\n|---|---|\n" + "\n".join(rows) + "\n"


def on_files(files, config):
    made = {**API, f"{COMMANDS}/index.md": commands_index(),
            "contributing.md": (ROOT / "CONTRIBUTING.md").read_text().replace("](docs/", "](")}
    for page in man_pages():
        made[f"{COMMANDS}/{page.stem}.md"] = markdown_of(page.read_text())
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def relative(target, page):
    return posixpath.relpath(target, posixpath.dirname(page) or ".")


def title_of(target):
    """What the navigation calls a page."""
    return TITLES.get(target, target.split("/")[-1])


def with_links(line, page):
    def named(match):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), match[2]))
        return f"[{title_of(target)}]({match[2]}"

    def link(match):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), match[1]))
        target += "/" if match[1].endswith("/") else ""
        return f"]({relative(ELSEWHERE[target], page)})" if target in ELSEWHERE else match[0]

    def mention(match):
        return f"[{title_of(match[1])}]({relative(match[1], page)}{match[2] or ''})"

    def without_link(match):  # to a file of the sources that is no page: its name stays
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), match[2]))
        target += "/" if match[2].endswith("/") else ""
        return match[1] if target.startswith("../") and target not in ELSEWHERE else match[0]

    line = NAMED_BY_FILE.sub(named, LINK.sub(link, WHOLE_LINK.sub(without_link, line)))
    parts = re.split(r"(\[[^]]*\]\([^)]*\))", line)  # a mention within a link stays as it is
    parts[::2] = [MENTION.sub(mention, part) for part in parts[::2]]
    return "".join(parts)


def as_github_reads(text, page):
    """Lists need an empty line before them here, and four spaces where GitHub takes two; a mention of a page becomes a link."""
    out, in_code, last = [], False, ""
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            line = with_links(line, page)
            item = LIST_ITEM.match(line)
            if item and last.strip() and not LIST_ITEM.match(last) and not last.startswith(" "):
                out.append("")
            if item and len(item[1]) in (2, 3):
                line = "    " + line.lstrip()
        out.append(line)
        last = line
    return "\n".join(out) + "\n"


def on_page_markdown(markdown, page, config, files):
    return as_github_reads(markdown, page.file.src_uri)
