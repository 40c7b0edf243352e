#!/usr/bin/env python3
"""examples/cluster/compose: the services' own commands make a cluster, on which the README's command trains.

No Docker runs here: each service is a container of namespaces (containers.py) with its address, its name, its configuration and its
volumes. Run by ctest; needs root.
"""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "network"))
from cluster import Network, require_namespaces  # noqa: E402
from containers import Container, cannot_contain  # noqa: E402
from programs import BIN, BUILD, PATIENCE, SOURCE, eventually  # noqa: E402

FOLDER = SOURCE / "examples/cluster/compose"
# What the specification of Compose knows, as far as it is used.
KEYS = {"image", "command", "working_dir", "shm_size", "stop_grace_period", "depends_on", "volumes", "hostname", "configs", "networks"}


class File(unittest.TestCase):
    def test_what_services_use_is_declared(self):
        file = yaml.safe_load((FOLDER / "compose.yaml").read_text())
        self.assertLessEqual(file.keys(), {"name", "x-agent", "services", "configs", "volumes", "networks"})
        subnet = file["networks"]["cluster"]["ipam"]["config"][0]["subnet"]
        for name, service in file["services"].items():
            self.assertLessEqual(service.keys(), KEYS, name)
            self.assertLessEqual({volume.split(":")[0] for volume in service["volumes"]}, file["volumes"].keys())
            self.assertLessEqual(service.get("depends_on", {}).keys(), file["services"].keys())
            for config in service.get("configs", []):
                self.assertIn(config["source"], file["configs"])
            for network in service.get("networks", {}).values():
                self.assertTrue(network["ipv4_address"].startswith(subnet.removesuffix("0/24")))
        self.assertIn("useradd --uid 1000 trainer && install -d -o trainer /job", (FOLDER / "agent.Dockerfile").read_text())


@unittest.skipIf(cannot_contain(), cannot_contain())
class Nodes(unittest.TestCase):
    def setUp(self):
        require_namespaces()
        self.file = yaml.safe_load((FOLDER / "compose.yaml").read_text())
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="accel-compose-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        for volume in self.file["volumes"]:
            (self.folder / volume).mkdir()
        shutil.copy(BUILD / "examples/minimal", self.folder / "job")
        os.chown(self.folder / "job", 1000, 1000)
        self.network = Network(["1", "2"])  # 10.213.78.1 and .2, as in the file
        self.addCleanup(self.network.close)

    def start(self, name):
        service = self.file["services"][name]
        mounts = {parts[1]: self.folder / parts[0] for parts in (volume.split(":") for volume in service["volumes"])}
        for config in service.get("configs", []):  # a file, by the folder that it is in
            folder = self.folder / f"config-{name}"
            folder.mkdir()
            (folder / os.path.basename(config["target"])).write_text(self.file["configs"][config["source"]]["content"])
            mounts[os.path.dirname(config["target"])] = folder
        addresses = [network["ipv4_address"] for network in service.get("networks", {}).values()]
        own = [f"{address} {service['hostname']}" for address in addresses]  # Docker says a container its own name
        prefix = [self.network.command(host) for host in ("1", "2") if self.network.address(host) in addresses]
        command = [word.replace("$$", "$") for word in service["command"]]
        container = Container(service.get("hostname", name), self.folder, command, *prefix, cwd=service.get("working_dir", "/"), mounts=mounts, hosts=own,
                              users=["trainer:x:1000:1000::/job:/bin/sh"])  # as agent.Dockerfile makes
        self.addCleanup(container.close)
        return container

    def exec(self, container, command):
        """As `docker compose exec --user trainer`, in the service's working_dir."""
        return subprocess.run(["nsenter", f"--target={container.pid()}", "--all", f"--root=/proc/{container.pid()}/root", f"--wd=/proc/{container.pid()}/root/job",
                               "setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "env", f"PATH={BIN}:{os.environ['PATH']}", *command], capture_output=True, text=True, timeout=PATIENCE)

    def test_the_command_of_the_readme_trains_on_both_nodes(self):
        made = self.start("certificates")
        self.assertEqual(made.wait(), 0, made.text())
        nodes = [self.start(name) for name in ("node-1", "node-2")]
        for node in nodes:
            node.wait_for("has a session with the coordinator")
        run, status = (shlex.split(line) for line in re.findall(r"exec (?:--user trainer )?node-[12] (accel .*)", (FOLDER / "README.md").read_text()))
        done = self.exec(nodes[0], run)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + nodes[0].text() + nodes[1].text())
        losses = {int(epoch): float(loss) for epoch, loss in re.findall(r"epoch (\d+) loss ([\d.e-]+)", done.stdout)}
        self.assertEqual(sorted(losses), list(range(20)))
        self.assertLess(losses[19], 0.01)  # the parabola's own variance is 0.089
        self.assertIn("minimal", self.exec(nodes[1], status).stdout)

        nodes[1].close()
        events = nodes[0].root / "var/lib/accel/events.jsonl"
        eventually(lambda: re.search(r'"event":"node_lost".*"about_node":"node-2"', events.read_text()), "node-2 is lost")


if __name__ == "__main__":
    if not os.path.exists(BUILD / "examples/minimal"):
        print("skipped: this build has no examples")
        sys.exit(77)
    unittest.main(verbosity=2)
