"""A header with its `//` comments in Doxygen's form.

A comment above a declaration becomes that declaration's, and that of the declarations below it up to an empty line, as a reader takes
it. A comment at the end of a line becomes that of the member there. The first comment of a file is the file's. Bodies of functions keep
theirs. The text is plain: Doxygen gets it verbatim, and api_pages.py reads it.
"""
import re
import sys

SCOPE = re.compile(r'\b(class|struct|union|enum|namespace)\b|extern "_"')
WHOLE_LINE = re.compile(r"(\s*)//+ ?(.*)")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)\'')
LABEL = re.compile(r"\s*(?:public|private|protected):")


def without_groups(text):
    """Without what stands in angle brackets or parentheses: of a declaration, what it declares."""
    last = None
    while last != text:
        last, text = text, re.sub(r"<[^<>]*>|\([^()]*\)", "", text)
    return text


def verbatim(lines, opening="/**"):
    text = "\n".join(lines).replace("*/", "* /")
    return f"{opening}\n@verbatim\n{text}\n@endverbatim\n*/"


def split_comment(line):
    """Code with its strings emptied, as written, and the text of the comment behind it; None without one."""
    code = STRING.sub(lambda string: '"' + "_" * (len(string[0]) - 2) + '"', line)
    place = code.find("//")
    if place < 0:
        return code, line, None
    return code[:place], line[:place].rstrip(), line[place:].lstrip("/").strip()


class Header:
    """Reads lines; knows in which braces they stand, and which comment waits for a declaration."""

    def __init__(self, lines):
        self.lines = lines
        self.place = 0
        self.out = []
        self.braces = ["scope"]  # scope: declarations; enum: enumerators; body: statements, or values
        self.statement = ""  # what has begun and has not ended
        self.shared = None  # the comment of this paragraph's declarations

    def read(self):
        self.out.append(verbatim(self.comment_block(), "/** @file") if self.lines[0].startswith("//") else "")
        while self.place < len(self.lines):
            line = self.lines[self.place]
            if self.braces[-1] == "body" or self.statement:
                self.take_code()
            elif WHOLE_LINE.fullmatch(line):
                self.shared = self.comment_block()
            elif not line.strip() or line.startswith("#") or LABEL.match(line):
                self.shared = None
                self.copy()
            else:
                if self.shared and not line.lstrip().startswith("}") and not self.has_own_comment(line):
                    self.out.append(verbatim(self.shared))
                self.take_code()
        return "\n".join(self.out) + "\n"

    def comment_block(self):
        lines = []
        while self.place < len(self.lines) and (match := WHOLE_LINE.fullmatch(self.lines[self.place])):
            lines.append(match[2])
            self.place += 1
        return lines

    def copy(self):
        self.out.append(self.lines[self.place])
        self.place += 1

    def has_own_comment(self, line):
        """Whether it is not the first of its paragraph, and says more at its end."""
        is_first = self.place > 0 and WHOLE_LINE.fullmatch(self.lines[self.place - 1])
        return not is_first and split_comment(line)[2] is not None

    def take_code(self):
        line = self.lines[self.place]
        was_body = self.braces[-1] == "body"
        code, written, comment = split_comment(line)
        self.follow(code)
        self.place += 1
        ends_member = self.braces[-1] != "body" and not was_body and not self.statement and not code.rstrip().endswith(("{", "}"))
        if comment is None or not ends_member:
            self.out.append(written if comment is not None else line)
            return
        lines, column = [comment], line.index("//")
        while (self.place < len(self.lines) and (match := WHOLE_LINE.fullmatch(self.lines[self.place]))
               and len(match[1]) == column):
            lines.append(match[2])
            self.place += 1
        self.out.append(written + " " + verbatim(lines, "/**<"))

    def follow(self, code):
        """Braces and statements, past that line."""
        for piece in re.split(r"([{};,])", code):
            kind = self.braces[-1]
            if piece == "{":
                self.braces.append(self.opened())
                if self.braces[-1] != "body":
                    self.statement = ""
            elif piece == "}":
                self.braces.pop()
                if self.braces[-1] != "body":
                    self.statement = self.after_body()
            elif piece == ";" and kind == "scope" or piece == "," and kind == "enum":
                self.statement = ""
            elif kind != "body":
                self.statement += piece if self.statement else piece.lstrip()
        if self.braces[-1] == "enum" and self.lines[self.place + 1].lstrip().startswith("}"):
            self.statement = ""

    def after_body(self):
        """A function ends with its body; a value and a condition go on."""
        is_condition = re.search(r"\brequires\s*(?:\([^()]*\)\s*)?$", self.statement)
        return self.statement if is_condition or "(" not in self.statement or "=" in without_groups(self.statement) else ""

    def opened(self):
        if self.braces[-1] == "body":
            return "body"
        found = SCOPE.search(without_groups(self.statement))
        if not found or "=" in without_groups(self.statement):
            return "body"
        return "enum" if found[1] == "enum" else "scope"


def with_doxygen_comments(text):
    return Header(text.splitlines()).read()
