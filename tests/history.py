# SPDX-License-Identifier: Apache-2.0
"""Random histories with every kind of change that a patch can hold.

A history is one line of commits over many folders. What happens in one folder does not
touch another, so one history holds many independent sequences of patches, and one git
process can judge them all.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path

from support import git

FILE, EXEC, LINK = 0o100644, 0o100755, 0o120000

NAMES = (
    b"a.py",
    b"b.txt",
    b"dir/c",
    b"dir/sub/d.py",
    b"dir/sub/e",
    b"with space",
    b"tab\there",
    b'quo"te',
    b"back\\slash",
    "ümläut.txt".encode(),
    b"latin\xe4.txt",
    b"new\nline",
    b"x b/x",
    b"b/b",
    b"a -> b",
    b"-dash",
    b".gitattributes",
    b"end ",
    b"deep/er/and/deep/er/f",
    "i\u0307İ\u0131".encode(),
    b"A.py",
    b"dir",
    b"deep",
    b"x b",
    b"bell\a",
    b"%s%n",
    b"=>",
    b"{a => b}",
)

WORDS = (
    b"",
    b"alpha",
    b"beta",
    b"gamma ",
    b"\tdelta",
    b"    indented",
    b"- minus",
    b"-- dash",
    b"--- a/a.py",
    b"+++ b/a.py",
    b"+ plus",
    b"@@ -1 +1 @@",
    b"diff --git a/a b/a",
    b"\\ No newline at end of file",
    b"crlf\r",
    b"cr\rinside",
    b"From: someone",
    b"From 0000000000000000000000000000000000000000 x",
    b"\xff\xfe",
    b"void f(int x)",
    b"end",
    b"}",
    b"\x0b\x0c",
    b" ",
    b"ident $Id$",
    b"GIT binary patch",
    b"literal 0",
    "İstanbul \u0131ğüş".encode(),
)

ATTRIBUTES = (
    b"* text eol=crlf whitespace=trailing-space\n*.py -text diff=python ident\n"
)

PEOPLE = (
    ("Ada Lovelace", "ada@example.org"),
    ("Jürgen Müller", "juergen@example.org"),
    ("O'Neil, Pat", "pat@example.org"),
    ("Иван Петров", "ivan@example.org"),
    ("Dr. No", "no@example.org"),
    ("x", "x+y@example.org"),
)

ZONES = ("+0000", "-0800", "+0530", "+1345", "-0330", "+1400")

SUBJECTS = (
    "Change things",
    "fix: a bug (#12)",
    "Ünïcode im Betreff",
    "[kernel] make it quick",
    "A very long subject that goes on and on until every mail program has to fold it "
    "somewhere in its middle because the line is longer than seventy-eight columns",
    "subject with = ? and =20",
    "trailing dot.",
    "a: b: c",
    "100% faster",
)

BODIES = (
    "",
    "One line.\n",
    "First paragraph,\nof two lines.\n\nSecond one.\n",
    "Text.\n\nSigned-off-by: Ada Lovelace <ada@example.org>\n"
    "Co-authored-by: Jürgen <j@example.org>\n",
    "> quoted\n  indented\n\ttab\n",
    "- a list\n- of things\n",
    "日本語の説明\n",
)

State = dict[bytes, tuple[int, bytes]]


def is_binary(data: bytes) -> bool:
    return b"\0" in data[:8000]


class Walker:
    """Changes a tree at random."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def text(self, least: int = 0, most: int = 40) -> bytes:
        rng = self.rng
        lines = [
            rng.choice(WORDS) if rng.random() < 0.35 else b"line %d" % rng.randrange(99)
            for _ in range(rng.randint(least, most))
        ]
        if rng.random() < 0.1:
            lines = [line + b"\r" for line in lines]
        out = b"\n".join(lines)
        return out + b"\n" if rng.random() < 0.85 and out else out

    def binary(self) -> bytes:
        rng = self.rng
        size = rng.choice((1, 30, 200, 3000))
        return b"\0" + rng.randbytes(size) + bytes(range(256)) * rng.randint(0, 4)

    def content(self) -> bytes:
        if self.rng.random() < 0.15:
            return self.binary()
        return self.text()

    def edit(self, data: bytes) -> bytes:
        rng = self.rng
        if is_binary(data):
            at = rng.randrange(len(data))
            return data[:at] + rng.randbytes(rng.randint(1, 4)) + data[at + 1 :]
        lines = data.split(b"\n")
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            at = rng.choice((0, len(lines), rng.randint(0, len(lines))))
            kind = rng.randrange(5)
            new = [b"new %d" % rng.randrange(1000) for _ in range(rng.randint(1, 5))]
            if kind == 0:
                lines[at:at] = new
            elif kind == 1:
                del lines[at : at + rng.randint(1, 4)]
            elif kind == 2:
                lines[at : at + len(new)] = new
            elif kind == 3:
                lines[at:at] = [rng.choice(WORDS)]
            elif len(lines) > 1:
                lines[at:at] = lines[: rng.randint(1, 6)]
        if rng.random() < 0.1:
            while lines and lines[-1] == b"":
                lines.pop()
        return b"\n".join(lines)

    def start(self, names: int = 6) -> State:
        state: State = {}
        for name in self.rng.sample(NAMES, names):
            self.add(state, name)
        return state

    def add(self, state: State, path: bytes) -> bool:
        """Add a file; a file in the way of its folders, or below it, goes."""
        rng = self.rng
        parts = path.split(b"/")
        for depth in range(1, len(parts)):
            state.pop(b"/".join(parts[:depth]), None)
        for other in [p for p in state if p.startswith(path + b"/")]:
            del state[other]
        if rng.random() < 0.12 and path != b".gitattributes":
            state[path] = (LINK, rng.choice((b"a.py", b"../x", b"dir/c", b"nowhere")))
        else:
            data = self.content()
            if path == b".gitattributes":
                data = ATTRIBUTES
            state[path] = (rng.choice((FILE, FILE, FILE, EXEC)), data)
        return True

    def step(self, state: State) -> State:
        """Return the next state of one folder."""
        rng = self.rng
        state = dict(state)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            files = sorted(state)
            action = rng.choices(
                ("edit", "add", "delete", "mode", "move", "copy", "type", "swap"),
                (55, 10, 6, 6, 8, 5, 3, 2),
            )[0]
            if not files or action == "add":
                self.add(state, rng.choice(NAMES))
                continue
            path = rng.choice(files)
            mode, data = state[path]
            if path == b".gitattributes" and action in ("type", "swap"):
                continue  # git refuses anything but a file of that name
            if action == "edit":
                if mode == LINK:
                    state[path] = (LINK, data + b"x")
                else:
                    state[path] = (mode, self.edit(data))
            elif action == "delete":
                del state[path]
            elif action == "mode" and mode != LINK:
                state[path] = (EXEC if mode == FILE else FILE, data)
                if rng.random() < 0.3:
                    state[path] = (state[path][0], self.edit(data))
            elif action in ("move", "copy"):
                target = rng.choice(NAMES)
                if target == b".gitattributes" and mode == LINK:
                    continue
                if target.startswith(path + b"/") or path.startswith(target + b"/"):
                    continue
                self.add(state, target)
                if action == "move":
                    state.pop(path, None)
                fresh = self.edit(data) if rng.random() < 0.5 and mode != LINK else data
                state[target] = (mode, fresh)
            elif action == "type":
                state[path] = (FILE, data) if mode == LINK else (LINK, b"a.py")
            elif action == "swap":
                # A file becomes a folder, or a folder a file.
                top = path.split(b"/")[0]
                for other in [p for p in state if p.split(b"/")[0] == top]:
                    del state[other]
                if top == path:
                    state[path + b"/inner"] = (mode, data)
                else:
                    state[top] = (FILE, data)
        return state


