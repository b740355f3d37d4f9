"""Secrets: which variables hold one, and texts without them."""

from __future__ import annotations

import pytest

from halter._secrets import is_secret, redact, secrets_of


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("OPENAI_API_KEY", True),
        ("aws_secret_access_key", True),
        ("AWS_ACCESS_KEY_ID", True),
        ("GITHUB_TOKEN", True),
        ("DB_PASSWORD", True),
        ("DB_PWD", True),
        ("GITHUB_PAT", True),
        ("GOOGLE_APPLICATION_CREDENTIALS", True),
        ("HALTER_KEY", True),
        ("DATABASE_URL", True),
        ("SENTRY_DSN", True),
        ("PATH", False),
        ("PWD", False),
        ("OLDPWD", False),
        ("HOME", False),
        ("LANG", False),
        ("SSH_AUTH_SOCK", False),
        ("KEYBOARD_LAYOUT", False),
        ("PYTHONPATH", False),
        ("SSL_CERT_FILE", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("GIT_AUTHOR_NAME", False),
    ],
)
def test_what_looks_like_a_secret(name: str, is_one: bool) -> None:
    """Secrets are known by their names, whatever the case."""
    assert is_secret(name) is is_one


def test_texts_without_secrets() -> None:
    """Secrets are hidden completely, also one that contains another; short values stay, for they match anything."""
    found = secrets_of({"A_TOKEN": "abcdefgh", "B_KEY": "abcdefgh-and-more", "PIN": "1234", "HOME": "/home/somebody"})
    assert redact("abcdefgh-and-more, abcdefgh, 1234", found) == "[hidden], [hidden], 1234"
