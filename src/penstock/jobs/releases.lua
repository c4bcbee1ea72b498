-- The releases of the app whose workers serve the queue, and the tasks that each of them knows.
--
--   workers       HASH   incarnation -> registration, in MessagePack: server ms of its first turn, name, address,
--                        whether it is supervised, how many deaths of its host a suspect may have (nil: see
--                        recovery.lua), batch (linger.lua) or nil, name and code of its release, and JSON for people
--   releases      HASH   code -> how many live workers have it, and its name
--   tasks:<code>  SET    the tasks that its workers know; exists as long as `releases` has the code
--
-- Two workers have the same code if they have the same name of a release, and the same tasks with the same parameters
-- (release.py). A call that one of them cannot read, the other cannot read either; a worker of another code may.

_release = { LOOKED_AT = 16 } -- codes: a queue has one, and two while a new release is deployed

-- The fields of a registration, or nil if another program has damaged it.
--- (packed: str | false) -> table | nil
--- seldom
function releases.parse(packed)
  local function unpacked()
    local _, since, name, address, supervised, host_deaths, batch, release, code = cmsgpack.unpack_limit(packed, 8, 0)
    return {
      since = since, name = name, address = address, supervised = supervised, host_deaths = host_deaths, batch = batch,
      release = release, code = code,
    }
  end
  local intact, its = pcall(unpacked)
  return intact and type(its.code) == "string" and its or nil
end

-- The registration of an incarnation; nil if it has ended, or is a program without a worker.
--- (incarnation: str) -> table | nil
--- uses: base
--- seldom
function releases.of(incarnation)
  local packed = redis.call("HGET", base .. "workers", incarnation)
  return packed and releases.parse(packed)
end

-- How many live workers have this code, and the name of its release.
--- (code: str) -> int, str
--- uses: base
--- seldom
function releases.count(code)
  local n, name = string.match(redis.call("HGET", base .. "releases", code) or "", "^(%d+) (.*)$")
  return tonumber(n) or 0, name or ""
end

-- Adds a worker. `sent`: the names of its tasks, then its registration without the time. Returns the registration.
--- (incarnation: str, sent: str, now: int) -> table | nil
--- uses: base
--- seldom
function releases.join(incarnation, sent, now)
  local at, tasks = cmsgpack.unpack_limit(sent, 1, 0)
  local packed = cmsgpack.pack(now) .. string.sub(sent, at + 1)
  redis.call("HSET", base .. "workers", incarnation, packed)
  local its = releases.parse(packed)
  if its and its.code ~= "" then
    local n = releases.count(its.code)
    if n == 0 and #tasks > 0 then batch.write("SADD", base .. "tasks:" .. its.code, tasks) end
    redis.call("HSET", base .. "releases", its.code, string.format("%d %s", n + 1, its.release))
  end
  return its
end

-- Removes a worker whose registration this was. With the last worker of a code, the tasks of that code are removed too.
--- (incarnation: str, packed: str)
--- uses: base
--- seldom
function releases.leave(incarnation, packed)
  redis.call("HDEL", base .. "workers", incarnation)
  local its = releases.parse(packed)
  if not its or its.code == "" then return end
  local n, name = releases.count(its.code)
  if n > 1 then
    redis.call("HSET", base .. "releases", its.code, string.format("%d %s", n - 1, name))
  else
    redis.call("HDEL", base .. "releases", its.code)
    redis.call("UNLINK", base .. "tasks:" .. its.code)
  end
end

-- The name of a release with another code that has a live worker, or nil.
--- (code: str) -> str | nil
--- uses: base
--- seldom
function releases.other_than(code)
  local two = redis.call("HRANDFIELD", base .. "releases", 2, "WITHVALUES")
  for i = 1, #two, 2 do
    if two[i] ~= code then return string.match(two[i + 1], "^%d+ (.*)$") end
  end
end

-- Whether a live worker knows the task.
--- (task: str) -> bool
--- uses: base
--- seldom
function releases.know(task)
  local codes = redis.call("HRANDFIELD", base .. "releases", _release.LOOKED_AT)
  if #codes == _release.LOOKED_AT then return true end -- probably
  for i = 1, #codes do
    if redis.call("SISMEMBER", base .. "tasks:" .. codes[i], task) == 1 then return true end
  end
  return false
end
