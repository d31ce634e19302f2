# SPDX-License-Identifier: Apache-2.0
"""What runs instead of or beside the tracked files: each case with its right answer.

The warnings of a case are all that there may be, so that the innocent ones beside the
others show that nothing is said of what everybody has.
"""

import hashlib
import importlib.util
import marshal
import struct
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from images import PACKAGE_ROOT, SITE, Demo, Tar, build_image, tree_layer, write_layout

from stackctl.image.bytecode import compare_code
from stackctl.image.entrypoints import read_launcher
from stackctl.image.expectation import folder_tree
from stackctl.image.platform import Platform
from stackctl.image.report import Report
from stackctl.image.roots import CHECKOUT, PACKAGE, Root
from stackctl.image.rules import Allow
from stackctl.image.verify import PinnedWheel, Request, verify

DEMO = Demo(
    {
        "pyproject.toml": b'[project]\nname = "demo"\n'
        b'[project.scripts]\ndemo = "demo.cli:main"\n'
        b'[project.entry-points."demo.plugins"]\nown = "demo.core:own"\n',
        "demo/__init__.py": b'"""Demo."""\n',
        "demo/core.py": b"VALUE = 1\n",
        "demo/cli.py": b"def main():\n    return 0\n",
        "demo/names/deep.py": b"X = 1\n",
    }
)
PACKAGE_LAYER = tree_layer(DEMO.package(), SITE)
CHECKOUT_LAYER = tree_layer(dict(DEMO.files), "opt/demo")
GOOD = DEMO.files["demo/core.py"]
EVIL = b"VALUE = 666\n"
GENERATED = b"__version__ = '1'\n"
GENERATED_SHA256 = hashlib.sha256(GENERATED).hexdigest()
TIME = 1_700_000_000


@dataclass(frozen=True)
class Case:
    """An image over the good layer, and its answer.

    Attributes:
        codes: Its warnings, separated by spaces.
        layers: Over the good one.
        verdict: The right one.
        run: What its config runs.
        wheel: Files that the pinned wheel has besides the package's.
        root: Where the package is; `.` for a checkout in /opt/demo.
        base: The good layer.
        more: Further settings of the request.
    """

    codes: str
    layers: tuple[Tar, ...] = ()
    verdict: str = "match"
    run: dict[str, object] | None = None
    wheel: dict[str, bytes] | None = None
    root: str = PACKAGE_ROOT
    base: bytes = PACKAGE_LAYER
    more: dict[str, object] = field(default_factory=dict)


def over(codes: str, *layers: Tar, **more: object) -> Case:
    return Case(codes, layers, **more)  # type: ignore[arg-type]


def answer(folder: Path, case: Case) -> tuple[str, set[str]]:
    tars = [case.base, *(layer.done() for layer in case.layers)]
    layout = write_layout(folder / "image", build_image(tars, run=case.run))
    pinned = None
    if case.wheel is not None:
        pinned = PinnedWheel(wheel_of(folder / "pinned.whl", case.wheel))
    root = (
        Root(".", "/opt/demo", CHECKOUT)
        if case.root == "."
        else Root("demo", case.root, PACKAGE)
    )
    report = ask(folder, f"oci:{layout}", (root,), wheel=pinned, **case.more)
    return report.verdict, {warning.code for warning in report.warnings}


def ask(
    folder: Path, reference: str, roots: tuple[Root, ...] = (), **more: object
) -> Report:
    expected = [folder_tree(DEMO.write(folder / "expected"))]
    settings: dict[str, object] = {
        "platform": Platform("linux", "amd64", ""),
        "environ": {},
        **more,
    }
    return verify(Request(reference, expected, roots, **settings))  # type: ignore[arg-type]


def wheel_of(path: Path, more: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**DEMO.package(), **more}.items():
            archive.writestr(name, data)
    return path


def pyc(code: bytes, of: bytes = GOOD, time: int = TIME, flags: int = 0) -> bytes:
    compiled = compile(code, "demo/core.py", "exec", dont_inherit=True)
    head = struct.pack("<III", flags, time, len(of))
    return importlib.util.MAGIC_NUMBER + head + marshal.dumps(compiled)


def cached(name: str, data: bytes, tar: Tar | None = None) -> Tar:
    path = f"{SITE}/demo/__pycache__/{name}.cpython-311.pyc"
    return (tar or Tar()).file(path, data)


