-- SPDX-License-Identifier: GPL-2.0-or-later
-- Changes of existing jobs (scontrol update, hold, release). Loaded by gandiva.lua.
--
-- A Gandiva job waits under a hold that is not its user's. What its user may say stays what it was: hold and
-- release are kept in the begin time, since only administrators may change admin_comment, whatever this
-- module writes into it.

return function(parts)
   local check, settings, gres = parts.check, parts.settings, parts.gres
   local M = { REHELD_WITHIN_SECONDS = 60 }

   local PENDING = 0

   -- Fields in which a change would loosen the job from its binding or from its recorded request.
   local FIXED_TEXTS = {
      tres_per_job = "its GPUs", tres_per_node = "its GPUs", tres_per_socket = "its GPUs", tres_per_task = "its GPUs",
      cpus_per_tres = "its CPUs per GPU", mem_per_tres = "its memory per GPU", req_nodes = "its nodes",
      features = "its constraint", reservation = "its reservation", prefer = "its preferred nodes",
   }
   local FIXED_NUMBERS = { min_nodes = "its number of nodes", max_nodes = "its number of nodes",
      shared = "its exclusiveness" }

   local function is_gandiva(job_rec)
      local comment = check.text(job_rec.admin_comment)
      return comment ~= nil and comment:sub(1, #check.COMMENT_PREFIX) == check.COMMENT_PREFIX
   end

   local function refuse(what)
      check.refuse(string.format("%s of a time-sliced job cannot be changed: cancel it and submit it anew", what),
         "ESLURM_ACCESS_DENIED")
   end

   -- As at its submission, where the same flags contradict --no-requeue.
   local function refuse_no_requeue(job_rec)
      for flag, item in pairs({ ["--gandiva-suspend=requeue"] = '"suspend":"requeue"',
         ["--gandiva-migrate=yes"] = '"migrate":true' }) do
         if job_rec.admin_comment:find(item, 1, true) then
            check.refuse("requeue=0 contradicts " .. flag .. ", with which the job was submitted", "ESLURM_ACCESS_DENIED")
         end
      end
   end

   local function hold_or_release(job_desc, job_rec)
      local priority = job_desc.priority
      if type(priority) ~= "number" or priority == slurm.NO_VAL then return end
      local pending = (check.number(job_rec.job_state) or 0) % 256 == PENDING
      if priority == 0 then
         if not pending then
            check.refuse("only a waiting job can be held: use `scontrol requeue`, and hold it once it is PENDING",
               "ESLURM_ACCESS_DENIED")
         end
         job_desc.begin_time = parts.request.USER_HOLD_TIME
      elseif priority == slurm.INFINITE then
         -- Running jobs: Slurm ignores a release.
         if pending and (check.number(job_rec.restart_cnt) or 0) > 0 then
            -- Slurm may hold it after a failed run, and only Slurm can end that: the release is let through.
            -- The controller holds the job again before it may begin.
            job_desc.begin_time = os.time() + M.REHELD_WITHIN_SECONDS
            return
         end
         if pending then job_desc.begin_time = os.time() end
      else
         check.refuse("the priority of a time-sliced job is the controller's: use --gandiva-weight at submission",
            "ESLURM_ACCESS_DENIED")
      end
      job_desc.priority = slurm.NO_VAL
   end

   local function owner_changes(job_desc, job_rec, part_list)
      for name, what in pairs(FIXED_TEXTS) do
         -- An empty text is a change too: it takes away what the controller has just written there.
         if type(job_desc[name]) == "string" then refuse(what) end
      end
      for name, what in pairs(FIXED_NUMBERS) do
         if check.number(job_desc[name]) then refuse(what) end
      end
      if check.text(job_desc.partition) then
         for _, name in ipairs(check.partitions(job_desc, part_list)) do
            if #settings.partitions > 0 and not check.has(settings.partitions, name) then
               check.refuse(string.format("partition %s has no time-slicing: use %s", check.shown(name),
                  table.concat(settings.partitions, ", ")), "ESLURM_ACCESS_DENIED")
            end
         end
      end
      if check.number(job_desc.requeue) == 0 then refuse_no_requeue(job_rec) end
      check.refuse_expedited(job_desc, "ESLURM_ACCESS_DENIED")
      hold_or_release(job_desc, job_rec)
   end

   function M.modify(job_desc, job_rec, part_list, uid)
      -- Root, SlurmUser and the controller bind jobs through this very call.
      if settings.trusted[check.number(uid) or -1] then return end
      if is_gandiva(job_rec) then
         -- Slurm lets nobody else near but operators and coordinators of the job's account, whom this module
         -- cannot tell apart: what they do is on purpose. (Strangers come by here, too, and are refused next.)
         if uid == job_rec.user_id then owner_changes(job_desc, job_rec, part_list) end
      else
         parts.ordinary.modify(job_desc, job_rec)
      end
   end

   return M
end
