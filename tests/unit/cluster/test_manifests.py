"""The files for clusters that we do not have: against Ray's and Kubernetes' own schemas where there are any, else field by field."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from mathrl_ray.entry import main

CLUSTER = Path(__file__).parent.parent.parent.parent / "cluster"
REPOSITORY = CLUSTER.parent
RAY_CLUSTERS = {
    "raycluster": lambda: read("kuberay/raycluster.yaml")["spec"],
    "rayjob": lambda: read("kuberay/rayjob.yaml")["spec"]["rayClusterSpec"],
}
each_cluster = pytest.mark.parametrize("name", RAY_CLUSTERS)


def read(name):
    return yaml.safe_load((CLUSTER / name).read_text())


def pods(name):
    spec = RAY_CLUSTERS[name]()
    return [spec["headGroupSpec"]["template"], *(group["template"] for group in spec["workerGroupSpecs"])]


def containers(name):
    return [container for pod in pods(name) for container in pod["spec"]["containers"]]


def test_ray_up_is_what_rays_own_schema_takes():
    import jsonschema
    import ray

    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    config = read("ray_up.yaml")
    jsonschema.validate(config, schema)
    assert set(config) <= set(schema["properties"])
    commands = " ".join([*config["setup_commands"], *config["head_start_ray_commands"], *config["worker_start_ray_commands"]])
    assert "ray stop" not in commands  # which would end others' Ray too
    assert all("RAY_AUTH_MODE=token" in each for key in ("head", "worker") for each in config[f"{key}_start_ray_commands"])


@each_cluster
def test_a_cluster_of_kuberay_has_token_storage_secret_and_shared_memory(name):
    spec = RAY_CLUSTERS[name]()
    import ray

    assert spec["rayVersion"] == ray.__version__
    assert spec["authOptions"] == {"mode": "token", "secretName": "mathrl-ray-token"}
    assert set(spec) == {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
    for pod in pods(name):
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert volumes["data"]["persistentVolumeClaim"]["claimName"] == read("kuberay/storage.yaml")["metadata"]["name"]
        assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
    for container in containers(name):
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts == {"data": "/data", "shm": "/dev/shm"}
        environment = {each["name"]: each for each in container["env"]}
        assert environment["HF_TOKEN"]["valueFrom"]["secretKeyRef"]["optional"]
        assert environment["HF_HOME"]["value"].startswith("/data/")
        assert container["resources"]["limits"] == container["resources"]["requests"]
    assert sum(int(each["resources"]["limits"].get("nvidia.com/gpu", 0)) for each in containers(name)) == 2


def test_the_job_and_the_cluster_have_the_same_machines():
    assert RAY_CLUSTERS["rayjob"]() == RAY_CLUSTERS["raycluster"]()


@each_cluster
def test_its_pods_are_what_kubernetes_own_schema_takes(name):
    validator = pytest.importorskip("kubernetes_validate", reason="the package kubernetes-validate (extra slow) is not installed")
    version = validator.latest_version()
    for pod in pods(name):
        validator.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pod["spec"]}, version, strict=True)
    validator.validate(read("kuberay/storage.yaml"), version, strict=True)


def test_a_retry_of_the_job_finds_the_run_again_and_its_command_passes_check(capsys):
    spec = read("kuberay/rayjob.yaml")["spec"]
    assert set(spec) == {
        "submissionMode", "entrypoint", "runtimeEnvYAML", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished",
        "rayClusterSpec",
    }  # fmt: skip
    assert spec["backoffLimit"] > 0
    python, job, recipe, *overrides = shlex.split(spec["entrypoint"].replace("/opt/mathrl_ray/", f"{REPOSITORY}/"))
    assert (python, Path(job).parent) == ("python", REPOSITORY / "jobs")
    assert {"run.name=grpo", "run.resume=auto", "run.root=/data/runs"} <= set(overrides)
    assert main(Path(job).stem, [recipe, *overrides, "--check"]) == 0


@pytest.mark.parametrize("name", ["runtime_env.yaml", "kuberay/runtime_env.yaml", "kuberay/rayjob.yaml"])
def test_a_runtime_env_is_what_ray_takes_and_gives_a_stopped_run_time_to_save(name):
    from ray.runtime_env import RuntimeEnv

    held = read(name)
    held = yaml.safe_load(held["spec"]["runtimeEnvYAML"]) if "spec" in held else held
    assert int(RuntimeEnv(**held)["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]) > 30


def heads():
    """(file's name, its comment lines) of all files that say how they are used."""
    for path in [CLUSTER / "ray_up.yaml", CLUSTER / "runtime_env.yaml", *(CLUSTER / "kuberay").glob("*.yaml"), CLUSTER / "slurm.sh"]:
        yield path.name, "\n".join(line for line in path.read_text().splitlines() if line.startswith("#"))


def test_a_command_that_names_a_model_of_the_hub_gives_the_job_the_folder_that_its_nodes_have():
    commands = [line for _, head in heads() for line in head.splitlines() if re.search(r"jobs/\w+\.py jobs/recipes/qwen", line)]
    assert len(commands) == 3
    for command in commands:
        given = dict(re.findall(r"(HF_HOME)=(\S+)", command))
        for name in re.findall(r"--runtime-env cluster/(\S+)", command):
            given = read(name)["env_vars"]
        assert given.get("HF_HOME", "").startswith(("/shared/", "/data/")), command


def test_what_ray_up_starts_ray_with_is_what_its_job_gets():
    text = (CLUSTER / "ray_up.yaml").read_text()
    assert len(homes := re.findall(r"HF_HOME=(\S+)", text)) == 3
    assert len(set(homes)) == 1


def test_kuberays_version_knows_the_token_of_a_secret():
    told = [re.findall(r"KubeRay (\d\.\d+)\S* or newer", head) for name, head in heads() if name in ("raycluster.yaml", "rayjob.yaml")]
    assert told == [["1.6"], ["1.6"]]  # authOptions.secretName: in the API reference of 1.6.2, not in that of 1.5.1


def test_commands_in_the_heads_of_these_files_name_files_that_exist_and_pass_check():
    for file, head in heads():
        for name in re.findall(r"(?:cluster|jobs)/[\w./-]+\.(?:yaml|sh|py|toml)", head):
            assert (REPOSITORY / name).is_file(), f"{file} names {name}"
        for job, recipe, rest in re.findall(r"jobs/(\w+)\.py (jobs/\S+\.toml)((?: [a-z_]+\.[a-z_]+=\S+)*)", head):
            overrides = [word.rstrip('"') for word in rest.split()]
            assert main(job, [str(REPOSITORY / recipe), *overrides, "--check"]) == 0