def generated(bytecode: bytes) -> Tar:
    source = Tar().file(f"{SITE}/demo/_version.py", GENERATED)
    return cached("_version", bytecode, source)


def allowing(*rules: Allow) -> dict[str, object]:
    return {"allow": rules}


BY_SHA256 = allowing(Allow("demo/_version.py", GENERATED_SHA256))
BY_GLOB = allowing(Allow("demo/_v*.py"))
FOREIGN = "bytecode-foreign"

BYTECODE = {
    f"{what} of a source that is allowed by {how}": over(
        codes, generated(data), more=rules
    )
    for how, rules in (("its sha256", BY_SHA256), ("a glob", BY_GLOB))
    for what, data, codes in (
        ("good bytecode", pyc(GENERATED, GENERATED), ""),
        ("other bytecode", pyc(EVIL, GENERATED), FOREIGN),
        ("stale bytecode", pyc(EVIL, GENERATED, TIME - 1), "bytecode-stale"),
        ("checked and stale", pyc(EVIL, GENERATED, 1, 3), "bytecode-stale"),
    )
} | {
    "bytecode that an allowed folder holds": over(
        FOREIGN, cached("core", pyc(EVIL)), more=allowing(Allow("demo/**"))
    ),
    "compiled functions of numba": over(
        "",
        Tar().file(f"{SITE}/demo/__pycache__/core.f-5.py311.nbi", "x"),
        verdict="mismatch",
    ),
}

ELF = b"\x7fELF\2\1\1"
UNTRACKED = {
    "a program without a suffix": over(
        "", Tar().file(f"{SITE}/demo/helper", ELF), verdict="mismatch"
    ),
    "data without a suffix": over(
        "untracked-unverified", Tar().file(f"{SITE}/demo/LICENSE", "text")
    ),
    "the second digest of a path": over(
        "",
        Tar().file(f"{SITE}/demo/_version.py", GENERATED),
        more=allowing(
            Allow("demo/_version.py", "0" * 64),
            Allow("demo/_version.py", GENERATED_SHA256),
        ),
    ),
    "neither digest of a path": over(
        "",
        Tar().file(f"{SITE}/demo/_version.py", EVIL),
        verdict="mismatch",
        more=allowing(
            Allow("demo/_version.py", "0" * 64),
            Allow("demo/_version.py", GENERATED_SHA256),
        ),
    ),
}


def of_wheel(codes: str, name: str) -> Case:
    """The wheel has it, and so has the image."""
    return over(
        codes, Tar().file(f"{SITE}/{name}", b"W = 1\n"), wheel={name: b"W = 1\n"}
    )


SHADOWS = {
    "a module over a folder without __init__": of_wheel(
        "shadowed-module", "demo/names.py"
    ),
    "a library over a folder without __init__": of_wheel(
        "shadowed-module", "demo/names.abi3.so"
    ),
    "data beside a folder without __init__": of_wheel("", "demo/names.json"),
    "a folder without __init__ over nothing": of_wheel("", "demo/core/x.py"),
}

