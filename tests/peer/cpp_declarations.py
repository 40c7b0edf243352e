"""What the public headers declare: the parameters of functions and the fields of structs, with their defaults.

No compiler: the headers are formatted by clang-format, and what a declaration looks like is known. A parameter that is a struct
with fields stands for its fields, since a call names them: `save_model(model, folder, {.max_shard_size = ...})`.
"""

import re


def without_comments(text):
    text = re.sub(r'//[^\n]*', '', text)
    return re.sub(r'/\*.*?\*/', '', text, flags=re.S)


def closing(text, start, opening, end):
    """Where the bracket that opens at `start` closes."""
    depth = 0
    for at in range(start, len(text)):
        if text[at] == opening:
            depth += 1
        elif text[at] == end:
            depth -= 1
            if depth == 0:
                return at
    return len(text)


def split_at_commas(text):
    """At those outside of brackets."""
    parts, depth, begin = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in '(<{[') - (char in ')>}]' and text[at - 1:at + 1] != '->')
        if char == ',' and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    parts.append(text[begin:])
    return [' '.join(part.split()) for part in parts if part.strip()]


def declared(text):
    """(name, type, default or None) of a parameter or a field."""
    match = re.match(r'(?P<type>.*?[\s&*>.])(?P<name>[A-Za-z_]\w*)\s*(?:=\s*(?P<default>.*)|(?P<braces>\{.*\}))?$', text, re.S)
    if match is None:
        return None
    default = match['default'] if match['default'] is not None else match['braces']
    return match['name'], match['type'].strip(), None if default is None else ' '.join(default.split())


class Declarations:
    def __init__(self, paths):
        self.texts = [without_comments(path.read_text()) for path in paths]
        self.structs, self.bodies = {}, {}
        for text in self.texts:
            for match in re.finditer(r'\b(struct|class)\s+(?:ACCEL_EXPORT\s+)?(\w+)(?:\s+final)?(?:\s*:[^{;]*)?\s*\{', text):
                body = text[match.end():closing(text, match.end() - 1, '{', '}')]
                self.bodies.setdefault(match[2], body)
                if match[1] == 'struct':
                    self.structs.setdefault(match[2], self.fields(body))
        self.free_texts = [self.outside_classes(text) for text in self.texts]

    @staticmethod
    def fields(body):
        found = {}
        for statement in re.split(r';\s*\n', body):
            statement = statement.strip()
            if '(' in statement.split('=')[0].split('{')[0] or not statement:
                continue
            field = declared(statement)
            if field is not None:
                found[field[0]] = field[1:]
        return found

    @staticmethod
    def outside_classes(text):
        kept, at = [], 0
        for match in re.finditer(r'\b(?:struct|class)\s+(?:ACCEL_EXPORT\s+)?\w+(?:\s+final)?(?:\s*:[^{;]*)?\s*\{', text):
            if match.start() < at:
                continue
            kept.append(text[at:match.end()])
            at = closing(text, match.end() - 1, '{', '}')
        return ''.join(kept) + text[at:]

    def parameters(self, symbol):
        """{name: (type, default)} of all declarations of a function, of the constructors of a class, or of the fields of a struct."""
        *scope, name = symbol.split('::')
        texts = [self.bodies[scope[-1]]] if scope and scope[-1] in self.bodies else self.free_texts
        found = {}
        if name in self.structs and self.structs[name]:
            found.update(self.structs[name])
        if name in self.bodies:
            texts = [self.bodies[name]]
        for text in texts:
            for match in re.finditer(rf'(?<![\w.>])(?<!return ){name}\(', text):
                inside = text[match.end():closing(text, match.end() - 1, '(', ')')]
                for part in split_at_commas(inside):
                    parameter = declared(part)
                    if parameter is None:
                        continue
                    found.setdefault(parameter[0], parameter[1:])
                    for struct in re.findall(r'\w+', parameter[1]):
                        for field, value in self.structs.get(struct, {}).items():
                            found.setdefault(field, value)
        return found
