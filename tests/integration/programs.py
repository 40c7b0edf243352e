"""What the scenarios with several programs share: where the build is, free addresses, and a program and what it says."""
import fcntl
import os
import pathlib
import pty
import shutil
import signal
import socket
import subprocess
import termios
import threading
import time

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", SOURCE / "build"))
BIN = BUILD / "bin"
PATIENCE = 120
ETCD = shutil.which("etcd")  # Debian's etcd-server
# What whoever runs the tests ignores (nohup, a job in the background), and with it all that they start. Two are of Python and Popen.
IGNORED = [number for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ} if signal.getsignal(number) == signal.SIG_IGN]


def memory_folder(path="/dev/shm"):
    """That folder in memory if the data of several etcds (123 MB each) and programs have their place there, else None."""
    if not os.access(path, os.W_OK):
        return None
    found = os.statvfs(path)
    return path if found.f_bavail * found.f_frsize >= 1 << 30 and not found.f_flag & os.ST_NOEXEC else None


# For mkdtemp(dir=...) where an etcd keeps its data: what it syncs waits for no disk, which others may keep busy for minutes.
MEMORY = memory_folder()


def free_port():
    """A port of this machine that nobody else gets while this process lives: bound and silent, so that no connection leaves by it and
    a server with SO_REUSEADDR may still listen there."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    port = reserved.getsockname()[1]
    reserved.detach()  # it stays open
    return port


def free_address():
    return f"127.0.0.1:{free_port()}"


def eventually(condition, what, patience=PATIENCE):
    """What the condition gives, once that is true."""
    end = time.monotonic() + patience
    while not (got := condition()):
        if time.monotonic() > end:
            raise AssertionError("never came: " + what)
        time.sleep(0.05)
    return got


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def write_token(folder):
    """The file of a job's token."""
    path = folder / "token"
    path.touch(0o600)
    path.write_text("0123456789abcdef0123456789abcdef\n")
    return path


def issue_certificate(authority, role, name, cluster="default", more=()):
    """The folder of a certificate, made by the authority in the folder `authority`, which is made with the first one."""
    done = subprocess.run([BIN / "accel-agent", "init-tls", "--dir", authority, "--role", role, "--name", name, "--cluster", cluster,
                           *more], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout.strip()


def revoke_certificate(authority, role, name, *copies):
    """Takes the certificates of that name back, and puts the list in the place of each of `copies`."""
    crl = issue_certificate(authority, role, name, more=["--revoke"])
    for copy in copies:
        shutil.copy(crl, f"{copy}.new")
        os.rename(f"{copy}.new", copy)


def heeding(command):
    """The command of a program that heeds what is ignored here: one that a test stops has to hear of it. By env and not by a
    preexec_fn: after fork() in a process with threads, Python may wait for ever for a lock that one of them held."""
    words = [str(part) for part in command]
    return ["env", "--default-signal=" + ",".join(str(int(number)) for number in IGNORED), *words] if IGNORED else words


def is_sanitized():
    """Whether the programs are built with a sanitizer. UBSan looks at an object through a pipe of its own: where a program has no
    descriptor left, it reports an object without a vptr that has one, and ends the program."""
    return "ACCEL_SANITIZE:STRING=\n" not in (BUILD / "CMakeCache.txt").read_text()


def cannot_mount():
    """Why a test cannot have mounts of its own here; empty when it can."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return "needs root and unshare"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)  # fails in a chroot
    return tried.stderr.strip()


class Program:
    """A process, the lines of its output as they come, and the time at which each came. Further options are Popen's."""

    def __init__(self, name, command, **options):
        self.name = name
        self.process = subprocess.Popen(heeding(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, **{"start_new_session": True, **options})
        self.lines = []
        self.times = []
        self.is_over = False  # nothing more will be said
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.times.append(time.monotonic())
                self.changed.notify_all()
        with self.changed:
            self.is_over = True
            self.changed.notify_all()

    def text(self):
        return f"--- {self.name}\n" + "\n".join(self.lines)

    def times_of(self, part):
        return [when for line, when in zip(self.lines, self.times) if part in line]

    def count(self, part):
        return len(self.times_of(part))

    def wait_for(self, part, count=1):
        """The time at which the line came that holds `part` for the `count`th time."""
        with self.changed:
            self.changed.wait_for(lambda: self.count(part) >= count or self.is_over, PATIENCE)
            if self.count(part) < count:
                raise AssertionError(f"{self.name} never said {part!r} {count} times:\n{self.text()}")
            return self.times_of(part)[count - 1]

    def wait(self):
        """Its exit status."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end:\n{self.text()}") from None

    def close(self):
        """Kills it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        self.reader.join()
        self.process.stdout.close()


class Terminal:
    """A terminal whose foreground group is a Program that gets `options`."""

    def __init__(self):
        self.ours, theirs = pty.openpty()
        self.options = {"preexec_fn": lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)}  # a session of its own has none before
        self.theirs = theirs

    def press_ctrl_c(self):
        os.write(self.ours, b"\x03")

    def close(self):
        os.close(self.ours)
        os.close(self.theirs)


def launch(name, arguments, prefix=(), **options):
    """An accel-launch, behind the command `prefix`."""
    return Program(name, [*prefix, BIN / "accel-launch", *arguments], **options)


def start_etcd(folder, address, prefix=()):
    """An etcd of one member that answers at `address`, behind the command `prefix`; its data lie in `folder`."""
    peer = f"http://{free_address()}"
    etcd = Program("etcd", [*prefix, ETCD, "--data-dir", folder, "--listen-client-urls", f"http://{address}",
                            "--advertise-client-urls", f"http://{address}", "--listen-peer-urls", peer,
                            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"])
    etcd.wait_for("ready to serve client requests")
    return etcd
