# SPDX-License-Identifier: Apache-2.0
import pytest

from stackctl.git.command import HermeticGit
from stackctl.git.patchtext.patchid import patch_id

TEXT = b"diff --git a/%s b/%s\nindex 1..2 100644\n--- a/%s\n+++ b/%s\n@@ -%d +%d @@\n"
LINES = b"-a b\n+c\n"
MODE = b"diff --git a/m b/m\nold mode 100644\nnew mode 100755\n"
EMPTY = b"diff --git a/e b/e\nnew file mode 100644\nindex 0000000..e69de29\n"
BINARY = (
    b"diff --git a/b b/b\nindex 1111..2222 100644\nGIT binary patch\nliteral 0\n"
    b"HcmV?d00001\n\nliteral 0\nHcmV?d00001\n\n"
)


def text(name: bytes, line: int = 1) -> bytes:
    return TEXT % (name, name, name, name, line, line) + LINES


@pytest.mark.parametrize(
    "diff",
    [
        text(b"f"),
        text(b"f") + b"\\ No newline at end of file\n",
        text(b"f") + text(b"g"),
        MODE,
        EMPTY,
        MODE + text(b"f") + EMPTY,
        BINARY,
        text(b"f") + BINARY + text(b"g"),
        BINARY + MODE + BINARY,
        EMPTY + BINARY,
        text(b"f") + b"-- \n2.39.5\n",
        b"prose\n" + text(b"f"),
        b"diff --git a/b b/b\nindex 1..2\nBinary files a/b and b/b differ\n" + MODE,
        b"",
        b"prose\n",
    ],
)
def test_equal_to_git(diff: bytes):
    printed = HermeticGit().run("patch-id", "--stable", stdin=diff).split()
    assert patch_id(diff) == (printed[0].decode() if printed else "")


def test_line_numbers_white_space_and_order_do_not_count():
    assert patch_id(text(b"f")) == patch_id(text(b"f", 77).replace(b"a b", b"ab"))
    assert patch_id(text(b"f") + text(b"g")) == patch_id(text(b"g") + text(b"f"))
    assert patch_id(text(b"f")) != patch_id(text(b"g"))
