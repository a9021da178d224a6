-- SPDX-License-Identifier: GPL-2.0-or-later
-- Stands in for slurmctld's Lua: reads one Lua expression a line (a case), writes one JSON object a line.
-- Usage: lua harness.lua FOLDER_OF_THE_MODULE [JOB_SUBMIT_LUA]. The first line is the settings.

local folder = arg[1]

local UNSET = { NO_VAL = 0xfffffffe, NO_VAL16 = 0xfffe, NO_VAL8 = 0xfe, NO_VAL64 = 18446744073709551614.0 }

-- As job_submit_lua.c reads and writes job_desc_msg_t: kind of each field, and what it is when not given.
local STRINGS = {}
for name in ([[account admin_comment array_inx comment cpus_per_tres dependency exc_nodes features gres licenses
   mem_per_tres name partition prefer qos req_nodes reservation script tres_bind tres_freq tres_per_job tres_per_node
   tres_per_socket tres_per_task]]):gmatch("%S+") do STRINGS[name] = true end
local NUMBERS = { begin_time = 0, bitflags = 0, contiguous = 0, immediate = 0, min_cpus = 1, user_id = 1000 }
for name in ("cpus_per_task num_tasks max_nodes min_nodes max_cpus priority time_limit het_job_offset"):gmatch("%S+") do
   NUMBERS[name] = UNSET.NO_VAL
end
for name in ("ntasks_per_node ntasks_per_socket ntasks_per_tres requeue shared sockets_per_node"):gmatch("%S+") do
   NUMBERS[name] = UNSET.NO_VAL16
end
NUMBERS.pn_min_memory = UNSET.NO_VAL64
local READ_ONLY = { cron_job = true, het_job_offset = true, user_id = true }

local said, logged

slurm = { SUCCESS = 0, ERROR = -1, FAILURE = -1, ESLURM_INVALID_GRES = 2072, ESLURM_ACCESS_DENIED = 2002,
   INFINITE = 0xffffffff, INFINITE64 = 18446744073709551615.0, JOB_SHARED_NONE = 0, JOB_SHARED_OK = 1,
   JOB_SHARED_USER = 2, JOB_SHARED_MCS = 3, EXPEDITED_REQUEUE = 2 ^ 45 }
for name, value in pairs(UNSET) do slurm[name] = value end
function slurm.log_user(...) said[#said + 1] = string.format(...) end
function slurm.log_error(...) logged[#logged + 1] = "error: " .. string.format(...) end
function slurm.log_info(...) logged[#logged + 1] = "info: " .. string.format(...) end

local function description(given, changes)
   local fields = {}
   for name, value in pairs(given) do fields[name] = value end
   return setmetatable({}, {
      __index = function(_, name)
         if fields.explode == name then error("a field that cannot be read") end
         local value = fields[name]
         if name == "environment" or name == "spank_job_env" then return value end
         if name == "pn_min_memory" and fields.min_mem_per_node then return fields.min_mem_per_node + 0.0 end
         if value == nil then value = NUMBERS[name] end
         if type(value) == "number" then return value + 0.0 end -- lua_pushnumber
         return value
      end,
      __newindex = function(_, name, value)
         if READ_ONLY[name] or not (STRINGS[name] or NUMBERS[name] or name == "min_mem_per_node") then
            error("unrecognized field: " .. tostring(name))
         end
         if STRINGS[name] then
            assert(type(value) == "string", name .. " wants a string")
            fields[name] = value ~= "" and value or nil
         else
            assert(type(value) == "number" and value == math.floor(value), name .. " wants a whole number")
            fields[name] = value
         end
         changes[name] = value
      end,
   })
end

local function json(value)
   if type(value) == "string" then
      return '"' .. value:gsub('[%c"\\\127-\255]', function(c) return string.format("\\u%04x", c:byte()) end) .. '"'
   elseif type(value) == "number" then
      return string.format("%.0f", value)
   elseif type(value) == "boolean" then
      return tostring(value)
   elseif #value > 0 or next(value) == nil then
      local items = {}
      for index, item in ipairs(value) do items[index] = json(item) end
      return "[" .. table.concat(items, ",") .. "]"
   end
   local items = {}
   for name, item in pairs(value) do items[#items + 1] = json(tostring(name)) .. ":" .. json(item) end
   return "{" .. table.concat(items, ",") .. "}"
end

local function evaluate(line) return assert(load("return " .. line, "case", "t", {}))() end

said, logged = {}, {}
local settings = evaluate(io.read("l"))
local real_dofile = dofile
function dofile(path)
   if path:find("gandiva_settings.lua$") then return settings end
   if path:find("/gandiva.lua$") then path = folder .. "/gandiva.lua" end
   return real_dofile(path)
end
local gandiva = dofile("/gandiva.lua")
if arg[2] then
   real_dofile(arg[2])
   gandiva = { job_submit = slurm_job_submit, job_modify = slurm_job_modify }
end
io.write(json({ logged = logged }), "\n")
io.flush()

for line in io.lines() do
   said, logged = {}, {}
   local case = evaluate(line)
   local changes = {}
   local job_desc = description(case.job or {}, changes)
   local ok, rc
   if case.record then
      local record = setmetatable({}, { __index = case.record })
      ok, rc = pcall(gandiva.job_modify, job_desc, record, case.partitions or {}, case.uid or 1000)
   else
      ok, rc = pcall(gandiva.job_submit, job_desc, case.partitions or {}, case.uid or 1000)
   end
   io.write(json({ raised = not ok, rc = ok and rc or 0, problem = ok and "" or tostring(rc), said = said,
      logged = logged, changes = { fields = changes, environment = (case.job or {}).environment or {} } }), "\n")
   io.flush()
end
