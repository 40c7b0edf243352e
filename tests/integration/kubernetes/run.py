#!/usr/bin/env python3
"""examples/cluster/kubernetes: the manifests are what Kubernetes takes, and their pods train: with the very command and variables.

A pod is a container (containers.py) with an address of its own; what the Job controller, Kubeflow's operators, the kubelet and the DNS do for
it is done here: the completion index, PET_*, the host's name, names of pods, volumes. Run by ctest with the Python of .deps/pages; the part
with pods needs root.
"""
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import unittest

import kubernetes_validate
import yaml

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "network"))
from cluster import Network, require_namespaces  # noqa: E402
from containers import Container, cannot_contain  # noqa: E402
from programs import BUILD, SOURCE  # noqa: E402

MANIFESTS = SOURCE / "examples/cluster/kubernetes"
INDEX = "batch.kubernetes.io/job-completion-index"


class Manifest:
    """A file with a Service and a Job."""

    def __init__(self, name):
        self.documents = list(yaml.safe_load_all((MANIFESTS / name).read_text()))
        self.service, self.job = self.documents
        self.name = self.job["metadata"]["name"]
        self.pod = self.job["spec"]["template"]["spec"]
        self.container = self.pod["containers"][0]

    def num_pods(self):
        return self.job["spec"]["completions"]

    def host(self, index):
        return f"{self.name}-{index}"

    def address(self, index):
        """The name by which the DNS knows a pod."""
        return f"{self.host(index)}.{self.pod['subdomain']}"

    def env(self, index, uid="1f2e3d"):
        """As the kubelet fills it in."""
        fields = {f"metadata.annotations['{INDEX}']": str(index), "metadata.labels['batch.kubernetes.io/controller-uid']": uid}
        return {one["name"]: one["value"] if "value" in one else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
                for one in self.container["env"]}


class PyTorchJob:
    """pytorchjob.yaml, and what Kubeflow's training operator makes of it."""

    def __init__(self):
        self.job, = yaml.safe_load_all((MANIFESTS / "pytorchjob.yaml").read_text())
        self.name = self.job["metadata"]["name"]
        self.replicas = self.job["spec"]["pytorchReplicaSpecs"]
        self.pod = self.replicas["Master"]["template"]["spec"]
        self.container = self.pod["containers"][0]

    def num_pods(self):
        return sum(one["replicas"] for one in self.replicas.values())

    def host(self, index):
        return f"{self.name}-worker-{index - 1}" if index else f"{self.name}-master-0"

    address = host  # each pod has a Service of its name

    def env(self, index):
        """The operator also sets what Python programs without torchrun read: of a pod, so no worker's RANK."""
        workers = self.job["spec"]["nprocPerNode"]
        return {"PYTHONUNBUFFERED": "0", "MASTER_ADDR": self.address(0), "MASTER_PORT": "23456", "PET_MASTER_ADDR": self.address(0),
                "PET_MASTER_PORT": "23456", "WORLD_SIZE": str(self.num_pods() * int(workers)), "RANK": str(index),
                "PET_NPROC_PER_NODE": workers, "PET_NODE_RANK": str(index), "PET_NNODES": str(self.num_pods())}


class TrainJob:
    """trainjob.yaml, and what Kubeflow's trainer makes of it."""

    def __init__(self):
        self.runtime, self.job = yaml.safe_load_all((MANIFESTS / "trainjob.yaml").read_text())
        self.name = self.job["metadata"]["name"]
        self.replicated, = self.runtime["spec"]["template"]["spec"]["replicatedJobs"]
        self.pod = self.replicated["template"]["spec"]["template"]["spec"]
        self.trainer = self.job["spec"]["trainer"]
        self.container = {**self.pod["containers"][0], "command": self.trainer["command"]}

    def num_pods(self):
        return self.trainer["numNodes"]

    def host(self, index):
        return f"{self.name}-node-0-{index}"

    def address(self, index):
        return f"{self.host(index)}.{self.name}"

    def env(self, index):
        return {"PET_NNODES": str(self.num_pods()), "PET_NPROC_PER_NODE": str(self.trainer["numProcPerNode"]), "PET_NODE_RANK": str(index),
                "PET_MASTER_ADDR": self.address(0), "PET_MASTER_PORT": "29500"}


# The fields of Kubeflow's API, kubeflow.org/v1 and trainer.kubeflow.org/v1alpha1, as far as manifests here may use them; those of JobSet are
# of jobset.x-k8s.io/v1alpha2. None of them is in the schema of Kubernetes.
FIELDS = {
    "PyTorchJob": {"apiVersion": str, "kind": str, "metadata": dict, "spec": {
        "nprocPerNode": str,
        "runPolicy": {"activeDeadlineSeconds": int, "backoffLimit": int, "cleanPodPolicy": str, "suspend": bool, "ttlSecondsAfterFinished": int},
        "pytorchReplicaSpecs": {role: {"replicas": int, "restartPolicy": str, "template": dict} for role in ("Master", "Worker")}}},
    "TrainingRuntime": {"apiVersion": str, "kind": str, "metadata": dict, "spec": {
        "mlPolicy": {"numNodes": int, "torch": {}},
        "template": {"spec": {"failurePolicy": {"maxRestarts": int}, "replicatedJobs": list}}}},
    "TrainJob": {"apiVersion": str, "kind": str, "metadata": dict, "spec": {
        "runtimeRef": {"apiGroup": str, "kind": str, "name": str},
        "suspend": bool,
        "trainer": {"image": str, "command": list, "args": list, "env": list, "numNodes": int, "numProcPerNode": int, "resourcesPerNode": dict}}},
}


