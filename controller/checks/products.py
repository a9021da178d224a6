# SPDX-License-Identifier: GPL-2.0-or-later
"""What the driver calls the GPUs, against the site's name of their type. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping

from controller.checks.agents import AgentAnswer
from controller.checks.finding import Finding, Subject
from controller.checks.gpus import KnownNode
from controller.reports.text import some
from controller.settings.schema import NodesSettings

_LEFT_OUT = re.compile(
    "nvidia|tesla|geforce|quadro|[rg]tx|sxm[0-9]?|pcie|nvl|hbm[0-9]?e?|generation|blackwell"
    "|server|workstation|edition|[0-9]+gb?"
)
"""Words of a product's name that the name of its type need not have. Others, such as `ti`, `ada`, `pro`, make
another product; sizes of memory and sockets may be left out, but not be wrong."""


def judge_products(
    known: Iterable[KnownNode], answers: Mapping[str, AgentAnswer], settings: NodesSettings
) -> Iterator[Finding]:
    """About each GPU type, what its nodes' drivers call it."""
    found: dict[str, dict[str, list[str]]] = {}
    for node in known:
        hello = answers[node.name].hello if node.name in answers else None
        if hello is not None and node.gpus:
            for product in dict.fromkeys(gpu.model for gpu in hello.gpus):
                found.setdefault(node.gpus[0].model, {}).setdefault(product, []).append(node.name)
    for model, nodes in found.items():
        allowed = settings.gpu_products.get(model, [])
        wrong = {product: on for product, on in nodes.items() if _flat(product) not in map(_flat, allowed)}
        shown = ", ".join(f"{product} ({some(on)})" for product, on in wrong.items())
        every = ", ".join(f'"{product}"' for product in [*allowed, *wrong])
        if wrong and (allowed or len(wrong) > 1 or not _says(model, *wrong)):
            yield Subject(model, "product").warning(
                f"Slurm calls them {model}, the driver {shown}",
                "if the type is wrong: gpu_model in the cluster description; if not, in gandiva.toml: "
                f'[nodes.gpu_products] "{model}" = [{every}]',
            )
        else:
            yield Subject(model, "product").ok(", ".join(nodes))


def _flat(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _says(model: str, product: str) -> bool:
    """Whether the name of a type is made of the product's words, and leaves out none that makes another
    product. What may be left out may stand anywhere; a driver that names no socket may mean SXM, and one that
    names no memory any."""
    words = re.findall(r"[a-z0-9]+", product.lower())
    found = [re.sub("gb?$", "(?:gb?)?", word) for word in words if _LEFT_OUT.fullmatch(word)]
    optional = [re.sub("sxm[0-9]", r"\g<0>?", word) for word in found]
    if not re.search("sxm|pcie|nvl", product.lower()):
        optional.append("sxm[0-9]?")
    if not re.search("[0-9]gb", product.lower()):
        optional.append("[0-9]+gb?")
    anywhere = f"(?:{'|'.join(optional)})*"
    pattern = anywhere.join(["", *(word for word in words if not _LEFT_OUT.fullmatch(word)), ""])
    return re.fullmatch(pattern, _flat(model)) is not None
