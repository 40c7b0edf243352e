#!/usr/bin/env python3
"""The pages of the API: one for each public header, out of what Doxygen read in it.

  api_pages.py FOLDER     runs Doxygen (its files go to FOLDER); says which declarations have no comment, and which headers and pages
                          comments name that are not there

A class, a function and a concept need a comment. Names may say enough of fields, enumerators, structs of fields alone, constructors,
operators and accessors (const, without arguments). A function that overrides has the comment of the one that it overrides, one of
several with the same name that of another, and what a header's first comment names has that.
"""
import itertools
import pathlib
import re
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts/site"))
from doxygen_comments import with_doxygen_comments  # noqa: E402
from man_page import escaped  # noqa: E402

INCLUDE_FOLDERS = [ROOT / folder for folder in ("libaccel/include", "runtime/include", "safetensors/include")]
COMMENTED_KINDS = {"class", "struct", "union", "concept", "function"}
LABEL = re.compile(r"^(Shapes|Cost|Threads|Source|Errors?|Throws|Requires|Returns|States?|Units?|Defaults?)(?::\s+|\s{2,})(?=\S)")
HEADER = re.compile(r"\baccel/[\w/]+\.h\b")
PAGE = re.compile(r"\bdocs/[\w/-]+\.md\b")
INDEX = """# C++ API

Programs include `<accel/accel.h>`, which includes the headers of libaccel below; programs in C include `<accel/c/accel.h>`. The names and
their meaning are those of HF Accelerate; [the differences](../parity.md) have a page of their own. These pages are made of the comments
in the headers.

| header | |
|---|---|
"""


def text_of(element):
    return "" if element is None else "".join(element.itertext())


def code_type(text):
    return re.sub(r"\s+", " ", text).replace("< ", "<").replace(" >", ">").strip()


class Declaration:
    """What one declaration is called and looks like, and its comment."""

    def __init__(self, element, owner=""):
        self.kind = element.get("kind")
        self.name = text_of(element.find("name")) or text_of(element.find("compoundname")).removeprefix("accel::")
        self.owner = owner
        self.comment = "\n".join(text_of(part).rstrip("\n") for part in element.findall("detaileddescription//verbatim"))
        place = element.find("location")
        self.header = "" if place is None else place.get("file")
        self.line = 0 if place is None else int(place.get("line"))
        self.code = self.code_of(element)
        self.overrides = self.code.endswith((" override", " final"))
        self.members = []
        self.enumerators = [(text_of(value.find("name")), "\n".join(text_of(part).strip() for part in value.iter("verbatim")))
                            for value in element.findall("enumvalue")]

    def code_of(self, element):
        parameters = element.findall("templateparamlist/param")
        template = ""
        if parameters:
            template = "template <" + ", ".join(
                code_type(f"{text_of(one.find('type'))} {text_of(one.find('declname'))}") for one in parameters) + ">\n"
        if self.kind in ("class", "struct", "union"):
            bases = [f"{base.get('prot')} {code_type(text_of(base))}" for base in element.findall("basecompoundref")]
            return template + f"{self.kind} {self.name}" + (f" : {', '.join(bases)}" if bases else "")
        if self.kind == "concept":
            return code_type(text_of(element.find("initializer"))).replace("> concept accel::", ">\nconcept ")
        if self.kind == "enum":
            return f"enum {'class ' if element.get('strong') == 'yes' else ''}{self.name}"
        words = "static " if element.get("static") == "yes" and self.owner else ""
        words += "explicit " if element.get("explicit") == "yes" else ""
        type_ = code_type(text_of(element.find("type")))
        if self.kind == "typedef" and type_.startswith("typedef"):
            return f"{type_} {self.name}"
        if self.kind == "typedef":
            return template + f"using {self.name} = {type_}"
        value = text_of(element.find("initializer")).strip()
        value = f" {value}" if value and "\n" not in value and len(value) < 80 else ""
        return template + words + f"{type_} {self.name}".strip() + code_type(text_of(element.find("argsstring"))) + value

    def is_plain(self):
        """Whether its name, or what it has, says enough."""
        owner = self.owner.split("::")[-1].split("<")[0]
        if self.kind == "function":
            is_accessor = bool(self.owner) and re.search(r"\(\) const(?: noexcept)?$", self.code)
            return self.name in (owner, f"~{owner}") or self.name.startswith("operator") or is_accessor
        return self.kind == "struct" and all(member.kind == "variable" for member in self.members)

    def is_worth_showing(self):
        """Not what each class has: a destructor, copies and moves without a word."""
        is_usual = self.name.startswith("~") or "&&)" in self.code or "= delete" in self.code or self.name == "operator="
        return bool(self.comment) or self.kind != "function" or not (self.is_plain() and is_usual)

    def needs_comment(self):
        return self.kind in COMMENTED_KINDS and not self.is_plain() and not self.overrides


