# syntax=docker/dockerfile:1
# An image with the engines and this project, for a CPU or for NVIDIA GPUs. Its steps are the scripts that people run outside of it.
#
#     docker build --target cpu -t mathrl_ray:cpu .        # the demo: docker run --shm-size=2g mathrl_ray:cpu
#     docker build --target gpu -t mathrl_ray:gpu .        # for cluster/kuberay/: needs the NVIDIA container toolkit where it runs
#
# Never built by us: no Docker daemon here. A test runs the steps of the cpu target in order on a bare copy of what .dockerignore leaves.
# Versions are pinned in pyproject.toml, of which every engine's resolve together. The user is no root; runs go to /data/runs.

ARG CPU_BASE=python:3.11-slim-bookworm
# The CUDA for which the pinned torch is built: DeepSpeed and FlashAttention compile with this image's nvcc, and refuse another major version.
ARG GPU_BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04

FROM ${CPU_BASE} AS cpu-system
RUN apt-get update && apt-get install --yes --no-install-recommends g++ procps && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 mathrl && mkdir -p /data /opt/mathrl_ray && chown mathrl /data /opt/mathrl_ray
# Login shells, with which some versions of KubeRay start Ray, forget ENV's PATH.
RUN echo 'PATH=/opt/mathrl_ray/.venv/bin:$PATH' > /etc/profile.d/mathrl_ray.sh

FROM ${GPU_BASE} AS gpu-system
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv python3-dev g++ procps && rm -rf /var/lib/apt/lists/*
# Ubuntu's image has a user of this number already.
RUN userdel --remove ubuntu; useradd --create-home --uid 1000 mathrl && mkdir -p /data /opt/mathrl_ray && chown mathrl /data /opt/mathrl_ray
RUN echo 'PATH=/opt/mathrl_ray/.venv/bin:$PATH' > /etc/profile.d/mathrl_ray.sh

FROM cpu-system AS cpu
USER mathrl
WORKDIR /opt/mathrl_ray
# What the versions depend on, before the rest: a changed source file does not install the engines again.
COPY --chown=mathrl pyproject.toml README.md LICENSE ./
COPY --chown=mathrl cluster cluster
COPY --chown=mathrl mathrl_ray/__init__.py mathrl_ray/__init__.py
RUN bash cluster/install.sh cpu
COPY --chown=mathrl . .
RUN .venv/bin/python jobs/study.py jobs/recipes/arithmetic_cpu.toml --check
ENV PATH=/opt/mathrl_ray/.venv/bin:$PATH MATHRL_RUNS=/data/runs HF_HOME=/data/huggingface
CMD ["bash", "cluster/quickstart.sh"]

FROM gpu-system AS gpu
USER mathrl
WORKDIR /opt/mathrl_ray
COPY --chown=mathrl pyproject.toml README.md LICENSE ./
COPY --chown=mathrl cluster cluster
COPY --chown=mathrl mathrl_ray/__init__.py mathrl_ray/__init__.py
RUN bash cluster/install.sh gpu
COPY --chown=mathrl . .
RUN .venv/bin/python jobs/study.py jobs/recipes/qwen2.5-math-1.5b/grpo.toml --check
ENV PATH=/opt/mathrl_ray/.venv/bin:$PATH MATHRL_RUNS=/data/runs HF_HOME=/data/huggingface MATHRL_EXTRA=gpu
CMD ["bash"]