MID = Tar().symlink("links/venv", "/mid/x").symlink("mid/x", "/usr")
MID_ROOT = "/links/venv/lib/python3.11/site-packages/demo"
EDITABLE = '{"url":"file:///s","dir_info":{"editable":true}}'
PLACES = {
    **{
        f"a volume at {volume}": over(
            code, MID, run={"Volumes": {volume: {}}}, root=MID_ROOT
        )
        for volume, code in (
            ("/mid", "volume-over-root"),
            ("/mid/x", "volume-over-root"),
            ("/midst", ""),
            ("/links/other", ""),
        )
    },
    "an egg that a .pth file names": over(
        "pth-file second-copy",
        Tar().file(f"{SITE}/x-1.egg", "PK").file(f"{SITE}/x.pth", "./x-1.egg\n"),
    ),
    "an archive on the PYTHONPATH": over(
        "pythonpath second-copy",
        Tar().file("opt/x.zip", "PK"),
        run={"Env": ["PYTHONPATH=/opt/x.zip"]},
    ),
    "no archive on the PYTHONPATH": over(
        "pythonpath", run={"Env": ["PYTHONPATH=/opt/x.zip"]}
    ),
    "an editable install behind a link": over(
        "editable-install",
        Tar()
        .symlink(f"{SITE}/o-1.dist-info/direct_url.json", "/opt/u")
        .file("opt/u", EDITABLE),
    ),
    **{
        f"{what} behind a link for a folder of packages": over(
            code,
            Tar()
            .file(f"opt/x/{file}", text)
            .symlink("root/.local/lib/python3.11/site-packages", "/opt/x"),
        )
        for what, file, text, code in (
            ("a start-up file", "x.pth", "import x\n", "pth-file"),
            ("a start-up module", "usercustomize.py", "x", "sitecustomize"),
            ("a copy", "demo/__init__.py", "x", "second-copy"),
            (
                "a plug-in",
                "o-1.dist-info/entry_points.txt",
                "[demo.p]\nx = evil:run\n",
                "plugin",
            ),
            ("nothing", "demo/notes.txt", "x", ""),
        )
    },
    "an interpreter's path file behind a link": over(
        "pth-file",
        Tar().file("opt/x/python3._pth", "/evil").symlink("opt/venv/bin", "/opt/x"),
        root="/opt/venv/lib/python3.11/site-packages/demo",
        base=tree_layer(DEMO.package(), "opt/venv/lib/python3.11/site-packages"),
    ),
    **{
        f"{what} where a package is a link": over(
            code,
            layer.symlink(f"{SITE}/demo", "/opt/src/demo"),
            base=tree_layer(DEMO.package(), "opt/src"),
        )
        for what, layer, code in (
            ("nothing", Tar(), ""),
            (
                "a command",
                Tar().file("usr/bin/demo", "x", mode=0o755),
                "console-script",
            ),
            ("a module", Tar().file("usr/bin/json.py", "x"), "shadowed-import"),
            ("a start-up file", Tar().file("opt/src/x.pth", "import x"), "pth-file"),
        )
    },
    "a copy in a library behind a link": over(
        "second-copy",
        Tar()
        .file("opt/x/demo/__init__.py", "x")
        .symlink("usr/local/lib/python3.11", "/opt/x"),
    ),
    "a link to the folder of packages": over(
        "", Tar().symlink("usr/lib64", "lib").symlink("opt/site-packages", f"/{SITE}")
    ),
    "an interpreter that believes to be in its build folder": over(
        "pth-file", Tar().file("usr/bin/pybuilddir.txt", "/evil\n")
    ),
}
for _name in ("CUDA_INJECTION64_PATH", "VLLM_NCCL_SO_PATH", "PYTHON_PRESITE"):
    PLACES[f"the variable {_name}"] = over("environment", run={"Env": [f"{_name}=/x"]})
for _name in ("PYTHONUNBUFFERED", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "LANG"):
    PLACES[f"the variable {_name}"] = over("", run={"Env": [f"{_name}=1"]})