@dataclass
class History:
    """A repository with a base and a line of commits above it."""

    repo: Path
    base: str
    tip: str
    folders: dict[bytes, list[int]] = field(default_factory=dict)


def _quote(path: bytes) -> bytes:
    out = bytearray(b'"')
    for code in path:
        if code in b'"\\' or code < 32 or code >= 127:
            out += b"\\%03o" % code
        else:
            out.append(code)
    return bytes(out + b'"')


def _data(data: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(data), data)


def make_history(
    rng: random.Random, repo: Path, folders: int, commits: int, attributes: bool = False
) -> History:
    """Make a random history.

    Args:
        rng: Where everything comes from.
        repo: Folder of a new bare repository.
        folders: How many independent sequences.
        commits: How many commits on top of the base.
        attributes: Put a hostile `.gitattributes` at the top of the base.
    """
    git("init", "-q", "--bare", str(repo))
    walker = Walker(rng)
    names = [b"s%03d" % number for number in range(folders)]
    states = {name: walker.start() for name in names}
    stream: list[bytes] = []

    def commit(message: str, changes: list[bytes], person: tuple[str, str]) -> None:
        when = b"%d %s" % (
            1_600_000_000 + rng.randrange(10**8),
            rng.choice(ZONES).encode(),
        )
        who = f"{person[0]} <{person[1]}>".encode()
        stream.append(
            b"commit refs/heads/main\nauthor %s %s\ncommitter %s %s\n%s"
            % (who, when, who, when, _data(message.encode()))
        )
        stream.extend(changes)
        stream.append(b"\n")

    def difference(folder: bytes, old: State, new: State) -> list[bytes]:
        out = [
            b"D %s\n" % _quote(folder + b"/" + path)
            for path in sorted(old.keys() - new)
        ]
        for path, (mode, data) in sorted(new.items()):
            if old.get(path) != (mode, data):
                place = _quote(folder + b"/" + path)
                out.append(b"M %o inline %s\n%s" % (mode, place, _data(data)))
        return out

    first: list[bytes] = []
    for name in names:
        first += difference(name, {}, states[name])
    if attributes:
        first.append(b"M 100644 inline .gitattributes\n" + _data(ATTRIBUTES))
    commit("base\n", first, PEOPLE[0])
    history: dict[bytes, list[int]] = {name: [] for name in names}
    number = 0
    while number < commits:
        name = rng.choice(names)
        new = walker.step(states[name])
        if new == states[name]:
            continue
        body = rng.choice(BODIES)
        message = rng.choice(SUBJECTS) + "\n" + (f"\n{body}" if body else "")
        commit(message, difference(name, states[name], new), rng.choice(PEOPLE))
        states[name] = new
        history[name].append(number)
        number += 1
    git("--git-dir", str(repo), "fast-import", "--quiet", stdin=b"".join(stream))
    tip = git("--git-dir", str(repo), "rev-parse", "main").decode().strip()
    base = git("--git-dir", str(repo), "rev-list", "--max-parents=0", "main")
    return History(repo, base.decode().strip(), tip, history)
