"""gatewise-networks.tar: the networks of a release, which are not in the tree, out of the history that had them once.

    python reproduction/release_networks.py gatewise-networks.tar

They were stored as a pair of files then, weights and config.json; here each becomes the one file that gw.save()
writes now. The sums in results/networks.json say whether it is the right one.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import safetensors.torch

from gatewise.export.saved.file import packed

ROOT = Path(__file__).parents[1]
WEIGHTS, CONFIGS = "72b2e71^", "c706e02"  # the last commits that had them


def from_history(commit: str, path: str) -> bytes:
    command = ["git", "-C", str(ROOT), "show", f"{commit}:{path}"]
    return subprocess.run(command, capture_output=True, check=True).stdout


def converted(file: Path) -> bytes:
    """One file, with what the config said as its metadata."""
    pair = Path("results", file.parent, "model")
    old = json.loads(
        from_history(CONFIGS, f"{pair}/config.json").replace(b"gatewise.tasks.", b"gatewise.lab.")
    )
    stored = safetensors.torch.load(from_history(WEIGHTS, f"{pair}/model.safetensors"))
    for name, form in old["modules"].items():
        if form["kind"] in ("compact-linear", "compact-cell"):
            form.setdefault("bias", f"{name}.bias" in old["tensors"])
        if "embedding" in form["kind"]:
            form.setdefault("scale_grad_by_freq", False)
            form.setdefault("sparse", False)
    config: dict[str, Any] = {"format": 1}
    config |= {key: old[key] for key in ("class", "arguments", "training", "modules", "shared")}
    config["frozen"] = old.get("frozen", [])
    config["provenance"] = {key: old["provenance"][key] for key in ("gatewise", "torch")}
    config["attached"] = []
    config["sparse"] = {key: e["shape"] for key, e in old["tensors"].items() if e["form"] == "sparse"}
    config["narrow"] = [key for key, e in old["tensors"].items() if e["form"] == "narrow"]
    return packed(stored, config, file)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tar", type=Path)
    target = parser.parse_args().tar
    with tarfile.open(target, "w") as tar:
        for listed in json.loads((ROOT / "results" / "networks.json").read_text())["networks"]:
            content = converted(Path(listed["file"]))
            if hashlib.sha256(content).hexdigest() != listed["sha256"]:
                raise SystemExit(
                    f"{listed['file']}: made otherwise than networks.json says; write its sum anew."
                )
            entry = tarfile.TarInfo(listed["file"])
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
            print(f"{listed['file']}: {len(content):,} bytes")


if __name__ == "__main__":
    main()
