#!/usr/bin/env python3
"""Checks config/compose.yaml: by docker-compose, and everything that has to agree.

    tests/run manifests                  installs what this needs, builds forkpoint, runs everything
    tests/ship/compose.py [TEST...]      once all of that is there

There is no container engine here, so nothing is started; image.py runs the image itself.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path, PurePosixPath
from typing import Any

sys.dont_write_bytecode = True

import yaml  # noqa: E402
from settings import FORKPOINT, ROOT, effective, port_of, shown_in_readme, version  # noqa: E402

COMPOSE = ROOT / "config" / "compose.yaml"
GRAFANA, PROMETHEUS = 3000, 9090


class Compose(unittest.TestCase):
    """As docker-compose reads it: variables filled in, anchors resolved, paths absolute."""

    services: dict[str, Any]

    @classmethod
    def setUpClass(cls) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith("FORKPOINT_")}
        done = subprocess.run(
            ["docker-compose", "-f", COMPOSE, "config"], env=own, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        cls.services = yaml.safe_load(done.stdout)["services"]

    def test_the_readme_starts_this_file(self) -> None:
        (words,) = shown_in_readme("docker compose ")
        self.assertEqual(ROOT / words[words.index("-f") + 1], COMPOSE)
        self.assertEqual(words[-2:], ["up", "--build"])

    def test_it_runs_this_version_without_a_key(self) -> None:
        upstream = effective(self.services["forkpoint"]["environment"])["upstream.url"]
        name, port = re.fullmatch(r"http://(\w+):(\d+)", upstream).groups()
        command = self.services[name]["command"]
        self.assertEqual(command[:2], ["sim", "--listen"])
        self.assertEqual(command[2], f"0.0.0.0:{port}")
        # The rules are printed only after the rest of the command line was understood.
        subprocess.run([FORKPOINT, *command, "--list-rules"], stdout=subprocess.DEVNULL, check=True)
        for service in ["forkpoint", name]:
            self.assertEqual(self.services[service]["image"], f"forkpoint:{version()}")
            self.assertIs(self.services[service]["read_only"], True)
            self.assertEqual(self.services[service]["cap_drop"], ["ALL"])

    def test_what_listens_is_published_to_this_machine_only(self) -> None:
        settings = effective(self.services["forkpoint"]["environment"])
        published = {}
        for service in self.services.values():
            for port in service.get("ports", []):
                host, outside, inside = re.fullmatch(r"([\d.]+):(\d+):(\d+)/tcp", port).groups()
                self.assertEqual(host, "127.0.0.1")
                published[int(outside)] = int(inside)
        ours = port_of(settings["server.listen"])
        self.assertEqual(published, {port: port for port in [ours, GRAFANA, PROMETHEUS]})

    def test_the_grace_period_covers_the_drain(self) -> None:
        forkpoint = self.services["forkpoint"]
        settings = effective(forkpoint["environment"])
        grace = int(forkpoint["stop_grace_period"].removesuffix("s"))
        self.assertLess(settings["drain.delay_ms"] / 1000 + settings["drain.deadline_s"], grace)

    def mounts(self, service: str) -> dict[PurePosixPath, Path]:
        """Folders and files of this repository, by where the service finds them."""
        parts = [volume.split(":") for volume in self.services[service]["volumes"]]
        return {PurePosixPath(inside): Path(ours) for ours, inside, how in parts if how == "ro"}

    def test_what_is_mounted_is_there(self) -> None:
        sources = [path for name in ["prometheus", "grafana"] for path in self.mounts(name).values()]
        self.assertEqual(len(sources), 4)
        for source in sources:
            self.assertTrue(source.exists(), source)

    def test_prometheus_scrapes_forkpoint_and_finds_its_rules(self) -> None:
        mounts = self.mounts("prometheus")
        config = PurePosixPath("/etc/prometheus/prometheus.yml")
        read = yaml.safe_load(mounts[config].read_text())
        for rules in read["rule_files"]:
            self.assertIn(PurePosixPath(os.path.normpath(config.parent / rules)), mounts)
        settings = effective(self.services["forkpoint"]["environment"])
        targets = [t for job in read["scrape_configs"] for c in job["static_configs"] for t in c["targets"]]
        self.assertEqual(self.services["prometheus"]["network_mode"], "service:forkpoint")
        self.assertEqual(targets, [settings["server.admin_listen"]])

    def test_grafana_finds_prometheus_and_the_dashboard(self) -> None:
        mounts = self.mounts("grafana")
        provisioning = mounts[PurePosixPath("/etc/grafana/provisioning")]
        read = {
            kind: [yaml.safe_load(path.read_text()) for path in (provisioning / kind).iterdir()]
            for kind in ["datasources", "dashboards"]
        }
        self.assertEqual(self.services["grafana"]["network_mode"], "service:forkpoint")
        urls = [source["url"] for file in read["datasources"] for source in file["datasources"]]
        self.assertEqual(urls, [f"http://127.0.0.1:{PROMETHEUS}"])
        home = self.services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        self.assertIn(PurePosixPath(home), mounts)
        folders = [provider["options"]["path"] for file in read["dashboards"] for provider in file["providers"]]
        self.assertEqual(folders, [str(PurePosixPath(home).parent)])


if __name__ == "__main__":
    unittest.main(verbosity=2)
