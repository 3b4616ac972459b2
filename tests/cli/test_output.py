"""What commands print on stdout."""

import json
import os

from mptui.cli.output import print_json


def test_json_is_utf8_whatever_a_name_is(capfdbinary):
    name = os.fsdecode(b"caf\xe9.png")  # Latin-1, as a file system keeps it
    print_json({"file": name, "of": "café"})
    printed = capfdbinary.readouterr().out

    assert json.loads(printed.decode()) == {"version": 1, "file": name, "of": "café"}
    assert "café".encode() in printed
