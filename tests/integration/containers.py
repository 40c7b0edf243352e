"""Containers on one machine for tests: a root of folders of this machine, and a namespace of processes, names and mounts of its own.

No image and no daemon: programs and libraries are those of this machine, read at their places. What a container has for itself is
/etc/hosts, /tmp, /run, /var, /dev/shm and the folders that it is given.
"""
import os
import pathlib
import shutil
import signal
import subprocess

from programs import BIN, BUILD, SOURCE, Program

SHARED = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/root/.pyenv", str(SOURCE.resolve()), str(BUILD.resolve())]
FILES = ["/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/ld.so.cache", "/etc/ssl/openssl.cnf"]
SCRIPT = """set -e
mount --make-rprivate /
hostname "$NAME"
while read -r from to; do mkdir -p "$ROOT$to"; mount --rbind "$from" "$ROOT$to"; done <"$ROOT.mounts"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
mount -t tmpfs tmpfs "$ROOT/dev/shm"
exec /usr/sbin/chroot "$ROOT" /usr/bin/env --chdir="$FOLDER" - "$@"
"""


def cannot_contain():
    """Why a test cannot have containers here; empty when it can."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return "containers need root and unshare"
    tried = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--uts", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
                           capture_output=True, text=True)
    return tried.stderr.strip()


class Container(Program):
    """The process 1 of a container called `name`, in the network namespace that the command `prefix` enters. `mounts` are the folders of
    this machine by their places there, `hosts` the lines of its /etc/hosts, `users` those that its /etc/passwd has beside this machine's."""

    def __init__(self, name, folder, command, prefix=(), env=None, cwd="/", mounts=None, hosts=(), users=()):
        self.root = pathlib.Path(folder) / name
        for part in ("etc", "tmp", "run", "var/lib", "proc", "dev"):
            (self.root / part).mkdir(parents=True, exist_ok=True)
        (self.root / "tmp").chmod(0o1777)
        for path in filter(os.path.exists, FILES):
            place = self.root / path[1:]
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
        (self.root / "etc/hosts").write_text("127.0.0.1 localhost\n" + "".join(line + "\n" for line in hosts))
        with open(self.root / "etc/passwd", "a") as file:
            file.writelines(line + "\n" for line in users)
        given = {path: path for path in SHARED if os.path.exists(path)} | {str(to): str(path) for to, path in (mounts or {}).items()}
        pathlib.Path(f"{self.root}.mounts").write_text("".join(f"{path} {to}\n" for to, path in given.items()))
        variables = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOSTNAME": name, **(env or {})}
        variables |= {key: value for key, value in os.environ.items() if key.endswith("SAN_OPTIONS")}
        words = [f"{key}={value}" for key, value in variables.items()]
        super().__init__(name, [*prefix, "unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "sh", "-c", SCRIPT, "sh",
                                *words, *command], env={**os.environ, "NAME": name, "ROOT": str(self.root), "FOLDER": str(cwd)})

    def pid(self):
        """Of process 1, as seen from here."""
        return int(pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def send(self, number=signal.SIGTERM):
        os.kill(self.pid(), number)
