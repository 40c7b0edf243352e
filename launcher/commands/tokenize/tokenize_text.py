"""Writes files of text as files of tokens. `accel train --tokenizer` runs this script before its workers start.

    python tokenize_text.py '{"tokenizer": "tokenizer.json", "files": [{"text": "a.txt", "tokens": "tokens/a.npy"}]}'

A .txt file is one document; in a .jsonl file each line is one, its field `text_field`. Behind each document stands the end-of-text
token. Other tokens that the tokenizer would put around a text are left out, as is its cut to a length.

Texts are read in pieces of about a quarter of a megabyte. A piece ends behind a line end that has a letter on both sides, which is where
the tokenizers of GPT-2, Llama 3 and their like divide anyway: the tokens are those of the whole document. One that marks the begin of a
text, as those of SentencePiece do, marks each piece.

Tokens are an array of NumPy, 16 bits wide where the vocabulary allows it, else 32. A file is written beside its place and renamed
when it is whole; who comes second waits for the first (a lock in the folder), and finds the file.

The answer is one line of JSON on stdout: {"done": facts} or {"error": {"id", "message", "remedy"}}; ids are those of docs/reference/errors.md.
"""
import array
import codecs
import ctypes
import fcntl
import json
import os
import re
import signal
import sys

PIECE = 1 << 18      # characters that a piece has at least
LONGEST = 2 << 20    # where there is no good place to cut, any will do
BATCH = 8            # pieces that are tokenized at once, by several threads
NPY_HEADER = 128     # bytes, of which the length is told at the end
READ = 1 << 20
ENDS_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
GOOD_CUT = re.compile(r"\w\n(?=\w)")
PR_SET_PDEATHSIG = 1


class Refusal(Exception):
    """A failure that the user can mend."""

    def __init__(self, code, message, remedy):
        super().__init__(message)
        self.code, self.message, self.remedy = code, message, remedy


def first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0]


def load_tokenizer(path):
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise Refusal("unsupported", f"{sys.executable} cannot import tokenizers: {first_line(error)}",
                      f"{sys.executable} -m pip install tokenizers, or name a Python that has it with --python") from None
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises Exception itself
        raise Refusal("argument.invalid", f"{path} is no tokenizer: {first_line(error)}",
                      "name the tokenizer.json that lies beside the model") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def end_of_text(tokenizer, path, wanted):
    """The number of the token behind each document, and its name; (None, ""): there is none."""
    if wanted == "none":
        return None, ""
    if wanted:
        number = tokenizer.token_to_id(wanted)
        if number is None:
            raise Refusal("argument.invalid", f"{path} has no token {wanted}", "name one that it has with --end_of_text, or none")
        return number, wanted
    for name in (configured_end(path), *ENDS_OF_TEXT):
        if name and tokenizer.token_to_id(name) is not None:
            return tokenizer.token_to_id(name), name
    return None, ""


def configured_end(path):
    """What tokenizer_config.json beside the tokenizer says."""
    try:
        with open(os.path.join(os.path.dirname(path), "tokenizer_config.json"), encoding="utf-8") as file:
            token = json.load(file).get("eos_token")
    except (OSError, ValueError, AttributeError):
        return None
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def cut_of(text):
    """Where a piece of `text` ends; 0: more is to be read first."""
    for match in GOOD_CUT.finditer(text, PIECE):
        return match.end()
    if len(text) < LONGEST:
        return 0
    blank = max(text.rfind("\n"), text.rfind(" "))
    return blank if blank > 0 else len(text)


def pieces_of_text(path):
    """Pieces of the one document; None: its end."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, place = "", 0
    with open(path, "rb") as file:
        while True:
            data = file.read(READ)
            pending = len(decoder.getstate()[0])
            try:
                text += decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise Refusal("argument.invalid", f"{path} is not UTF-8 at byte {place - pending + error.start}",
                              "convert it: iconv -f LATIN1 -t UTF-8 OLD > NEW") from None
            place += len(data)
            while len(text) > PIECE and (cut := cut_of(text)):
                yield text[:cut]
                text = text[cut:]
            if not data:
                break
    if text:
        yield text
    yield None


def pieces_of_lines(path, field):
    """The documents of a .jsonl file, each whole and then None."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                document = json.loads(line)
            except ValueError as error:
                raise Refusal("argument.invalid", f"{path}:{number}: no JSON: {first_line(error)}",
                              "give a file with one JSON object a line, or text with the name .txt") from None
            text = document.get(field) if isinstance(document, dict) else None
            if not isinstance(text, str):
                raise Refusal("argument.invalid", f"{path}:{number}: no text is called {field}", "name the field with --text_field")
            if text:
                yield text
                yield None


