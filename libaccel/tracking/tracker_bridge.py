"""The process in which the Python SDKs of experiment trackers run (libaccel/tracking/bridge_process.h).

Standard input is a socket to the training process:

    in    open JOURNAL      a journal to serve, one entry of JSON a line
          wake              it has grown
          (end)             the training process has ended: finish what is there, within END_GRACE seconds
    out   {"tracker":T,"journal":J,"started":RUN}   {..,"error":TEXT}   {..,"done":true}   {..,"notice":TEXT}

Each journal has a thread. JOURNAL.progress says how far it has come, and which run of the SDK it belongs to:
{"offset":BYTES,"run":ID}. It is written after each entry that the SDK took, so that an entry is given to the SDK at least once,
and twice only when this process dies between the two. A journal whose last entry was taken is removed.
Journals of earlier runs that nobody serves are finished first.

`tracker_bridge.py probe` prints which SDKs can be imported.
"""

import base64
import fcntl
import glob
import importlib.util
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback

END_GRACE = 10  # seconds that SDKs have once the training process has ended
RETRIES = 3
RETRY_PAUSE = 0.5  # seconds, times the number of tries
PACKAGES = {"wandb": "wandb", "trackio": "trackio", "comet_ml": "comet_ml", "aim": "aim", "mlflow": "mlflow",
            "clearml": "clearml", "dvclive": "dvclive", "swanlab": "swanlab"}


class Unloggable(Exception):
    """An entry that this SDK never takes."""


def is_number(value):
    return isinstance(value, (int, float))


def arrays_of(batch):
    import numpy

    pixels = numpy.frombuffer(base64.b64decode(batch["pixels"]), dtype=numpy.uint8)
    images = pixels.reshape(batch["count"], batch["height"], batch["width"], batch["channels"])
    return [image[:, :, 0] if batch["channels"] == 1 else image for image in images]


class Tracker:
    """One run of an SDK, with the calls of Accelerate 1.15's tracker of that name."""

    def __init__(self, project, logging_dir, kwargs, notice):
        self.project, self.logging_dir, self.kwargs, self.notice = project, logging_dir, kwargs, notice

    def run_id(self):
        return None

    def log_images(self, values, step, kwargs):
        raise Unloggable("it logs no images")

    def call(self, name, kwargs):
        raise Unloggable(f"it has no {name}()")


class WandB(Tracker):
    def start(self, run):
        import wandb

        again = {"id": run, "resume": "allow"} if run else {}
        self.run = wandb.init(project=self.project, **{**self.kwargs, **again})

    def run_id(self):
        return self.run.id

    def config(self, values):
        self.run.config.update(values, allow_val_change=True)

    def log(self, values, step, kwargs):
        self.run.log(values, step=step, **kwargs)

    def log_images(self, values, step, kwargs):
        import wandb

        for name, batch in values.items():
            self.log({name: [wandb.Image(image) for image in arrays_of(batch)]}, step, kwargs)

    def call(self, name, kwargs):
        import wandb

        if name != "log_table":
            return super().call(name, kwargs)
        self.log({kwargs["table_name"]: wandb.Table(columns=kwargs["columns"], data=kwargs["data"])}, kwargs.get("step"), {})

    def finish(self):
        self.run.finish()


class Trackio(Tracker):
    def start(self, run):
        import trackio

        again = {"name": run, "resume": "allow"} if run else {}
        self.run = trackio.init(project=self.project, **{**self.kwargs, **again})

    def run_id(self):
        return self.run.name

    def config(self, values):
        import trackio

        trackio.config.update(values)

    def log(self, values, step, kwargs):
        self.run.log(values, step=step, **kwargs)

    def finish(self):
        self.run.finish()


class CometML(Tracker):
    def start(self, run):
        import comet_ml

        again = {"experiment_key": run, "mode": "get_or_create"} if run else {}
        self.writer = comet_ml.start(project_name=self.project, **{**self.kwargs, **again})

    def run_id(self):
        return self.writer.get_key()

    def config(self, values):
        self.writer.log_parameters(values)

    def log(self, values, step, kwargs):
        if step is not None:
            self.writer.set_step(step)
        for name, value in values.items():
            if is_number(value):
                self.writer.log_metric(name, value, step=step, **kwargs)
            elif isinstance(value, str):
                self.writer.log_other(name, value, **kwargs)
            elif isinstance(value, dict):
                self.writer.log_metrics(value, step=step, **kwargs)

    def finish(self):
        self.writer.end()


