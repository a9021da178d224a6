-- SPDX-License-Identifier: GPL-2.0-or-later
-- A Gandiva job at its submission: understood, put into one form, held, and recorded in admin_comment for the
-- controller (docs/interfaces.md, section 2). Loaded by gandiva.lua.
--
-- First everything is worked out, then everything is written: a refusal changes nothing.

return function(parts)
   local check, settings, gres = parts.check, parts.settings, parts.gres
   local M = {}

   local MAX_COMMENT_BYTES = 1024
   -- A begin time from here on (the year 2100) means: held by its user. Slurm's own hold is Gandiva's.
   M.USER_HOLD_TIME = 4102444800

   -- What can only be said when a job runs by itself on its nodes, or at once.
   local function refuse_unfit(job_desc)
      if job_desc.cron_job == true then -- before the next: Slurm gives these a het_job_offset, too
         check.refuse("a job of scrontab cannot be time-sliced: Slurm starts it again by itself, at its times; let it submit "
            .. "another one (sbatch --gandiva ...)")
      end
      if check.number(job_desc.het_job_offset) then
         check.refuse("a heterogeneous job cannot be time-sliced: its components would have to stop together; "
            .. "submit one job")
      end
      if check.number(job_desc.immediate) == 1 then
         check.refuse("--immediate: a time-sliced job always waits for the controller to place it")
      end
      check.refuse_expedited(job_desc)
      local shared = check.number(job_desc.shared)
      if shared == (slurm.JOB_SHARED_NONE or 0) then
         check.refuse("--exclusive keeps whole nodes, time-slicing shares GPUs: leave one of them out")
      elseif shared == (slurm.JOB_SHARED_USER or 2) or shared == (slurm.JOB_SHARED_MCS or 3) then
         check.refuse("--exclusive=user and =mcs keep others off a node, time-slicing shares GPUs: leave one of them out")
      end
      if check.text(job_desc.reservation) then
         check.refuse("--reservation: the controller does not place jobs in reservations; use --no-gandiva there")
      end
      if job_desc.pn_min_memory == 0 then
         check.refuse("--mem=0 takes a node's whole memory, so that no job could share its GPUs: name an amount")
      end
      if check.number(job_desc.ntasks_per_tres) and check.number(job_desc.ntasks_per_tres) > 0 then
         check.refuse("--ntasks-per-gpu: give --ntasks (or --ntasks-per-node) and --gres=gpu:N", "ESLURM_INVALID_GRES")
      end
   end

   -- GPU models that the job's --constraint and --gres leave, and those that the flag names.
   local function gpu_types(job_desc, request, values)
      local types = values.gandiva_gpu_types or {}
      local function narrow(model, written)
         if #types > 0 and not check.has(types, model) then
            check.refuse(string.format("%s contradicts --gandiva-gpu-types=%s", written, table.concat(types, ",")))
         end
         types = { model }
      end
      local features = check.text(job_desc.features)
      if features then
         local model = features:match("^gandiva_(.+)$")
         if not model or not check.has(settings.models, model) then
            check.refuse(string.format("--constraint=%s: the controller chooses nodes by their GPUs; use "
               .. "--gandiva-gpu-types, --nodelist or --exclude", check.shown(features)))
         end
         narrow(model, "--constraint=" .. features)
      end
      local kind = gres.model(request)
      if kind and gres.is_index_type(kind) then
         check.refuse(string.format("gpu:%s names one GPU: a time-sliced job's GPUs are the controller's choice; ask for "
            .. "gpu:%s:1", check.shown(kind), kind:match("^(.+)_")), "ESLURM_INVALID_GRES")
      end
      if kind then narrow(kind, "gpu:" .. request.written[1]) end
      return types
   end

   -- The nodes that the job may use, as lists of { model, gpus, count }: one for each partition and GPU model, since a
   -- job runs in one partition, on GPUs of one model. Nil when a partition is not described in the settings: then Slurm
   -- and the controller judge.
   local function rooms_for(partitions, types)
      local rooms = {}
      for _, name in ipairs(partitions) do
         local of_model = {}
         if not settings.nodes[name] then return nil end
         for _, kind in ipairs(settings.nodes[name]) do
            if kind.gpus > 0 and (#types == 0 or check.has(types, kind.model)) then
               if not of_model[kind.model] then
                  of_model[kind.model] = {}
                  rooms[#rooms + 1] = of_model[kind.model]
               end
               table.insert(of_model[kind.model], kind)
            end
         end
      end
      return #partitions > 0 and rooms or nil
   end

   -- The most that one of the rooms has of what each kind of node adds to it.
   local function most_of(rooms, added)
      local most = 0
      for _, room in ipairs(rooms) do
         local sum = 0
         for _, kind in ipairs(room) do sum = sum + added(kind) end
         most = math.max(most, sum)
      end
      return most
   end

   local function gpus_on_a_node(rooms)
      local most = 0
      for _, room in ipairs(rooms) do
         for _, kind in ipairs(room) do most = math.max(most, kind.gpus) end
      end
      return most
   end

   local function nodes_with(rooms, gpus)
      return most_of(rooms, function(kind) return kind.gpus >= gpus and kind.count or 0 end)
   end

   -- Whether some number of nodes has an equal part of the GPUs each.
   local function can_be_spread(rooms, gpus)
      for part = math.min(gpus, gpus_on_a_node(rooms)), 1, -1 do
         if gpus % part == 0 and nodes_with(rooms, part) * part >= gpus then return true end
      end
      return false
   end

   -- The next smaller and the next larger number of GPUs that can be spread, in words.
   local function others_to_ask_for(rooms, gpus, total)
      local found = {}
      for _, step in ipairs({ -1, 1 }) do
         local other = gpus + step
         while other > 0 and other <= total and not can_be_spread(rooms, other) do other = other + step end
         if other > 0 and other <= total then found[#found + 1] = string.format("--gpus=%d", other) end
      end
      return table.concat(found, " or ")
   end

   local function divided(total, by, what)
      if total % by ~= 0 then
         check.refuse(string.format("%s cannot be spread evenly over %d nodes: every node of a job has the same number "
            .. "of GPUs", what, by), "ESLURM_INVALID_GRES")
      end
      return math.floor(total / by)
   end

   -- gpus_per_node and nodes, or gpus alone (the controller chooses nodes): from whichever way they were written.
   local function shape(job_desc, request, most, on_one_node)
      local per_job, per_node = gres.count(request, "tres_per_job"), gres.count(request, "tres_per_node")
      local per_task = gres.count(request, "tres_per_task")
      local nodes, at_most = check.number(job_desc.min_nodes), check.number(job_desc.max_nodes)
      local tasks, each = check.number(job_desc.num_tasks), check.number(job_desc.ntasks_per_node)

      if nodes and nodes < 1 then nodes = nil end
      if each and each < 1 then each = nil end
      if nodes and at_most and at_most < nodes then
         check.refuse(string.format("--nodes=%d-%d: its end is below its start", nodes, at_most))
      end
      if gres.count(request, "tres_per_socket") then
         check.refuse("--gpus-per-socket: a time-sliced job's GPUs are not tied to sockets; give --gpus-per-node",
            "ESLURM_INVALID_GRES")
      end
      if not nodes and tasks and each then nodes = math.ceil(tasks / each) end

      if per_task then
         if per_job or per_node then
            check.refuse("--gpus-per-task with --gpus, --gres or --gpus-per-node: give one of them", "ESLURM_INVALID_GRES")
         end
         if not tasks and nodes and each then tasks = nodes * each end
         if not tasks then
            check.refuse("--gpus-per-task needs --ntasks: the number of GPUs is their product", "ESLURM_INVALID_GRES")
         end
         nodes = nodes or 1
         if tasks % nodes ~= 0 then
            check.refuse(string.format("--ntasks=%d with --gpus-per-task cannot be spread evenly over %d nodes", tasks,
               nodes), "ESLURM_INVALID_GRES")
         end
         return { per_node = per_task * math.floor(tasks / nodes), nodes = nodes }
      end
      if per_job and per_node then
         if per_job % per_node ~= 0 or (nodes and nodes ~= math.floor(per_job / per_node)) then
            check.refuse(string.format("--gpus=%d contradicts %d GPUs per node%s", per_job, per_node,
               nodes and string.format(" on %d nodes", nodes) or ""), "ESLURM_INVALID_GRES")
         end
         return { per_node = per_node, nodes = math.floor(per_job / per_node) }
      end
      if per_node then return { per_node = per_node, nodes = nodes or 1 } end
      if nodes then return { per_node = divided(per_job, nodes, string.format("--gpus=%d", per_job)), nodes = nodes } end
      if on_one_node then
         if most and per_job > most then
            check.refuse(string.format("--gpus=%d with %s needs --nodes: no node has so many GPUs", per_job, on_one_node),
               "ESLURM_INVALID_GRES")
         end
         return { per_node = per_job, nodes = 1 }
      end
      return { gpus = per_job }
   end

   local function refuse_impossible(form, total, partitions, types, rooms)
      if not rooms then return end
      local of = #types > 0 and " with GPUs of type " .. table.concat(types, " or ") or ""
      local where = "partition " .. check.shown(table.concat(partitions, ","))
      local most, most_nodes = gpus_on_a_node(rooms), form.per_node and nodes_with(rooms, form.per_node)
      local all = most_of(rooms, function(kind) return kind.gpus * kind.count end)
      local message
      if form.per_node and form.per_node > most then
         message = string.format("%d GPUs per node: in %s a node%s has %d at most", form.per_node, where, of, most)
      elseif form.nodes and form.nodes > most_nodes then
         message = string.format("%d nodes with %d GPUs each: %s has %d such nodes of one GPU model%s", form.nodes,
            form.per_node, where, most_nodes, of)
      elseif total > all then
         message = string.format("%d GPUs: %s has %d of one model%s", total, where, all, of)
      elseif form.gpus and not can_be_spread(rooms, form.gpus) then
         message = string.format("--gpus=%d: every node of a job has the same number of GPUs, and a node in %s%s has %d at "
            .. "most; ask for %s", form.gpus, where, of, most, others_to_ask_for(rooms, form.gpus, all))
      end
      if message then check.refuse(message, "ESLURM_INVALID_GRES") end
   end

   -- --cpus-per-gpu and --mem-per-gpu count `gpu`, which the job will not hold: say it in tasks and nodes.
   local function per_gpu(job_desc, form, write)
      local function amount(name, written)
         local text = check.text(job_desc[name])
         if not text then return nil end
         local item = not text:find(",", 1, true) and gres.item(text)
         if not item or item.name ~= "gpu" or item.kind or item.count < 1 then
            check.refuse(string.format("%s=%s: expected a number for each GPU", written, check.shown(text)),
               "ESLURM_INVALID_GRES")
         end
         write[name] = ""
         return math.floor(item.count)
      end
      local cpus, memory = amount("cpus_per_tres", "--cpus-per-gpu"), amount("mem_per_tres", "--mem-per-gpu")
      if cpus then
         local total = cpus * form.per_node * form.nodes
         local tasks = check.number(job_desc.num_tasks) or form.nodes
         if check.number(job_desc.cpus_per_task) then
            check.refuse("--cpus-per-gpu with --cpus-per-task: give one of them")
         end
         if tasks < 1 or total % tasks ~= 0 then
            check.refuse(string.format("--cpus-per-gpu: %d CPUs cannot be shared evenly by %d tasks; give --cpus-per-task",
               total, tasks))
         end
         write.cpus_per_task = math.floor(total / tasks)
         write.min_cpus = total
      end
      if memory then
         if job_desc.pn_min_memory and job_desc.pn_min_memory ~= slurm.NO_VAL64 then
            check.refuse("--mem-per-gpu with --mem or --mem-per-cpu: give one of them")
         end
         write.min_mem_per_node = memory * form.per_node
      end
   end

   local function refuse_wrong_flags(job_desc, values, total, nodes)
      local batch = check.text(job_desc.script) ~= nil
      local fixed = (not batch and "only a batch job (sbatch) can be started again elsewhere")
         or (job_desc.requeue == 0 and "--no-requeue forbids to start it again") or nil
      local range = values.gandiva_gpus
      if range and (total < range.min or total > range.max) then
         check.refuse(string.format("--gandiva-gpus=%d-%d does not contain the %d GPUs the job asks for", range.min,
            range.max, total))
      end
      if fixed and values.gandiva_suspend == "requeue" then check.refuse("--gandiva-suspend=requeue: " .. fixed) end
      if fixed and values.gandiva_migrate == "true" then check.refuse("--gandiva-migrate=yes: " .. fixed) end
      if values.gandiva_suspend == "transparent" and (total > 1 or (nodes or 1) > 1) then
         check.refuse(string.format("--gandiva-suspend=transparent: the driver can suspend jobs with one GPU only, this one "
            .. "asks for %d", total))
      end
   end

   local function quoted(text) return text and '"' .. text .. '"' or "null" end
   local function plain(value) return value and tostring(value) or "null" end

   -- Every text in it has been checked: letters, digits and a few signs that JSON takes as they are.
   local function comment(form, values, types, nodelist)
      local range = values.gandiva_gpus or {}
      local names = {}
      for index, name in ipairs(types) do names[index] = quoted(name) end
      local items = { '"v":1' }
      if form.gpus then items[#items + 1] = '"gpus":' .. plain(form.gpus) end
      items[#items + 1] = '"gpus_per_node":' .. plain(form.per_node)
      items[#items + 1] = '"nodes":' .. plain(form.nodes)
      items[#items + 1] = '"weight":' .. (values.gandiva_weight or "1")
      items[#items + 1] = '"min_gpus":' .. plain(range.min)
      items[#items + 1] = '"max_gpus":' .. plain(range.max)
      items[#items + 1] = '"pack":' .. plain(values.gandiva_pack)
      items[#items + 1] = '"migrate":' .. plain(values.gandiva_migrate)
      items[#items + 1] = '"suspend":' .. quoted(values.gandiva_suspend)
      items[#items + 1] = '"gpu_types":[' .. table.concat(names, ",") .. "]"
      items[#items + 1] = '"model":' .. quoted(values.gandiva_model)
      if values.gandiva_search then items[#items + 1] = '"search":' .. quoted(values.gandiva_search) end
      if nodelist then items[#items + 1] = '"nodelist":' .. quoted(nodelist) end
      items[#items + 1] = '"site":{}'
      local text = check.COMMENT_PREFIX .. "{" .. table.concat(items, ",") .. "}"
      if #text > MAX_COMMENT_BYTES then
         check.refuse(string.format("the request is %d bytes long, %d at most", #text, MAX_COMMENT_BYTES))
      end
      return text
   end

   -- Binding the job overwrites its node list: the controller has to know the user's own.
   local function nodelist(job_desc)
      local text = check.text(job_desc.req_nodes)
      if text and (#text > 256 or not text:match("^[A-Za-z0-9_.,%[%]-]+$")) then
         check.refuse("--nodelist=" .. check.shown(text) .. ": expected a list of nodes of at most 256 characters")
      end
      return text
   end

   -- The fields to write, or a refusal.
   local function plan(job_desc, part_list, flags)
      local values = flags.values
      local partitions = check.partitions(job_desc, part_list)
      for _, name in ipairs(partitions) do
         if #settings.partitions > 0 and not check.has(settings.partitions, name) then
            check.refuse(string.format("partition %s has no time-slicing: use %s", check.shown(name),
               table.concat(settings.partitions, ", ")))
         end
      end
      refuse_unfit(job_desc)

      local request = gres.read(job_desc)
      gres.refuse_malformed(request)
      if request.shards then
         check.refuse("shards are Gandiva's to give: ask for GPUs (--gres=gpu:N)", "ESLURM_INVALID_GRES")
      end
      if not request.any then
         check.refuse("the job asks for no GPU: add --gres=gpu:N or --gpus=N", "ESLURM_INVALID_GRES")
      end
      if #request.tres_per_node.others > 0 or #request.tres_per_job.others > 0 then
         check.refuse(string.format("--gres=%s: a time-sliced job can have no GRES but GPUs",
            check.shown(request.tres_per_node.others[1] or request.tres_per_job.others[1])), "ESLURM_INVALID_GRES")
      end
      if flags.srun and (#request.tres_per_job.gpus > 0 or #request.tres_per_task.gpus > 0) then
         check.refuse("srun outside a job takes the GPUs of a time-sliced job as --gres=gpu:N only; or use sbatch or salloc",
            "ESLURM_INVALID_GRES")
      end
      local types = gpu_types(job_desc, request, values)
      local rooms = rooms_for(partitions, types)
      local most = rooms and gpus_on_a_node(rooms)
      local on_one_node = (check.text(job_desc.cpus_per_tres) and "--cpus-per-gpu")
         or (check.text(job_desc.mem_per_tres) and "--mem-per-gpu") or nil
      local form = shape(job_desc, request, most, on_one_node)
      local total = form.gpus or form.per_node * form.nodes
      refuse_impossible(form, total, partitions, types, rooms)
      refuse_wrong_flags(job_desc, values, total, form.nodes)

      local write = {
         -- One spelling, the one that binding the job replaces; the others would stay behind and contradict it.
         tres_per_node = string.format("gres/gpu:%d", form.per_node or math.min(total, most or total)),
         tres_per_job = "",
         tres_per_socket = "",
         tres_per_task = gres.untyped({ tres_per_task = { gpus = {}, others = request.tres_per_task.others } },
            "tres_per_task"),
         admin_comment = comment(form, values, types, nodelist(job_desc)),
         priority = 0,
      }
      if (check.text(job_desc.tres_bind) or ""):find("gpu", 1, true) then write.tres_bind = "" end
      if form.nodes then
         write.min_nodes, write.max_nodes = form.nodes, form.nodes
         per_gpu(job_desc, form, write)
      end
      if job_desc.priority == 0 then
         if check.number(job_desc.begin_time) and check.number(job_desc.begin_time) > 0 then
            check.refuse("--hold with --begin: a time-sliced job keeps one of them; give one")
         end
         write.begin_time = M.USER_HOLD_TIME
      end
      return write
   end

   local function apply(job_desc, write)
      for name, value in pairs(write) do job_desc[name] = value end
   end

   -- The controller limits weights, by the QOS, else the account, else the site (docs/settings.md, [requests]).
   -- Here the user is told, as far as account and QOS are known at submission.
   local function tell_of_limit(job_desc, asked)
      local qos = check.text(job_desc.qos) or check.text(job_desc.default_qos)
      local account = check.text(job_desc.account) or check.text(job_desc.default_account)
      local by_qos = qos and settings.max_weight_by_qos[qos:lower()]
      local by_account = account and settings.max_weight_by_account[account:lower()]
      local limit = by_qos or by_account or settings.max_weight
      if not asked or tonumber(asked) <= limit then return end
      local whose = (by_qos and "QOS " .. check.shown(qos)) or (by_account and "account " .. check.shown(account))
         or "this site"
      slurm.log_user("%s", string.format("gandiva: --gandiva-weight=%s counts as %g, the limit of %s", asked, limit, whose))
   end

   -- The first line of a script that replaces PYTHONPATH, or nil: its session would not be found.
   local function loses_the_path(script)
      for line in ("\n" .. script):gmatch("\n[ \t]*([^#\n][^\n]*)") do
         local value = line:match("%f[%w_]PYTHONPATH=(.*)$") or line:match("^setenv%s+PYTHONPATH(.*)$")
            or line:match("^unset%s+PYTHONPATH(.*)$")
         if value and not value:find("PYTHONPATH", 1, true) then return line end
      end
   end

   function M.submit(job_desc, part_list, flags)
      apply(job_desc, plan(job_desc, part_list, flags))
      tell_of_limit(job_desc, flags.values.gandiva_weight)
      local line = flags.values.gandiva_suspend ~= "transparent" and loses_the_path(check.text(job_desc.script) or "")
      if line then
         slurm.log_user("%s", string.format("gandiva: after `%s` in its script `import gandiva` is not found: write "
            .. "export PYTHONPATH=FOLDER:$PYTHONPATH", check.shown(line)))
      end
   end

   -- A site may have time-slicing on for all who do not decline.
   function M.by_default(job_desc, part_list, flags)
      if settings.default ~= "on" or flags.declined then return false end
      local request = gres.read(job_desc)
      if not request.any or not gres.knows(request) then return false end
      for _, name in ipairs(check.partitions(job_desc, part_list)) do
         if #settings.partitions > 0 and not check.has(settings.partitions, name) then return false end
      end
      return true
   end

   -- Nobody asked for time-slicing: what cannot be time-sliced runs as it would without Gandiva, and says so.
   function M.submit_by_default(job_desc, part_list, flags)
      local ok, problem = pcall(plan, job_desc, part_list, flags)
      if ok then
         apply(job_desc, problem)
      elseif type(problem) == "table" and problem.refusal then
         parts.ordinary.submit(job_desc, flags)
         slurm.log_user("%s", "gandiva: not time-sliced, the job waits for GPUs of its own: " .. problem.refusal)
      else
         error(problem, 0)
      end
   end

   return M
end