PIP_OLD = r"""#!/usr/bin/python3.11
# -*- coding: utf-8 -*-
import re
import sys
from demo.cli import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\.pyw|\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""
PIP = """#!/usr/bin/python3
import sys
from demo.cli import main
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit(main())
"""
HEAD = "#!/usr/bin/python3\nfrom demo.cli import main\n"
UV = """#!/usr/bin/python3
# -*- coding: utf-8 -*-
import sys
from demo.cli import main
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit(main())
"""


def by_shell(start: str, script: str = UV) -> str:
    rest = script.partition("\n")[2]
    return f"#!/bin/sh\n'''exec' {start} \"$0\" \"$@\"\n' '''\n{rest}"


BESIDE = """"$(dirname -- "$(realpath -- "$0")")"/'python'"""


def command(text: str, name: str = "usr/bin/demo") -> Tar:
    return Tar().file(name, text, mode=0o755)


def stated(text: str, name: str = "demo-1.dist-info") -> Tar:
    return Tar().file(f"{SITE}/{name}/entry_points.txt", text)


VENV = "opt/venv/lib/python3.11/site-packages"
IN_VENV: dict[str, object] = {
    "root": f"/{VENV}/demo",
    "base": tree_layer(DEMO.package(), VENV),
}
OF_VENV = PIP.replace("/usr/bin", "/opt/venv/bin")
EVIL_PYTHON = Tar().file("evil/python3", "x", mode=0o755)
TWO = "[console_scripts]\ndemo2 = demo.cli:main\n"

COMMANDS = (
    {
        f"a command of {what}": over("", command(text))
        for what, text in {
            "pip": PIP,
            "an older pip": PIP_OLD,
            "uv": UV,
            "uv that can be moved": by_shell(BESIDE),
            "a long path": by_shell("/usr/bin/python3"),
            "a path with a space": by_shell('"/usr/b in/python3"', PIP),
            "a quoted path": by_shell("'/usr/b in/python3'"),
            "env": PIP.replace("/usr/bin/python3", "/usr/bin/env python3"),
            "a distribution of Linux": PIP.replace("python3\n", "python3 -sP\n"),
            "a place that is no more": OF_VENV,
            "somebody's hand": HEAD + "main()\n",
            "another hand": HEAD + "import sys\nsys.exit(main())\n",
            "a third hand": HEAD
            + "if __name__ == '__main__':\n    raise SystemExit(main())\n",
        }.items()
    }
    | {
        f"a command with {what}": over("console-script", EVIL_PYTHON, command(text))
        for what, text in {
            "another import": PIP.replace("import sys\n", "import sys, evil\n"),
            "another import by name": PIP.replace(
                "import sys\n", "import evil as sys\n"
            ),
            "two imports from": PIP.replace(
                "import sys", "import sys\nfrom evil import x"
            ),
            "code before": PIP.replace("import sys\n", "import sys\nprint(1)\n"),
            "code after": PIP + "print(1)\n",
            "code elsewhere": PIP + "else:\n    print(1)\n",
            "code first in the block": PIP.replace(
                "    sys.argv", "    evil()\n    sys.argv"
            ),
            "no call": HEAD,
            "a call of a call": HEAD + "main()()\n",
            "an exit by others": HEAD + "evil.exit(main())\n",
            "an argument": PIP.replace("main())", "main(evil()))"),
            "another function": PIP.replace("import main", "import other as main"),
            "another function called": PIP.replace(
                "sys.exit(main", "sys.exit(sys.evil"
            ),
            "another preparation": PIP.replace("'.exe'", "__import__('evil')"),
            "another module": PIP.replace("demo.cli", "evil.cli"),
            "another module of the package": PIP.replace("demo.cli", "demo.core"),
            "a relative import": PIP.replace("demo.cli", ".demo.cli"),
            "another condition": PIP.replace(
                "== '__main__'", "!= '__main__' or evil()"
            ),
            "another encoding": PIP_OLD.replace("utf-8", "utf-7"),
            "another interpreter": PIP.replace("/usr/bin/python3", "/usr/bin/perl"),
            "an interpreter elsewhere": PIP.replace("/usr/bin", "/evil"),
            "code for the interpreter": PIP.replace("python3\n", "python3 -cimport\n"),
            "an interpreter elsewhere by a shell": by_shell("/evil/python3"),
            "an expansion by a shell": by_shell('"/usr/$(evil)/python3"'),
            "another line for a shell": by_shell("/usr/bin/python3 -m evil"),
            "a shell": "#!/bin/sh\nexec evil\n",
            "no text": "\x7fELF\0",
            "nothing": "",
            "no Python": "#!/usr/bin/python3\n((((\n",
            "much": PIP + "#" * 9000,
        }.items()
    }
    | {
        "a command that is allowed": over(
            "",
            command("evil"),
            more=allowing(Allow("/usr/bin/demo")) | {"strict": True},
        ),
        "strictly, another command": over(
            "console-script", command("evil"), verdict="mismatch", more={"strict": True}
        ),
        "a command by a link": over(
            "", command(PIP, "opt/d"), Tar().symlink("usr/bin/demo", "/opt/d")
        ),
        "another command by a link": over(
            "console-script",
            command("evil", "opt/d"),
            Tar().symlink("usr/bin/demo", "/opt/d"),
        ),
        "another command by a hard link": over(
            "console-script",
            command("evil", "opt/d").hardlink("usr/bin/demo", "opt/d", 0o755),
        ),
        "a command of others": over("", command("evil", "usr/bin/other")),
        "a command that the image alone names": over(
            "", command(PIP, "usr/bin/demo2"), stated(TWO)
        ),
        "another command that the image alone names": over(
            "console-script", command("evil", "usr/bin/demo2"), stated(TWO)
        ),
        "another command whose name is no text": over(
            "console-script",
            Tar().file(b"usr/bin/d\xff", "evil", mode=0o755),
            Tar().file(
                f"{SITE}/demo-1.dist-info/entry_points.txt",
                b"[console_scripts]\nd\xff = demo.cli:main\n",
            ),
        ),
        "a command that the image describes as it is": over(
            "console-script",
            command(PIP.replace("demo.cli", "evil")),
            stated("[console_scripts]\ndemo = evil:main\n"),
        ),
        "a command of the wheel's own": over(
            "",
            command(PIP.replace("demo.cli", "demo.old"), "usr/bin/d3"),
            wheel={
                "demo-1.dist-info/entry_points.txt": b"[gui_scripts]\nd3=demo.old:main"
            },
        ),
        "another command of the wheel's own": over(
            "console-script",
            command(PIP, "usr/bin/d3"),
            wheel={
                "demo-1.dist-info/entry_points.txt": b"[gui_scripts]\nd3=demo.old:main"
            },
        ),
        "a command of an environment": over(
            "", command(OF_VENV, "opt/venv/bin/demo"), **IN_VENV
        ),
        "another command of an environment": over(
            "console-script", command("evil", "opt/venv/bin/demo"), **IN_VENV
        ),
        "a command of another environment": over(
            "", command("evil", "opt/other/bin/demo"), **IN_VENV
        ),
    }
)

PYTHON = Tar().file("usr/bin/python3", "x", mode=0o755)
OTHERS = Tar().file("evil/python3", "x", mode=0o755).file("evil/demo", "x", mode=0o755)


def path(value: str, **more: str) -> dict[str, object]:
    return {"run": {"Env": [f"PATH={value}"], **more}}


PATHS = {
    "others first on the PATH": over(
        "shadowed-command", PYTHON, OTHERS, **path("/evil:/usr/bin")
    ),
    "others last on the PATH": over("", PYTHON, OTHERS, **path("/usr/bin:/evil")),
    "others on the PATH alone": over(
        "shadowed-command", PYTHON, OTHERS, **path("/evil")
    ),
    "another interpreter on the PATH alone": over(
        "", PYTHON, EVIL_PYTHON, **path("/evil")
    ),
    "another interpreter first on the PATH": over(
        "shadowed-command", PYTHON, EVIL_PYTHON, **path("/evil:/usr/bin")
    ),
    "another interpreter by the working folder": over(
        "shadowed-command", PYTHON, EVIL_PYTHON, **path(":/usr/bin", WorkingDir="/evil")
    ),
    "another command where runtimes look by themselves": over(
        "shadowed-command", command("evil", "usr/local/bin/demo"), run={"User": "1"}
    ),
    "a good command elsewhere": over(
        "", command(PIP, "usr/local/bin/demo"), run={"User": "1"}
    ),
    "the same folder by another name": over(
        "", PYTHON, Tar().symlink("bin", "usr/bin"), **path("/bin:/usr/bin")
    ),
    "the same file by another name": over(
        "",
        PYTHON,
        Tar().symlink("x/python3", "/usr/bin/python3"),
        **path("/x:/usr/bin"),
    ),
    "a folder of the name": over(
        "", PYTHON, Tar().folder("x/python3"), **path("/x:/usr/bin")
    ),
    "a file that is no program": over(
        "", PYTHON, Tar().file("x/python3", "x"), **path("/x:/usr/bin")
    ),
    "a PATH set twice": over(
        "shadowed-command",
        PYTHON,
        OTHERS,
        run={"Env": ["PATH=/evil:/usr/bin", "PATH=/usr/bin"]},
    ),
}

PLUGIN = "[demo.plugins]\nx = evil:run\n"
PLUGINS = {
    f"a plug-in {what}": over(codes, *layers, **more)
    for what, codes, layers, more in (
        ("of another distribution", "plugin", [stated(PLUGIN, "o-1.dist-info")], {}),
        (
            "that is allowed",
            "",
            [stated(PLUGIN, "o-1.dist-info")],
            {"more": allowing(Allow(f"/{SITE}/o-1.dist-info/entry_points.txt"))},
        ),
        ("of the package's own", "", [stated("[demo.plugins]\nx = demo.core:own")], {}),
        ("of the package's own that leads away", "plugin", [stated(PLUGIN)], {}),
        ("of a name alike", "plugin", [stated("[demo.p]\nx = demo_evil.core:own")], {}),
        (
            "in another group",
            "",
            [stated("[demonstration.p]\nx=e\n[pytest11]\ny=e")],
            {},
        ),
        ("of torch", "plugin", [stated("[torch.backends]\nx = evil:run")], {}),
        ("of torch's own", "", [stated("[torch.backends]\nx = torch.x:run")], {}),
        ("that is a comment", "", [stated("[demo.plugins]\n#x = evil:run")], {}),
        ("that is indented", "plugin", [stated(" [demo.p] \r\n\t x = e:r \r\n")], {}),
        (
            "in a group that comes again",
            "plugin",
            [stated("[demo.p]\nx = demo:y\n[z]\n[demo.p]\ny = evil")],
            {},
        ),
        ("in an egg-info", "plugin", [stated(PLUGIN, "o.egg-info")], {}),
        ("in other letters", "plugin", [stated(PLUGIN, "o-1.DIST-INFO")], {}),
        ("in a folder of another kind", "", [stated(PLUGIN, "o-1")], {}),
        (
            "in an egg on the path",
            "plugin pth-file",
            [
                stated(PLUGIN, "o.egg/EGG-INFO"),
                Tar().file(f"{SITE}/o.pth", "./o.egg\n"),
            ],
            {},
        ),
        ("in an egg", "", [stated(PLUGIN, "o.egg/EGG-INFO")], {}),
        (
            "in the working folder",
            "plugin",
            [Tar().file("srv/o.egg-info/entry_points.txt", PLUGIN)],
            {"run": {"WorkingDir": "/srv"}},
        ),
        ("nowhere", "", [Tar().file("srv/o.egg-info/entry_points.txt", PLUGIN)], {}),
        (
            "behind a link",
            "plugin",
            [
                Tar().file("srv/entry_points.txt", PLUGIN),
                Tar().symlink(f"{SITE}/o-1.dist-info", "/srv"),
            ],
            {},
        ),
        (
            "beside a checkout",
            "plugin second-copy",
            [Tar().raw(PACKAGE_LAYER[:-1024]), stated(PLUGIN, "o-1.dist-info")],
            {"root": ".", "base": CHECKOUT_LAYER},
        ),
    )
}

CONFIGS = {
    "a command": over("command", run={"Cmd": ["/x.sh"]}),
    "a command of a shell": over("command", run={"Cmd": ["/bin/sh", "-c", "x"]}),
    "strictly, a command": over("command", run={"Cmd": ["/x"]}, more={"strict": True}),
    "words for the entrypoint": over(
        "entrypoint", run={"Cmd": ["x"], "Entrypoint": ["/y"]}
    ),
    "a shell alone": over("", run={"Cmd": ["/bin/bash"]}),
    "an interpreter alone": over("", run={"Cmd": ["python3"]}),
    "a health check": over("healthcheck", run={"Healthcheck": {"Test": ["CMD", "x"]}}),
    "strictly, a health check": over(
        "healthcheck",
        run={"Healthcheck": {"Test": ["CMD-SHELL", "x"]}},
        verdict="mismatch",
        more={"strict": True},
    ),
    "a health check in other letters": over(
        "healthcheck", run={"Healthcheck": {"test": ["CMD", "x"]}}
    ),
    "no health check": over("", run={"Healthcheck": {"Test": ["NONE"]}}),
    "a health check of the base": over("", run={"Healthcheck": {"Interval": 1}}),
    "what does not run": over(
        "", run={"User": "1", "OnBuild": ["RUN x"], "StopSignal": "SIGINT"}
    ),
}

BESIDE_IT = {
    f"{what} beside the commands": over(codes, Tar().file(f"usr/bin/{name}", "x"))
    for what, name, codes in (
        ("a module of the library", "re.py", "shadowed-import"),
        ("bytecode of the library", "json.pyc", "shadowed-import"),
        ("a package of the library", "json/__init__.py", "shadowed-import"),
        ("a folder of the name", "json/x.txt", ""),
        ("a script", "rst2html.py", ""),
        ("a script of a common name", "tests.py", ""),
        ("a program", "json", ""),
    )
} | {
    "an installed module, shadowed from the working folder": over(
        "shadowed-import",
        Tar().file(f"{SITE}/torch/__init__.py", "x").file("srv/torch.py", "x"),
        run={"WorkingDir": "/srv"},
    ),
    "a module of the working folder": over(
        "",
        Tar().file(f"{SITE}/torch/__init__.py", "x").file("srv/other.py", "x"),
        run={"WorkingDir": "/srv"},
    ),
    "a module where nobody starts": over("", Tar().file("srv/json.py", "x")),
    "site-packages as the working folder": over(
        "",
        Tar().file(f"{SITE}/typing_extensions.py", "x"),
        run={"WorkingDir": f"/{SITE}"},
    ),
    "a module beside the commands that is allowed": over(
        "", Tar().file("usr/bin/re.py", "x"), more=allowing(Allow("/usr/bin/re.py"))
    ),
}
CACHES = {
    f"compiled code in {name}": over(codes, Tar().file(f"{name}/x", "x"))
    for name, codes in (
        ("root/.triton/cache", "code-cache"),
        ("home/a/.cache/vllm/torch_compile_cache/0", "code-cache"),
        ("tmp/torchinductor_root", "code-cache"),
        ("root/.cache/flashinfer", "code-cache"),
        ("root/.cache/pip", ""),
        ("var/cache", ""),
        (f"{SITE}/flashinfer", ""),
    )
} | {
    "a folder for compiled code": over("", Tar().folder("root/.triton/cache")),
    "compiled code in a folder that is named": over(
        "code-cache", Tar().file("c/x", "x"), run={"Env": ["TRITON_CACHE_DIR=/c"]}
    ),
    "no compiled code in a folder that is named": over(
        "", run={"Env": ["TRITON_CACHE_DIR=/c"]}
    ),
}

CASES = {
    **BESIDE_IT, **CACHES,
    **BYTECODE, **UNTRACKED, **SHADOWS, **PLACES,
    **COMMANDS, **PATHS, **PLUGINS, **CONFIGS,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_known_answer(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    assert answer(tmp_path, case) == (case.verdict, set(case.codes.split()))


@pytest.mark.parametrize(
    ("bytecode", "codes"),
    [
        (pyc(GOOD, time=1_800_000_000), set()),
        (pyc(EVIL, time=1_800_000_000), {FOREIGN}),
        (pyc(EVIL, b""), {"bytecode-stale"}),
    ],
)
def test_bytecode_of_a_wheel_may_fit_the_time_of_its_installation(
    tmp_path: Path, bytecode: bytes, codes: set[str]
) -> None:
    cache = {"demo/__pycache__/core.cpython-311.pyc": bytecode}
    report = ask(tmp_path, f"wheel:{wheel_of(tmp_path / 'demo.whl', cache)}")
    assert (report.verdict, {w.code for w in report.warnings}) == ("match", codes)


@pytest.mark.parametrize(
    ("name", "data", "codes"),
    [
        ("dist-info/entry_points.txt", b"[console_scripts]\ndemo = demo.cli:main", ""),
        ("dist-info/entry_points.txt", b"[console_scripts]\nd2 = demo.core:main", ""),
        (
            "dist-info/entry_points.txt",
            b"[console_scripts]\ndemo = demo.core:main",
            "console-script",
        ),
        (
            "dist-info/entry_points.txt",
            b"[gui_scripts]\nother = evil:main",
            "console-script",
        ),
        ("dist-info/entry_points.txt", PLUGIN.encode(), "plugin"),
        ("data/scripts/demo", b"#!python\nevil()\n", "console-script"),
        ("data/data/bin/demo", b"evil", "console-script"),
        ("data/scripts/demo.sh", b"#!/bin/sh\n", ""),
        ("data/scripts/re.py", b"", "shadowed-import"),
        ("data/scripts/rst2html.py", b"", ""),
        ("data/data/lib/python3.11/re.py", b"", "shadowed-import"),
        ("data/data/lib/python3.11/json/decoder.py", b"", "shadowed-import"),
        ("data/data/lib/demo/re.py", b"", ""),
    ],
)
def test_what_a_wheel_runs(tmp_path: Path, name: str, data: bytes, codes: str) -> None:
    wheel = wheel_of(tmp_path / "demo.whl", {f"demo-1.{name}": data})
    report = ask(tmp_path, f"wheel:{wheel}")
    assert (report.verdict, {w.code for w in report.warnings}) == (
        "match",
        set(codes.split()),
    )


def test_doubt_about_a_plugin_is_no_match(tmp_path: Path) -> None:
    file = f"{SITE}/o-1.dist-info/entry_points.txt"
    layers = Tar().file(file, PLUGIN), Tar().file(file, "").whiteout(file)
    layout = write_layout(
        tmp_path / "image",
        build_image([PACKAGE_LAYER, *(layer.done() for layer in layers)]),
    )
    roots = (Root("demo", PACKAGE_ROOT, PACKAGE),)
    report = ask(tmp_path, f"oci:{layout}", roots)
    assert report.reason["code"] == "ambiguous-whiteout-after-file"


def test_plugins_are_named(tmp_path: Path) -> None:
    layers = [PACKAGE_LAYER, stated(PLUGIN, "o-1.dist-info").done()]
    layout = write_layout(tmp_path / "image", build_image(layers))
    report = ask(tmp_path, f"oci:{layout}", (Root("demo", PACKAGE_ROOT, PACKAGE),))
    (warning,) = (w.document() for w in report.warnings)
    assert warning["entry_points"] == ["[demo.plugins] x = evil:run"]
    assert warning["paths"] == [f"/{SITE}/o-1.dist-info/entry_points.txt"]


def test_bytecode_of_a_source_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "tree/demo").mkdir(parents=True)
    (tmp_path / "tree/real.py").write_bytes(GOOD)
    (tmp_path / "tree/demo/core.py").symlink_to("../real.py")
    cache = "opt/demo/demo/__pycache__/core.cpython-311.pyc"
    layer = (
        Tar()
        .file("opt/demo/real.py", GOOD)
        .symlink("opt/demo/demo/core.py", "../real.py")
    )
    layer.file(cache, pyc(EVIL))
    layout = write_layout(tmp_path / "image", build_image([layer.done()]))
    request = Request(
        f"oci:{layout}",
        [folder_tree(tmp_path / "tree")],
        (Root(".", "/opt/demo", CHECKOUT),),
        platform=Platform("linux", "amd64", ""),
    )
    report = verify(request)
    assert (report.verdict, [w.code for w in report.warnings]) == (
        "match",
        ["bytecode-unverifiable"],
    )


@pytest.mark.parametrize(
    "text",
    [
        b"not " * 1900 + b"1",
        b"lambda:" * 1000 + b"1",
        b"a" + b"[0]" * 2500,
        b"(" * 1000,
        b"'\\ud800'",
        b"\0",
        b"\xff",
    ],
)
@pytest.mark.parametrize(
    "place", ["%b", "if %b:\n    sys.exit(main())", "if 1:\n    %b\n    main()"]
)
def test_hostile_command_is_only_read(text: bytes, place: str) -> None:
    body = HEAD.encode() + place.encode().replace(b"%b", text) + b"\n"
    assert read_launcher(body) is None


def test_bytecode_without_columns(tmp_path: Path) -> None:
    """What `PYTHONNODEBUGRANGES` leaves out tells where code is, not what it does."""
    source = DEMO.files["demo/cli.py"]
    (tmp_path / "cli.py").write_bytes(source)
    outcomes = []
    for text in (source, source.replace(b"0", b"1"), source.replace(b":", b":\n")):
        (tmp_path / "cli.py").write_bytes(text)
        done = subprocess.run(
            [sys.executable, "-X", "no_debug_ranges", "-m", "py_compile", "cli.py"],
            cwd=tmp_path,
            check=True,
        )
        assert done.returncode == 0
        (cache,) = (tmp_path / "__pycache__").glob("*.pyc")
        data = cache.read_bytes()
        assert len(data) < len(pyc(text, text))
        outcomes.append(compare_code(data, source, "cli.py", 0))
    assert outcomes == ["same", "different", "instructions"]


def test_table_of_locations_that_is_none() -> None:
    source = b"def f():\n    return 1\n"
    code = compile(source, "x.py", "exec", dont_inherit=True)
    outcomes = set()
    for table in (b"", b"\x00", b"\xe8", b"\xe8" + b"\xff" * 5000, b"\x80", b"\xf0\0"):
        data = bytes(16) + marshal.dumps(code.replace(co_linetable=table))
        outcomes.add(compare_code(data, source, "x.py", 0))
    assert outcomes == {"instructions"}
