"""A run of Weights & Biases, where its package is installed: the same numbers as TensorBoard's, and the recipe as its config.

Called by trackers.py, in its thread. Files are under <run>/wandb; offline (the default) nothing is sent, and `wandb sync` sends it later.
The package's helper process ends with `close`, and by itself when this process is gone. The service is not told more than what is passed
here: no host name, command line, source code, git remote or console output.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal


def has_wandb() -> bool:
    """Whether it is installed; a folder of that name, as each run has one, is no package."""
    spec = importlib.util.find_spec("wandb")
    return spec is not None and spec.origin is not None


class WandbRun:
    """One run there. A run that goes on, or goes back, begins another one of the same name and group and gives it all numbers again."""

    name = "Weights & Biases"

    def __init__(self, run_folder: Path, project: str, mode: Literal["offline", "online"], config: Mapping[str, Any]) -> None:
        """
        Args:
            run_folder: its name is the run's.
            project: where it is sent to.
            mode: online needs a login (`wandb login`, or WANDB_API_KEY).
            config: the recipe, masked.
        """
        self._folder, self._project, self._mode, self._config = run_folder, project, mode, config
        self._run: Any = None
        self._groups: set[str] = set()
        """Those whose axis is known there."""

    def open(self, wall_time_s: float) -> None:
        """
        Raises:
            Exception: whatever wandb raises where it cannot begin.
        """
        import wandb

        self._finish()
        self._groups.clear()
        (self._folder / "wandb").mkdir(exist_ok=True)  # else it takes a temporary folder where it cannot make one, and says so to nobody
        if self._mode == "online" and not wandb.login(prompt=False):  # else it would ask, and wait
            raise RuntimeError('trackers.wandb = "online" needs a login: `wandb login`, or WANDB_API_KEY')
        self._run = wandb.init(
            project=self._project,
            name=self._folder.name,
            group=self._folder.name,
            dir=str(self._folder),
            config=dict(self._config),
            mode=self._mode,
            settings=_settings(wandb),
        )

    def numbers(self, step: int, wall_time_s: float, values: Mapping[str, float]) -> None:
        """Its own step only grows; a stage's begins again, so that it goes along as a number: <group>/step is each chart's axis."""
        groups = {tag.partition("/")[0] for tag in values}
        for group in groups - self._groups:
            self._run.define_metric(f"{group}/*", step_metric=f"{group}/step")
        self._groups |= groups
        self._run.log({**values, **{f"{group}/step": step for group in groups}, "unix_time_s": wall_time_s})

    def text(self, tag: str, step: int, wall_time_s: float, markdown: str) -> None:
        """Not kept: what there is stands in the run's evaluations."""

    def flush(self) -> None:
        pass

    def close(self) -> None:
        import wandb

        self._finish()
        wandb.teardown()  # its helper process

    def _finish(self) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            run.finish()


def _settings(wandb: Any) -> Any:
    return wandb.Settings(
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        disable_job_creation=True,
        save_code=False,
        host="",
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        init_timeout=60,
    )
