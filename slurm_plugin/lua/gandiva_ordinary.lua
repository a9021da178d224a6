-- SPDX-License-Identifier: GPL-2.0-or-later
-- Jobs that are not Gandiva's. Loaded by gandiva.lua.
--
-- They are left alone, with two exceptions. Slurm knows each GPU by a type of its own here (a100_0, a100_1,
-- ...), so `gpu:a100:2` becomes two GPUs of a node with the feature gandiva_a100. And shards belong to
-- Gandiva's jobs: a job that took some would share its GPU with whoever has its turn there.

return function(parts)
   local check, settings, gres = parts.check, parts.settings, parts.gres
   local M = {}

   local FEATURE = "gandiva_"

   -- The user's own constraint and ours.
   local function constraint(old, model)
      local feature = FEATURE .. model
      -- A job's earlier feature of ours is replaced (an update from one model to another).
      old = old and old:gsub("&" .. FEATURE .. "[a-z0-9]+$", ""):gsub("^" .. FEATURE .. "[a-z0-9]+$", "")
      if not old or old == "" or old == feature then return feature end
      if old:find("[%[%]*]") then
         check.refuse(string.format("gpu:%s with --constraint=%s: counts and brackets cannot be combined with a GPU "
            .. "type; ask for gpu:N and put %s into the constraint", model, check.shown(old), feature))
      end
      if old:find("|", 1, true) then old = "(" .. old .. ")" end
      return old .. "&" .. feature
   end

   -- Where sbatch leaves its request for srun to find.
   local VARIABLES = { "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK" }

   local function untype_environment(job_desc, model)
      local environment = job_desc.environment
      if not environment then return end
      for _, name in ipairs(VARIABLES) do
         local count = tostring(environment[name] or ""):match("^" .. model .. ":(%d+)$")
         if count then environment[name] = count end
      end
      local tasks = environment.SLURM_TRES_PER_TASK
      if type(tasks) == "string" then
         environment.SLURM_TRES_PER_TASK = tasks:gsub("gres/gpu:" .. model .. "([:=]%d+)", "gres/gpu%1")
      end
   end

   -- Change a description (of a new job, or of a change to one) that names a GPU model.
   local function rewrite(job_desc, request, old_features)
      local model = gres.model(request)
      if not model or gres.is_index_type(model) then return end
      local features = constraint(old_features, model)
      for _, name in ipairs(gres.FIELDS) do
         if #request[name].gpus > 0 then job_desc[name] = gres.untyped(request, name) end
      end
      job_desc.features = features
      untype_environment(job_desc, model)
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
      if flags.srun and #request.kinds > 0 and #request.tres_per_node.gpus == 0
         and not gres.is_index_type(request.kinds[1]) then
         check.refuse(string.format("srun outside a job takes GPUs with a type as --gres=gpu:%s:N only; or use sbatch",
            check.shown(request.kinds[1])), "ESLURM_INVALID_GRES")
      end
      if #request.kinds > 0 then rewrite(job_desc, request, check.text(job_desc.features)) end
   end

   function M.modify(job_desc, job_rec)
      local request = gres.read(job_desc)
      if request.shards then
         check.refuse("shards belong to time-sliced jobs: ask for whole GPUs", "ESLURM_INVALID_GRES")
      end
      if #request.kinds > 0 then
         rewrite(job_desc, request, check.text(job_desc.features) or check.text(job_rec.features))
      end
   end

   return M
end
