-- What a directory may store about a name: a weight (see rank.lua), and a payload, which means something only to the
-- application.
--
--   payloads  HASH  rest (card.lua) -> payload
--
-- A script receives a change of a weight as "=<n>" (set it; 0 removes it), "+<n>" (add to it) or "" (leave it), and a
-- change of a payload as "=<bytes>" (set it; "=" removes it) or "".

_heaviest = { WEIGHT = 1000000000000000000 } -- 10^18: no sum of weights becomes infinite

-- Changes the weight and the payload of a name.
--- (state: table, elements: table, rest: str, weight: str, payload: str)
--- uses: base
function facts.change(state, elements, rest, weight, payload)
  if weight ~= "" then
    local value = tonumber(string.sub(weight, 2))
    if string.sub(weight, 1, 1) == "+" then
      value = value - tonumber(redis.call("ZSCORE", base .. "top:", elements[1]) or 0)
    end
    if value > 0 then rank.put(state, elements, math.min(value, _heaviest.WEIGHT)) else rank.drop(state, elements) end
  end
  if #payload > 1 then
    redis.call("HSET", base .. "payloads", rest, string.sub(payload, 2))
    state.payloads = true
  elseif payload ~= "" then
    redis.call("HDEL", base .. "payloads", rest)
  end
end

-- Removes the weight and the payload of a name. Returns them as two changes, which set them again.
--- (state: table, elements: table, rest: str) -> str, str
--- uses: base
function facts.drop(state, elements, rest)
  local weight = state.weighed and rank.drop(state, elements)
  local payload = state.payloads and redis.call("HGET", base .. "payloads", rest)
  if payload then redis.call("HDEL", base .. "payloads", rest) end
  return weight and "=" .. string.format("%.17g", weight) or "", payload and "=" .. payload or ""
end

-- Returns { stop, elements }, or { stop, elements, negative weights, payloads } if any name of the directory has a
-- weight or a payload.
--- (stop: any, elements: table) -> table
--- uses: base
function facts.reply(stop, elements)
  if #elements == 0 or facts.none() then return { stop, elements } end
  return facts.added(stop, elements)
end

-- Whether no name of the directory has a weight or a payload.
--- () -> bool
--- uses: base
--- inline
function facts.none()
  return redis.call("EXISTS", base .. "weighed", base .. "payloads") == 0
end

-- Returns { stop, elements, negative weights, payloads }.
--- (stop: any, elements: table) -> table
--- uses: base
function facts.added(stop, elements)
  local rests = {}
  for i = 1, #elements do rests[i] = card.rest(elements[i]) end
  return {
    stop, elements, redis.call("ZMSCORE", base .. "top:", unpack(elements)),
    redis.call("HMGET", base .. "payloads", unpack(rests)),
  }
end
