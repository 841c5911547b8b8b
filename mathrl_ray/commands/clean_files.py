"""`check-data --write-clean`: the good rows of each file as they were, and beside them a list of what was left out and why.

Called by check_data.py when everything is checked. Writes files; decides nothing about rows.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mathrl_ray.commands.checked_file import CheckedFile
from mathrl_ray.commands.row_files import check_not_an_input, check_output, json_line, write_lines, write_rows, write_table
from mathrl_ray.data.dataset_name import ROW_SUFFIXES
from mathrl_ray.data.rows import DataError

OPTION = "--write-clean"


def clean_paths(out: Path, specs: Sequence[str]) -> dict[str, Path]:
    """Where each file's good rows go: into `out` itself for one file, else into the folder `out`, under the files' own names.

    Raises:
        DataError: two files of one name, a place where nothing can be written, or one of the files themselves.
    """
    if len(specs) == 1:
        paths = {specs[0]: out}
    else:
        paths = {spec: out / _file_name(spec) for spec in specs}
        if len(set(paths.values())) < len(specs):
            raise DataError(f"{OPTION} = {out}: two of the files have the same name; check them one at a time")
    written = [*paths.values(), *map(_left_out_path, paths.values())]
    if len(set(written)) < len(written):
        raise DataError(f"{OPTION} = {out}: the rows left out of one file and the good rows of another would go into one file; rename one")
    check_not_an_input(written, specs, OPTION)
    if len(specs) > 1:
        _make_folder(out)
    for path in paths.values():
        check_output(path, OPTION)
    return paths


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{OPTION} = {out}: with several files it names a folder, which cannot be made: {error.strerror}") from error


def _left_out_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.left_out.jsonl")


def _file_name(spec: str) -> str:
    path = Path(spec)
    return path.name if path.suffix in ROW_SUFFIXES else f"{path.name.replace(':', '-').replace('#', '-')}.jsonl"


def write_clean(files: Sequence[CheckedFile], paths: Mapping[str, Path]) -> list[str]:
    """Write what `clean_paths` planned; what was written, for a person."""
    written = []
    for file in files:
        path = paths[file.spec]
        _write_good(file, path)
        left_out = _left_out_path(path)
        ids = file.ids()
        rows = [{"file": file.spec, "line": line, "problem_id": ids[line], "reasons": file.bad[line]} for line in sorted(file.bad)]
        write_lines(left_out, [json_line(row) for row in rows], OPTION)
        written.append(f"{path}: {file.num_rows - len(file.bad)} good rows of {file.num_rows}; {left_out}: {len(file.bad)} left out")
    return written


def _write_good(file: CheckedFile, path: Path) -> None:
    """Byte for byte where the format stays the same: lines of JSON, or a Parquet table with its own types."""
    source = Path(file.spec)
    suffix = source.suffix if source.is_file() else ""
    if suffix == path.suffix == ".jsonl":
        lines = source.read_bytes().split(b"\n")
        write_lines(path, [lines[line - 1].rstrip(b"\r") for line, _ in file.rows.numbered if line not in file.bad], OPTION)
    elif suffix == path.suffix == ".parquet":
        import pyarrow.parquet as pq

        good = [index for index, (line, _) in enumerate(file.rows.numbered) if line not in file.bad]
        write_table(path, pq.read_table(source).take(good), OPTION)
    else:
        write_rows(path, [(line, row) for line, row in file.rows.numbered if line not in file.bad], OPTION, file.spec)
