# SPDX-License-Identifier: Apache-2.0
"""The application with all its commands, for help, completion and unknown names.

Command modules import nothing heavy at their top, so that `stackctl --help` and shell
completion stay quick.
"""

from stackctl.cli import (
    bisect,
    cache,
    changes,
    compose,
    diff,
    doctor,
    export,
    gate,
    image,
    import_manifest,
    lock,
    pins,
    pr,
    qualify,
    range_diff,
    receipt,
    refresh,
    replay,
    report,
    resolve,
    show,
    status,
    tag,
    verify_image,
)
from stackctl.cli.program import new_app

app = new_app()

for module in (
    compose,
    lock,
    show,
    status,
    diff,
    range_diff,
    export,
    refresh,
    pins,
    resolve,
    replay,
    import_manifest,
    pr,
    doctor,
    cache,
    verify_image,
    image,
    gate,
    qualify,
    receipt,
    report,
    changes,
    bisect,
    tag,
):
    module.register(app)
