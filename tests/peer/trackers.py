#!/usr/bin/env python3
"""What libaccel's trackers write is read by the programs that it is meant for.

TensorBoard's own reader reads the event files, and finds what Accelerate's TensorBoardTracker writes for the same training: the
same runs, tags, steps and values. One process on both sides calls the same kernels in the same order, so losses are equal to the bit (a
scalar of an event file is a float). W&B runs offline, MLflow with a local store and Trackio with a local database, each by its own
SDK. Comet, Aim, ClearML, DVCLive and SwanLab are fakes that record the calls (fake_trackers.py).
"""
import csv
import glob
import importlib.util
import io
import json
import os
import pathlib
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from peer_python import BUILD, PEER, SOURCE

# A Python with tensorboard, wandb, mlflow and trackio, when the peer's has them not.
# Where SDKs leave folders of their own.
SCRATCH = tempfile.TemporaryDirectory()
os.environ["TMPDIR"] = SCRATCH.name
tempfile.tempdir = None
PYTHON = os.environ.get("ACCEL_TRACKER_PYTHON", PEER)
if PYTHON != PEER and os.environ.get("ACCEL_TRACKER_SITE") is None:
    found = subprocess.run([PYTHON, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True)
    os.environ["ACCEL_TRACKER_SITE"] = found.stdout.strip()
if os.environ.get("ACCEL_TRACKER_SITE"):
    sys.path.append(os.environ["ACCEL_TRACKER_SITE"])

import yaml
from PIL import Image

TOOL = os.path.join(BUILD, "tests/tracking_peer")
LAUNCH = os.path.join(BUILD, "bin/accel-launch")
STEPS = 5


def run_tool(folder, trackers, *words, ranks=1, cwd=None, check=True, **variables):
    environment = dict(os.environ, PYTHON_EXEC=PYTHON, OMP_NUM_THREADS="1", WANDB_MODE="offline", WANDB_SILENT="true",
                       MLFLOW_TRACKING_URI=f"sqlite:///{folder}/mlflow.db", TRACKIO_DIR=f"{folder}/trackio",
                       GIT_PYTHON_REFRESH="quiet", **variables)
    command = [TOOL, str(folder), trackers, str(STEPS), *words]
    if ranks > 1:
        command = [LAUNCH, "--num_processes", str(ranks), "--no_python", *command[:1], "--", *command[1:]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=cwd or folder, timeout=300)
    if check and done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done


def losses_of(done):
    lines = [line.split() for line in done.stdout.splitlines()]
    return {int(words[0]): float.fromhex(words[1]) for words in lines if len(words) == 2 and words[0].isdigit()}


PEER_PROGRAM = """
import sys, torch
from accelerate import Accelerator
torch.set_num_threads(1)
steps = int(sys.argv[2])
accelerator = Accelerator(log_with="tensorboard", project_dir=sys.argv[1], cpu=True)
accelerator.init_trackers("project", {"lr": 0.05, "layers": 1, "name": "linear", "bias": True, "nothing": None})
net = torch.nn.Linear(4, 2)
torch.nn.init.constant_(net.weight, 0.1)
torch.nn.init.zeros_(net.bias)
model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.05))
for step in range(steps):
    inputs = torch.arange(12, dtype=torch.float).reshape(3, 4) / 12 + 0.1 * step
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :2])
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.log({"train/loss": loss, "lr": 0.05, "epoch": step // 2}, step)
accelerator.log({"note": "the end", "best": {"train": 0.25, "eval": 0.5}}, steps)
board = accelerator.get_tracker("tensorboard")
board.log_images({"images": torch.arange(2 * 3 * 4 * 5, dtype=torch.float).reshape(2, 3, 4, 5) / 120}, steps)
board.tracker.add_histogram("weights", torch.tensor([(i - 20) * 0.375 for i in range(50)], dtype=torch.double), steps)
accelerator.end_training()
"""


def events_of(folder):
    """{run: {tag: [(step, value)]}}, with times in the names of runs left out."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    runs = {}
    for path in glob.glob(f"{folder}/**/events.out.tfevents.*", recursive=True):
        name = os.path.relpath(os.path.dirname(path), folder)
        name = "TIME" if name.replace(".", "").isdigit() and name != "." else name
        reader = EventAccumulator(path, size_guidance={"scalars": 0, "images": 0, "histograms": 0, "tensors": 0})
        reader.Reload()
        tags = reader.Tags()
        found = runs.setdefault(name, {})
        for tag in tags["scalars"]:
            found[tag] = [(each.step, each.value) for each in reader.Scalars(tag)]
        for tag in tags["tensors"]:
            found[tag] = [(each.step, list(each.tensor_proto.string_val)) for each in reader.Tensors(tag)]
        for tag in tags["images"]:
            found[tag] = [(each.step, each.width, each.height, pixels_of(each.encoded_image_string)) for each in reader.Images(tag)]
        for tag in tags["histograms"]:
            found[tag] = [(each.step, each.histogram_value) for each in reader.Histograms(tag)]
        for tag, content in reader.summary_metadata.items():
            if content.plugin_data.plugin_name == "hparams":
                found[tag] = HParamsPluginData.FromString(content.plugin_data.content)
    return runs


def has_module(name):
    return importlib.util.find_spec(name) is not None


def children_of(pid):
    return [int(child) for path in glob.glob(f"/proc/{pid}/task/*/children") for child in pathlib.Path(path).read_text().split()]


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen within 60 s")
        time.sleep(0.02)


def wandb_records(data):
    """Of a .wandb file: LevelDB's log format after a header of 7 bytes, which is a part of the first block."""
    from wandb.proto import wandb_internal_pb2

    BLOCK, FULL, FIRST, LAST = 32768, 1, 2, 4
    at, parts = 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        part = data[at + 7:at + 7 + length]
        at += 7 + length
        parts = part if kind in (FULL, FIRST) else parts + part
        if kind in (FULL, LAST):
            yield wandb_internal_pb2.Record.FromString(parts)


def wandb_values(items):
    return {each.key or ".".join(each.nested_key): json.loads(each.value_json) for each in items}


def pixels_of(png):
    return Image.open(io.BytesIO(png)).convert("RGB").tobytes()


class Written(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class EventFiles(Written):
    def test_tensorboard_reads_what_accelerate_writes_for_the_same_training(self):
        ours, theirs = self.folder / "ours", self.folder / "theirs"
        ours.mkdir()
        done = run_tool(ours, "tensorboard")
        subprocess.run([PYTHON, "-c", PEER_PROGRAM, str(theirs), str(STEPS)], check=True, capture_output=True)
        found, expected = events_of(ours / "project"), events_of(theirs / "project")
        self.assertEqual(set(found), set(expected))
        for name, tags in expected.items():
            self.assertEqual(set(found[name]), set(tags), name)
            for tag, values in tags.items():
                self.assertEqual(found[name][tag], values, f"{name} {tag}")
        self.assertEqual([step for step, _ in found["."]["train/loss"]], list(losses_of(done)))
        self.assertIn("best_eval", found)

    def test_hparams_stand_in_a_file_of_yaml_too(self):
        run_tool(self.folder, "tensorboard")
        [path] = self.folder.glob("project/*/hparams.yml")
        self.assertEqual(yaml.safe_load(path.read_text()),
                         {"lr": 0.05, "layers": 1, "name": "linear", "bias": True, "nothing": None})


class Lines(Written):
    def test_two_ranks_log_from_the_main_process_alone(self):
        done = run_tool(self.folder, "jsonl,tensorboard,csv", ranks=2)
        lines = [json.loads(line) for line in (self.folder / "project/log.jsonl").read_text().splitlines()]
        self.assertEqual(lines[0]["config"]["layers"], 1)
        steps = [line for line in lines if "train/loss" in line]
        self.assertEqual({line["step"]: line["train/loss"] for line in steps}, losses_of(done))
        self.assertEqual(len(list((self.folder / "project").glob("events.*"))), 1)
        with open(self.folder / "project/log.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([float(row["train/loss"]) for row in rows[:STEPS]], list(losses_of(done).values()))
        self.assertEqual((rows[-1]["best/eval"], rows[-1]["note"]), ("0.5", "the end"))

    def test_a_killed_run_keeps_what_was_flushed(self):
        done = run_tool(self.folder, "jsonl", check=False, ACCEL_TEST_KILL="1")
        self.assertEqual(done.returncode, -9)
        lines = (self.folder / "project/log.jsonl").read_text().splitlines()
        self.assertEqual(len(lines), 1 + STEPS)


@unittest.skipUnless(has_module("wandb") and has_module("mlflow") and has_module("trackio"), "no SDKs beside the peer")
class RealSdks(Written):
    def test_wandb_writes_an_offline_run(self):
        done = run_tool(self.folder, "wandb", "wandb.name=first")
        [path] = self.folder.glob("wandb/offline-run-*/run-*.wandb")
        history, config, project = [], {}, None
        for record in wandb_records(path.read_bytes()):
            if record.WhichOneof("record_type") == "history":
                history.append(wandb_values(record.history.item))
            elif record.WhichOneof("record_type") == "config":
                config.update(wandb_values(record.config.update))
            elif record.WhichOneof("record_type") == "run":
                project = record.run.project
                self.assertEqual(record.run.display_name, "first")
        self.assertEqual(project, "project")
        self.assertEqual((config["layers"], config["name"]), (1, "linear"))
        self.assertEqual({row["_step"]: row["train/loss"] for row in history if "train/loss" in row}, losses_of(done))
        self.assertEqual(len(list(self.folder.glob("wandb/offline-run-*/files/media/images/*.png"))), 2)
        [table] = self.folder.glob("wandb/offline-run-*/files/media/table/guesses_*.table.json")
        self.assertEqual(json.loads(table.read_text()), {"columns": ["word", "count"], "data": [["a", 1], ["b", 2]]})
        self.assertEqual(list((self.folder / "tracker_journals").iterdir()), [])

    def test_mlflow_stores_parameters_and_metrics(self):
        done = run_tool(self.folder, "mlflow", "mlflow.run_name=first")
        database = sqlite3.connect(self.folder / "mlflow.db")
        metrics = dict(database.execute("select step, value from metrics where key = 'train/loss'").fetchall())
        self.assertEqual(metrics, losses_of(done))
        parameters = dict(database.execute("select key, value from params").fetchall())
        self.assertEqual(parameters, {"lr": "0.05", "layers": "1", "name": "linear", "bias": "True", "nothing": "None"})
        self.assertEqual(database.execute("select name, status from runs").fetchall(), [("first", "FINISHED")])
        self.assertEqual(database.execute("select name from experiments where name = 'project'").fetchall(), [("project",)])
        self.assertIn("takes numbers alone: note is left out", done.stderr)
        self.assertEqual(len(list(self.folder.glob("mlruns/*/*/artifacts/facts/hostname"))), 1)

    def test_trackio_stores_metrics(self):
        done = run_tool(self.folder, "trackio", "trackio.name=first")
        [path] = self.folder.glob("trackio/project.db")
        rows = [json.loads(text) for (text,) in sqlite3.connect(path).execute("select metrics from metrics order by step")]
        self.assertEqual([row["train/loss"] for row in rows if "train/loss" in row], list(losses_of(done).values()))

    def test_several_trackers_share_one_process(self):
        done = run_tool(self.folder, "wandb,mlflow,jsonl", ranks=2)
        self.assertIn("done", done.stdout)
        self.assertEqual(len(list(self.folder.glob("wandb/offline-run-*"))), 1)
        metrics = sqlite3.connect(self.folder / "mlflow.db").execute(
            "select count(*) from metrics where key = 'train/loss'").fetchone()
        self.assertEqual(metrics, (STEPS,))


class FakeSdks(Written):
    """The calls are those of Accelerate 1.15's trackers; the SDKs are recorded fakes, not the real ones."""

    def calls_of(self, tracker, *words, **variables):
        self.record = self.folder / f"{tracker}.calls"
        self.done = run_tool(self.folder, tracker, *words, PYTHONPATH=os.path.join(SOURCE, "tests/peer/fake_sdks"),
                             PYTHONDONTWRITEBYTECODE="1", FAKE_SDK_RECORD=str(self.record), **variables)
        return self.recorded()

    def recorded(self):
        return [json.loads(line) for line in self.record.read_text().splitlines()] if self.record.exists() else []

    def test_comet_gets_metrics_others_and_parameters(self):
        calls = self.calls_of("comet_ml", "comet_ml.workspace=mine")
        self.assertEqual(calls[0], ["comet_ml", "start", [], {"project_name": "project", "workspace": "mine"}])
        self.assertEqual(calls[1][1], "log_parameters")
        losses = {call[3]["step"]: call[2][1] for call in calls if call[1] == "log_metric" and call[2][0] == "train/loss"}
        self.assertEqual(losses, losses_of(self.done))
        self.assertIn(["experiment", "log_other", ["note", "the end"], {}], calls)
        self.assertIn(["experiment", "log_metrics", [{"train": 0.25, "eval": 0.5}], {"step": STEPS}], calls)
        self.assertEqual(calls[-1][1], "end")
        self.assertIn("the tracker comet_ml logs no images", self.done.stderr)

    def test_aim_tracks_values_and_images_in_its_repository(self):
        calls = self.calls_of("aim")
        self.assertEqual(calls[0], ["aim", "Run", [], {"repo": str(self.folder)}])
        self.assertEqual(calls[1][:2], ["run", "__setitem__"])
        losses = {call[3]["step"]: call[2][0] for call in calls if call[1] == "track" and call[3]["name"] == "train/loss"}
        self.assertEqual(losses, losses_of(self.done))
        self.assertIn(["aim", "Image", [{"array": [4, 5, 3]}], {"caption": ""}], calls)
        self.assertEqual(calls[-1][1], "close")

    def test_clearml_reports_scalars_by_prefix(self):
        calls = self.calls_of("clearml")
        self.assertEqual(calls[0], ["clearml", "Task.init", [], {"project_name": "project", "task_name": "project"}])
        losses = {call[3]["iteration"]: call[3]["value"] for call in calls
                  if call[1] == "report_scalar" and call[3]["title"] == "train/loss"}
        self.assertEqual(losses, losses_of(self.done))
        self.assertEqual(sum(call[1] == "report_image" for call in calls), 2)
        self.assertEqual(calls[-1][1], "close")

    def test_dvclive_steps_after_each_log(self):
        calls = self.calls_of("dvclive", "dvclive.dir=live")
        self.assertEqual(calls[0], ["dvclive", "Live", [], {"dir": "live"}])
        self.assertEqual([call[2][1] for call in calls if call[1] == "log_metric" and call[2][0] == "train/loss"],
                         list(losses_of(self.done).values()))
        self.assertEqual(sum(call[1] == "next_step" for call in calls), STEPS + 1)
        self.assertEqual(calls[-1][1], "end")

    def test_swanlab_logs_values_and_images(self):
        calls = self.calls_of("swanlab")
        self.assertEqual(calls[0], ["swanlab", "init", [], {"project": "project"}])
        self.assertEqual({call[3]["step"]: call[2][0]["train/loss"] for call in calls
                          if call[1] == "log" and "train/loss" in call[2][0]}, losses_of(self.done))
        self.assertEqual(sum(call[1] == "Image" for call in calls), 2)
        self.assertEqual(calls[-1][1], "finish")

    def test_entries_of_a_tracker_that_was_away_are_replayed_by_the_next_run(self):
        away = self.folder / "away"
        away.touch()
        self.calls_of("comet_ml", FAKE_SDK_AWAY=str(away))
        self.assertIn("the tracker comet_ml is away: ConnectionError: the server is away", self.done.stderr)
        self.assertEqual(len(list((self.folder / "tracker_journals").glob("*.jsonl"))), 1)
        first = losses_of(self.done)
        away.unlink()
        calls = self.calls_of("comet_ml", FAKE_SDK_AWAY=str(away))
        replayed = [call for call in calls if call[:2] == ["experiment", "log_metric"] and call[2][0] == "train/loss"]
        self.assertEqual([call[2][1] for call in replayed], [*first.values(), *losses_of(self.done).values()])
        self.assertIn(["comet_ml", "start", [], {"project_name": "project", "experiment_key": "comet-key", "mode": "get_or_create"}],
                      calls)
        self.assertEqual(list((self.folder / "tracker_journals").iterdir()), [])

    def test_a_killed_run_leaves_no_process_and_no_entry_behind(self):
        self.record = self.folder / "aim.calls"
        done = run_tool(self.folder, "aim,jsonl", check=False, PYTHONPATH=os.path.join(SOURCE, "tests/peer/fake_sdks"),
                        PYTHONDONTWRITEBYTECODE="1", FAKE_SDK_RECORD=str(self.record), ACCEL_TEST_KILL="1")
        # run() has returned, so nobody holds the output of the run any more: its Python has ended, having logged everything.
        self.assertEqual(done.returncode, -9)
        losses = [call[2][0] for call in self.recorded() if call[1] == "track" and call[3]["name"] == "train/loss"]
        self.assertEqual(losses, list(losses_of(done).values()))

    def test_a_python_process_that_dies_is_started_again(self):
        self.record = self.folder / "aim.calls"
        pause = self.folder / "go"
        environment = dict(os.environ, PYTHON_EXEC=PYTHON, PYTHONPATH=os.path.join(SOURCE, "tests/peer/fake_sdks"),
                           PYTHONDONTWRITEBYTECODE="1", FAKE_SDK_RECORD=str(self.record), ACCEL_TEST_PAUSE=str(pause),
                           OMP_NUM_THREADS="1")
        with subprocess.Popen([TOOL, str(self.folder), "aim", str(STEPS)], env=environment, cwd=self.folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tool:
            try:
                wait_until(lambda: any(call[1] == "track" and call[3]["name"] == "images" for call in self.recorded()))
                [child] = children_of(tool.pid)
                os.kill(child, 9)
            finally:
                pause.touch()
            _, err = tool.communicate(timeout=120)
        self.assertEqual(tool.returncode, 0, err)
        self.assertIn("ended with signal 9, and is started again", err)
        calls = self.recorded()
        self.assertIn(["aim", "Run", [], {"repo": str(self.folder), "run_hash": "aim-hash"}], calls)
        self.assertEqual(calls[-1][1], "close")
        # At most the entry that was under way, the last one, came twice.
        self.assertEqual(sum(call[1] == "track" and call[3]["name"] == "train/loss" for call in calls), STEPS)

    def test_a_tracker_that_is_not_installed_is_a_warning(self):
        done = run_tool(self.folder, "comet_ml")
        self.assertIn("`log_with=comet_ml` was passed but no supported trackers are currently installed.", done.stderr)
        self.assertIn("done", done.stdout)


if __name__ == "__main__":
    unittest.main()