class Aim(Tracker):
    def start(self, run):
        from aim import Run

        again = {"run_hash": run} if run else {}
        self.writer = Run(repo=self.logging_dir, **{**self.kwargs, **again})
        self.writer.name = self.project

    def run_id(self):
        return self.writer.hash

    def config(self, values):
        self.writer["hparams"] = values

    def log(self, values, step, kwargs):
        for name, value in values.items():
            self.writer.track(value, name=name, step=step, **kwargs)

    def log_images(self, values, step, kwargs):
        import aim

        for name, batch in values.items():
            images = [aim.Image(image, **kwargs.get("aim_image", {})) for image in arrays_of(batch)]
            self.writer.track(images[0] if len(images) == 1 else images, name=name, step=step, **kwargs.get("track", {}))

    def finish(self):
        self.writer.close()


class MLflow(Tracker):
    def start(self, run):
        import mlflow

        named = {"run_id", "tags", "nested_run", "run_name", "description", "logging_dir", "experiment_name"}
        if unknown := set(self.kwargs) - named:
            raise Unloggable(f"MLflowTracker has no option {sorted(unknown)[0]}")
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", self.kwargs.get("experiment_name", self.project))
        tags = os.environ.get("MLFLOW_TAGS", self.kwargs.get("tags"))
        tags = json.loads(tags) if isinstance(tags, str) else tags
        nested = os.environ.get("MLFLOW_NESTED_RUN", self.kwargs.get("nested_run", False))
        if isinstance(nested, str):
            nested = nested.lower() in ("y", "yes", "t", "true", "on", "1")
        found = mlflow.search_experiments(filter_string=f"name = '{experiment}'")
        if len(found) > 1:
            self.notice("Multiple experiments with the same name found. Using first one.")
        experiment_id = found[0].experiment_id if found else mlflow.create_experiment(
            name=experiment, artifact_location=self.kwargs.get("logging_dir"), tags=tags)
        self.run = mlflow.start_run(
            run_id=run or os.environ.get("MLFLOW_RUN_ID", self.kwargs.get("run_id")), experiment_id=experiment_id,
            run_name=self.kwargs.get("run_name"), nested=nested, tags=tags, description=self.kwargs.get("description"))

    def run_id(self):
        return self.run.info.run_id

    def config(self, values):
        import mlflow
        from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH, MAX_PARAMS_TAGS_PER_BATCH

        kept = []
        for name, value in values.items():
            if len(str(value)) > MAX_PARAM_VAL_LENGTH:
                self.notice(f"MLflow takes parameters of at most {MAX_PARAM_VAL_LENGTH} characters: {name} is left out")
            else:
                kept.append((name, value))
        for i in range(0, len(kept), MAX_PARAMS_TAGS_PER_BATCH):
            mlflow.log_params(dict(kept[i:i + MAX_PARAMS_TAGS_PER_BATCH]))

    def log(self, values, step, kwargs):
        import mlflow

        for name, value in values.items():
            if not is_number(value):
                self.notice(f"MLflow's log_metric() takes numbers alone: {name} is left out")
        mlflow.log_metrics({name: value for name, value in values.items() if is_number(value)}, step=step, **kwargs)

    def call(self, name, kwargs):
        import mlflow

        if name not in ("log_artifact", "log_artifacts"):
            return super().call(name, kwargs)
        getattr(mlflow, name)(**kwargs)

    def finish(self):
        import mlflow

        mlflow.end_run()