class Header:
    """A public header: its first comment, and its declarations in their order."""

    def __init__(self, name, comment):
        self.name = name
        self.comment = comment
        self.declarations = []

    def is_about(self, declaration):
        return re.search(rf"\b{re.escape(declaration.name)}\b", self.comment) is not None

    def all_declarations(self):
        for declaration in self.declarations:
            yield declaration
            yield from declaration.members


def run_doxygen(folder, include_folders=None):
    """Doxygen's XML of the public headers, in FOLDER/xml. Throws CalledProcessError with its output for a warning."""
    for include in include_folders or INCLUDE_FOLDERS:
        for header in include.rglob("*.h"):
            if "detail" not in header.parts:
                copy = folder / "headers" / header.relative_to(include)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(with_doxygen_comments(header.read_text()))
    settings = (ROOT / "scripts/site/Doxyfile").read_text() + "".join(
        f'{name} = "{value}"\n' for name, value in (("INPUT", folder / "headers"), ("STRIP_FROM_PATH", folder / "headers"),
                                                    ("OUTPUT_DIRECTORY", folder)))
    subprocess.run(["doxygen", "-"], input=settings, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, check=True)
    return folder / "xml"


def compounds(folder):
    index = ElementTree.parse(folder / "index.xml").getroot()
    for entry in index.findall("compound"):
        yield ElementTree.parse(folder / f"{entry.get('refid')}.xml").getroot().find("compounddef")


def public_members(compound):
    for section in compound.findall("sectiondef"):
        for member in section.findall("memberdef"):
            if member.get("prot") == "public" and member.get("kind") != "friend":
                yield member


def read_headers(folder):
    """{"accel/fsdp.h": Header}."""
    headers, declarations, seen = {}, [], set()
    for compound in compounds(pathlib.Path(folder)):
        kind = compound.get("kind")
        if kind == "file":
            name = compound.find("location").get("file")
            comment = "\n".join(text_of(part).rstrip("\n") for part in compound.findall("detaileddescription//verbatim"))
            headers[name] = Header(name, comment)
        if kind in ("file", "namespace"):
            members = [member for member in public_members(compound) if member.get("kind") != "define"]
            declarations += [Declaration(member) for member in members if member.get("id") not in seen]
            seen |= {member.get("id") for member in members}
        elif kind in ("class", "struct", "union", "concept") and compound.get("prot", "public") == "public":
            declaration = Declaration(compound)
            members = [Declaration(member, declaration.name) for member in public_members(compound)]
            declaration.members = sorted((one for one in members if one.is_worth_showing()), key=lambda one: one.line)
            declarations.append(declaration)
    for declaration in sorted(declarations, key=lambda one: one.line):
        if declaration.header in headers and "@" not in declaration.name:
            headers[declaration.header].declarations.append(declaration)
    return {name: header for name, header in sorted(headers.items()) if header.declarations or header.comment}


def faults(headers):
    for header in headers.values():
        if not header.comment:
            yield f"{header.name} has no comment at its beginning"
        texts = [header.comment]
        commented = {(one.owner, one.name) for one in header.all_declarations() if one.comment}
        for one in header.all_declarations():
            texts.append(one.comment)
            if one.needs_comment() and (one.owner, one.name) not in commented and not header.is_about(one):
                yield f"{header.name}: {one.kind} {one.owner + '::' if one.owner else ''}{one.name} has no comment"
        for text in texts:
            for name in HEADER.findall(text):
                if name not in headers and not (ROOT / "libaccel/include" / name).exists():
                    yield f"{header.name}: a comment names {name}, which is no public header"
            for name in PAGE.findall(text):
                if not (ROOT / name).exists():
                    yield f"{header.name}: a comment names {name}, which is not there"


def page_of(header_name):
    return header_name.removeprefix("accel/").replace("/", "_").removesuffix(".h") + ".md"


