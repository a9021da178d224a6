# SPDX-License-Identifier: GPL-2.0-or-later
"""The mini cluster with three GPU types: what Slurm is told and what the mock GPUs are set to agree."""

from __future__ import annotations

from container.images import REPOSITORY_ROOT
from container.render import description_toml, host_env
from container.spec import load
from controller.slurm_config.description import parse
from controller.slurm_config.fragments import render

SPEC = load(REPOSITORY_ROOT / "container" / "types.toml")


def test_slurm_has_a_type_for_each_gpu_named_after_its_model() -> None:
    files = render(parse(description_toml(SPEC)))
    lines = files["gres.conf"].splitlines()
    for name, model in (("n1", "v100"), ("n2", "p100"), ("n3", "k80")):
        for index in range(2):
            assert f"NodeName={name} Name=gpu Type={model}_{index} File=/dev/nvidia{index}" in lines
        assert f"Feature=gandiva_{model}" in files["gandiva/slurm.conf"]


def test_the_mock_gpus_have_names_sizes_and_speeds_of_their_type() -> None:
    words = {host.name: host_env(host) for host in SPEC.hosts if host.group}
    assert "'Tesla V100-SXM2-32GB' --memory 32768MiB --speed 0.4" in words["n1"]
    assert "'Tesla P100-PCIE-16GB' --memory 16384MiB --speed 0.2" in words["n2"]
    assert "'Tesla K80' --memory 11441MiB --speed 0.1" in words["n3"]
