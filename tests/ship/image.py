#!/usr/bin/env python3
"""Builds the image from the Dockerfile, and runs it.

    tests/run image                                       installs what this needs, builds the binary, runs everything
    tests/ship/image.py BINARY [TEST...]                  with a static binary that is already there

No registry is asked for anything: the stage `build` of the Dockerfile needs a base image, so it is replaced by
a folder with what that stage leaves behind. The last stage is built as it stands there, and what it yields is
run: by buildah in a chroot, and once more with its root mounted read-only. Both need root.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import unittest
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True

from settings import ROOT, shown_in_readme, version  # noqa: E402

CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
NAME = "forkpoint:under-test"
UID = 65532
SIZE_MAX = 25_000_000
# Far longer than anything here takes; what takes longer hangs.
PATIENCE_SECONDS = 30

# What every run changes: any free port, because the network is that of this machine.
FREE_PORTS = {
    "FORKPOINT_LISTEN": "127.0.0.1:0",
    "FORKPOINT_ADMIN_LISTEN": "127.0.0.1:0",
    "FORKPOINT_SERVER__METRICS_LISTEN": "127.0.0.1:0",
}
# Nobody listens there; for a proxy that is only asked about itself.
NOWHERE = {"FORKPOINT_UPSTREAM": "http://127.0.0.1:9"}

# Mounts the folder $0 on itself, read-only, and becomes the command that follows, inside of it.
READ_ONLY = f"""
mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec chroot --userspec={UID}:{UID} "$0" "$@"
"""


# --- the image ------------------------------------------------------------------------------------


class Image:
    """The built image, one container of it, and that container's root."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self.storage = ["--storage-driver", "vfs", "--root", folder / "storage", "--runroot", folder / "run"]
        left_behind = folder / "build" / "image"
        (left_behind / CERTIFICATES).parent.mkdir(parents=True)
        shutil.copy(binary, left_behind / "forkpoint")
        shutil.copy(f"/{CERTIFICATES}", left_behind / CERTIFICATES)
        self.buildah(
            # Of the formats only docker's knows health checks.
            *["bud", "--quiet", "--isolation", "chroot", "--format", "docker", "--pull-never"],
            *["--build-context", f"build={folder / 'build'}", "--build-arg", "REVISION=0123abc"],
            *["--tag", NAME, ROOT],
        )
        self.container = self.buildah("from", "--pull-never", NAME).strip()
        self.root = Path(self.buildah("mount", self.container).strip())
        self.config = json.loads(self.buildah("inspect", "--type", "image", NAME))["Docker"]["config"]
        self.command = self.config["Entrypoint"] + self.config["Cmd"]
        self.environment = dict(line.split("=", 1) for line in self.config["Env"])

    def buildah(self, *words: Any) -> str:
        done = subprocess.run(
            ["buildah", *self.storage, *words], stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"buildah {words[0]} failed with {done.returncode}")
        return done.stdout

    def in_a_container(self, command: list[str], environment: dict[str, str]) -> list[Any]:
        changes = [word for name, value in environment.items() for word in ["--env", f"{name}={value}"]]
        run = ["run", "--isolation", "chroot", *changes, self.container, "--", *command]
        return ["buildah", *self.storage, *run]

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of the image to its end."""
        words = self.in_a_container([*self.config["Entrypoint"], *command], environment)
        return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


class Running:
    """A process of the image; its output is read as it comes."""

    def __init__(self, words: list[Any], environment: dict[str, str] | None = None) -> None:
        self.child = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self.said: list[str] = []
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        assert self.child.stdout
        with self.child.stdout as output:
            for line in output:
                self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def until(self, pattern: str) -> str:
        """Waits for a line, and returns what the pattern's group holds of it."""
        while (line := self.lines.get(timeout=PATIENCE_SECONDS)) is not None:
            self.said.append(line)
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError(f"ended without {pattern!r}:\n" + "\n".join(self.said))

    @property
    def pid(self) -> int:
        """The process itself: what runs it in a container forwards no signals."""
        pid = self.child.pid
        # Each thread has children of its own; here there is one chain of only children.
        while children := [c for t in Path(f"/proc/{pid}/task").glob("*/children") for c in t.read_text().split()]:
            (pid,) = children
        return int(pid)

    def terminate(self) -> None:
        os.kill(self.pid, 15)

    def ended_with(self) -> int:
        return self.child.wait(PATIENCE_SECONDS)


class Proxy(Running):
    """`serve`, once it says where it listens."""

    def __init__(self, words: list[Any], environment: dict[str, str] | None = None) -> None:
        super().__init__(words, environment)
        said = json.loads(self.until(r'^(\{.*"message":"serving".*\})$'))
        self.url, self.metrics = said["proxy"], said["metrics"]


image: Image


@contextmanager
def ended(running: Running) -> Iterator[Any]:
    """Whatever happens in the block, nothing is left running behind it."""
    try:
        yield running
    finally:
        if running.child.poll() is None:
            os.kill(running.pid, 9)
            running.child.wait(PATIENCE_SECONDS)


def serve(**environment: str) -> Any:
    return ended(Proxy(image.in_a_container(image.command, FREE_PORTS | environment)))


def simulator() -> Any:
    return ended(Running(image.in_a_container(["/forkpoint", "sim", "--listen", "127.0.0.1:0"], {})))


@contextmanager
def upstream_that_pauses() -> Iterator[tuple[str, threading.Event]]:
    """An upstream whose answer begins at once, and ends when it is told to."""
    go_on = threading.Event()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b"event: message_start\ndata: {}\n\n")
            go_on.wait(PATIENCE_SECONDS)
            self.wfile.write(b"event: message_stop\ndata: {}\n\n")

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", go_on
        finally:
            go_on.set()
            server.shutdown()


def ask(url: str, said: str) -> http.client.HTTPResponse:
    body = {
        "model": "claude-opus-5-5",
        "max_tokens": 1000,
        "stream": True,
        "messages": [{"role": "user", "content": said}],
    }
    headers = {"x-api-key": "any", "anthropic-version": "2023-06-01", "content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/messages", json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request, timeout=PATIENCE_SECONDS)


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def eventually(holds: Any) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError("did not happen in time")
        time.sleep(0.02)


# --- the stage that compiles, which is only read here ---------------------------------------------


class TheStageThatCompiles(unittest.TestCase):
    dockerfile = (ROOT / "Dockerfile").read_text()

    def test_it_has_all_that_the_sources_include(self) -> None:
        included = set()
        for source in (ROOT / "src").rglob("*.rs"):
            for name in re.findall(r'include_(?:str|bytes)!\("([^"]+)"\)', source.read_text()):
                included.add(str((source.parent / name).resolve().relative_to(ROOT)))
        beside = {name for name in included if not name.startswith("src/")}
        self.assertIn("config/prices.toml", beside)
        copied = re.findall(r"^COPY (?!--from)(.+) \S+$", self.dockerfile, re.M)
        copied = {name for names in copied for name in names.split()}
        self.assertEqual(copied, beside | {"Cargo.toml", "Cargo.lock", "src"})
        ignored = (ROOT / ".dockerignore").read_text().splitlines()
        self.assertEqual({line[1:] for line in ignored if line.startswith("!")}, copied)

    def test_its_compiler_is_the_oldest_that_cargo_allows(self) -> None:
        package = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]
        self.assertIn(f"FROM rust:{package['rust-version']}-", self.dockerfile)


# --- what it is -----------------------------------------------------------------------------------


