"""The folding of names: of every Unicode character, and of names that people type."""

import json
import re
import sys
from functools import cache
from typing import Literal
from unicodedata import category, name, normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.completion.card import card, card_name, elements, name_and_id, parse_element, split_elements
from penstock.completion.fold import (
    Equivalents,
    check_name,
    check_storable,
    fold,
    split_marks,
    tails,
    typed_words,
    words,
)
from penstock.completion.spelling import encode_equivalents
from penstock.errors import BadName

_TYPED_AS_APOSTROPHE = (
    "'`\u00b4\u2018\u2019\u201b\u2032\u02b9\u02bb\u02bc\u02bd\u02be\u02bf\u02c8\u0384\u1fbd\u1ffd\u05f3\ua78c"
)


def is_apostrophe(char: str) -> bool:
    return char in _TYPED_AS_APOSTROPHE or (
        "APOSTROPHE" in name(char, "") and "LETTER" not in name(char) and category(char) != "Cf"
    )


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
        assert len(folded.encode()) <= 11 * len(line[0].encode()), ascii(line)


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
        ("ma  s", "Ma Smith"),
        (" ma smith ", "Ma Smith"),
        ("o’br", "O'Brien"),
        ("o'br", "O´Brien"),
        ("jean-l", "Jean\u2011Luc"),
        ("ⅳ", "Ivan"),
    ],
)
def test_typed_text_finds_the_name(typed: str, name: str):
    if typed == "σοφος":  # ο finds ό only at the end of the typed text, or with accents=False
        assert not fold(name).startswith(fold(typed))
        assert fold(name, accents=False).startswith(fold(typed, accents=False))
    else:
        assert fold(name).startswith(fold(typed))


@pytest.mark.parametrize(("typed", "name"), [("é", "Emile"), ("한", "하다"), ("ma s", "Mary"), ("î", "ısparta")])
def test_typed_accents_are_respected(typed: str, name: str):
    assert not fold(name).startswith(fold(typed))


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("é", "Emile"),
        ("eric", "Éric"),
        ("lodz", "Łódź"),
        ("gudmundur", "Guðmundur"),
        ("aegir", "Ægir"),
        ("Ø", "o"),
        ("nguyen", "Nguyễn"),
        ("דוד", "דָּוִד"),
        ("محمد", "مُحَمَّد"),
    ],
)
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
        (b"Ann", "a str is needed, and this is of type bytes"),
        (None, "a str is needed, and this is of type NoneType"),
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
    assert [text[a:b] for a, b in words(text)] == ["jean", "pierre", "d", "arc", "the", "2nd", "👨👩", "すみす"]
    assert tails("ma smith") == ["ma smith", "smith"]
    assert tails("(ma) smith") == ["(ma) smith", "ma) smith", "smith"]
    assert len(tails("a " * 100)) == 8


@pytest.mark.parametrize("name", ["Ann", "ann", "Ma Smith", "Zoë", "名前", "Émile de la Tour", "ß", "-x-", "ÉMILE x"])
@pytest.mark.parametrize("accents", [True, False])
def test_the_elements_of_a_card_are_its_tails(name: str, accents: bool):
    folded = fold(name, accents=accents)
    for id in ("", "u1"):
        plain, in_words = card(name, [folded]), card(name, [folded], words=True)
        assert [parse_element(one) for one in elements(plain, id)] == [(folded, name, id or name)]
        assert [parse_element(one).tail for one in elements(in_words, id)] == tails(folded)
        assert {parse_element(one)[1:] for one in elements(in_words, id)} == {(name, id or name)}
        assert card_name(plain) == card_name(in_words) == name


def test_a_card_with_several_texts_has_the_tails_of_all():
    several = card("张 W", ["张 w", "zhang w", "zw"], words=True)
    assert several == "\1张 \1w\4\1zhang \1w\4\1zw\0张 W".encode()
    assert [parse_element(one).tail for one in elements(several, "")] == ["张 w", "w", "zhang w", "w", "zw"]
    assert [parse_element(one).tail for one in elements(card("张", ["张", "zhang"]), "u")] == ["张", "zhang"]


def test_the_card_of_an_ascii_name_is_the_name_alone():
    assert card("Ann", ["ann"]) == card("Ann", ["ann"], words=True) == b"Ann"
    assert card("名前", ["名前"]) == "名前".encode()
    assert card("É", [fold("É")]) == "e\u0301\0É".encode()
    assert json.dumps(card("Ma S", ["ma s"], words=True).decode()) == r'"\u0001ma \u0001s\u0000Ma S"'


