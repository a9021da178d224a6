-- SPDX-License-Identifier: GPL-2.0-or-later
-- Refusing, and reading fields of Slurm's records. Loaded by gandiva.lua.

local M = {}

M.COMMENT_PREFIX = "gandiva:"

-- Stop here and tell the user. `code` names one of Slurm's error codes.
function M.refuse(message, code)
   error({ refusal = message, code = code }, 0)
end

-- Users' text in a message or a log: one short line of plain characters.
function M.shown(text)
   text = tostring(text):gsub("[^\32-\126]", "?")
   if #text > 80 then text = text:sub(1, 77) .. "..." end
   return text
end

-- A number that was given, or nil: Slurm has several values for "not given", by the width of the field.
function M.number(value)
   if type(value) ~= "number" then return nil end
   for _, unset in ipairs({ "NO_VAL", "NO_VAL16", "NO_VAL64", "NO_VAL8", "INFINITE", "INFINITE64" }) do
      if value == slurm[unset] then return nil end
   end
   -- 64-bit values arrive as floating point and may be off by a little.
   if value >= 2 ^ 63 then return nil end
   return math.floor(value)
end

-- A text that was given, or nil.
function M.text(value)
   if type(value) ~= "string" or value == "" then return nil end
   return value
end

-- (26.05) slurmctld starts it again at once, and nobody may change it before: it cannot be given other GPUs.
function M.refuse_expedited(job_desc, code)
   local flag = slurm.EXPEDITED_REQUEUE
   if flag and math.floor((M.number(job_desc.bitflags) or 0) / flag) % 2 == 1 then
      M.refuse("--requeue=expedite: Slurm would start it again on its own, before its GPUs are free: give --requeue", code)
   end
end

function M.has(list, wanted)
   for _, item in ipairs(list) do
      if item == wanted then return true end
   end
   return false
end

function M.drop_forged_comment(job_desc, uid)
   local comment = M.text(job_desc.admin_comment)
   if comment and comment:sub(1, #M.COMMENT_PREFIX) == M.COMMENT_PREFIX then
      slurm.log_info("gandiva: dropped a forged request in the admin_comment of a job of uid %d", M.number(uid) or -1)
      job_desc.admin_comment = ""
   end
end

-- The partitions a job may run in, by name.
function M.partitions(job_desc, part_list)
   local names = {}
   local text = M.text(job_desc.partition)
   if text then
      for name in text:gmatch("[^,]+") do names[#names + 1] = name end
   else
      for name, part in pairs(part_list or {}) do
         if part.flag_default == 1 then names[#names + 1] = name end
      end
   end
   return names
end

-- Numbers of users given by name or number.
local function uids(users)
   local found = { [0] = true }
   local names = {}
   for _, user in ipairs(users) do
      if type(user) == "number" then found[user] = true else names[user] = true end
   end
   local file = next(names) and io.open("/etc/passwd", "r")
   if file then
      for line in file:lines() do
         local name, uid = line:match("^([^:]+):[^:]*:(%d+):")
         if name and names[name] then
            found[tonumber(uid)] = true
            names[name] = nil
         end
      end
      file:close()
   end
   for name in pairs(names) do
      slurm.log_error("gandiva: settings: user %s is not in /etc/passwd here: give the number", M.shown(name))
   end
   return found
end

-- The settings, checked: a mistake is told when slurmctld starts, not at the thousandth job.
function M.settings(given)
   local function wrong(key, expected)
      error(string.format("gandiva_settings.lua: %s: expected %s; make it with `gandiva config slurm`", key, expected))
   end
   if type(given) ~= "table" or given.version ~= 1 then wrong("version", "1") end
   if given.default ~= "on" and given.default ~= "off" then wrong("default", '"on" or "off"') end
   if type(given.max_weight) ~= "number" then wrong("max_weight", "a number") end
   for _, key in ipairs({ "trusted_users", "partitions", "models", "nodes" }) do
      if type(given[key]) ~= "table" then wrong(key, "a table") end
   end
   for _, key in ipairs({ "max_weight_by_account", "max_weight_by_qos" }) do
      if given[key] ~= nil and type(given[key]) ~= "table" then wrong(key, "a table") end
      for name, weight in pairs(given[key] or {}) do
         if type(weight) ~= "number" then wrong(key .. "." .. tostring(name), "a number") end
      end
   end
   -- (Settings made by an earlier version do not have these.)
   local settings = { trusted = uids(given.trusted_users), max_weight_by_account = {}, max_weight_by_qos = {}, aliases = {},
      shard_types = {} }
   for key, value in pairs(given) do settings[key] = value end
   return settings
end

return M
