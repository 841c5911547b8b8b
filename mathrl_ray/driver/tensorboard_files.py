"""TensorBoard's event files of one run: numbers, texts, and the recipe as hyperparameters.

Called by trackers.py, in its thread. Uses TensorBoard's own messages, so that it reads what we write, and its frame (a length, the message,
a CRC-32C of each); not its writer, which loads TensorFlow where there is one. Nothing of TensorBoard is imported before `open`.

<run>/tensorboard/ is made from the other files of the run and can be made again from them: a new start of it begins a new event file, tells
a TensorBoard that is looking to forget what it has seen, and empties the old one. That is removed at the start after it: a TensorBoard that
was reading a file that is gone never gets to the next one. With the data server (--load_fast), which heeds no such word, a number that only
the old file had is shown until TensorBoard is started again.
"""

import itertools
import os
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from mathrl_ray.driver.tracked_values import code_block

FOLDER = "tensorboard"
_PATTERN = "events.out.tfevents.*"
_HPARAMS_TAG = "_hparams_/session_start_info"
_numbers = itertools.count()


class TensorBoardFiles:
    """One run's event file."""

    name = "TensorBoard"

    def __init__(self, run_folder: Path, recipe_text: str, hparams: Mapping[str, Any]) -> None:
        """
        Args:
            run_folder: the files go to <run_folder>/tensorboard.
            recipe_text: the whole recipe, masked, as TOML.
            hparams: texts, numbers and truth values by recipe key: what tells this run from others.
        """
        self._folder = run_folder / FOLDER
        self._recipe_text, self._hparams = recipe_text, hparams
        self._file: BinaryIO | None = None
        self._crc: Callable[[bytes], int] = lambda _: 0

    def open(self, wall_time_s: float) -> None:
        """Begin anew; wall_time_s: when the run began, in Unix time.

        Raises:
            OSError: it cannot be written there.
            ImportError: there is no tensorboard package.
        """
        from tensorboard.compat.proto import event_pb2
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

        self._crc = masked_crc32c
        self.close()
        self._folder.mkdir(exist_ok=True)
        before = list(self._folder.glob(_PATTERN))
        # Files are read in the order of their names.
        name = f"events.out.tfevents.{time.time_ns() // 1000}.{os.getpid()}.{next(_numbers)}"
        self._file = (self._folder / name).open("xb")
        self._write(event_pb2.Event(wall_time=wall_time_s, file_version="brain.Event:2"))
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)  # what was seen from step 0 on does not count any more
        self._write(event_pb2.Event(wall_time=wall_time_s, step=0, session_log=start))
        self.text("recipe", 0, wall_time_s, code_block(self._recipe_text))
        self._write_hparams(wall_time_s)
        self.flush()
        for path in before:
            if path.stat().st_size:
                os.truncate(path, 0)
            else:
                path.unlink()

    def numbers(self, step: int, wall_time_s: float, values: Mapping[str, float]) -> None:
        """Values by tag, as float32, at one step and time."""
        from tensorboard.compat.proto import event_pb2, summary_pb2

        summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self._write(event_pb2.Event(wall_time=wall_time_s, step=step, summary=summary))

    def text(self, tag: str, step: int, wall_time_s: float, markdown: str) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.plugins.text.metadata import create_summary_metadata

        tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[markdown.encode(errors="replace")])
        value = summary_pb2.Summary.Value(tag=tag, metadata=create_summary_metadata(display_name=tag, description=""), tensor=tensor)
        self._write(event_pb2.Event(wall_time=wall_time_s, step=step, summary=summary_pb2.Summary(value=[value])))

    def _write_hparams(self, wall_time_s: float) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        info = plugin_data_pb2.SessionStartInfo(group_name=self._folder.parent.name, start_time_secs=wall_time_s)
        for key, value in self._hparams.items():
            match value:
                case bool():
                    info.hparams[key].bool_value = value
                case int() | float():
                    info.hparams[key].number_value = value
                case _:
                    info.hparams[key].string_value = str(value)
        content = plugin_data_pb2.HParamsPluginData(session_start_info=info)
        summary_metadata = metadata.create_summary_metadata(content)
        value = summary_pb2.Summary.Value(tag=_HPARAMS_TAG, metadata=summary_metadata, tensor=metadata.NULL_TENSOR)
        self._write(event_pb2.Event(wall_time=wall_time_s, summary=summary_pb2.Summary(value=[value])))

    def _write(self, event: Any) -> None:
        assert self._file is not None, "open it first"
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        self._file.write(length + struct.pack("<I", self._crc(length)) + data + struct.pack("<I", self._crc(data)))

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
