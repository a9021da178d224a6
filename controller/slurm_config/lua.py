# SPDX-License-Identifier: GPL-2.0-or-later
"""The settings table of the job_submit module, and the example for the site's own script."""

import re
from collections.abc import Mapping, Sequence

from controller.slurm_config.description import ClusterDescription

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYWORD = re.compile(
    "and|break|do|else|elseif|end|false|for|function|goto|if|in|local|nil|not|or|repeat|return|then|true"
    "|until|while"
)

LuaValue = str | int | float | bool | Sequence["LuaValue"] | Mapping[str, "LuaValue"]

EXAMPLE = """\
-- These lines belong in your own {sysconfdir}/job_submit.lua (the whole file serves where there is none).
local gandiva = dofile("{slurm_files}/gandiva/gandiva.lua")

function slurm_job_submit(job_desc, part_list, submit_uid)
   -- your own rules here: they see the request as its user wrote it, and return an error or nothing; what
   -- they set is taken for the user's
   local rc = gandiva.job_submit(job_desc, part_list, submit_uid)
   if rc ~= slurm.SUCCESS then return rc end
   -- GPUs have no types from here on. Rules that set something have their place here: for Gandiva's jobs,
   -- whose admin_comment begins with "gandiva:", neither features nor GPUs
   return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
   -- The controller gives jobs their GPUs by this call: no rule is for that.
   if gandiva.trusts(modify_uid) then return slurm.SUCCESS end
   -- your own rules here
   return gandiva.job_modify(job_desc, job_rec, part_list, modify_uid)
end

return slurm.SUCCESS
"""
"""A job_submit.lua for a site that has none; the modules are in `gandiva/` below `slurm_files`."""


def settings(description: ClusterDescription) -> str:
    """The text of `gandiva_settings.lua`: a chunk that returns one table of plain values."""
    gandiva = description.gandiva
    shards = {each.type for group in description.nodes for each in group.others if each.name == "shard"}
    table: dict[str, LuaValue] = {
        "version": 1,
        "default": gandiva.default,
        # SlurmUser and the controller bind and release held jobs; root may anyway.
        "trusted_users": [description.cluster.slurm_user, *gandiva.controller_users],
        "partitions": list(gandiva.partitions),
        "max_weight": gandiva.max_weight,
        "max_weight_by_account": {name.lower(): w for name, w in gandiva.max_weight_by_account.items()},
        "max_weight_by_qos": {name.lower(): w for name, w in gandiva.max_weight_by_qos.items()},
        "models": description.models,
        "aliases": gandiva.gpu_aliases,
        # Of the site's own nodes: a job with these cannot be on a GPU of ours.
        "shard_types": sorted(shards - {""}),
        # What a job can ask for at most, by partition; an impossible request is refused at submission.
        "nodes": {
            partition.name: [
                {"model": group.gpu_model or "", "gpus": group.gpus, "count": count}
                for group, count in description.nodes_of(partition)
            ]
            for partition in description.partitions
        },
    }
    return f"return {literal(table)}\n"


def literal(value: LuaValue, indent: str = "") -> str:
    """A value as a Lua expression; keys keep their order."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, (int, float)):
        return repr(value)
    inner = indent + "   "
    if isinstance(value, Mapping):
        items = [f"{_key(key)} = {literal(item, inner)}" for key, item in value.items()]
    else:
        items = [literal(item, inner) for item in value]
    if not items:
        return "{}"
    line = "{ " + ", ".join(items) + " }"
    if len(line) <= 60 and "\n" not in line:
        return line
    return "{\n" + "".join(f"{inner}{item},\n" for item in items) + indent + "}"


def _key(key: str) -> str:
    # A partition may be called `end` or `a-b`.
    return key if _IDENTIFIER.fullmatch(key) and not _KEYWORD.fullmatch(key) else f"[{_quoted(key)}]"


def _quoted(text: str) -> str:
    """Decimal escapes for everything unusual: no text can end the string."""
    return '"' + re.sub(r"[^A-Za-z0-9 _.,:/+-]", _escape, text) + '"'


def _escape(character: re.Match[str]) -> str:
    return "".join(f"\\{byte:03d}" for byte in character[0].encode())
