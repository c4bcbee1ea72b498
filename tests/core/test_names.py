"""The refusals of names that become part of ids."""

import re
from pathlib import Path

import pytest

from penstock import ConfigurationError, Penstock


@pytest.mark.parametrize("name", ["邮件", "Straße", "٣", "a b", "a:b", "", "x" * 101])
def test_a_refused_name_says_which_characters_are_allowed_and_why(name: str, tmp_path: Path):
    app = Penstock(f"unix://{tmp_path}/nobody")
    rule = re.escape("use 1 to 100 letters (a to z), digits, '_', '-' or '.', because the name is part of ids")
    with pytest.raises(ConfigurationError, match=f"queue name .*: {rule}"):
        app.queue(name)
    with pytest.raises(ConfigurationError, match=f"receiver name .*: {rule}"):
        app.files("logs").receiver(name)