def field_faults(value, known, place):
    if not isinstance(known, dict):
        if not isinstance(value, known):
            yield f"{place} is no {known.__name__}: {value!r}"
        return
    for name, inner in value.items():
        if name in known:
            yield from field_faults(inner, known[name], f"{place}.{name}")
        else:
            yield f"{place} has no field {name}"


def valid(document):
    """Throws when Kubernetes would not take a document of its own API."""
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


class Files(unittest.TestCase):
    def test_kubernetes_would_take_them(self):
        files = sorted(MANIFESTS.glob("*.yaml"))
        self.assertEqual([path.name for path in files], ["elastic.yaml", "job.yaml", "pytorchjob.yaml", "trainjob.yaml"])
        for path in files[:2]:
            for document in yaml.safe_load_all(path.read_text()):
                valid(document)
        broken = Manifest("job.yaml").job
        broken["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] = 2  # a number where Kubernetes wants text
        with self.assertRaises(kubernetes_validate.ValidationError):
            valid(broken)

    def test_kubeflow_would_take_them(self):
        torch, train = PyTorchJob(), TrainJob()
        for document in (torch.job, train.runtime, train.job):
            self.assertEqual(list(field_faults(document, FIELDS[document["kind"]], document["kind"])), [])
        self.assertEqual(torch.job["apiVersion"], "kubeflow.org/v1")
        self.assertEqual({one["apiVersion"] for one in (train.runtime, train.job)}, {"trainer.kubeflow.org/v1alpha1"})
        for role in torch.replicas.values():
            self.assertIn(role["restartPolicy"], ("Always", "OnFailure", "Never", "ExitCode"))
            valid({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": role["template"]["spec"]})
        valid({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job", **train.replicated["template"]["metadata"]},
               "spec": train.replicated["template"]["spec"]})
        broken = {**torch.job, "spec": {**torch.job["spec"], "nprocPerNode": 2, "nproc": "2"}}
        self.assertEqual(list(field_faults(broken, FIELDS["PyTorchJob"], "PyTorchJob")),
                         ["PyTorchJob.spec.nprocPerNode is no str: 2", "PyTorchJob.spec has no field nproc"])

    def test_what_kubeflow_looks_for_is_there(self):
        torch, train = PyTorchJob(), TrainJob()
        self.assertEqual({one["template"]["spec"]["containers"][0]["name"] for one in torch.replicas.values()}, {"pytorch"})
        self.assertEqual(torch.replicas["Master"]["replicas"], 1)
        self.assertEqual(train.job["spec"]["runtimeRef"]["name"], train.runtime["metadata"]["name"])
        self.assertEqual((train.replicated["name"], train.pod["containers"][0]["name"]), ("node", "node"))
        self.assertEqual(train.replicated["template"]["metadata"]["labels"], {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"})
        for manifest in (torch, train):
            self.expect_grace_and_volumes(manifest)

    def test_names_and_numbers_that_no_schema_compares_fit(self):
        for name in ("job.yaml", "elastic.yaml"):
            manifest = Manifest(name)
            job, service = manifest.job["spec"], manifest.service
            self.assertEqual(service["spec"]["clusterIP"], "None")
            self.assertEqual(service["spec"]["selector"], {"batch.kubernetes.io/job-name": manifest.name})
            self.assertEqual(manifest.pod["subdomain"], service["metadata"]["name"])
            self.assertEqual((job["completionMode"], job["parallelism"]), ("Indexed", job["completions"]))
            env = manifest.env(0)
            self.assertEqual(env["PET_NNODES"].split(":")[-1], str(manifest.num_pods()))
            address, port = env.get("PET_RDZV_ENDPOINT", f"{env.get('PET_MASTER_ADDR')}:{env.get('PET_MASTER_PORT')}").split(":")
            self.assertEqual(address, manifest.address(0))
            self.assertEqual(int(port), service["spec"]["ports"][0]["port"])
            self.expect_grace_and_volumes(manifest)

    def expect_grace_and_volumes(self, manifest):
        grace = int(manifest.container["command"][manifest.container["command"].index("--stop_grace") + 1])
        self.assertLess(grace, manifest.pod["terminationGracePeriodSeconds"])
        self.assertEqual({mount["name"] for mount in manifest.container["volumeMounts"]}, {one["name"] for one in manifest.pod["volumes"]})


@unittest.skipIf(cannot_contain(), cannot_contain())
class Pods(unittest.TestCase):
    def setUp(self):
        require_namespaces()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="accel-kubernetes-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.volume = self.folder / "volume"
        self.volume.mkdir()
        shutil.copy(BUILD / "examples/minimal", self.volume)
        self.network = Network(["0", "1"])
        self.addCleanup(self.network.close)
        self.pods = []
        self.addCleanup(lambda: [pod.close() for pod in reversed(self.pods)])

    def pod(self, manifest, index):
        """The pod of that index, as the Job controller would make it, once more perhaps."""
        hosts = [f"{self.network.address(str(i))} {manifest.address(i)}" for i in range(manifest.num_pods())]
        own = f"{self.network.address(str(index))} {manifest.host(index)}"
        mounts = {one["mountPath"]: self.volume for one in manifest.container["volumeMounts"] if one["name"] == "job"}
        folder = self.folder / f"pod {len(self.pods)}".replace(" ", "-")
        folder.mkdir()
        pod = Container(manifest.host(index), folder, manifest.container["command"], self.network.command(str(index)),
                        manifest.env(index), manifest.container["workingDir"], mounts, [*hosts, own])
        self.pods.append(pod)
        return pod

    def start(self, manifest):
        return [self.pod(manifest, index) for index in range(manifest.num_pods())]

    def losses(self, pods):
        """Of each epoch."""
        return {int(epoch): float(loss) for pod in pods for epoch, loss in re.findall(r"epoch (\d+) loss ([\d.e-]+)", pod.text())}

    def expect_end(self, pods, status):
        self.assertEqual([pod.wait() for pod in pods], [status] * len(pods), "\n".join(pod.text() for pod in pods))

    def test_two_pods_train_together(self):
        self.expect_training(Manifest("job.yaml"))

    def test_two_pods_of_a_pytorchjob_train_together(self):
        self.expect_training(PyTorchJob())

    def test_two_pods_of_a_trainjob_train_together(self):
        self.expect_training(TrainJob())

    def expect_training(self, manifest):
        pods = self.start(manifest)
        self.expect_end(pods, 0)
        losses = self.losses(pods[:1])
        self.assertEqual(list(losses), list(range(20)))
        self.assertLess(losses[19], 0.01)  # the parabola's own variance is 0.089
        self.assertEqual(self.losses(pods[1:]), losses)  # each pod prints the mean over all four ranks

    def test_pods_that_replace_lost_ones_go_on_from_the_newest_checkpoint(self):
        manifest = Manifest("job.yaml")
        first = self.start(manifest)
        first[0].wait_for("epoch 2 ")
        first[1].send(signal.SIGKILL)
        for pod in first:
            self.assertNotEqual(pod.wait(), 0, pod.text())
        second = self.start(manifest)
        self.expect_end(second, 0)
        before, after = self.losses(first), self.losses(second)
        self.assertEqual(list(after), list(range(min(after), 20)))
        self.assertIn(min(after), (max(before), max(before) + 1), (before, after))  # killed before its save, or after it

    def test_a_pod_that_is_deleted_ends_within_its_grace(self):
        pods = self.start(Manifest("job.yaml"))
        pods[0].wait_for("epoch 0 ")
        for pod in pods:
            pod.send(signal.SIGTERM)
        self.assertEqual([pod.wait() for pod in pods], [143, 143], "\n".join(pod.text() for pod in pods))

    def test_an_elastic_job_goes_on_with_the_pod_that_is_left(self):
        manifest = Manifest("elastic.yaml")
        pods = self.start(manifest)
        pods[0].wait_for("epoch 2 ")
        pods[1].send(signal.SIGKILL)
        self.assertEqual(pods[0].wait(), 0, pods[0].text())
        self.assertEqual(sorted(self.losses(pods)), list(range(20)))

    def test_a_pod_that_comes_back_takes_part_in_an_elastic_job_again(self):
        program = self.volume / "minimal"
        program.unlink()
        program.write_text('#!/bin/sh\necho "rank $RANK of $WORLD_SIZE"\n'
                           'until [ -e stop ]; do if [ "$RANK" = 0 ] && rm fail 2>/dev/null; then exit 3; fi; sleep 0.05; done\n')
        program.chmod(0o755)
        manifest = Manifest("elastic.yaml")
        pods = self.start(manifest)
        pods[0].wait_for("rank 0 of 4")
        pods[1].send(signal.SIGKILL)
        pods[0].wait_for("rank 0 of 2")
        again = self.pod(manifest, 1)
        pods[0].wait_for("elastic-1-1: connected", 2)  # it waits for the next restart
        (self.volume / "fail").touch()
        pods[0].wait_for("rank 0 of 4", 2)
        (self.volume / "stop").touch()
        self.expect_end([pods[0], again], 0)


if __name__ == "__main__":
    if not os.path.exists(BUILD / "examples/minimal"):
        print("skipped: this build has no examples")
        sys.exit(77)
    unittest.main(verbosity=2)
