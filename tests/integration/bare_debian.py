"""A bare Debian for tests of packages: the essential packages of this machine and those that a test asks for, with all that these depend
on, in a root of their own. Nothing is downloaded: the files are copied, and dpkg there knows no other packages.

Programs run there as root, with a namespace of processes and mounts, and with no variables but those of ENVIRONMENT.
"""
import os
import pathlib
import re
import shutil
import subprocess

STATUS = pathlib.Path("/var/lib/dpkg/status")
LISTS = pathlib.Path("/var/lib/dpkg/info")
ENVIRONMENT = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"]
# Nothing runs by them.
LEFT_OUT = ("/usr/share/doc/", "/usr/share/info/", "/usr/share/locale/", "/usr/share/man/")
# Made by scripts of packages when they are installed, so no package has them.
MADE = ["/etc/passwd", "/etc/group", "/etc/shadow", "/etc/nsswitch.conf", "/etc/alternatives"]
ENTER = """set -e
mount --make-rprivate /
while IFS=: read -r from to; do mkdir -p "$0$to"; mount --rbind "$from" "$0$to"; done <"$0.mounts"
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
mount --rbind /sys "$0/sys"
mount -t tmpfs tmpfs "$0/dev/shm"
exec /usr/sbin/chroot "$0" /usr/bin/env -i "$@"
"""


def cannot_be_made():
    """Why a test cannot have a bare Debian here; empty when it can."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not STATUS.exists():
        return "a bare Debian needs root, unshare and dpkg"
    return subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True).stderr.strip()


def installed():
    """name -> the entries of this machine's packages that are installed, and their text."""
    packages = {}
    for text in STATUS.read_text().split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): (.*)$", text, re.M))
        if fields.get("Status") == "install ok installed":
            packages[fields["Package"]] = (fields, text)
    return packages


def names_of(dependencies):
    """The alternatives of each dependency: "a (>= 1) | b, c" is [[a, b], [c]]."""
    return [[re.split(r"[\s:(]", one.strip())[0] for one in each.split("|")] for each in dependencies.split(",") if each.strip()]


def closure(packages, dependencies):
    """The names of the essential packages, of what `dependencies` (as in a package's control file) needs, and of all that they need."""
    provided = {name: package for package, (fields, _) in packages.items() for name, *_ in names_of(fields.get("Provides", ""))}
    wanted = [name for name, (fields, _) in packages.items() if fields.get("Essential") == "yes" or fields.get("Priority") == "required"]
    missing, found = [], set()
    todo = [[name] for name in wanted] + names_of(dependencies)
    while todo:
        alternatives = todo.pop()
        name = next((one if one in packages else provided[one] for one in alternatives if one in packages or one in provided), None)
        if name is None:
            missing.append(" | ".join(alternatives))
        elif name not in found:
            found.add(name)
            fields = packages[name][0]
            todo += names_of(fields.get("Pre-Depends", "")) + names_of(fields.get("Depends", ""))
    if missing:
        raise AssertionError(f"this machine has not installed: {', '.join(sorted(missing))}")
    return sorted(found)


def files_of(name, architecture):
    for stem in (name, f"{name}:{architecture}"):
        path = LISTS / f"{stem}.list"
        if path.exists():
            return path, path.read_text().splitlines()
    raise AssertionError(f"dpkg has no list of the files of {name}")


class BareDebian:
    """`mounts` are folders of this machine by their places there."""

    def __init__(self, root, dependencies="", mounts=None):
        self.root = pathlib.Path(root)
        packages = installed()
        names = closure(packages, dependencies)
        paths = {"/tmp", "/root", "/run", "/proc", "/dev", "/sys", *filter(os.path.lexists, MADE)}
        lists = []
        for name in names:
            path, files = files_of(name, packages[name][0]["Architecture"])
            lists.append(path)
            paths.update(file for file in files if file != "/." and not file.startswith(LEFT_OUT) and os.path.lexists(file))
        for alternative in pathlib.Path("/etc/alternatives").iterdir():
            paths.add(str(alternative))
        self.root.mkdir(parents=True)
        for link in ("bin", "sbin", "lib", "lib64"):  # a file of /bin/x comes to where /bin leads
            if os.path.islink(f"/{link}"):
                (self.root / link).symlink_to(os.readlink(f"/{link}"))
                (self.root / os.readlink(f"/{link}")).mkdir(parents=True)
        subprocess.run(["sh", "-c", 'tar -C / --no-recursion --null -T - -cf - | tar -C "$0" --keep-directory-symlink -xf -', self.root],
                       input="\0".join(path.lstrip("/") for path in sorted(paths)).encode(), check=True, capture_output=True)
        dpkg = self.root / "var/lib/dpkg"
        for folder in ("info", "updates", "triggers"):
            (dpkg / folder).mkdir(parents=True, exist_ok=True)
        for path in lists:
            shutil.copy(path, dpkg / "info")
        (dpkg / "status").write_text("".join(packages[name][1].strip("\n") + "\n\n" for name in names))
        pathlib.Path(f"{self.root}.mounts").write_text("".join(f"{path}:{place}\n" for place, path in (mounts or {}).items()))
        self.run("/sbin/ldconfig")

    def run(self, *command, status=0, folder="/root"):
        """The output of a command there, which has to end with `status`."""
        done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, str(self.root),
                               f"--chdir={folder}", *ENVIRONMENT, *map(str, command)],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=240)
        if done.returncode != status:
            raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode} on a bare Debian\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr
