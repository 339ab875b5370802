"""Renders the part of kustomize that config/kubernetes uses; anything else is refused.

For machines without kubectl. Where there is one, kubernetes.py checks that both render the same, the digests in
the names of config maps aside.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

KNOWN = {"apiVersion", "kind", "resources", "configMapGenerator", "images"}


def render(folder: Path) -> list[dict[str, Any]]:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    refuse_unknown(kustomization, KNOWN, folder)
    objects: list[dict[str, Any]] = []
    for resource in kustomization["resources"]:
        path = folder / resource
        objects += render(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
    for generator in kustomization.get("configMapGenerator", []):
        generate(generator, objects, folder)
    for image in kustomization.get("images", []):
        refuse_unknown(image, {"name", "newTag"}, folder)
        for container in every_container(objects):
            if container["image"] == image["name"]:
                container["image"] = f"{image['name']}:{image['newTag']}"
    return objects


def generate(generator: dict[str, Any], objects: list[dict[str, Any]], folder: Path) -> None:
    refuse_unknown(generator, {"name", "behavior", "literals"}, folder)
    data = dict(literal.split("=", 1) for literal in generator["literals"])
    maps = [o for o in objects if o["kind"] == "ConfigMap" and o["metadata"]["name"] == generator["name"]]
    match generator.get("behavior", "create"), maps:
        case "create", []:
            metadata = {"name": generator["name"]}
            objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
        case "merge", [known]:
            known["data"] |= data
        case behavior, _:
            raise ValueError(f"{folder}: cannot {behavior} {generator['name']}: there are {len(maps)}")


def every_container(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    pods = [o["spec"]["template"]["spec"] for o in objects if o["kind"] == "Deployment"]
    return [container for pod in pods for container in [*pod.get("initContainers", []), *pod["containers"]]]


def refuse_unknown(given: dict[str, Any], known: set[str], folder: Path) -> None:
    if unknown := set(given) - known:
        raise ValueError(f"{folder}: {', '.join(sorted(unknown))} is not rendered here")
