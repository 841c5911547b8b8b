import os

from mathrl_ray.actors import nodes
from mathrl_ray.actors.nodes import this_node, visible_gpus

LISTING = "0, GPU-aaaa, NVIDIA H200, 143771, 143000\n1, GPU-bbbb, NVIDIA H200, 143771, 100\n2, GPU-cccc, NVIDIA A10, 24000, [N/A]\n"


def names(visible):
    return [(gpu.name, gpu.free_bytes // 2**20) for gpu in visible_gpus(LISTING, visible)]


def test_gpus_are_those_that_the_environment_shows_in_its_order():
    assert names(None) == [("NVIDIA H200", 143000), ("NVIDIA H200", 100), ("NVIDIA A10", 0)]
    assert names("1,0") == [("NVIDIA H200", 100), ("NVIDIA H200", 143000)]
    assert names("GPU-cc") == [("NVIDIA A10", 0)]
    assert names("") == names("-1") == []
    assert names("1,9,0") == [("NVIDIA H200", 100)]  # CUDA, too, stops at the first that is not there
    assert visible_gpus("Failed to initialize NVML: Unknown Error\n", None) == ()


def test_this_machine_is_described_and_nothing_is_left_of_the_root_that_was_tried(tmp_path):
    facts = this_node(str(tmp_path / "a" / "runs"), ("pytest", "no-such-package"))
    assert facts.root_fault == ""
    assert facts.versions.keys() == {"python", "pytest"}
    assert min(facts.num_cpus, facts.memory_bytes, facts.disk_bytes) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_exists_stays_as_it_was(tmp_path):
    (tmp_path / "run").mkdir()
    assert this_node(str(tmp_path), ()).root_fault == ""
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_root_that_cannot_be_made_is_a_fault_in_words(tmp_path):
    (tmp_path / "file").write_text("")
    assert "Not a directory" in this_node(str(tmp_path / "file" / "runs"), ()).root_fault
    assert os.listdir(tmp_path) == ["file"]


def test_a_node_that_lacks_the_root_says_so_and_makes_none(tmp_path):
    facts = nodes._marked_facts(str(tmp_path / "runs"), ".preflight-1", "word", ())
    assert "all nodes must see one folder" in facts.root_fault
    assert not (tmp_path / "runs").exists()


def test_a_marker_is_seen_where_it_was_written_and_missed_where_it_was_not(tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "VISIBLE_LIMIT_S", 0.3)
    assert nodes._marked_facts(str(tmp_path), ".preflight-1", "word", ()).root_fault == ""
    assert nodes._unseen(tmp_path / ".preflight-1", "word") == ""
    assert "another folder" in nodes._unseen(tmp_path / ".preflight-1", "another word")
    assert "another folder" in nodes._unseen(tmp_path / ".preflight-2", "word")
