import os
import subprocess
import sys
import time
from pathlib import Path

from mathrl_ray.actors import nodes
from mathrl_ray.actors.gpus import visible_gpus
from mathrl_ray.actors.nodes import this_node

LISTING = "0, GPU-aaaa, NVIDIA H200, 143771, 143000\n1, GPU-bbbb, NVIDIA H200, 143771, 100\n2, GPU-cccc, NVIDIA A10, 24000, [N/A]\n"


def names(visible):
    return [(gpu.name, gpu.free_bytes and gpu.free_bytes // 2**20) for gpu in visible_gpus(LISTING, visible)]


def test_gpus_are_those_that_the_environment_shows_in_its_order():
    assert names(None) == [("NVIDIA H200", 143000), ("NVIDIA H200", 100), ("NVIDIA A10", None)]
    assert names("1,0") == [("NVIDIA H200", 100), ("NVIDIA H200", 143000)]
    assert names("GPU-cc") == [("NVIDIA A10", None)]
    assert names("") == names("-1") == []
    assert names("1,9,0") == [("NVIDIA H200", 100)]  # CUDA, too, stops at the first that is not there
    assert visible_gpus("Failed to initialize NVML: Unknown Error\n", None) == ()


def test_memory_that_nvidia_smi_does_not_know_is_unknown_and_not_zero():
    (shared,) = visible_gpus("0, GPU-a, NVIDIA GB10, [N/A], [N/A]\n", None)
    assert (shared.memory_bytes, shared.free_bytes) == (None, None)


def test_parts_of_gpus_count_and_no_more_of_them_than_ray_counts():
    assert names("MIG-1,MIG-2") == [("MIG-1", None), ("MIG-2", None)]
    assert len(names("MIG-1,MIG-2,MIG-3,MIG-4")) == 3  # Ray counts at most the whole GPUs
    assert visible_gpus("", "MIG-1") == ()


def test_behaviour_33_the_devices_of_a_node_are_those_that_its_raylet_was_started_with(tmp_path):
    # A shell by the name of Ray's process stands in for it, with a worker below it from which all GPUs are hidden.
    (tmp_path / "raylet").symlink_to("/bin/sh")
    ask = "from mathrl_ray.actors.gpus import devices_of_raylet; print(devices_of_raylet())"
    worker = f"CUDA_VISIBLE_DEVICES= {sys.executable} -c '{ask}'; true"

    def seen(**more):
        environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}
        command = [str(tmp_path / "raylet"), "-c", worker]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    assert seen(CUDA_VISIBLE_DEVICES="2,3") == "2,3"
    assert seen() == "None"


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


def test_a_node_that_is_late_or_sees_another_folder_leaves_no_marker_in_it(tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "VISIBLE_LIMIT_S", 0.2)
    facts = nodes._marked_facts(str(tmp_path), ".preflight-1", "word", ())
    assert "another folder" in facts.root_fault
    assert list(tmp_path.iterdir()) == []


def test_a_marker_is_seen_where_it_was_written_and_missed_where_it_was_not(tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "VISIBLE_LIMIT_S", 0.3)
    (tmp_path / ".preflight-1").mkdir()
    assert nodes._marked_facts(str(tmp_path), ".preflight-1", "word", ()).root_fault == ""
    marker = tmp_path / ".preflight-1" / "word"
    assert nodes._unseen({"word": marker}) == {}
    (other,) = nodes._unseen({"other": marker}).values()
    assert "another folder" in other


def test_all_nodes_markers_are_waited_for_together(tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "VISIBLE_LIMIT_S", 0.5)
    (tmp_path / "3").write_text("3")
    began = time.monotonic()
    assert nodes._unseen({str(number): tmp_path / str(number) for number in range(6)}).keys() == {"0", "1", "2", "4", "5"}
    assert time.monotonic() - began < 1.0  # one after the other it would be 2.5 s


def test_the_folder_of_markers_goes_whatever_happens(tmp_path):
    try:
        with nodes._marker_folder(Path(tmp_path)) as folder:
            (folder / "one").write_text("one")
            raise RuntimeError("a node did not answer")
    except RuntimeError:
        pass
    assert list(tmp_path.iterdir()) == []


def test_of_an_error_from_another_process_its_last_line_is_told():
    error = RuntimeError("ray::_marked_facts() (pid=1)\n  File ...\nModuleNotFoundError: No module named 'mathrl_ray'\n")
    assert nodes._last_line(error) == "ModuleNotFoundError: No module named 'mathrl_ray'"
    assert nodes._last_line(RuntimeError()) == "RuntimeError"
