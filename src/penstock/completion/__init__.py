"""Contacts and directories: completion of names while a user types them.

In the server:

    directory.lua         the scripts that change a directory
    search.lua            the scripts that read it
    match.lua             compares typed text with the names of the index
    rank.lua              the order by weight
    facts.lua             the weight and the payload of a name
    contacts.lua          the scripts of contacts

In Python:

    fold.py               the form in which two names are compared
    spelling.py           further spellings of a name: replaced letters, and pinyin
    card.lua, card.py     a name as it is stored, and the index from ids to names
    name_rules.lua, name_rules.py
                          the rules that are fixed when the first name is stored
    keys.py               their keys
    constants.py          constants of their Lua
    bindings.py           their scripts as round trips
    storage.py, sharded_storage.py
                          a directory in one slot, and in several shards
    search.py             searches by prefix, words, weight, and with typos
    entry.py              names to store, and the entries that searches return
    highlight.py          where a name matches what was typed
    directory.py          the directory of a group
    contacts.py           the contacts of a user
"""
