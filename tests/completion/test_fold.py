"""The folding of names: of every Unicode character, and of names that people type."""

import json
import re
import sys
from functools import cache
from typing import Literal
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import BadName
from penstock.completion.card import card, card_name, members, parse_member
from penstock.completion.fold import check_name, check_storable, fold, tails, words

FORMS: tuple[Literal["NFC", "NFD", "NFKC", "NFKD"], ...] = ("NFC", "NFD", "NFKC", "NFKD")


@cache
def normalizations() -> list[tuple[str, ...]]:
    """Characters, each with its four forms, as in NormalizationTest.txt of Unicode, for the Unicode version of this
    Python."""
    return [
        (char, *(normalize(form, char) for form in FORMS))
        for char in map(chr, range(sys.maxunicode + 1))
        if not "\ud800" <= char < "\ue000"
        and (char < "\u3000" or char.casefold() != char or normalize("NFKD", char) != char)
    ]


def test_every_form_of_every_character_folds_alike():
    assert len(normalizations()) > 25_000
    for line in normalizations():
        folded = fold(line[0])
        assert {fold(form) for form in line} == {folded}, ascii(line)
        assert fold(folded) == folded, ascii(line)


def test_case_makes_no_difference_to_any_letter():
    for char in (line[0] for line in normalizations()):
        if char.isalpha():
            assert {fold(char.upper()), fold(char.lower()), fold(char.title())} == {fold(char)}, ascii(char)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30))
def test_every_form_of_a_text_folds_alike(text: str):
    for accents in (True, False):
        folded = fold(text, accents=accents)
        assert {fold(normalize(form, text), accents=accents) for form in FORMS} == {folded}
        assert fold(folded, accents=accents) == folded


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("e", "Émile"),
        ("E", "émile"),
        ("é", "Émile"),
        ("하", "한국"),
        ("ㅎ", "한국"),
        ("strasse", "Straße"),
        ("STRASSE", "straße"),
        ("straße", "STRASSE"),
        ("ﬁ", "Fiona"),
        ("fi", "ﬁona"),
        ("σοφος", "Σοφός"),
        ("ΣΟΦΌΣ", "σοφός"),
        ("istanbul", "İSTANBUL"),
        ("ısparta", "ISPARTA"),
        ("isparta", "Isparta"),
        ("IRMAK", "ırmak"),
        ("名", "名前"),
        ("葛", "葛\U000e0100城"),
        ("ｱﾝ", "アンナ"),
        ("ガ", "ｶﾞﾘﾚｵ"),
        ("دا", "داوود"),
        ("דו", "\u200fדוד"),
        ("👨", "👨\u200d👩\u200d👧 Smith"),
        ("👨\u200d👩", "👨\u200d👩\u200d👧 Smith"),
        ("❤", "❤\ufe0f Ann"),
        ("❤\ufe0f", "❤ Ann"),
        ("ma ", "Ma\u00a0Smith"),
        ("ⅳ", "Ivan"),
    ],
)
def test_typed_text_finds_the_name(typed: str, name: str):
    if typed == "σοφος":  # ο finds ό only at the end of the typed text, or with accents=False
        assert not fold(name).startswith(fold(typed))
        assert fold(name, accents=False).startswith(fold(typed, accents=False))
    else:
        assert fold(name).startswith(fold(typed))


@pytest.mark.parametrize(("typed", "name"), [("é", "Emile"), ("한", "하나"), ("ma ", "Mary"), ("î", "ısparta")])
def test_typed_accents_are_respected(typed: str, name: str):
    assert not fold(name).startswith(fold(typed))


@pytest.mark.parametrize(
    ("typed", "name"),
    [("é", "Emile"), ("eric", "Éric"), ("lodz", "Łódź"), ("gudmundur", "Guðmundur"), ("aegir", "Ægir"), ("Ø", "o"),
     ("nguyen", "Nguyễn"), ("דוד", "דָּוִד"), ("محمد", "مُحَمَّد")],
)  # fmt: skip
def test_without_accents_a_letter_and_its_accented_form_are_equal(typed: str, name: str):
    assert fold(name, accents=False).startswith(fold(typed, accents=False))


@pytest.mark.parametrize(("one", "other"), [("か", "が"), ("राम", "रम"), ("กา", "กู")])
def test_signs_that_turn_a_letter_into_another_one_are_kept(one: str, other: str):
    assert fold(one, accents=False) != fold(other, accents=False)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("\u200b\ufe0f", "empty"),
        ("\u3164", "empty"),
        ("a\0b", "control character at 1"),
        ("a\nb", "control character"),
        ("\x7f", "control character"),
        ("a\u2028", "control character"),
        ("\ud800", "control character"),
        ("x" * 10_240, "10,240 bytes, the limit is 1,024"),
        ("名" * 400, "1,200 bytes"),
        (b"Ann", "a text is wanted, not a bytes"),
        (None, "a text is wanted, not a NoneType"),
    ],
)
def test_a_bad_name_is_refused_with_a_reason(name, why: str):
    with pytest.raises(BadName, match=re.escape(why)):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "名" * 341, "x" * 1024, "👩\u200d🚀", "O'Brien", "Ma  Smith ", "{x}", "\ufffd"])
def test_a_name_in_any_script_is_accepted(name: str):
    assert check_name(name) == name


def test_a_prefix_may_be_empty():
    assert check_storable("", "prefix") == ""


def test_marks_are_in_canonical_order_whatever_invisible_characters_are_between():
    assert fold("a\u0301\u034f\u0323") == fold("a\u0323\u0301") == "a\u0323\u0301"


def test_spaces_and_punctuation_separate_words():
    text = fold("Jean-Pierre d’Arc (the 2nd) 👨\u200d👩 ・スミス")
    assert [text[a:b] for a, b in words(text)] == ["jean", "pierre", "d", "arc", "the", "2nd", "👨👩", "スミス"]
    assert tails("ma smith") == ["ma smith", "smith"]
    assert tails("(ma) smith") == ["(ma) smith", "ma) smith", "smith"]
    assert len(tails("a " * 100)) == 8


@pytest.mark.parametrize("name", ["Ann", "ann", "Ma Smith", "Zoë", "名前", "Émile de la Tour", "ß", "-x-", "ÉMILE x"])
@pytest.mark.parametrize("accents", [True, False])
def test_the_members_of_a_card_are_its_tails(name: str, accents: bool):
    folded = fold(name, accents=accents)
    for id in ("", "u1"):
        plain, in_words = card(name, accents=accents), card(name, accents=accents, words=True)
        assert [parse_member(one) for one in members(plain, id)] == [(folded, name, id or name)]
        assert [parse_member(one).tail for one in members(in_words, id)] == tails(folded)
        assert card_name(plain) == card_name(in_words) == name


def test_the_card_of_an_ascii_name_is_the_name_alone():
    assert card("Ann", accents=True) == b"Ann"
    assert card("名前", accents=True) == "名前".encode()
    assert card("É", accents=True) == "e\u0301\0É".encode()
    assert json.dumps(card("Ma S", accents=True, words=True).decode()) == r'"ma \u0001s\u0000Ma S"'
