"""Secrets in a store's URL: the server is shown, its password never."""

import os
from urllib.parse import quote

import pytest

from pollux.config import load_config
from pollux.runtime.isolation import _secrets_in
from pollux.secrets import HIDDEN, hide

PASSWORD = "open/sesame 42"
WRITTEN = quote(PASSWORD, safe="")


@pytest.fixture(autouse=True)
def forget():
    HIDDEN.clear()
    yield
    HIDDEN.clear()


def loaded(folder, store, **environ):
    (folder / "pollux.yaml").write_text(f'store: "{store}"\n')
    return load_config(str(folder / "pollux.yaml"), environ=environ).store


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////var/lib/p.db", "sqlite:////var/lib/p.db"),
        ("redis://db:6379/11", "redis://db:6379/11"),
        (f"redis://:{WRITTEN}@db:6379/11", "redis://:***@db:6379/11"),
        (f"postgresql://ann:{WRITTEN}@db/pollux?sslmode=require", "postgresql://ann:***@db/pollux?sslmode=require"),
        (f"postgresql://ann@db/pollux?sslpassword={WRITTEN}", "postgresql://ann@db/pollux?sslpassword=***"),
        ("redis+sentinel://:a:colon:ed@one:1,two:2/main/0", "redis+sentinel://:***@one:1,two:2/main/0"),
    ],
)
def test_the_address_is_seen_and_its_password_is_not(tmp_path, url, shown):
    assert loaded(tmp_path, "${env:MYSTORE}", MYSTORE=url) == url
    assert hide(f"started on {url}") == f"started on {shown}"
    assert HIDDEN.hide_in({"store": url}) == {"store": shown}


@pytest.mark.parametrize("form", [PASSWORD, WRITTEN, quote(WRITTEN, safe=""), repr(PASSWORD)])
def test_the_password_by_itself_is_seen_nowhere(tmp_path, form):
    loaded(tmp_path, "${env:MYSTORE}", MYSTORE=f"redis://:{WRITTEN}@db/1")
    assert (
        hide(f"WRONGPASS {form} is no password")
        == f"WRONGPASS {form.replace(form.strip(chr(39)), '***')} is no password"
    )


@pytest.mark.parametrize(
    ("store", "value"),
    [
        ("${env:MYSTORE}", "redis://:short@db/1"),  # too short to be found by itself
        ("${env:MYSTORE}", "postgresql://ann@db/x?password=short"),
        ("${env:MYSTORE}@db/1", "redis://:open-sesame"),  # what it ends with nobody can tell
        ("redis://:${env:MYSTORE}@db/1", "open-sesame"),
        ("sqlite:///${env:MYSTORE}/p.db", "/var/lib/secret"),
    ],
)
def test_a_value_that_cannot_be_taken_apart_is_hidden_as_a_whole(tmp_path, store, value):
    loaded(tmp_path, store, MYSTORE=value)
    assert hide(f"a {value} b") == "a *** b"


@pytest.mark.parametrize("odd", ["redis://:pass/word@db/1", "redis://:p@ssword@db/1", "redis://:pass word@db/1"])
def test_a_password_that_is_not_encoded_is_hidden_with_all_around_it(tmp_path, odd):
    loaded(tmp_path, "${env:MYSTORE}", MYSTORE=odd)
    assert hide(f"a {odd} b") == "a *** b"


def test_a_child_that_inherits_the_address_hides_its_password(tmp_path, monkeypatch):
    monkeypatch.setenv("MYSTORE", "redis://:open-sesame@db/1")
    loaded(tmp_path, "${env:MYSTORE}", **os.environ)
    assert _secrets_in({}) == ["open-sesame"]
