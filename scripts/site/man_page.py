"""Turns a man page of docs/man/ into Markdown: the macros that those pages use, and no others."""
import re

ESCAPES = {r"\-": "-", r"\\": "\\", r"\e": "\\", r"\&": "", r"\(aq": "'", r"\(dq": '"'}
FONT = re.compile(r"\\f([BIR])")


def plain(text):
    return re.sub(r"\\(?:\(..|.)", lambda escape: ESCAPES.get(escape[0], escape[0]), FONT.sub("", text))


def inline(text):
    """Bold is code, and italics stay; what is neither has no meaning to Markdown."""
    parts = FONT.split("\\fR" + text)[1:]
    out = ""
    for font, words in zip(parts[::2], parts[1::2]):
        words = plain(words)
        if not words.strip():
            out += words
        elif font == "B":
            lead, core, tail = re.fullmatch(r"(\s*)(.*?)(\s*)", words, re.S).groups()
            out += f"{lead}`{core}`{tail}"
        elif font == "I":
            lead, core, tail = re.fullmatch(r"(\s*)(.*?)(\s*)", words, re.S).groups()
            out += f"{lead}*{escaped(core)}*{tail}"
        else:
            out += escaped(words)
    return out


def escaped(text):
    return re.sub(r"([\\`*_<>\[\]#|])", r"\\\1", text)


def words_of(line):
    """The arguments of a macro."""
    return [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line)]


class Page:
    """The Markdown so far."""

    def __init__(self):
        self.lines = []
        self.item = None  # None: no item; else whether its term has come
        self.is_literal = False

    def text(self, words):
        if self.item is False:
            self.lines += ["", words, ""]
            self.item = True
        elif self.item:
            self.lines.append(":   " + words if not self.lines[-1] else "    " + words)
        else:
            self.lines.append(words)

    def take(self, line):
        macro, _, rest = line.partition(" ")
        if self.is_literal:
            if macro == ".fi":
                self.lines.append("```")
                self.is_literal = False
            else:
                self.lines.append("" if macro == ".sp" else plain(line))
        elif macro == ".TH":
            name, section = words_of(rest)[:2]
            self.lines += [f"# {plain(name).lower()}({section})", ""]
        elif macro == ".SH":
            title = plain(rest.strip('"'))
            self.lines += ["", f"## {title.capitalize() if title.isupper() else escaped(title)}", ""]
            self.item = None
        elif macro == ".TP":
            self.item = False
        elif macro == ".PP":
            self.lines.append("")
            self.item = None
        elif macro == ".nf":
            self.lines += ["", "```yaml"]
            self.is_literal = True
        elif macro in (".br", ".sp"):
            self.lines.append("")
        elif macro in (".B", ".I"):
            self.text(inline(f"\\f{macro[1]}{rest}"))
        elif macro == ".BR":
            first, *others = words_of(rest)
            self.text(inline("\\fB" + first + "\\fR" + "".join(others)))
        elif line.startswith("."):
            raise ValueError(f"a macro that man_page.py does not know: {line}")
        else:
            self.text(inline(line))


def markdown_of(text):
    page = Page()
    for line in text.splitlines():
        if not line.startswith('.\\"'):
            page.take(line)
    return "\n".join(page.lines) + "\n"
