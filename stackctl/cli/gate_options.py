# SPDX-License-Identifier: Apache-2.0
"""The options of commands that run gates: with what, and where."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stackctl.errors import UsageError

if TYPE_CHECKING:
    from stackctl.gates.cluster.executor import StoredTrees
    from stackctl.gates.here import Here
    from stackctl.gates.run import Engine
    from stackctl.progress import Progress

PythonOption = Annotated[
    str | None,
    typer.Option(
        metavar="PROGRAM",
        help="Python that runs the units; by default STACKCTL_GATE_PYTHON, else the "
        "one that runs stackctl.",
    ),
]
SiteOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder with an installed vLLM: each arm's files are laid over it.",
    ),
]
ModelOption = Annotated[
    str | None, typer.Option(metavar="PATH", help="Model, for gates that need one.")
]
BaseUrlOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Server that is asked, for gates that need one: URL, or ARM=URL for each "
        "arm, with spaces between.",
    ),
]
ServedModelOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The server's name for the model."),
]
ExecutorOption = Annotated[
    Literal["local", "ray"],
    typer.Option(
        "--executor",
        help="Where units run: on this machine, or on the nodes of a Ray cluster.",
    ),
]
RayAddressOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="ADDRESS",
        help="The Ray cluster; by default RAY_ADDRESS, else one on this machine.",
    ),
]
RayLabelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ray-label",
        metavar="KEY=VALUE",
        help="A label that a node must have, like ray.io/accelerator-type=H200 "
        "(several times).",
    ),
]
GpuOption = Annotated[
    str | None,
    typer.Option(metavar="UUID|NUMBER", help="GPU to use; by default the first."),
]
FreshOption = Annotated[
    bool,
    typer.Option("--fresh", help="Do not take up an interrupted run."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """What the options say of where units run, and with what.

    A command that has a parameter of this type has these options.

    Attributes:
        python: `--python`, the program that runs the units.
        site: `--site`, a folder with an installed vLLM.
        model: `--model`, for gates that need one.
        base_url: `--base-url`, the servers that are asked.
        served_model: `--served-model`, their name for the model.
        gpu: `--gpu`, UUID or number of the GPU to use.
        executor: `--executor`: `local` for this machine, `ray` for a Ray cluster.
        ray_address: `--ray-address`, where the cluster is.
        ray_label: `--ray-label`, each KEY=VALUE, which its nodes must have.
    """

    python: PythonOption = None
    site: SiteOption = None
    model: ModelOption = None
    base_url: BaseUrlOption = None
    served_model: ServedModelOption = None
    gpu: GpuOption = None
    executor: ExecutorOption = "local"
    ray_address: RayAddressOption = None
    ray_label: RayLabelOption = None

    def here(self) -> "Here":
        """Return what is named, for this machine.

        Raises:
            UsageError: `--base-url` is no address.
        """
        from stackctl.gates.here import Here, default_python

        if self.base_url:
            from stackctl.gates.kinds.served import by_arm
            from stackctl.gates.serving.client import check_base_url

            for address in by_arm(self.base_url).values():
                check_base_url(address)
        named = {
            "model": self.model,
            "base-url": self.base_url,
            "served-model": self.served_model,
        }
        return Here(
            self.python or default_python(),
            None if self.site is None else self.site.absolute(),
            {name: value for name, value in named.items() if value},
            self.gpu or "",
        )

    def use_executor(
        self, engine: "Engine", trees: "StoredTrees", progress: "Progress"
    ) -> None:
        """Have an engine run its units where the options say.

        Args:
            engine: The engine.
            trees: Its trees.
            progress: Told what is being done.

        Raises:
            UsageError: Options that do not go together, or Ray is not installed.
            RemoteError: The cluster cannot be used.
        """
        if self.executor != "ray":
            if self.ray_address or self.ray_label:
                option = "--ray-address" if self.ray_address else "--ray-label"
                raise UsageError(f"{option} is for --executor ray")
            return
        if self.gpu:
            raise UsageError(
                "--gpu is for this machine: on a cluster, Ray gives a run its GPUs",
                hint="choose nodes by --ray-label",
            )
        from stackctl.gates.cluster.executor import RayExecutor

        engine.executor = RayExecutor(
            engine, trees, self.python, self.ray_address, self.wanted_labels(), progress
        )

    def wanted_labels(self) -> dict[str, str]:
        """Return the labels that a node must have, by key.

        Raises:
            UsageError: One is no KEY=VALUE.
        """
        wanted = {}
        for label in self.ray_label or ():
            name, equals, value = label.partition("=")
            if not (name and equals and value):
                raise UsageError(
                    f"--ray-label {label}: expected KEY=VALUE",
                    hint="like --ray-label ray.io/accelerator-type=H200",
                )
            wanted[name] = value
        return wanted