# --- signs that people type in several ways ---


def signs(kind: str) -> list[str]:
    """The characters of Unicode of a category, or the apostrophes. It takes a second: too long for a collection."""
    every = map(chr, range(0x110000))
    return [char for char in every if (is_apostrophe(char) if kind == "apostrophe" else category(char) == kind)]


def test_every_apostrophe_of_unicode_is_one():
    for sign in signs("apostrophe"):
        assert {fold(normalize(form, f"O{sign}Brien")) for form in FORMS} == {"o'brien"}, ascii(sign)


def test_every_hyphen_and_dash_of_unicode_is_one():
    for sign in [*signs("Pd"), "\u2212", "\u2043"]:
        assert {fold(normalize(form, f"Jean{sign}Luc")) for form in FORMS} == {"jean luc"}, ascii(sign)


def test_every_space_of_unicode_is_one_and_none_is_at_an_end():
    for sign in signs("Zs"):
        for accents in (True, False):
            assert fold(f"{sign}Ma{sign}{sign} Smith{sign}", accents=accents) == "ma smith", ascii(sign)
            assert fold(f"Zoë{sign} {sign}é{sign}", accents=accents) == fold("Zoë é", accents=accents), ascii(sign)


def test_letters_that_look_like_signs_stay():
    assert fold("ラーメン") == "らーめん"  # the long vowel is no dash
    assert fold("a’b") == "a'b"
    assert fold("a/b") == "a/b"


def test_typed_words_are_separated_by_spaces_only():
    assert typed_words("O’Br  smi-ja", fold) == ["o'br", "smi ja"]
    assert typed_words("(ma), smith, - ", fold) == ["ma", "smith"]
    assert typed_words("", fold) == typed_words("- '", fold) == []
    assert len(typed_words("a " * 20, fold)) == 8


def test_the_marks_of_the_last_letter_are_split_off():
    assert split_marks(fold("nguyệ")) == ("nguye", "\u0323\u0302")
    assert split_marks("nguye") == ("nguye", "")
    assert split_marks(fold("בּ")) == ("ב", "\u05bc")
    assert split_marks("\u0301") == ("\u0301", "")
    assert split_marks("") == ("", "")


# --- equivalents ---


def test_replaced_letters_make_two_spellings_equal():
    table = Equivalents((("ü", "ue"), ("ё", "е"), ("Ø", "oe")))
    for form in FORMS:
        assert fold(normalize(form, "MÜLLER Øre Семён"), equivalents=table) == "mueller oere семен"
    assert fold("Mu", equivalents=table) == "mu"


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"sch": "š"}, "replace one letter by others"),
        ({"": "a"}, "replace one letter"),
        ({"-": "a"}, "replace one letter"),
        ({"ü": ""}, "replace the letter by 1 to 4 letters"),
        ({"ü": "u e"}, "replace the letter by 1 to 4 letters"),
        ({"ü": 5}, "replace the letter by 1 to 4 letters"),
        ({"a": "b", "b": "c"}, "'b' is replaced itself"),
        ({"a": "aa"}, "'a' is replaced itself"),
        ({chr(n): "x" for n in range(0x4E00, 0x4E00 + 65)}, "65 equivalents: at most 64"),
    ],
)
def test_a_table_of_equivalents_that_makes_no_sense_is_refused(table, why: str):
    with pytest.raises(BadName, match=re.escape(why)):
        encode_equivalents(table)


def test_a_table_of_equivalents_is_stored_in_one_form():
    assert encode_equivalents({"Ё": "Е", "ü": "UE"}) == encode_equivalents({"u\u0308": "ue", "ё": "е"})
    assert encode_equivalents({}) == ""


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"no name",
        b"two\nlines\0Two\nlines",
        b"fold\0Name\0id\1keys",
        b"fold\0\xff\0u1",
        b"fold\0Name\0\0",
        b"fold\0Name\0a\0b",
    ],
)
def test_the_elements_of_a_page_are_split_as_each_one_alone(odd: bytes) -> None:
    for page in ([], [b"ann\0Ann"], [b"ann\0Ann", odd, b"bo\0Bo\0u2"], [odd]):
        split = split_elements(page)
        assert [(one[1], one[-1] or one[1]) for one in split] == [name_and_id(element) for element in page]
