-- SPDX-License-Identifier: GPL-2.0-or-later
-- The --gandiva flags, as they reach slurmctld: entries `_SLURM_SPANK_OPTION_gandiva_<flag>=<value>`.
-- Loaded by gandiva.lua.

return function(parts)
   local check, settings = parts.check, parts.settings
   local M = {}

   local PREFIX = "_SLURM_SPANK_OPTION_gandiva_"

   local MAX_WEIGHT = 100 -- what is above the site's limits is said in gandiva_request.lua

   -- N or N.N as JSON writes it, without going through floating point.
   local function weight(value)
      local whole, fraction = value:match("^(%d+)%.?(%d*)$")
      if not whole or #value > 12 or value:sub(-1) == "." then return nil end
      local number = tonumber(value)
      if not number or number < 0.1 or number > MAX_WEIGHT then return nil end
      whole = whole:gsub("^0+(%d)", "%1")
      fraction = fraction:gsub("0+$", "")
      return fraction == "" and whole or whole .. "." .. fraction
   end

   local function range(value)
      local min, max = value:match("^([1-9]%d?%d?%d?)%-([1-9]%d?%d?%d?)$")
      if not min then return nil end
      min, max = tonumber(min), tonumber(max)
      if min > max or max > 4096 then return nil end
      return { min = min, max = max }
   end

   local function yes_no(value)
      if value == "yes" then return "true" elseif value == "no" then return "false" end
      return nil
   end

   local function suspend(value)
      if check.has({ "cooperative", "transparent", "requeue" }, value) then return value end
      return nil
   end

   local function gpu_types(value)
      local types = {}
      if #value > 600 or value:find("^,") or value:find(",$") or value:find(",,", 1, true) then return nil end
      for written in value:gmatch("[^,]+") do
         local name = parts.gres.meant(written)
         if not name or check.has(types, name) or #types == 16 then return nil end
         types[#types + 1] = name
      end
      return #types > 0 and types or nil
   end

   local function name_of(value)
      return #value <= 64 and value:match("^[A-Za-z0-9._+-]+$") or nil
   end

   local flags = {
      gandiva = {},
      no_gandiva = {},
      gandiva_weight = { parse = weight, expected = string.format("a number from 0.1 to %g", MAX_WEIGHT) },
      gandiva_gpus = { parse = range, expected = "MIN-MAX, such as 1-4, from 1 to 4096 with MIN not above MAX" },
      gandiva_pack = { parse = yes_no, expected = "yes or no" },
      gandiva_migrate = { parse = yes_no, expected = "yes or no" },
      gandiva_suspend = { parse = suspend, expected = "cooperative, transparent or requeue" },
      gandiva_gpu_types = { parse = gpu_types,
         expected = "different GPU models of this cluster (" .. table.concat(settings.models, ",") .. ")" },
      gandiva_model = { parse = name_of, expected = "1 to 64 letters, digits and . _ + -" },
      gandiva_search = { parse = name_of, expected = "1 to 64 letters, digits and . _ + -" },
   }

   -- Returns a table of parsed values by flag, and: asked (any flag asks for time-slicing), first (the first
   -- of them, for messages), declined (--no-gandiva), srun (the client is an srun that makes its own job).
   function M.read(environment)
      local read = { values = {} }
      for _, entry in pairs(environment or {}) do
         local name, value = tostring(entry):match("^([^=]*)=(.*)$")
         if name == "GANDIVA_CLIENT" then read.srun = value == "srun" end
         if name and name:sub(1, #PREFIX) == PREFIX then
            local flag = name:sub(#PREFIX + 1)
            local rule = flags[flag]
            local written = "--" .. flag:gsub("_", "-")
            if not rule then check.refuse("unknown flag " .. check.shown(written)) end
            if read.values[flag] ~= nil then check.refuse(written .. " is given twice") end
            local parsed = true
            if rule.parse then
               parsed = rule.parse(value)
               if parsed == nil then
                  check.refuse(string.format("%s=%s: expected %s", written, check.shown(value), rule.expected))
               end
            end
            read.values[flag] = parsed
            if flag == "no_gandiva" then
               read.declined = true
            else
               read.asked = true
               -- pairs has no order: always name the same one.
               if not read.first or written < read.first then read.first = written end
            end
         end
      end
      if read.declined and read.asked then
         check.refuse(string.format("--no-gandiva contradicts %s: give one of them", read.first))
      end
      return read
   end

   return M
end
