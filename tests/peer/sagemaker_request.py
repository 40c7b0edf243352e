#!/usr/bin/env python3
"""What is asked of Amazon SageMaker is what the peer would ask its SDK for; `aws` is a script that writes down its calls."""
import json
import os
import pathlib
import subprocess
import tarfile
import tempfile
import unittest
from unittest import mock

import peer_python  # runs this script under the peer's Python

SOURCE = pathlib.Path(peer_python.SOURCE)
BUILD = pathlib.Path(peer_python.BUILD)

import contextlib
import io
import logging

import yaml
from accelerate.commands import launch
from accelerate.commands.config.config_args import SageMakerConfig
from accelerate.utils import SageMakerDistributedType
from accelerate.utils import launch as preparation

logging.disable(logging.WARNING)
LAUNCHER = BUILD / "bin/accel-launch"
FIXTURE = SOURCE / "tests/unit/launcher/configs/0_30_0_sagemaker.yaml"
ARGUMENTS = ["--model_name_or_path", "bert", "--do_train", "False", "--epochs", "3", "--learning_rate", "5e-5",
             "--max_steps", "50.5", "--do-test", "True", "--whole", "2.0"]
AWS = """#!/bin/sh
printf '%s\\n' "$*" >> "{folder}/calls"
case "$1 $2" in
  "sts get-caller-identity") echo 123456789012 ;;
  "iam get-role") echo "arn:aws:iam::123456789012:role/path/$4" ;;
  "s3 cp")
    case "$3$4" in
      --recursives3://b/train) echo 1 > "$5/one" ;;
      --recursive*) ;;
      s3://b/test.csv*) echo 2 > "$4/test.csv" ;;
      s3://*) ;;
      *) cp "$3" "{folder}/sent.tar.gz" ;;
    esac ;;
  "ecr get-login-password") [ "$4" = eu-west-1 ] && echo secret ;;
  "sagemaker create-training-job") cp "${{4#file://}}" "{folder}/request.json" ;;
  "sagemaker describe-training-job") printf '{status}\\ts3://bucket/model.tar.gz\\tNone\\n' ;;
esac
"""


# Writes down what it is called with, and ends as a container would.
DOCKER = """#!/bin/sh
printf '%s\\n' "$*" >> "{folder}/docker"
case "$1 $2" in
  "image inspect") exit 1 ;;
  "login --username") cat > "{folder}/password" ;;
  "compose --file") echo "$AWS_DEFAULT_REGION" > "{folder}/region"; exit 7 ;;
esac
"""


