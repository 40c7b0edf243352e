#!/usr/bin/env python3
"""deploy/prometheus and deploy/grafana: judged by promtool, and beside a real Prometheus that scrapes a real agent.

Run by ctest. Without Debian's package `prometheus` it is skipped.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import yaml
from run import HERE, PATIENCE, MetricsTest, one_agent

SOURCE = one_agent.SOURCE
RULES = SOURCE / "deploy/prometheus/accel_rules.yml"
DASHBOARD = SOURCE / "deploy/grafana/accel.json"
OF_PROMETHEUS = {"up": {"job", "instance"}, "ALERTS": {"alertname", "alertstate"}}


def families():
    """{name of a series: its labels} of the table in docs/reference/metrics.md, which a unit test compares with that in code."""
    found = {}
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]*)\|", (SOURCE / "docs/reference/metrics.md").read_text(), re.M)
    for name, kind, labels in rows:
        names = {label.strip() for label in labels.split(",") if label.strip()} | {"job", "instance"}
        if kind == "histogram":
            found |= {name + "_bucket": names | {"le"}, name + "_sum": names, name + "_count": names}
        else:
            found[name] = names
    return found


def rules():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def known_series():
    """With what the recording rules make; their labels are those of any family."""
    made = {rule["record"]: {"job", "node", "local_rank", "instance"} for rule in rules() if "record" in rule}
    return families() | OF_PROMETHEUS | made


def series_of(expression):
    """[(name, [labels in its matcher])] of an expression of PromQL."""
    found = []
    for name, matcher in re.findall(r"\b((?:accel|process)[_:][\w:]+|up|ALERTS)\b(?:\{([^}]*)\})?", expression):
        found.append((name, re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", re.sub(r'"[^"]*"', '""', matcher))))
    return found


def panel_queries():
    """[(title, expression)], with the variables as Grafana would fill them in."""
    board = json.loads(DASHBOARD.read_text())
    queries = [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", [])]
    queries += [(note["name"], note["expr"]) for note in board["annotations"]["list"]]
    queries += [(one["name"], re.fullmatch(r"label_values\((\w+), \w+\)", one["query"])[1])
                for one in board["templating"]["list"] if one["type"] == "query"]
    return [(title, text.replace("$__rate_interval", "1m").replace("$job", ".*")) for title, text in queries]


class Files(unittest.TestCase):
    def promtool(self, *words):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_promtool_accepts_configuration_and_rules(self):
        self.promtool("check", "config", "--lint-fatal", SOURCE / "deploy/prometheus/prometheus.yml")
        self.promtool("check", "rules", "--lint-fatal", RULES)

    def test_each_alert_fires_when_it_should_and_not_before(self):
        self.promtool("test", "rules", HERE / "accel_rules_test.yml")
        cases = yaml.safe_load((HERE / "accel_rules_test.yml").read_text())["tests"]
        tried = [(case["alertname"], bool(case["exp_alerts"])) for test in cases for case in test["alert_rule_test"]]
        for rule in rules():
            if "alert" in rule:
                self.assertIn((rule["alert"], True), tried)
                self.assertIn((rule["alert"], False), tried)

    def test_rules_and_dashboard_name_only_families_and_labels_that_exist(self):
        known = known_series()
        queries = panel_queries() + [(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]
        for title, expression in queries:
            named = series_of(expression)
            self.assertTrue(named, f"{title}: {expression}")
            for name, labels in named:
                self.assertIn(name, known, title)
                self.assertLessEqual(set(labels), known[name], f"{title}: {expression}")

    def test_the_dashboard_shows_each_family_and_its_panels_do_not_overlap(self):
        shown = {name for _, expression in panel_queries() for name, _ in series_of(expression)}
        shown |= {name for rule in rules() for name, _ in series_of(rule["expr"])}
        for name in families():
            if not re.search(r"_(bucket|sum|count)$|^process_start|leader_epoch|_starts_total$", name):
                self.assertIn(name, shown)
        board = json.loads(DASHBOARD.read_text())
        taken = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            self.assertFalse(cells & taken, panel["title"])
            taken |= cells
        self.assertEqual(len({panel["id"] for panel in board["panels"]}), len(board["panels"]))

    def test_provisioning_names_folder_and_server(self):
        folder = SOURCE / "deploy/grafana/provisioning"
        boards = yaml.safe_load((folder / "dashboards/accel.yml").read_text())
        self.assertEqual((boards["apiVersion"], boards["providers"][0]["type"]), (1, "file"))
        self.assertTrue(boards["providers"][0]["options"]["path"].startswith("/"))
        sources = yaml.safe_load((folder / "datasources/prometheus.yml").read_text())
        self.assertEqual((sources["apiVersion"], sources["datasources"][0]["type"]), (1, "prometheus"))


class Alerts(MetricsTest):
    """The shipped configuration at work: five scrapes a second, and alerts that have to hold for a minute hold for a second."""

    def setUp(self):
        super().setUp()
        shutil.copy(RULES, self.folder)
        path = pathlib.Path(self.folder) / RULES.name
        path.write_text(re.sub("for: 1m", "for: 1s", path.read_text()))
        text = (SOURCE / "deploy/prometheus/prometheus.yml").read_text()
        for shipped, here in (("127.0.0.1:29401", f"127.0.0.1:{self.port}"), ("scrape_interval: 15s", "scrape_interval: 200ms"),
                              ("evaluation_interval: 15s", "evaluation_interval: 200ms\n  scrape_timeout: 200ms")):
            self.assertEqual(text.count(shipped), 1)
            text = text.replace(shipped, here)
        self.start_prometheus(text)
        self.wait_for(lambda: self.query("up == 1"), "the first scrape")

    def firing(self):
        """{(name, job)}; None while Prometheus does not answer."""
        data = self.ask_prometheus("alerts")
        return data and {(alert["labels"]["alertname"], alert["labels"].get("job")) for alert in data["alerts"] if alert["state"] == "firing"}

    def test_a_job_that_fails_and_an_agent_that_ends_fire_their_alerts(self):
        self.start_with_steps("good")
        self.wait_for(lambda: self.query('accel_worker_step{job="good"} > 0'), "a step")
        # In another way each time: the same way three times in a row ends the job.
        done = self.accel("run", "--name", "fails", "--max_restarts", 3, "--", "/bin/sh", "-c", "exit $((3 + TORCHELASTIC_RESTART_COUNT))")
        self.assertEqual(done.returncode, 6, done.stderr)
        expected = {("AccelJobRestartsInALoop", "fails"), ("AccelJobFailed", "fails")}
        self.wait_for(lambda: expected <= (self.firing() or set()), "the alerts of the job")
        self.assertEqual(self.firing(), expected)  # and none of the good one, nor of the agent

        self.accel("stop", "--kill", "good")
        self.agent.end()
        self.wait_for(lambda: ("AccelAgentDown", "accel-agent") in (self.firing() or set()), "the alert of the agent")

    def test_each_panel_of_which_the_agent_serves_the_families_has_something_to_show(self):
        self.start_with_steps("good")
        done = self.accel("run", "--name", "fails", "--max_restarts", 3, "--", "/bin/sh", "-c", "sleep 0.5; exit 3")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.wait_for(lambda: ("AccelJobFailed", "fails") in (self.firing() or set()), "an alert to show")
        served = {re.split(r"[{ ]", line)[0] for line in self.get("/metrics").splitlines() if not line.startswith("#")}
        served |= OF_PROMETHEUS.keys() | {"accel:agent_event_loop_lag_seconds:p99_5m"}
        num_shown = 0
        for title, expression in panel_queries():
            self.assertIsNotNone(self.query(expression), f"{title}: {expression} is refused")
            if {name for name, _ in series_of(expression)} <= served:
                self.wait_for(lambda: self.query(expression), f"{title}: {expression}")
                num_shown += 1
        self.assertGreater(num_shown, 20)
        self.accel("stop", "--kill", "good")


if __name__ == "__main__":
    if not (shutil.which("promtool") and shutil.which("prometheus")):
        print("skipped: needs Debian's package prometheus")
        sys.exit(77)
    unittest.main(verbosity=2)
