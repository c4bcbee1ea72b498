-- The rules of contacts or a directory, in the field `shape` of `meta`: the format, and the settings that decide what
-- is stored. Each call is sent the rules that its program goes by. If others are stored, the script changes nothing and
-- returns these, as a string.

-- Returns the stored rules if they differ.
--- (mine: str) -> str | nil
--- uses: meta
function shape.other(mine)
  local stored = redis.call("HGET", meta, "shape")
  if stored and stored ~= mine then return stored end
end
