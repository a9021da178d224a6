-- SPDX-License-Identifier: GPL-2.0-or-later
-- Jobs that are not Gandiva's. Loaded by gandiva.lua.
--
-- They are left alone, and what this module does not know is left to Slurm, with two exceptions. Slurm knows each
-- GPU by a type of its own here (a100_0, a100_1, ...), so `gpu:a100:2` becomes two GPUs of a node with the feature
-- gandiva_a100. And shards belong to Gandiva's jobs, but for those of a site's own nodes: a job that took some would
-- share its GPU with whoever has its turn there.

return function(parts)
   local check, settings, gres = parts.check, parts.settings, parts.gres
   local M = {}

   local FEATURE = "gandiva_"
   local OURS = FEATURE .. "([%w._-]+)$"

   -- The user's own constraint and ours.
   local function constraint(old, model)
      local feature = FEATURE .. model
      -- A job's earlier feature of ours is replaced (an update from one model to another).
      old = old and old:gsub("&" .. OURS, ""):gsub("^" .. OURS, "")
      if not old or old == "" or old == feature then return feature end
      if old:find("[%[%]*]") then
         check.refuse(string.format("gpu:%s with --constraint=%s: counts and brackets cannot be combined with a GPU "
            .. "type; ask for gpu:N and put %s into the constraint", model, check.shown(old), feature))
      end
      if old:find("|", 1, true) then old = "(" .. old .. ")" end
      return old .. "&" .. feature
   end

   -- Where sbatch leaves its request for srun to find, and what its words lack of a GRES.
   local VARIABLES = { SLURM_GPUS = "gpu:", SLURM_GPUS_PER_NODE = "gpu:", SLURM_GPUS_PER_SOCKET = "gpu:",
      SLURM_GPUS_PER_TASK = "gpu:", SLURM_TRES_PER_TASK = "" }

   local function untype_environment(job_desc, kinds)
      for name, lacks in pairs(job_desc.environment and VARIABLES or {}) do
         local text = check.text(job_desc.environment[name])
         local found = gres.field(text and #text <= 4096 and text:gsub("[^,]+", lacks .. "%0") or nil)
         local typed = false
         for _, item in ipairs(found.gpus) do
            typed = typed or item.kind ~= nil
            found.malformed = found.malformed or (item.kind and not check.has(kinds, item.kind))
         end
         if typed and not found.malformed then
            local untyped = gres.untyped({ [name] = found }, name)
            job_desc.environment[name] = lacks == "" and untyped or untyped:match("%d+$")
         end
      end
   end

   -- Change a description (of a new job, or of a change to one) that names a GPU model.
   local function rewrite(job_desc, request, old_features)
      if not gres.names_models(request) then return end
      local model = gres.model(request)
      local features = constraint(old_features, model)
      for _, name in ipairs(gres.FIELDS) do
         if #request[name].gpus > 0 then job_desc[name] = gres.untyped(request, name) end
      end
      job_desc.features = features
      untype_environment(job_desc, request.kinds)
   end

   -- The controller asks for shards, without --gandiva, to keep GPUs for a job that migrates (docs/migration.md).
   function M.is_reservation(job_desc, uid)
      local name = check.text(job_desc.name) or ""
      local trusted = settings.trusted[check.number(uid) or -1] == true
      return trusted and name:match("^gandiva%-reservation%-%d+$") and gres.read(job_desc).shards
   end

   function M.submit(job_desc, flags)
      local request = gres.read(job_desc)
      if request.shards then
         check.refuse("shards belong to time-sliced jobs: ask for whole GPUs (--gres=gpu:N), or add --gandiva to "
            .. "share them", "ESLURM_INVALID_GRES")
      end
      -- srun asks again for its step, with the type that the job no longer has; --gres it takes from the job.
      if flags.srun and gres.names_models(request) and #request.tres_per_node.gpus == 0 then
         check.refuse(string.format("srun outside a job takes GPUs with a type as --gres=gpu:%s:N only; or use sbatch",
            check.shown(request.written[1])), "ESLURM_INVALID_GRES")
      end
      local features = check.text(job_desc.features)
      local named = features and ("&" .. features):match("&" .. OURS)
      if named and gres.names_models(request) and gres.meant(named) ~= gres.model(request) then
         check.refuse(string.format("gpu:%s with --constraint=%s: two GPU types; give one of them",
            check.shown(request.written[1]), check.shown(features)), "ESLURM_INVALID_GRES")
      end
      rewrite(job_desc, request, features)
   end

   function M.modify(job_desc, job_rec)
      local request = gres.read(job_desc)
      if request.shards then
         check.refuse("shards belong to time-sliced jobs: ask for whole GPUs", "ESLURM_INVALID_GRES")
      end
      rewrite(job_desc, request, check.text(job_desc.features) or check.text(job_rec.features))
   end

   return M
end