class TokenFile:
    """An array of NumPy that grows."""

    def __init__(self, path, code):
        self.file = open(path, "xb")
        self.code, self.count, self.largest = code, 0, 0
        self.file.write(b" " * NPY_HEADER)

    def append(self, tokens):
        if not tokens:
            return
        values = array.array(self.code, tokens)
        self.count += len(values)
        self.largest = max(self.largest, max(values))
        values.tofile(self.file)

    def finish(self):
        width = array.array(self.code).itemsize
        words = f"{{'descr': '<u{width}', 'fortran_order': False, 'shape': ({self.count},), }}"
        self.file.seek(0)
        self.file.write(b"\x93NUMPY\x01\x00" + (NPY_HEADER - 10).to_bytes(2, "little"))
        self.file.write(words.ljust(NPY_HEADER - 11).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self):
        self.file.close()


def write_tokens(tokenizer, pieces, end, out):
    """All pieces; `end` behind each document, if there is one."""
    batch = []
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)  # without the places of tokens: 2.6 times as fast

    def flush():
        texts = [piece for piece in batch if piece is not None]
        encoded = iter(encode(texts, add_special_tokens=False))
        for piece in batch:
            if piece is not None:
                out.append(next(encoded).ids)
            elif end is not None:
                out.append([end])
        batch.clear()

    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece or "")
        if size >= BATCH * PIECE or len(batch) >= 4096:
            flush()
            size = 0
    flush()


def tokenize_file(tokenizer, job, end, field):
    text, place = job["text"], job["tokens"]
    folder, name = os.path.split(place)
    draft = os.path.join(folder, f".{name}.tmp")
    try:
        os.unlink(draft)  # of one that was killed: the lock is ours
    except FileNotFoundError:
        pass
    pieces = pieces_of_lines(text, field) if text.endswith(".jsonl") else pieces_of_text(text)
    out = TokenFile(draft, "H" if tokenizer.get_vocab_size(with_added_tokens=True) <= 1 << 16 else "I")
    try:
        write_tokens(tokenizer, pieces, end, out)
        if out.count <= (0 if end is None else 1):
            raise Refusal("argument.invalid", f"{text} has no text", "leave it out, or give another file")
        out.finish()
        os.rename(draft, place)
    finally:
        out.close()
        if os.path.exists(draft):
            os.unlink(draft)
    print(f"accel train: {text}: {out.count} tokens in {place}", file=sys.stderr, flush=True)
    return {"text": text, "tokens": place, "count": out.count, "largest": out.largest}


def tokenize(request):
    tokenizer = load_tokenizer(request["tokenizer"])
    end, name = end_of_text(tokenizer, request["tokenizer"], request["end_of_text"])
    folder = request["folder"]
    os.makedirs(folder, exist_ok=True)
    done = []
    with open(os.path.join(folder, ".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for job in request["files"]:
            if not os.path.exists(job["tokens"]):  # else another launch was first
                done.append(tokenize_file(tokenizer, job, end, request["text_field"]))
    return {"end_of_text": name, "files": done}


def leave(number, _):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(128 + number)  # what is half is removed on the way out


def main(words):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    request = json.loads(words[0])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # nobody waits for the tokens any more
    if os.getppid() != request["parent"]:  # nor did before
        return 1
    try:
        answer = {"done": tokenize(request)}
    except Refusal as refusal:
        answer = {"error": {"id": refusal.code, "message": refusal.message, "remedy": refusal.remedy}}
    except OSError as error:
        answer = {"error": {"id": "file.io", "message": f"the text cannot be tokenized: {first_line(error)}",
                            "remedy": "free space, or name another folder with --tokens_dir"}}
    except MemoryError:
        answer = {"error": {"id": "memory.exhausted", "message": "memory ran out while the text was tokenized", "remedy": ""}}
    print(json.dumps(answer), file=answers, flush=True)
    return 0 if "done" in answer else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