class WhatItIs(unittest.TestCase):
    def test_it_holds_the_binary_and_the_root_certificates_and_nothing_else(self) -> None:
        untouched = image.buildah("from", "--pull-never", NAME).strip()
        root = Path(image.buildah("mount", untouched).strip())
        files = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
        self.assertEqual(files, {"forkpoint", CERTIFICATES})

    def test_it_is_smaller_than_25_mb(self) -> None:
        size = sum(path.stat().st_size for path in image.root.rglob("*") if path.is_file())
        print(f"the image has {size / 1e6:.1f} MB")
        self.assertGreater(size, 1_000_000)
        self.assertLess(size, SIZE_MAX)

    def test_its_labels_say_what_cargo_says(self) -> None:
        package = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]
        prefix = "org.opencontainers.image."
        labels = {
            name.removeprefix(prefix): value
            for name, value in image.config["Labels"].items()
            if name.startswith(prefix)
        }
        expected = {"title": package["name"], "licenses": package["license"], "revision": "0123abc"}
        self.assertEqual(labels, expected | {name: package[name] for name in ["version", "description"]})

    def test_its_health_check_is_a_command_without_a_shell(self) -> None:
        self.assertEqual(image.config["Healthcheck"]["Test"], ["CMD", "/forkpoint", "healthcheck"])
        self.assertEqual(image.command, ["/forkpoint", "serve"])

    def test_its_settings_are_the_documented_ones(self) -> None:
        done = image.run("check-config", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        keys = json.loads(done.stdout)["keys"]
        changed = {
            name: entry["value"] for name, entry in keys.items() if entry["value"] != entry["default"]
        }
        self.assertEqual(
            changed,
            {
                "server.listen": "0.0.0.0:8787",
                "server.metrics_listen": "0.0.0.0:8790",
                "log.format": "json",
            },
        )
        self.assertTrue(keys["server.admin_listen"]["value"].startswith("127.0.0.1:"))

    def test_the_ports_it_exposes_are_those_it_listens_on(self) -> None:
        listens = [value for name, value in image.environment.items() if name.endswith("_LISTEN")]
        ports = {f"{address.rsplit(':', 1)[1]}/tcp" for address in listens}
        self.assertEqual(set(image.config["ExposedPorts"]), ports)


# --- what it does ---------------------------------------------------------------------------------


class WhatItDoes(unittest.TestCase):
    def test_it_serves_as_a_user_without_a_name(self) -> None:
        with simulator() as upstream:
            url = upstream.until(r"listening on (\S+)")
            with serve(FORKPOINT_UPSTREAM=url) as proxy:
                with ask(proxy.url, "hello") as answer:
                    self.assertEqual(answer.status, 200)
                    self.assertEqual(answer.headers["x-forkpoint-role"], "plain")
                    self.assertIn(b"event: message_stop", answer.read())
                proc = Path(f"/proc/{proxy.pid}/status").read_text()
                for field in ["Uid", "Gid"]:
                    self.assertEqual(re.search(rf"^{field}:\s+(.*)$", proc, re.M)[1].split(), [str(UID)] * 4)
                inside = Path(f"/proc/{proxy.pid}/root")
                self.assertTrue((inside / "forkpoint").exists())
                self.assertFalse((inside / "bin" / "sh").exists())
                with urllib.request.urlopen(f"{proxy.metrics}/metrics") as page:
                    self.assertIn(b'forkpoint_requests_total{', page.read())

    def test_it_finishes_what_streams_and_ends_with_0_on_sigterm(self) -> None:
        with upstream_that_pauses() as (url, go_on):
            with serve(FORKPOINT_UPSTREAM=url) as proxy:
                with ask(proxy.url, "hello") as answer:
                    self.assertIn(b"message_start", answer.readline())
                    proxy.terminate()
                    # The stream keeps it alive, and nobody is sent to it any more.
                    eventually(lambda: status(f"{proxy.metrics}/readyz") == 503)
                    self.assertIsNone(proxy.child.poll())
                    go_on.set()
                    self.assertIn(b"event: message_stop", answer.read())
                self.assertEqual(proxy.ended_with(), 0)
                proxy.until(r'"message":"(drained)"')

    def test_its_health_check_says_whether_it_is_ready(self) -> None:
        with serve(**NOWHERE) as proxy:
            address = proxy.metrics.removeprefix("http://")
            ready = image.run("healthcheck", FORKPOINT_SERVER__METRICS_LISTEN=address)
            self.assertEqual(ready.returncode, 0, ready.stderr)
            proxy.terminate()
            self.assertEqual(proxy.ended_with(), 0)
        gone = image.run("healthcheck", FORKPOINT_SERVER__METRICS_LISTEN=address)
        self.assertEqual(gone.returncode, 1, gone.stderr)
        self.assertIn("not ready", gone.stderr)

    def test_it_trusts_the_certificates_that_came_with_it(self) -> None:
        # A proxy for https that finds no roots refuses to start, so that this one starts says that it has some.
        with serve() as proxy:
            self.assertEqual(status(f"{proxy.metrics}/readyz"), 200)
        without = image.run("serve", SSL_CERT_FILE="/nowhere", **FREE_PORTS)
        self.assertNotEqual(without.returncode, 0)
        self.assertIn("SSL_CERT_FILE", without.stderr)

    def test_its_user_can_write_nowhere(self) -> None:
        folders = [path for path in [image.root, *image.root.rglob("*")] if path.is_dir()]
        inside = ["/" + str(path.relative_to(image.root)).removeprefix(".") for path in folders]
        # The same attempts by root succeed: they fail for whom they should.
        self.assertEqual(writable(image.root, inside, 0), inside)
        self.assertEqual(writable(image.root, inside, UID), [])
        self.assertFalse(os.stat(image.root / "forkpoint").st_mode & 0o022)

    def test_the_readme_runs_it_as_it_is_run_here(self) -> None:
        (build,), (run,) = shown_in_readme("docker build "), shown_in_readme("docker run ")
        tag = f"forkpoint:{version()}"
        self.assertEqual(build, ["docker", "build", "-t", tag, "."])
        self.assertEqual((run[-1], "--read-only" in run), (tag, True))
        # The drain of the image's own settings ends before docker loses patience.
        patience = int(run[run.index("--stop-timeout") + 1])
        drain = json.loads(image.run("check-config", "--json").stdout)["keys"]["drain.deadline_s"]["value"]
        self.assertGreater(patience, drain)
        published = run[run.index("-p") + 1].rsplit(":", 1)[1]
        self.assertEqual(published, image.environment["FORKPOINT_LISTEN"].rsplit(":", 1)[1])

    def test_it_needs_no_root_that_can_be_written(self) -> None:
        words = ["unshare", "--mount", "sh", "-c", READ_ONLY, image.root, *image.command]
        with simulator() as upstream:
            changes = FREE_PORTS | {"FORKPOINT_UPSTREAM": upstream.until(r"listening on (\S+)")}
            with ended(Proxy(words, image.environment | changes)) as proxy:
                mounts = Path(f"/proc/{proxy.pid}/mountinfo").read_text()
                options = re.search(r"^\S+ \S+ \S+ \S+ / (\S+) ", mounts, re.M)
                self.assertIn("ro", options[1].split(","))
                with ask(proxy.url, "hello") as answer:
                    self.assertIn(b"event: message_stop", answer.read())
                self.assertEqual(status(f"{proxy.metrics}/readyz"), 200)
                proxy.terminate()
                self.assertEqual(proxy.ended_with(), 0)


def writable(root: Path, folders: list[str], uid: int) -> list[str]:
    """Of these folders of a root, those in which this user can make a file."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.chroot(root)
        os.chdir("/")
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        found = [folder for folder in folders if makes_a_file(f"{folder}/probe")]
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as answer:
        return json.loads(answer.read())


def makes_a_file(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except PermissionError:
        return False
    os.unlink(path)
    return True


def main() -> None:
    global image
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    binary = Path(sys.argv.pop(1)).resolve()
    # Under target/, because /tmp may be small, or in memory.
    (ROOT / "target" / "ship").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "target" / "ship", prefix="image-") as folder:
        image = Image(binary, Path(folder))
        try:
            done = unittest.main(exit=False, verbosity=2)
        finally:
            image.buildah("rm", "--all")
    sys.exit(not done.result.wasSuccessful())


if __name__ == "__main__":
    main()