class ClearML(Tracker):
    def start(self, run):
        from clearml import Task

        arguments = dict(self.kwargs)
        arguments.setdefault("project_name", os.environ.get("CLEARML_PROJECT", self.project))
        arguments.setdefault("task_name", os.environ.get("CLEARML_TASK", self.project))
        if run:
            arguments["continue_last_task"] = run
        self.task = Task.init(**arguments)

    def run_id(self):
        return self.task.id

    def config(self, values):
        self.task.connect_configuration(values)

    @staticmethod
    def place_of(name):
        for prefix in ("eval", "test", "train"):
            if name.startswith(prefix + "_"):
                return {"title": name[len(prefix) + 1:], "series": prefix}
        return {"title": name, "series": "train"}

    def log(self, values, step, kwargs):
        logger = self.task.get_logger()
        for name, value in values.items():
            if not is_number(value):
                self.notice(f"ClearML's report_scalar() takes numbers alone: {name} is left out")
            elif step is None:
                logger.report_single_value(name=name, value=value, **kwargs)
            else:
                logger.report_scalar(**self.place_of(name), value=value, iteration=step, **kwargs)

    def log_images(self, values, step, kwargs):
        for name, batch in values.items():
            for image in arrays_of(batch):
                self.task.get_logger().report_image(**self.place_of(name), iteration=step, image=image, **kwargs)

    def call(self, name, kwargs):
        if name != "log_table":
            return super().call(name, kwargs)
        rows = [kwargs["columns"], *kwargs["data"]] if kwargs["columns"] else kwargs["data"]
        self.task.get_logger().report_table(
            **self.place_of(kwargs["table_name"]), table_plot=rows, iteration=kwargs.get("step"))

    def finish(self):
        self.task.close()


class DVCLive(Tracker):
    def start(self, run):
        from dvclive import Live

        self.live = Live(**{**self.kwargs, **({"resume": True} if run else {})})

    def run_id(self):
        return "live"

    def config(self, values):
        self.live.log_params(values)

    def log(self, values, step, kwargs):
        from dvclive.plots import Metric

        if step is not None:
            self.live.step = step
        for name, value in values.items():
            if Metric.could_log(value):
                self.live.log_metric(name, value, **kwargs)
            else:
                self.notice(f"DVCLive's log_metric() does not take the value of {name}: it is left out")
        self.live.next_step()

    def finish(self):
        self.live.end()


class SwanLab(Tracker):
    def start(self, run):
        import swanlab

        again = {"id": run, "resume": "allow"} if run else {}
        self.run = swanlab.init(project=self.project, **{**self.kwargs, **again})
        swanlab.config["FRAMEWORK"] = "accel"

    def run_id(self):
        return getattr(self.run, "id", None)

    def config(self, values):
        import swanlab

        swanlab.config.update(values, allow_val_change=True)

    def log(self, values, step, kwargs):
        self.run.log(values, step=step, **kwargs)

    def log_images(self, values, step, kwargs):
        import swanlab

        for name, batch in values.items():
            self.log({name: [swanlab.Image(image) for image in arrays_of(batch)]}, step, kwargs)

    def finish(self):
        self.run.finish()


TRACKERS = {"wandb": WandB, "trackio": Trackio, "comet_ml": CometML, "aim": Aim, "mlflow": MLflow, "clearml": ClearML,
            "dvclive": DVCLive, "swanlab": SwanLab}


class Journal:
    """A file of entries, and how far an SDK has come in it. Holds a lock on the progress file for its life."""

    def __init__(self, path):
        self.path = path
        self.progress = open(path + ".progress", "r+" if os.path.exists(path + ".progress") else "w+")
        fcntl.flock(self.progress, fcntl.LOCK_EX | fcntl.LOCK_NB)
        text = self.progress.read()
        self.width = len(text)
        done = json.loads(text or '{"offset": 0, "run": null}')
        self.offset, self.run = done["offset"], done["run"]
        self.file = open(path, "rb")
        self.start = json.loads(self.file.readline())
        self.offset = max(self.offset, self.file.tell())

    def next_entry(self):
        """(entry, offset behind it), or None while there is no whole line more."""
        self.file.seek(self.offset)
        line = self.file.readline()
        return (json.loads(line), self.offset + len(line)) if line.endswith(b"\n") else None

    def note(self, offset, run):
        self.offset, self.run = offset, run
        # One write over the one before, padded: whenever this process is killed, one of the two is there.
        self.width = max(self.width, len(text := json.dumps({"offset": offset, "run": run})))
        os.pwrite(self.progress.fileno(), text.ljust(self.width).encode(), 0)

    def close(self, remove):
        if remove:
            for name in (self.path, self.path + ".progress"):
                if os.path.exists(name):
                    os.unlink(name)
        self.file.close()
        self.progress.close()


def abandoned_journals(own):
    """Of the same tracker in the same folder, whose training process has ended. The oldest first."""
    folder, name = os.path.split(own)
    tracker = name.split("-")[0]
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), f"{tracker}-*.jsonl"))):  # by the time in their names
        if path == own:
            continue
        try:
            with open(path, "rb") as file:  # its process holds a lock as long as it lives
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Journal(path)
        except (OSError, ValueError):
            continue