def with_links(text, headers):
    """Escaped, but for `code`; headers and pages become links."""
    def link(match):
        if match[0] in headers:
            return f"[{escaped(match[0])}]({page_of(match[0])})"
        if match[0].startswith("docs/"):
            return f"[{escaped(match[0].split('/')[-1])}](../../{match[0].removeprefix('docs/')})"
        return escaped(match[0])

    parts = re.split(r"(`[^`]+`)", text)
    for place in range(0, len(parts), 2):
        pieces = re.split(f"({HEADER.pattern}|{PAGE.pattern})", parts[place])
        parts[place] = "".join(re.sub(r".+", link, piece) if number % 2 else escaped(piece) for number, piece in enumerate(pieces))
    return "".join(parts)


def blocks_of(comment):
    """(is_code, lines) for each block: what stands further in than the text is code, or a table."""
    block, is_code = [], False
    for line in comment.splitlines():
        further_in = line.startswith("  ")
        continues_label = block and not is_code and LABEL.match(block[0])
        if not line.strip() and is_code:
            block.append("")
        elif not line.strip() or (further_in != is_code and not continues_label) or (not is_code and LABEL.match(line)):
            if block:
                yield is_code, block
            block, is_code = ([line], further_in) if line.strip() else ([], False)
        else:
            block.append(line)
    if block:
        yield is_code, block


def markdown_of_comment(comment, headers):
    out = []
    for is_code, lines in blocks_of(comment):
        if is_code:
            language = "cpp" if re.search(r"[;{]", "".join(lines)) else "text"
            code = "\n".join(lines).rstrip()
            out.append(f"```{language}\n{textwrap.dedent(code)}\n```")
            continue
        text = " ".join(line.strip() for line in lines)
        label = LABEL.match(text)
        out.append(f"**{label[1]}:** {with_links(text[label.end():], headers)}" if label else with_links(text, headers))
    return "\n\n".join(out)


def bullets(items, headers):
    """(code, comment) as a list."""
    out = []
    for code, comment in items:
        out.append(f"- `{code}`")
        if comment:
            out += ["", textwrap.indent(markdown_of_comment(comment, headers), "    "), ""]
    return "\n".join(out)


def member_pages(declaration, headers):
    """The functions of a type, those of one name together, and its fields."""
    fields = [(one.code, one.comment) for one in declaration.members if one.kind == "variable"]
    if fields:
        yield bullets(fields, headers)
    for name, group in itertools.groupby((one for one in declaration.members if one.kind != "variable"), key=lambda one: one.name):
        yield f"### {escaped(name)}"
        yield from described(list(group), headers)


def described(group, headers):
    """Declarations, those with the same comment in one block of code."""
    for comment, same in itertools.groupby(group, key=lambda one: one.comment):
        yield "```cpp\n" + "\n".join(one.code + ";" for one in same) + "\n```"
        yield markdown_of_comment(comment, headers)
    for one in group:
        if one.enumerators:
            yield bullets(one.enumerators, headers)


def page_text(header, headers):
    parts = [f"# {escaped(header.name)}", markdown_of_comment(header.comment, headers)]
    for name, group in itertools.groupby(header.declarations, key=lambda one: one.name):
        group = list(group)
        parts.append(f"## {escaped(name)}")
        parts += described(group, headers)
        for declaration in group:
            parts += member_pages(declaration, headers)
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(header, headers):
    sentence = re.split(r"(?<=[.:])\s", " ".join(header.comment.split("\n\n")[0].split()).split(": ", 1)[-1])[0]
    return with_links(sentence[0].upper() + sentence[1:], headers)


def api_pages(xml):
    """{"reference/api/fsdp.md": Markdown}, with an index."""
    headers = read_headers(xml)
    pages = {f"reference/api/{page_of(name)}": page_text(header, headers) for name, header in headers.items()}
    rows = [f"| [{escaped(name)}]({page_of(name)}) | {summary(header, headers)} |" for name, header in headers.items()]
    pages["reference/api/index.md"] = INDEX + "\n".join(rows) + "\n"
    return pages


def main():
    try:
        xml = run_doxygen(pathlib.Path(sys.argv[1]).resolve())
    except subprocess.CalledProcessError as error:
        print(error.stdout)
        return 1
    found = list(faults(read_headers(xml)))
    for fault in found:
        print("api:", fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
