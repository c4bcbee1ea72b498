-- The shape: the format, and the settings that decide what is stored, in the field `shape` of `meta`. A call names the
-- shape it believes in; where another is stored, that is the answer, a string, and nothing was done.

--- (mine: str) -> str | nil
--- uses: meta
function shape.other(mine)
  local stored = redis.call("HGET", meta, "shape")
  if stored and stored ~= mine then return stored end
end
