-- The rules of contacts or a directory, in the field `rules` of `meta`: the format, and the settings that decide what
-- is stored. Each call sends the rules that its program uses. If the stored rules differ, the script changes nothing
-- and returns the stored ones, as a string.

-- The frame of a script that runs only with the stored rules.
--- uses: meta rules
function frame.rules()
  local other = redis.call("HGET", meta, "rules")
  if other and other ~= rules then return other end
  -- …
end

-- The frame of a script that recognises a repeated call, and returns its first answer again.
--- uses: base meta caller number rules
function frame.once(...)
  local other = redis.call("HGET", meta, "rules")
  if other and other ~= rules then return other end
  local past = idempotency.replay(caller, number)
  if past then return past end
  -- …
  return idempotency.keep(caller, number, ...)
end
