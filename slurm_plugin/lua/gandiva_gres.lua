-- SPDX-License-Identifier: GPL-2.0-or-later
-- GPU requests in all their spellings. Loaded by gandiva.lua.
--
-- sbatch's flags arrive in four fields:  --gpus           tres_per_job
--                                        --gres, --gpus-per-node   tres_per_node
--                                        --gpus-per-socket         tres_per_socket
--                                        --gpus-per-task, --tres-per-task   tres_per_task
-- each a list of `gres/gpu:TYPE:N`; the prefix, the type and the number may be missing, and older or other
-- clients write `gpu:2`, `gres:gpu:2` or `gres/gpu=2`.

return function(parts)
   local check, settings = parts.check, parts.settings
   local M = {}

   M.FIELDS = { "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task" }
   M.WRITTEN = {
      tres_per_job = "--gpus",
      tres_per_node = "--gres or --gpus-per-node",
      tres_per_socket = "--gpus-per-socket",
      tres_per_task = "--gpus-per-task",
   }

   local UNITS = { [""] = 1 }
   for power, unit in ipairs({ "k", "m", "g", "t", "p" }) do
      UNITS[unit], UNITS[unit .. "ib"], UNITS[unit .. "b"] = 1024 ^ power, 1024 ^ power, 1000 ^ power
   end

   -- "gres/gpu:a100:2" -> name "gpu", kind "a100", count 2. Not a GRES: nil. Read as Slurm reads it: what is no number
   -- at its end is a type, also `2080ti`.
   function M.item(text)
      local rest = text:match("^gres[:/](.*)$")
      -- tres_per_task has cpu:2 and mem:1G beside GRES; those are no GRES.
      rest = rest or (not text:find("^cpu[:=]") and not text:find("^mem[:=]") and not text:find("^[a-z]+/") and text)
      if not rest then return nil end
      local name, tail = rest:match("^([^:=]+)(.*)$")
      if not name then return nil, true end
      if tail == "" then return { name = name, count = 1 } end
      local kind, sign, last = tail:match("^:([^:=]+)([:=])([^:=]+)$")
      if not kind then
         sign, last = tail:match("^([:=])([^:=]+)$")
      end
      local digits, unit = (last or ""):match("^(%d+)(%a*)$")
      local factor = digits and UNITS[unit:lower()]
      if not factor then
         if kind or sign ~= ":" then return nil, true end
         return { name = name, kind = last, count = 1 }
      end
      local count = #digits <= 9 and tonumber(digits) * factor
      -- Slurm's own numbers end there; larger ones have no place in a message or a request.
      if not count or count >= 2 ^ 31 then return nil, true end
      return { name = name, kind = kind, count = count }
   end

   -- The model that a GPU type means as it is written, or nil: Gandiva does not know it.
   function M.meant(kind)
      local model = settings.aliases[kind] or kind
      return check.has(settings.models, model) and model or nil
   end

   -- One field: its GPUs, its shards, and the words that are neither (kept as they were written).
   function M.field(text)
      local found = { gpus = {}, shards = false, others = {} }
      for word in (text or ""):gmatch("[^,]+") do
         local item, malformed = M.item(word)
         if item and item.name == "gpu" then
            if item.count > 0 then
               item.written, item.kind = item.kind, item.kind and M.meant(item.kind) or item.kind
               found.gpus[#found.gpus + 1] = item
            end
         elseif item and (item.name == "shard" or item.name == "mps") then
            -- (Slurm compares types by a sum of their letters: only the very names that the site has are others'.)
            local theirs = item.name == "shard" and item.kind and check.has(settings.shard_types, item.kind)
            if theirs then found.others[#found.others + 1] = word end
            found.shards = found.shards or (item.count > 0 and not theirs)
         elseif malformed and word:find("shard", 1, true) then
            -- What Slurm makes of it, we do not wait to see.
            found.shards = true
         else
            -- Slurm judges it, where it is an ordinary job's.
            if malformed and word:find("gpu", 1, true) then found.malformed = word end
            found.others[#found.others + 1] = word
         end
      end
      return found
   end

   -- All four fields of a job description.
   function M.read(job_desc)
      local request = { any = false, shards = false, kinds = {}, written = {} }
      for _, name in ipairs(M.FIELDS) do
         local text = check.text(job_desc[name])
         if text and #text > 4096 then
            check.refuse(M.WRITTEN[name] .. ": too long", "ESLURM_INVALID_GRES")
         end
         local found = M.field(text)
         request[name] = found
         request.any = request.any or #found.gpus > 0
         request.shards = request.shards or found.shards
         for _, item in ipairs(found.gpus) do
            if item.kind and not check.has(request.kinds, item.kind) then
               request.kinds[#request.kinds + 1] = item.kind
            end
            if item.written then request.written[#request.written + 1] = item.written end
         end
      end
      return request
   end

   -- GPUs of one field, whatever their types; nil where there are none.
   function M.count(request, name)
      local sum = 0
      for _, item in ipairs(request[name].gpus) do sum = sum + item.count end
      if sum == 0 then return nil end
      return math.floor(sum)
   end

   -- Types of single GPUs are Slurm's bookkeeping: a100_3 is the fourth GPU of a node.
   function M.is_index_type(kind)
      local model = kind:match("^(.+)_%d+$")
      return model ~= nil and not M.meant(kind) and check.has(settings.models, model)
   end

   -- Whether all types asked for are of GPUs here; others are Slurm's to judge.
   function M.knows(request)
      for _, kind in ipairs(request.kinds) do
         if not M.meant(kind) and not M.is_index_type(kind) then return false end
      end
      return true
   end

   -- Whether types are asked for, and the module has to say them in another way: Slurm has none of these models.
   function M.names_models(request)
      if not M.knows(request) then return false end
      for _, kind in ipairs(request.kinds) do
         if M.meant(kind) then return true end
      end
      return false
   end

   function M.refuse_malformed(request)
      for _, name in ipairs(M.FIELDS) do
         if request[name].malformed then
            check.refuse(string.format("%s: %s: expected gpu:N or gpu:MODEL:N", M.WRITTEN[name],
               check.shown(request[name].malformed)), "ESLURM_INVALID_GRES")
         end
      end
   end

   -- The one model asked for, or nil. Refuses models that the cluster does not have, and mixtures.
   function M.model(request)
      local model
      for _, kind in ipairs(request.kinds) do
         if not M.is_index_type(kind) and not M.meant(kind) then
            check.refuse(string.format("unknown GPU type %s: this cluster has %s", check.shown(kind),
               table.concat(settings.models, ", ")), "ESLURM_INVALID_GRES")
         end
         if #request.kinds > 1 then
            check.refuse(string.format("GPUs of types %s and %s in one request: a job gets one type; submit one job for "
               .. "each, or leave out the type", check.shown(request.kinds[1]), check.shown(request.kinds[2])),
               "ESLURM_INVALID_GRES")
         end
         model = kind
      end
      return model
   end

   -- A field's text again, with its GPUs counted without their types.
   function M.untyped(request, name)
      local words = {}
      local count = M.count(request, name)
      for _, word in ipairs(request[name].others) do words[#words + 1] = word end
      if count then words[#words + 1] = string.format("gres/gpu:%d", count) end
      return table.concat(words, ",")
   end

   return M
end
