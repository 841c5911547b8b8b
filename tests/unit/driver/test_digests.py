import pytest

from mathrl_ray.driver.digests import check_files, data_digest, file_digests, masked_digests


def test_order_and_number_of_rows_count_and_no_rows_are_no_digest():
    digests = [data_digest(rows) for rows in (["a", "b"], ["b", "a"], ["ab"], ["a"], ["a", "a"])]
    assert len(set(digests)) == 5
    assert data_digest([]) == ""
    assert data_digest(["\ud800"]) != data_digest(["?"])


def test_only_what_is_masked_has_a_digest_and_it_is_too_short_to_guess_from():
    recipe = {"run": {"seed": 3, "mirror": "s3://key:secret@b/c"}, "reward": {"kwargs": {"api_key": "abc"}, "function": "m:f"}}
    digests = masked_digests(recipe)
    assert digests.keys() == {"run.mirror", "reward.kwargs"}
    assert all(len(bytes.fromhex(digest)) == 2 for digest in digests.values())
    assert masked_digests(recipe) == digests
    other = masked_digests({"reward": {"kwargs": {"api_key": "abd"}}})
    assert other["reward.kwargs"] != digests["reward.kwargs"]


def test_files_are_looked_at_by_length_and_where_asked_by_content(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"x" * 3_000_000)
    (tmp_path / "y").write_bytes(b"123456789")
    digests = file_digests(tmp_path)
    assert digests == {"a/x": [3_000_000, digests["a/x"][1]], "y": [9, 0xCBF43926]}  # the check value of CRC-32
    check_files(tmp_path, digests)
    (tmp_path / "y").write_bytes(b"123456780")
    check_files(tmp_path, digests, read=["a/x"])
    with pytest.raises(ValueError, match=r"/y is damaged"):
        check_files(tmp_path, digests)
    (tmp_path / "a" / "x").write_bytes(b"x" * 2_999_999)
    with pytest.raises(ValueError, match=r"a/x has 2999999 bytes, 3000000 were written"):
        check_files(tmp_path, digests, read=[])
    (tmp_path / "a" / "x").unlink()
    with pytest.raises(ValueError, match=r"a/x is missing"):
        check_files(tmp_path, digests, read=[])