class SageMaker(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        (self.folder / "code").mkdir()
        self.script = self.folder / "code/train.py"
        self.script.write_text("print(1)\n")
        self.environment = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": str(self.folder),
                            "HF_HOME": str(self.folder)}

    def install(self, name, text):
        program = self.folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)

    def install_aws(self, status="Completed"):
        self.install("aws", AWS.format(folder=self.folder, status=status))

    def launch(self, *flags, arguments=ARGUMENTS):
        return subprocess.run([LAUNCHER, *flags, self.script, *arguments], env=self.environment, capture_output=True,
                              text=True, timeout=60, cwd=self.folder)

    def request(self, *flags):
        done = self.launch(*flags, "--debug")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def peer(self, *flags):
        """The keyword arguments of the SDK's estimator, and its inputs."""
        # Without the attributes version 1.15.0 fails at each launch with such a file.
        missing = {"parallelism_config": {}, "tpu_use_cluster": False}
        with mock.patch.dict(os.environ, self.environment, clear=True), contextlib.redirect_stdout(io.StringIO()), \
                mock.patch.multiple(SageMakerConfig, create=True, **missing):
            parser = launch.launch_command_parser()
            args, defaults, _ = launch._validate_launch_command(parser.parse_args([*flags, str(self.script), *ARGUMENTS]))
            # An unquoted NO, the one that it can read, is false to it.
            defaults.distributed_type = SageMakerDistributedType(defaults.distributed_type or "NO")
            return preparation.prepare_sagemager_args_inputs(defaults, args)

    def compare(self, path, *flags):
        flags = (*flags, "--aws_access_key_id", "id", "--aws_secret_access_key", "secret")
        ours = self.request("--config_file", str(path), *flags)
        theirs, inputs = self.peer("--config_file", str(path), *flags)
        parameters = {name: json.loads(text) for name, text in ours["HyperParameters"].items()
                      if not name.startswith("sagemaker_")}
        self.assertEqual(parameters, theirs["hyperparameters"])
        self.assertEqual(ours["Environment"], theirs["environment"])
        self.assertEqual(ours["ResourceConfig"]["InstanceType"], theirs["instance_type"])
        self.assertEqual(ours["ResourceConfig"]["InstanceCount"], theirs["instance_count"])
        self.assertEqual(json.loads(ours["HyperParameters"]["sagemaker_program"]), theirs["entry_point"])
        self.assertTrue(ours["RoleArn"].endswith("role/" + theirs["role"]))
        self.assertTrue(ours["TrainingJobName"].startswith(theirs["base_job_name"]))
        self.assertEqual(ours["AlgorithmSpecification"].get("MetricDefinitions"), theirs["metric_definitions"])
        channels = {one["ChannelName"]: one["DataSource"]["S3DataSource"]["S3Uri"]
                    for one in ours.get("InputDataConfig", [])}
        self.assertEqual(channels or None, inputs)
        is_parallel = json.loads(ours["HyperParameters"].get("sagemaker_distributed_dataparallel_enabled", "false"))
        self.assertEqual(is_parallel, theirs["distribution"] is not None)

    def test_the_fixture_of_the_peer(self):
        self.compare(FIXTURE)

    def test_the_file_of_configs(self):
        self.compare(SOURCE / "configs/sagemaker.yaml")

    def test_a_file_with_everything(self):
        inputs, metrics = self.folder / "inputs.tsv", self.folder / "metrics.tsv"
        inputs.write_text("channel\tlocation\ntrain\ts3://b/train\ntest\ts3://b/test\n")
        metrics.write_text("name\tregex\nloss\tloss=(.*)\n")
        path = self.folder / "sagemaker.yaml"
        path.write_text(yaml.safe_dump({
            "compute_environment": "AMAZON_SAGEMAKER", "distributed_type": "DATA_PARALLEL", "mixed_precision": "bf16",
            "ec2_instance_type": "ml.p4dn.24xlarge", "iam_role_name": "role", "num_machines": 2, "region": "eu-west-1",
            "base_job_name": "mine", "image_uri": "123.dkr.ecr/image:1", "sagemaker_inputs_file": str(inputs),
            "sagemaker_metrics_file": str(metrics), "debug": False, "use_cpu": False}))
        self.compare(path)
        self.compare(path, "--mixed_precision", "fp16", "--dynamo_use_dynamic")

    def test_a_flag_without_a_value(self):
        for arguments in (["--do_train", "--do_test", "False"], ["--epochs", "3", "--do_train"]):
            done = self.launch("--config_file", str(FIXTURE), "--aws_access_key_id", "i", "--aws_secret_access_key", "s",
                               arguments=arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("store_true", done.stderr)
            with self.assertRaisesRegex(ValueError, "store_true"):
                preparation._convert_nargs_to_dict(arguments)

    def test_the_job_is_submitted_and_followed(self):
        self.install_aws()
        self.environment["AWS_PROFILE"] = "mine"
        done = self.launch("--config_file", str(FIXTURE))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("You can find your model data at: s3://bucket/model.tar.gz", done.stdout)
        request = json.loads((self.folder / "request.json").read_text())
        self.assertEqual(request["RoleArn"], "arn:aws:iam::123456789012:role/path/MY_ROLE")
        sent = json.loads(request["HyperParameters"]["sagemaker_submit_directory"])
        self.assertTrue(sent.startswith("s3://sagemaker-us-east-1-123456789012/"), sent)
        self.assertIn(sent, (self.folder / "calls").read_text())
        with tarfile.open(self.folder / "sent.tar.gz") as packed:
            self.assertIn("./train.py", packed.getnames())

    def test_a_job_that_fails_and_an_aws_that_is_missing_are_errors(self):
        self.environment["AWS_PROFILE"] = "mine"
        done = self.launch("--config_file", str(FIXTURE))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("install the AWS CLI", done.stderr)
        self.install_aws(status="Failed")
        done = self.launch("--config_file", str(FIXTURE))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("ended as Failed", done.stderr)

    def local_file(self, test="test.csv"):
        inputs = self.folder / "inputs.tsv"
        inputs.write_text(f"channel\tlocation\ntrain\ts3://b/train\ntest\ts3://b/{test}\n")
        path = self.folder / "local.yaml"
        path.write_text(yaml.safe_dump({
            "compute_environment": "AMAZON_SAGEMAKER", "distributed_type": "NO", "ec2_instance_type": "local",
            "iam_role_name": "role", "num_machines": 1, "region": "us-east-1", "sagemaker_inputs_file": str(inputs),
            "image_uri": "123.dkr.ecr.eu-west-1.amazonaws.com/image:1"}))
        return path

    def test_the_local_mode_runs_the_container_here(self):
        self.install_aws()
        self.install("docker", DOCKER.format(folder=self.folder))
        done = self.launch("--config_file", str(self.local_file()))
        self.assertEqual(done.returncode, 7, done.stderr)
        calls = (self.folder / "docker").read_text().splitlines()
        self.assertEqual(calls[0], "compose version")
        (job,) = (self.folder / "sagemaker-local").iterdir()
        self.assertEqual(calls[-1], f"compose --file {job}/docker-compose.json up --abort-on-container-exit "
                                    "--exit-code-from algo-1")
        self.assertIn("login --username AWS --password-stdin 123.dkr.ecr.eu-west-1.amazonaws.com", calls)
        self.assertEqual((self.folder / "password").read_text(), "secret")
        self.assertEqual((self.folder / "region").read_text(), "us-east-1\n")
        self.assertIn(f"s3 cp --recursive s3://b/train {job}/data/train", (self.folder / "calls").read_text())
        self.assertIn(f"model data at: file://{job}/model", done.stdout)
        self.assertEqual((job / "data/train/one").read_text() + (job / "data/test/test.csv").read_text(), "1\n2\n")
        service = json.loads((job / "docker-compose.json").read_text())["services"]["algo-1"]
        for volume in service["volumes"]:
            self.assertTrue(pathlib.Path(volume["source"]).is_dir(), volume)
        parameters = json.loads((job / "algo-1/config/hyperparameters.json").read_text())
        theirs = json.loads(parameters["learning_rate"])
        self.assertEqual(theirs, 5e-5)

    def test_the_local_mode_without_docker_is_an_error_that_says_so(self):
        self.environment["PATH"] = f"{self.folder}/bin"
        done = self.launch("--config_file", str(self.local_file()))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("docker compose", done.stderr)
        self.assertFalse((self.folder / "sagemaker-local").exists())

    def test_a_channel_without_data_is_an_error_that_names_it(self):
        self.install_aws()
        self.install("docker", DOCKER.format(folder=self.folder))
        done = self.launch("--config_file", str(self.local_file(test="nothing.csv")))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("there is nothing at s3://b/nothing.csv", done.stderr)


if __name__ == "__main__":
    unittest.main()
