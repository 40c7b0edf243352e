"""Hosts on one machine for tests: network namespaces at one switch, whose ports can be taken down."""
import os
import pathlib
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def ip(*words, check=True):
    return subprocess.run(["ip", *map(str, words)], check=check, capture_output=True, text=True)


def require_namespaces():
    if os.geteuid() != 0:
        skip("network namespaces need root")
    probe = f"accel-probe-{os.getpid()}"
    try:
        made = ip("netns", "add", probe, check=False)
    except FileNotFoundError:
        skip("there is no `ip` (package iproute2)")
    bridge = ip("-n", probe, "link", "add", "sw", "type", "bridge", check=False) if made.returncode == 0 else made
    ip("netns", "del", probe, check=False)
    if bridge.returncode != 0:
        skip("no network namespace with a bridge can be made here: " + bridge.stderr.strip())


class Network:
    """Hosts a, b, c... at one switch. Nothing tells a host that another one's port is down: packets vanish."""

    def __init__(self, names):
        self.tag = f"acn{os.getpid()}"
        self.switch = f"{self.tag}-switch"
        self.hosts = {}
        ip("netns", "add", self.switch)
        try:
            ip("-n", self.switch, "link", "add", "sw", "type", "bridge")
            ip("-n", self.switch, "link", "set", "sw", "up")
            for number, name in enumerate(names, 1):
                self.add(name, number)
        except subprocess.CalledProcessError as failure:
            self.close()
            raise AssertionError(failure.stderr) from failure

    def add(self, name, number):
        namespace, port = f"{self.tag}-{name}", f"port-{name}"
        ip("netns", "add", namespace)
        self.hosts[name] = (namespace, f"10.213.78.{number}")
        ip("-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", "veth0", "netns", namespace)
        ip("-n", self.switch, "link", "set", port, "master", "sw")
        ip("-n", self.switch, "link", "set", port, "up")
        ip("-n", namespace, "addr", "add", f"10.213.78.{number}/24", "dev", "veth0")
        ip("-n", namespace, "link", "set", "veth0", "up")
        ip("-n", namespace, "link", "set", "lo", "up")

    def address(self, name):
        return self.hosts[name][1]

    def command(self, name):
        return ["ip", "netns", "exec", self.hosts[name][0]]

    def cut(self, name):
        ip("-n", self.switch, "link", "set", f"port-{name}", "down")

    def mend(self, name):
        ip("-n", self.switch, "link", "set", f"port-{name}", "up")

    def lose_what_goes(self, sender, receiver):
        """One way only: what `sender` sends to `receiver` goes to a station that does not exist."""
        ip("-n", self.hosts[sender][0], "neigh", "replace", self.address(receiver), "lladdr", "02:00:00:00:00:99", "dev", "veth0",
           "nud", "permanent")

    def lose_nothing(self, sender, receiver):
        ip("-n", self.hosts[sender][0], "neigh", "del", self.address(receiver), "dev", "veth0")

    def close(self):
        for namespace, _ in self.hosts.values():
            ip("netns", "del", namespace, check=False)
        ip("netns", "del", self.switch, check=False)
