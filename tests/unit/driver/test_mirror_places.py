"""Which places a recipe may name for a run's mirror."""

import fsspec
import pytest
from fsspec import AbstractFileSystem
from samples import recipe_for

from mathrl_ray.config import RecipeError
from mathrl_ray.driver.mirror import check_mirror


def test_a_protocol_that_nobody_knows_or_that_lacks_its_package_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"run\.mirror = nope://x.*nope"):
        check_mirror("nope://x", tmp_path)
    if pytest.importorskip("importlib.util").find_spec("s3fs") is None:
        with pytest.raises(RecipeError, match=r"run\.mirror = s3://me:\*masked\*@b/x.*s3fs"):
            check_mirror("s3://me:pass@b/x", tmp_path)


@pytest.mark.parametrize("error", [ConnectionError("no route"), PermissionError("denied"), RuntimeError("of its own kind")])
def test_a_place_that_cannot_be_reached_is_refused_by_key_and_without_its_password(tmp_path, error):
    class FarFileSystem(AbstractFileSystem):
        cachable = False

        def __init__(self):
            raise error

    fsspec.register_implementation("far", FarFileSystem, clobber=True)
    with pytest.raises(RecipeError, match=rf"run\.mirror = far://me:\*masked\*@b: {type(error).__name__}: {error}\. .*far://"):
        check_mirror("far://me:open-sesame-1@b", tmp_path)


@pytest.mark.parametrize("chain", ["simplecache::file://{}/m", "simplecache://::file://{}/m", "zip://a::file://{}", "dir::file://{}"])
def test_a_chain_of_places_is_refused_since_nobody_sees_where_it_ends(tmp_path, chain):
    with pytest.raises(RecipeError, match=r"run\.mirror = .* is a chain of places"):
        check_mirror(chain.format(tmp_path), tmp_path)


def test_an_archive_without_a_file_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"run\.mirror = zip://"):
        check_mirror("zip://", tmp_path)


def test_a_mirror_among_the_runs_is_refused(tmp_path):
    for place in (tmp_path, tmp_path / "test", tmp_path / ".." / tmp_path.name / "deep" / "er"):
        with pytest.raises(RecipeError, match=r"lies in run\.root"):
            check_mirror(f"file://{place}", tmp_path)
    check_mirror(f"file://{tmp_path}-beside", tmp_path)


@pytest.mark.parametrize("url", ["/tmp/x", "s3:/b", "file://relative/path", "://x", "s3://"])
def test_what_is_no_url_of_a_folder_is_refused_with_an_example(tmp_path, url):
    with pytest.raises(ValueError, match="s3://bucket/folder"):
        recipe_for(tmp_path, run={"mirror": url})
