-- SPDX-License-Identifier: GPL-2.0-or-later
--[[
Gandiva's part of a site's job_submit.lua. Never the site's script itself:

   local gandiva = dofile("/etc/slurm/gandiva/gandiva.lua")

   function slurm_job_submit(job_desc, part_list, submit_uid)
      ... the site's rules, which see the request as its user wrote it
      return gandiva.job_submit(job_desc, part_list, submit_uid)

This runs inside slurmctld, under its locks: no waiting, no files, no errors let out. What a user can send is
hostile: sbatch's own checks of the flags are no protection, since nobody has to use sbatch.

   gandiva.lua           entry points: nothing raised leaves them
   gandiva_settings.lua  the site's settings, made by `gandiva config slurm`
   gandiva_check.lua     refusing, and reading fields of Slurm's records
   gandiva_flags.lua     the --gandiva flags
   gandiva_gres.lua      GPU requests in all their spellings
   gandiva_request.lua   a Gandiva job: normalise, hold, record
   gandiva_ordinary.lua  any other job: keep gpu:MODEL:N working, keep off the shards
   gandiva_modify.lua    changes of jobs that exist
]]

local M = {}

-- Of this package; `gandiva check` compares it with the controller's.
M.version = "0.2.0"

local folder = (debug.getinfo(1, "S").source:match("^@(.*/)")) or "./"

-- The other files are loaded here, once; what they need of each other is handed to them.
local function load_parts()
   local check = dofile(folder .. "gandiva_check.lua")
   local settings = dofile(folder .. "gandiva_settings.lua")
   local parts = { check = check, settings = check.settings(settings) }
   for _, name in ipairs({ "flags", "gres", "ordinary", "request", "modify" }) do
      parts[name] = dofile(folder .. "gandiva_" .. name .. ".lua")(parts)
   end
   return parts
end

local loaded, parts = pcall(load_parts)
if not loaded then
   -- Raising here would keep slurmctld from starting. Ordinary jobs are not to suffer.
   pcall(function() slurm.log_error("gandiva: cannot load %s: %s", folder, tostring(parts)) end)
end

-- Whether somebody asked for time-slicing; must work even when nothing else does.
local function asked(job_desc)
   local found = false
   for _, entry in pairs(job_desc.spank_job_env or {}) do
      found = found or tostring(entry):find("^_SLURM_SPANK_OPTION_gandiva_gandiva") ~= nil
   end
   return found
end

local function say(message)
   pcall(function() slurm.log_user("%s", "gandiva: " .. message) end)
end

-- Run one of our functions; turn what it raised into an answer for slurmctld.
local function guarded(what, ours, run)
   local ok, problem = pcall(run)
   if ok then return slurm.SUCCESS end
   if type(problem) == "table" and problem.refusal then
      say(problem.refusal)
      return slurm[problem.code or "ERROR"] or slurm.ERROR
   end
   pcall(function() slurm.log_error("gandiva: internal error in %s: %s", what, tostring(problem)) end)
   local sure, is_ours = pcall(ours)
   if sure and not is_ours then return slurm.SUCCESS end
   say("internal error, so the job is refused rather than misunderstood: tell the administrator "
      .. "(slurmctld's log has the reason)")
   return slurm.ERROR
end

function M.job_submit(job_desc, part_list, submit_uid)
   return guarded("job_submit", function() return asked(job_desc) end, function()
      if not loaded then error("not loaded: " .. tostring(parts)) end
      -- Only this module writes such comments; one that arrives is forged or copied.
      parts.check.drop_forged_comment(job_desc, submit_uid)
      local flags = parts.flags.read(job_desc.spank_job_env)
      if flags.asked then
         parts.request.submit(job_desc, part_list, flags)
      elseif parts.ordinary.is_reservation(job_desc, submit_uid) then
         return
      elseif parts.request.by_default(job_desc, part_list, flags) then
         parts.request.submit_by_default(job_desc, part_list, flags)
      else
         parts.ordinary.submit(job_desc, flags)
      end
   end)
end

-- Root, SlurmUser and the controller, for whose changes of jobs a site's rules are not meant.
function M.trusts(uid)
   return loaded and parts.settings.trusted[parts.check.number(uid) or -1] == true
end

function M.job_modify(job_desc, job_rec, part_list, modify_uid)
   local function ours() return tostring(job_rec.admin_comment):find("^gandiva:") ~= nil end
   return guarded("job_modify", ours, function()
      if not loaded then error("not loaded: " .. tostring(parts)) end
      parts.modify.modify(job_desc, job_rec, part_list, modify_uid)
   end)
end

return M
