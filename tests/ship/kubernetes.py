#!/usr/bin/env python3
"""Checks config/kubernetes: each object by its schema, and everything that has to agree.

    tests/run manifests                    installs what this needs, builds forkpoint, runs everything
    tests/ship/kubernetes.py [TEST...]     once all of that is there

There is no cluster here. What is checked are the schemas of two versions of Kubernetes, the rendering of every
overlay, and the references that no schema knows: ports, selectors, names, variables. Every variable is judged by
the real `forkpoint check-config`, every probed path asked from a running forkpoint.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import unittest
import urllib.request
from typing import Any

sys.dont_write_bytecode = True

import kubernetes_validate  # noqa: E402
import yaml  # noqa: E402
from kustomize import every_container, render  # noqa: E402
from settings import (  # noqa: E402
    FORKPOINT,
    ROOT,
    effective,
    image_arguments,
    image_environment,
    port_of,
    shown_in_readme,
    version,
)

KUBERNETES = ROOT / "config" / "kubernetes"
# The modes, in the order of the rollout; each has a folder of its name.
MODES = ["observe", "align", "fork"]
# The oldest with native sidecars that is still worth testing, and the newest known.
VERSIONS = ["1.30", "1.37"]
# What forkpoint takes beside what its limits count: code, connections, streams.
MEMORY_BESIDE = 128 << 20

Object = dict[str, Any]


# --- reading --------------------------------------------------------------------------------------


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


def the(objects: list[Object], kind: str) -> Object:
    (only,) = of_kind(objects, kind)
    return only


def pod_of(objects: list[Object]) -> Object:
    return the(objects, "Deployment")["spec"]["template"]


def sidecar_of(objects: list[Object]) -> Object:
    (only,) = pod_of(objects)["spec"]["initContainers"]
    return only


def probes_of(objects: list[Object]) -> list[Object]:
    return [sidecar_of(objects)[f"{kind}Probe"]["httpGet"] for kind in ["startup", "readiness", "liveness"]]


# --- what has to agree ----------------------------------------------------------------------------


class Manifests(unittest.TestCase):
    def test_every_file_belongs_to_an_overlay(self) -> None:
        reached, folders = set(), [KUBERNETES / mode for mode in MODES]
        while folders:
            folder = folders.pop()
            reached.add(folder / "kustomization.yaml")
            for resource in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
                path = (folder / resource).resolve()
                folders.append(path) if path.is_dir() else reached.add(path)
        self.assertEqual(reached, {path for path in KUBERNETES.rglob("*") if path.is_file()})

    def test_what_the_readme_applies_can_be_rendered(self) -> None:
        applied = [words[-1] for words in shown_in_readme("kubectl apply -k")]
        self.assertEqual(applied, [f"config/kubernetes/{mode}" for mode in MODES])
        for folder in applied:
            self.assertTrue(of_kind(render(ROOT / folder), "Deployment"), folder)

    def test_every_overlay_is_checked(self) -> None:
        folders = {path.name for path in KUBERNETES.iterdir()} - {"base"}
        self.assertEqual(folders, set(MODES))
        self.assertEqual(MODES, [overlay.mode for overlay in Overlay.__subclasses__()])

    def test_the_schemas_know_native_sidecars_and_refuse_what_they_do_not_know(self) -> None:
        for api in VERSIONS:
            for broken in [{"restartPolicy": 1}, {"restartpolicy": "Always"}]:
                objects = render(KUBERNETES / "base")
                sidecar_of(objects).update(broken)
                with self.assertRaises(kubernetes_validate.ValidationError):
                    kubernetes_validate.validate(the(objects, "Deployment"), api, strict=True)

    def test_what_is_probed_and_scraped_answers(self) -> None:
        objects = render(KUBERNETES / "observe")
        paths = {probe["path"] for probe in probes_of(objects)}
        paths.add(pod_of(objects)["metadata"]["annotations"]["prometheus.io/path"])
        self.assertEqual(paths, {"/healthz", "/readyz", "/metrics"})
        doors = ["FORKPOINT_LISTEN", "FORKPOINT_ADMIN_LISTEN", "FORKPOINT_SERVER__METRICS_LISTEN"]
        environment = image_environment() | the(objects, "ConfigMap")["data"]
        environment |= {door: "127.0.0.1:0" for door in doors} | {"FORKPOINT_UPSTREAM": "http://127.0.0.1:9"}
        arguments = sidecar_of(objects).get("args", image_arguments())
        with subprocess.Popen([FORKPOINT, *arguments], env=environment, stderr=subprocess.PIPE, text=True) as proxy:
            try:
                lines = iter(proxy.stderr.readline, "")
                url = next(found[1] for line in lines if (found := re.search(r'"metrics":"(http[^"]+)"', line)))
                for path in paths:
                    with urllib.request.urlopen(url + path, timeout=10) as answer:
                        self.assertEqual(answer.status, 200)
            finally:
                proxy.terminate()


class Overlay:
    """What holds of every overlay; the classes below name them."""

    mode: str

    def setUp(self) -> None:
        self.objects = render(KUBERNETES / self.mode)
        self.pod = pod_of(self.objects)
        self.sidecar = sidecar_of(self.objects)

    def settings(self) -> Object:
        return effective(the(self.objects, "ConfigMap")["data"])

    def test_every_object_is_valid(self) -> None:
        self.assertEqual({each["kind"] for each in self.objects}, {"ConfigMap", "Deployment", "Service"})
        for each in self.objects:
            for api in VERSIONS:
                kubernetes_validate.validate(each, api, strict=True)

    @unittest.skipUnless(shutil.which("kubectl"), "no kubectl to compare with")
    def test_kubectl_renders_the_same(self) -> None:
        theirs = subprocess.run(
            ["kubectl", "kustomize", KUBERNETES / self.mode], capture_output=True, text=True, check=True
        ).stdout
        name = re.search(r"name: (forkpoint-[a-z0-9]{10})$", theirs, re.M)[1]
        # The digest is in the map's own name, and in the sidecar's reference to it.
        self.assertEqual(theirs.count(name), 2)
        objects = yaml.safe_load_all(theirs.replace(name, "forkpoint"))
        by_kind = lambda each: each["kind"]  # noqa: E731
        self.assertEqual(sorted(objects, key=by_kind), sorted(self.objects, key=by_kind))

    def test_it_runs_in_the_mode_it_is_named_after(self) -> None:
        self.assertEqual(self.settings()["server.mode"], self.mode)

    def test_it_differs_from_the_others_in_its_mode_and_in_how_much_is_forked(self) -> None:
        for ours, shared in zip(self.objects, render(KUBERNETES / "base"), strict=True):
            if ours["kind"] == "ConfigMap":
                changed = {name for name, _ in ours["data"].items() ^ shared["data"].items()}
                self.assertLessEqual(changed, {"FORKPOINT_MODE", "FORKPOINT_FORK__SHARE"})
            else:
                self.assertEqual(ours, shared)

    def test_it_has_a_native_sidecar_of_this_version(self) -> None:
        self.assertEqual(self.sidecar["restartPolicy"], "Always")
        self.assertEqual(self.sidecar["image"], f"forkpoint:{version()}")
        # Without one the agent would start before the sidecar listens.
        self.assertIn("startupProbe", self.sidecar)

    def test_the_sidecar_reads_the_config_map(self) -> None:
        name = the(self.objects, "ConfigMap")["metadata"]["name"]
        self.assertEqual(self.sidecar["envFrom"], [{"configMapRef": {"name": name}}])
        self.assertNotIn("env", self.sidecar)

    def test_the_agent_and_nobody_else_finds_the_proxy(self) -> None:
        settings = self.settings()
        (agent,) = self.pod["spec"]["containers"]
        values = {variable["name"]: variable.get("value") for variable in agent["env"]}
        self.assertEqual(values["ANTHROPIC_BASE_URL"], f"http://{settings['server.listen']}")
        for door in ["server.listen", "server.admin_listen"]:
            self.assertTrue(settings[door].startswith("127.0.0.1:"))

    def test_secrets_are_only_referred_to_and_the_manifest_says_how_to_make_them(self) -> None:
        self.assertEqual(of_kind(self.objects, "Secret"), [])
        variables = [v for container in every_container(self.objects) for v in container.get("env", [])]
        (reference,) = [v["valueFrom"]["secretKeyRef"] for v in variables if "valueFrom" in v]
        command = f"create secret generic {reference['name']} --from-literal={reference['key']}="
        self.assertIn(command, (KUBERNETES / "base" / "deployment.yaml").read_text())

    def test_probes_and_scrapers_come_in_by_the_metrics_port(self) -> None:
        address = self.settings()["server.metrics_listen"]
        self.assertTrue(address.startswith("0.0.0.0:"))
        self.assertEqual(self.sidecar["ports"], [{"name": "metrics", "containerPort": port_of(address)}])
        self.assertEqual([probe["port"] for probe in probes_of(self.objects)], ["metrics"] * 3)
        annotations = self.pod["metadata"]["annotations"]
        self.assertEqual(annotations["prometheus.io/port"], str(port_of(address)))

    def test_selectors_select(self) -> None:
        deployment, service = the(self.objects, "Deployment"), the(self.objects, "Service")
        labels = self.pod["metadata"]["labels"].items()
        for selector in [deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"]]:
            self.assertTrue(selector)
            self.assertLessEqual(selector.items(), labels)
        ports = {p["name"]: p["containerPort"] for c in every_container(self.objects) for p in c.get("ports", [])}
        for port in service["spec"]["ports"]:
            self.assertEqual(ports[port["targetPort"]], port["port"])

    def test_the_grace_period_covers_the_drain(self) -> None:
        settings = self.settings()
        drain = settings["drain.delay_ms"] / 1000 + settings["drain.deadline_s"]
        self.assertLess(drain, self.pod["spec"]["terminationGracePeriodSeconds"])
        # A hook would need a shell, and would only take from the same grace period.
        self.assertNotIn("lifecycle", self.sidecar)

    def test_the_memory_limit_covers_what_the_settings_allow(self) -> None:
        settings = self.settings()
        allowed = [settings[key] for key in ["store.max_bytes", "store.recent_bytes", "limits.held_bytes"]]
        mebibytes = int(self.sidecar["resources"]["limits"]["memory"].removesuffix("Mi"))
        self.assertLessEqual(sum(allowed) + MEMORY_BESIDE, mebibytes << 20)

    def test_every_container_is_confined_and_says_what_it_needs(self) -> None:
        user = int(re.search(r"^USER (\d+):\1$", (ROOT / "Dockerfile").read_text(), re.M)[1])
        confined = {
            "runAsUser": user,
            "runAsGroup": user,
            "runAsNonRoot": True,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        self.assertIs(self.pod["spec"]["automountServiceAccountToken"], False)
        for container in every_container(self.objects):
            self.assertEqual(container["securityContext"], confined)
            self.assertEqual(set(container["resources"]["requests"]), {"cpu", "memory"})
            self.assertIn("memory", container["resources"]["limits"])


class Observe(Overlay, unittest.TestCase):
    mode = "observe"


class Align(Overlay, unittest.TestCase):
    mode = "align"


class Fork(Overlay, unittest.TestCase):
    mode = "fork"


if __name__ == "__main__":
    unittest.main(verbosity=2)