class Bridge:
    def __init__(self, connection):
        self.connection = connection
        self.sending = threading.Lock()
        self.grown = threading.Condition()
        self.has_ended = False
        self.threads = []

    def send(self, journal, **facts):
        line = json.dumps({"tracker": journal.start["tracker"], "journal": journal.path, **facts}) + "\n"
        with self.sending:
            try:
                self.connection.sendall(line.encode())
            except OSError:
                pass  # the training process has ended

    def give(self, journal, tracker, entry):
        kind, step, kwargs = entry["op"], entry.get("step"), entry.get("kwargs", {})
        if kind == "config":
            tracker.config(entry["values"])
        elif kind == "log":
            tracker.log(entry["values"], step, kwargs)
        elif kind == "images":
            tracker.log_images(entry["values"], step, kwargs)
        elif kind == "call":
            tracker.call(entry["name"], kwargs)

    def give_patiently(self, journal, tracker, entry):
        """Tries again what fails for a reason outside of the entry; what the SDK never takes is left out, and reported."""
        for attempt in range(1, RETRIES + 1):
            try:
                return self.give(journal, tracker, entry)
            except (Unloggable, TypeError, ValueError, KeyError) as error:
                self.send(journal, notice=f"an entry is left out: {error}")
                return
            except Exception:
                if attempt == RETRIES:
                    raise
                time.sleep(RETRY_PAUSE * attempt)

    def serve(self, journal, is_own):
        """Gives all entries to the SDK. An own journal is followed until its end is said, or the training process has ended."""
        noticed = set()

        def notice(text):
            if text not in noticed:
                self.send(journal, notice=text)
            noticed.add(text)

        first = journal.start
        tracker = TRACKERS[first["tracker"]](first["project"], first["logging_dir"], first["kwargs"], notice)
        tracker.start(journal.run)
        journal.note(journal.offset, tracker.run_id())
        self.send(journal, started=journal.run)
        while True:
            found = journal.next_entry()
            if found is None:
                if not is_own or self.has_ended:
                    break
                with self.grown:
                    self.grown.wait(1.0)
                continue
            entry, offset = found
            if entry["op"] == "finish":
                break
            self.give_patiently(journal, tracker, entry)
            journal.note(offset, journal.run)
        tracker.finish()

    def replay(self, journal, own):
        """What an earlier run left. Its failure is not that of the own run."""
        try:
            if journal.next_entry() is not None:
                self.serve(journal, is_own=False)
                self.send(own, notice=f"the entries of an earlier run are replayed: {journal.path}")
            journal.close(remove=True)
        except Exception as error:
            traceback.print_exc()
            self.send(own, notice=f"the entries of an earlier run could not be replayed: {journal.path}: {error}")
            journal.close(remove=False)

    def serve_all(self, path):
        own = Journal(path)
        try:
            for journal in abandoned_journals(path):
                self.replay(journal, own)
            self.serve(own, is_own=True)
            own.close(remove=True)
            self.send(own, done=True)
        except BaseException as error:
            traceback.print_exc()
            self.send(own, error=f"{type(error).__name__}: {error}")

    def run(self):
        for line in self.connection.makefile("r"):
            words = line.rstrip("\n").split(" ", 1)
            if words[0] == "open":
                thread = threading.Thread(target=self.serve_all, args=(words[1],), daemon=True)
                self.threads.append(thread)
                thread.start()
            with self.grown:
                self.grown.notify_all()
        self.has_ended = True
        with self.grown:
            self.grown.notify_all()
        deadline = time.monotonic() + END_GRACE
        for thread in self.threads:
            thread.join(max(deadline - time.monotonic(), 0))


def main():
    if sys.argv[1:] == ["probe"]:
        specs = {name: importlib.util.find_spec(package) for name, package in PACKAGES.items()}
        # A folder of that name in the working directory, which W&B makes, has a spec without an origin.
        print(json.dumps([name for name, spec in specs.items() if spec and spec.origin]))
        return
    for number in (signal.SIGINT, signal.SIGTERM):  # of the training process: this one ends after it, by itself
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what SDKs print
    Bridge(connection).run()
    sys.stdout.flush()
    os._exit(0)  # whatever threads of SDKs still do


if __name__ == "__main__":
    main()
