"""Layouts: the cutter writes where the fields of a packed value are."""

import pytest

from penstock.core.scripts import cut
from penstock.core.sections import layouts

CLAIM = """\
-- What a claim has.
claim = layout {
  number = "I6", -- of the claim
  state = "c1",
  flags = "B",
  losses = "B",
  tries = "H",
  tenant = "Bc0",
  keys = "*",
}

ends = { EARLY = 7 }

pair = layout { word = "Hc0", name = "Bc0" }
"""


def body(*lines: str) -> list[str]:
    """The lines that the server gets of these statements of a script."""
    statements = "".join(f"  {line}\n" for line in lines)
    script = f"--- args: held: str, n: int\nfunction script.s(held, n)\n{statements}end"
    (found,) = cut({"claim.lua": CLAIM, "queue.lua": script}).values()
    return found.source.split("\n")[3:]


@pytest.mark.parametrize(
    ("written", "cut_to"),
    [
        ("claim.number(held)", '(struct.unpack(">I6", held))'),
        ("claim.state(held)", "string.sub(held, 7, 7)"),
        ("claim.flags(held)", "string.byte(held, 8)"),
        ("claim.tries(held)", '(struct.unpack(">H", held, 10))'),
        ("claim.tenant(held)", "string.sub(held, 13, 12 + string.byte(held, 12))"),
        ("claim.tenant_size(held)", "string.byte(held, 12)"),
        ("claim.keys(held)", "string.sub(held, 13 + string.byte(held, 12))"),
        ("claim.number_bytes(held)", "string.sub(held, 1, 6)"),
        ("claim.AT_TENANT + 1", "12 + 1"),
        ("pair.word(held)", 'string.sub(held, 3, 2 + (struct.unpack(">H", held)))'),
        ("pair.name(held)", '(select(2, struct.unpack(">Hc0Bc0", held)))'),
        ("claim.flags(KEYS[n]) + n", "string.byte(KEYS[n], 8) + n"),
    ],
)
def test_a_field_is_read_where_it_is(written: str, cut_to: str):
    assert body(f"return {written}") == [f"return {cut_to}"]


def test_a_copy_changes_only_the_named_fields():
    assert body("return claim.with(held, { flags = 1 })") == [
        "return (string.sub(held, 1, 7) .. string.char(1) .. string.sub(held, 9))"
    ]
    assert body("return claim.with(held, {", "  losses = n + 1, number = n, -- both", "})") == [
        'return (struct.pack(">I6", n) .. string.sub(held, 7, 8) .. string.char(n + 1) .. string.sub(held, 10))'
    ]
    assert body("return claim.with(held, { flags = n, losses = 0, tries = 1 })") == [
        'return (string.sub(held, 1, 7) .. struct.pack(">BBH", n, 0, 1) .. string.sub(held, 12))'
    ]


def test_a_new_value_has_all_fields_in_the_order_of_the_layout():
    assert body("return pair.pack({ name = held, word = held })") == [
        'return struct.pack(">Hc0Bc0", #held, held, #held, held)'
    ]
    values = 'state = "x", flags = 0, number = n, losses = 0, tries = 0, tenant = held'
    assert body(f"return claim.pack({{ {values}, keys = held .. n }})") == [
        'return (struct.pack(">I6c1BBHBc0", n, "x", 0, 0, 0, #held, held) .. (held .. n))'
    ]


def test_several_fields_are_read_at_once_into_locals():
    """What lies between them is read as a number that nobody uses, because `struct` passes single bytes slowly."""
    assert body("local was = claim.fields(held)", "was.tries = was.tries + n", "return was.flags, was.tries") == [
        'local was_flags, was_tries = struct.unpack(">BxH", held, 8)',
        "was_tries = was_tries + n",
        "return was_flags, was_tries",
    ]
    assert body("local was = claim.fields(held)", "return was.tenant, was.number, 'was.flags'") == [
        'local was_number, _, was_tenant = struct.unpack(">I6I5Bc0", held)',
        "return was_tenant, was_number, 'was.flags'",
    ]


def test_the_rest_of_the_value_may_be_among_several_fields():
    assert body("local was = claim.fields(held)", "return was.keys, was.tenant") == [
        'local was_tenant, was_keys = struct.unpack(">Bc0", held, 12); was_keys = string.sub(held, was_keys)',
        "return was_keys, was_tenant",
    ]
    assert body("local was = claim.fields(held)", "return was.state, was.keys") == [
        'local was_state, _, _, was_keys = struct.unpack(">c1I4Bc0", held, 7); was_keys = string.sub(held, was_keys)',
        "return was_state, was_keys",
    ]


def test_one_field_is_read_without_the_others():
    assert body("local was = claim.fields(held)", "return was.flags") == [
        "local was_flags = string.byte(held, 8)",
        "return was_flags",
    ]


def test_others_may_be_declared_with_the_fields():
    assert body("local was, more, n = claim.fields(held), 1, 2", "return was.flags, was.losses, more, n") == [
        'local was_flags, was_losses = struct.unpack(">BB", held, 8)',
        "local more, n = 1, 2",
        "return was_flags, was_losses, more, n",
    ]


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("return claim.age(held)", "calls claim.age, which does not exist"),
        ("return claim.flags()", "calls claim.flags with 1 arguments|claim.flags with 0"),
        ("return claim.tenant(held .. n)", "reads claim.tenant from an expression: pass a local"),
        ("return claim.with(held .. n, { flags = 1 })", "copies a claim from an expression: pass a local"),
        ("return claim.with(held, { age = 1 })", "names the field claim.age, which does not exist"),
        ("return claim.with(held, { tenant = held })", "sets claim.tenant, which has no fixed size"),
        ("return claim.with(held, n)", "gives no table of fields"),
        ("return claim.pack({ number = 1 })", "packs a claim without state and flags"),
        ("return claim.fields(held)", "does not begin with `local name = `"),
        ("local was = claim.fields(held)\n  return was", "uses was without a field: it is no table"),
        ("local was = claim.fields(held)\n  return was.age", "names the field claim.age, which does not exist"),
        ("local was = claim.fields(held .. n)\n  return was.flags, was.keys", "reads claim.keys from an expression"),
        ("local was = claim.fields(held)\n  return 1", "does not use was"),
    ],
)
def test_a_wrong_use_is_refused(statement: str, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        body(statement)


@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        ('age = "Q"', "claim.age = 'Q' is no field"),
        ('with = "B"', "claim.with = 'B' is no field"),
        ('name = "Bc0", age = "B"', "claim.age is behind a text"),
        ('AGE = "B"', "may only hold name"),
    ],
)
def test_a_wrong_field_is_refused(field: str, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        layouts("claim.lua", f"claim = layout {{ {field} }}\n")
