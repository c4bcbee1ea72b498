-- The rules of contacts or a directory, in the field `rules` of `meta`: the format, and the settings that decide what
-- is stored. Each call sends the rules that its program uses. If the stored rules differ, the script changes nothing
-- and returns the stored ones, as a string.

-- Returns the stored rules if they differ.
--- (rules: str) -> str | nil
--- uses: meta
function name_rules.differing(rules)
  local stored = redis.call("HGET", meta, "rules")
  if stored and stored ~= rules then return stored end
end
