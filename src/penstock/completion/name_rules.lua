-- The rules of contacts or a directory, in the field `rules` of `meta`: the format, and the settings that decide what
-- is stored. Each call is sent the rules that its program goes by. If others are stored, the script changes nothing and
-- returns these, as a string.

-- Returns the stored rules if they differ.
--- (rules: str) -> str | nil
--- uses: meta
function name_rules.differing(rules)
  local stored = redis.call("HGET", meta, "rules")
  if stored and stored ~= rules then return stored end
end
